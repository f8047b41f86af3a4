"""How much longer a GPU's work takes at a lower clock: candidate curves, weighed by what has been measured.

With x = highest clock / clock - 1, work that the SM clock binds takes x more time and work that waits for memory or for
the host takes none. Measured curves (22 workloads on a V100: GPU-DVFS-Dataset; EasyWave on an A100: REGALE D2.3 §3.4)
are convex in x: a gentle slope down to a knee, then a steeper one. So the candidates are

    loss(x) = a x + c max(0, x - k)

on a grid of a, c and k (ours). A rate measured at several clocks (memory traffic, say) is proportional to
1 / (1 + loss) with an unknown factor, whose best value for each candidate follows in closed form. So are the units per
second that an application reports. Mean and spread over the candidates, weighed by their likelihood, are what a policy
may count on. Without a useful measurement the spread stays wide, up to the clock-bound case.

No measurement shows the error of traffic itself. But no work slows down by more than the clock, and many kernels slow
down by exactly as much. So a loss that may be the clock-bound one is treated as that (``CurveBank.taken_for``):
clock-bound work saves least at a lower clock and would lose most by a mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from pmu.layout import Gpu
from pmu.readings import type_f64, type_i64

LEVELS: Final = 32
"""The most clocks that are distinguished (ours)."""

_GENTLE: Final = np.concatenate([np.arange(0.0, 0.30, 0.025), np.arange(0.30, 1.25, 0.06)])
_STEEP: Final = (0.5, 1.1)
_KNEES: Final = (0.04, 0.08, 0.13, 0.19, 0.26, 0.35, 0.45, 0.58, 0.75)
_STEEPEST: Final = 1.7

MAY_BE_BOUND: Final = (0.7, 0.8)
"""A loss above the second share of the clock-bound loss counts as clock-bound, one below the first is used as it is,
and in between the two are interpolated (ours). Traffic that falls by 20 % less than speed shows clock-bound work at
0.8; noise shows it below."""


class Estimator(NamedTuple):
    """A ``rate`` ``[LEVELS]`` that goes with the speed, and its relative standard ``error``, infinite where nothing was
    measured."""

    rate: type_f64
    error: type_f64


@dataclass(frozen=True, slots=True, eq=False)
class Beliefs:
    """``mean`` and ``deviation`` ``[LEVELS]`` of the loss that estimators show; ``share`` ``[n_curves]``: the weight of
    each candidate; ``loss`` ``[n_curves, LEVELS]``: the candidates."""

    mean: type_f64
    deviation: type_f64
    share: type_f64
    loss: type_f64

    def correlation(self, level: int) -> type_f64:
        """Correlation of the loss at each level with that at ``level``: 1 = who knows one knows the other."""
        together = (self.share * self.loss[:, level]) @ self.loss - self.mean * self.mean[level]
        scale = self.deviation * self.deviation[level]
        return np.asarray(np.clip(together / np.maximum(scale, 1e-12), -1.0, 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class CurveBank:
    """Candidate curves over the clock levels of one card; level 0 is the highest clock.

    ``mhz`` ``[LEVELS]`` descends and repeats its last clock; ``stretch`` is x at each level; ``loss`` and ``log_time``
    are ``[n_curves, LEVELS]``.
    """

    mhz: type_i64
    n_levels: int
    stretch: type_f64
    loss: type_f64
    log_time: type_f64
    log_prior: type_f64
    widest: type_f64  # deviation of the loss at each level while nothing is known

    def weigh(self, traffic: Estimator, ceiling: float, progress: Estimator | None = None) -> Beliefs:
        """Estimate the loss at every level from what estimators show at some of them.

        Each rate is proportional to the speed, with an unknown factor of its own. Curves much above ``ceiling * x`` are
        ruled out: host time does not stretch with the GPU's clock.
        """
        last = self.n_levels - 1
        excess = self.loss[:, last] - (1.1 * ceiling + 0.05) * self.stretch[last]
        weight = self.log_prior - 0.5 * (np.maximum(excess, 0.0) / 0.05) ** 2
        distance, _ = self._distance(traffic)
        weight = weight - 0.5 * distance
        if progress is not None:
            # further from every curve than counting explains: units of several kinds, so they count for less
            distance, free = self._distance(progress)
            weight = weight - 0.5 * distance / max(float(distance.min()) / max(free, 1), 1.0)
        share = np.exp(weight - weight.max())
        share /= share.sum()
        mean = share @ self.loss
        return Beliefs(mean, np.sqrt(np.maximum(share @ self.loss**2 - mean**2, 0.0)), share, self.loss)

    def _distance(self, estimator: Estimator) -> tuple[type_f64, int]:
        """Squared distance of a rate from each candidate, in standard errors; how many levels are free to differ."""
        rate, error = estimator
        used = np.flatnonzero(np.isfinite(error) & (rate > 0))
        if len(used) < 2:
            return np.zeros(len(self.log_prior)), 0
        residual = self.log_time[:, used] + np.log(rate[used])
        precision = error[used] ** -2.0
        factor = residual @ precision / precision.sum()
        return np.asarray((residual - factor[:, None]) ** 2 @ precision), len(used) - 1

    def taken_for(self, loss: type_f64, ceiling: float, sure: float = 0.0) -> type_f64:
        """The loss to assume for a ``loss`` ``[LEVELS]`` that estimators show: the clock-bound one where it may be so.
        ``sure``: 1 = they are known not to err."""
        most = ceiling * self.stretch
        least, surely = MAY_BE_BOUND
        nearness = (1.0 - sure) * np.clip((loss / np.maximum(most, 1e-9) - least) / (surely - least), 0.0, 1.0)
        return np.asarray(loss + nearness * np.maximum(most - loss, 0.0))

    def unknown(self, beliefs: Beliefs) -> type_f64:
        """How much of the loss at each level is still unknown: 1 = as much as before any measurement."""
        return np.asarray(np.minimum(beliefs.deviation / self.widest, 1.0) ** 2)


def curve_bank(gpu: Gpu, floor: float) -> CurveBank:
    """The candidates for one card, down to ``floor`` of its highest clock; kept, once for all cards of such clocks."""
    return _bank(gpu.clocks_mhz, floor)


@lru_cache(maxsize=32)
def _bank(clocks_mhz: tuple[int, ...], floor: float) -> CurveBank:
    mhz = _levels(clocks_mhz, floor)
    top = max(int(mhz[0]), 1)
    stretch = top / np.maximum(mhz, 1) - 1.0 if mhz[0] else np.zeros(LEVELS)
    shapes = [(a, 0.0, 0.0) for a in _GENTLE]
    shapes += [(a, c, k) for a in _GENTLE for c in _STEEP for k in _KNEES if a + c <= _STEEPEST]
    a, c, k = np.array(shapes).T[:, :, None]
    loss = a * stretch + c * np.maximum(stretch - k, 0.0)
    # a priori each stretch of gentle slopes counts by its width, and a straight curve as much as all bent ones
    width = np.interp(a[:, 0], _GENTLE, np.gradient(_GENTLE))
    siblings = np.where(c[:, 0] == 0, 1.0, len(_STEEP) * len(_KNEES))
    prior = width / siblings / (width / siblings).sum()
    widest = np.sqrt(np.maximum(prior @ loss**2 - (prior @ loss) ** 2, 1e-12))
    return CurveBank(mhz, len(set(mhz.tolist())), stretch, loss, np.log1p(loss), np.log(prior), widest)


def _levels(clocks_mhz: Sequence[int], floor: float) -> type_i64:
    """Descending clocks: about 1 % of the highest apart near the top, where a loss bound binds, wider further down."""
    if not clocks_mhz:
        return np.zeros(LEVELS, np.int64)
    top = clocks_mhz[-1]
    chosen = [top]
    for mhz in reversed(clocks_mhz):
        gap = (0.009 + 0.05 * (1.0 - chosen[-1] / top)) * top
        if mhz >= floor * top and chosen[-1] - mhz >= gap and len(chosen) < LEVELS:
            chosen.append(mhz)
    return np.array(chosen + [chosen[-1]] * (LEVELS - len(chosen)), np.int64)

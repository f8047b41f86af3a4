"""The 95 % interval of the mean of neighbouring windows, which are not independent.

The few windows of one stay do not show how their mean errs: an error that lasts a second looks like a level. So all
stays of a session are taken together. What two windows differ by, over the time between them (the variogram), is fitted
as a sum of three errors: one that fades from window to window (AR(1)), one of each window alone, and one of the moment
of a reading, which two neighbouring windows have with opposite signs, as of counters that move in steps. How large the
sum is, each series says for itself (a kernel on a number of cores). Source: Law, Simulation Modeling and Analysis,
section 9.5 (correlated observations); Cressie, Statistics for Spatial Data, section 2.4 (variograms).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
import numpy as np

from foundation.student import Z95, student_t
from pmu.readings import type_f64

K = TypeVar("K", bound=Hashable)

FEWEST: Final = 4
"""Ours: no interval from a series with fewer windows, whose scatter is too uncertain itself."""

FADING: Final = (0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)
"""Ours: correlations of neighbouring windows that are tried for the error that fades."""

LONGEST: Final = 8
"""Ours: windows further apart are too few to say anything."""


class Mean(msgspec.Struct, frozen=True):
    """A mean and half of its 95 % interval (infinite where there are too few windows to say). ``n``: windows."""

    value: float
    half: float
    n: int = 0

    @property
    def deviation(self) -> float:
        """Standard deviation of the mean, as of a normal distribution with this interval."""
        return self.half / Z95


def means_of(
    stays: Mapping[K, Sequence[Sequence[float]]],
    series: Mapping[K, Hashable],
    last: int | None = None,
) -> dict[K, Mean]:
    """For each key the mean over the windows of its stays, each in order; NaN and no interval without any window.
    ``series``: keys whose windows err by the same share. ``last``: only so many of a stay are of its mean; all show how
    windows err, and a long stay does it best."""
    whole = {key: _sound(own) for key, own in stays.items()}
    kept = {key: [stay[-last:] if last else stay for stay in own] for key, own in whole.items()}
    values = {key: float(np.concatenate(own).mean()) if own else math.nan for key, own in kept.items()}
    relative = _relative(whole, values, series)
    scatter = {name: _scatter(own) for name, own in relative.items()}
    covariance = _covariance([stay / scatter[name] for name, own in relative.items() for stay in own if scatter[name]])
    return {
        key: _mean(values[key], own, relative.get(series[key], []), scatter.get(series[key], 0.0), covariance)
        for key, own in kept.items()
    }


def _relative(
    stays: Mapping[K, Sequence[type_f64]], values: Mapping[K, float], series: Mapping[K, Hashable]
) -> dict[Hashable, list[type_f64]]:
    """The stays of each series over the mean of their key."""
    found: dict[Hashable, list[type_f64]] = {}
    for key, own in stays.items():
        if own and values[key]:
            found.setdefault(series[key], []).extend(stay / values[key] for stay in own)
    return found


def _mean(
    value: float, own: Sequence[type_f64], pooled: Sequence[type_f64], scatter: float, covariance: type_f64
) -> Mean:
    """``pooled``: the relative windows of its whole series, which scatter by so much within stays."""
    n = sum(stay.size for stay in own)
    if not n or sum(stay.size - 1 for stay in pooled) < FEWEST - 1:
        return Mean(value, math.inf, n)
    size = scatter / math.sqrt(max(_expected(pooled, covariance), TINY))
    variance = sum(stay.size**2 * _of_mean(stay.size, covariance) for stay in own) / n**2
    half = student_t(max(_freedom(pooled), 1)) * size * math.sqrt(max(variance, 0.0)) * abs(value)
    return Mean(value, max(half, _between(own)), n)


TINY: Final = 1e-12
"""Keeps what does not scatter at all from being divided by."""


def _sound(stays: Sequence[Sequence[float]]) -> list[type_f64]:
    kept = [np.asarray([one for one in stay if not math.isnan(one)], np.float64) for stay in stays]
    return [stay for stay in kept if stay.size]


def _scatter(stays: Sequence[type_f64]) -> float:
    """Standard deviation within stays."""
    freedom = sum(stay.size - 1 for stay in stays)
    return math.sqrt(sum(float(np.square(stay - stay.mean()).sum()) for stay in stays) / freedom) if freedom else 0.0


def _freedom(stays: Sequence[type_f64]) -> int:
    """Of an estimate from correlated windows: about half of what independent ones would have."""
    return sum(stay.size - 1 for stay in stays) // 2


def _covariance(stays: Sequence[type_f64]) -> type_f64:
    """Of two windows by the windows between them, ``[LARGEST]``: the three errors that explain the variogram best."""
    lags = np.arange(_LARGEST)
    counts, variogram = np.zeros(LONGEST), np.zeros(LONGEST)
    for stay in stays:
        for lag in range(1, min(LONGEST, stay.size - 1) + 1):
            change = stay[lag:] - stay[:-lag]
            counts[lag - 1] += change.size
            variogram[lag - 1] += float(change @ change) / 2
    alone = np.array(lags == 0, np.float64)
    moment = np.where(lags == 0, 2.0, np.where(lags == 1, -1.0, 0.0))
    best: type_f64 = alone
    least = math.inf
    seen = counts > 0
    if not seen.any():
        return best
    variogram = variogram[seen] / counts[seen]
    weight = np.sqrt(counts[seen])
    for fading in FADING:
        errors = np.stack([fading ** lags.astype(float), alone, moment])
        shown = (errors[:, :1] - errors[:, 1 : LONGEST + 1])[:, seen].T
        for chosen in _CHOICES:
            part = shown[:, chosen] * weight[:, None]
            sizes = np.linalg.lstsq(part, variogram * weight, rcond=None)[0]
            left = float(np.square(part @ sizes - variogram * weight).sum())
            if min(sizes) >= 0 and left < least:
                best, least = np.sum(sizes[:, None] * errors[chosen], axis=0), left
    return best


_CHOICES: Final = [list(chosen) for size in (1, 2, 3) for chosen in itertools.combinations(range(3), size)]
_LARGEST: Final = 256


def _of_mean(n: int, covariance: type_f64) -> float:
    """Variance of the mean of n neighbouring windows."""
    lags = np.arange(1, n)
    between = covariance[np.minimum(lags, _LARGEST - 1)]
    return float(n * covariance[0] + 2 * ((n - lags) @ between)) / n**2


def _expected(stays: Sequence[type_f64], covariance: type_f64) -> float:
    """Variance within these stays, by the covariance."""
    freedom = sum(stay.size - 1 for stay in stays)
    return float(sum(stay.size * (covariance[0] - _of_mean(stay.size, covariance)) for stay in stays) / freedom)


def _between(stays: Sequence[type_f64]) -> float:
    """What a few stays differ by is no smaller for having many windows in each: half of their span."""
    means = [float(stay.mean()) for stay in stays]
    return (max(means) - min(means)) / 2 if means else 0.0

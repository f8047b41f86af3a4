"""Quantities over the clock: measured at some clocks, predicted at the others with their uncertainty.

The curves of all series (a kernel on a number of cores) are one Gaussian process: for each series a physical shape with
free coefficients, and around it smooth deviations of which the size is learned. Watts have the shape
``a + b u + c u^3`` (idle; leakage; switching, whose voltage rises with the clock); the time of a unit of work has
``a + b / u`` (memory; core), where ``u`` is the clock over the highest.

Voltage is a table of the processor, and all kernels have the same: where watts of one series deviate from the shape,
those of the others do, in proportion to what their watts change by over the clock. So a clock that one series has shown
need not be measured for each (``SHARED``). The size of the deviations is no single value: each that was tried counts by
its likelihood and by what is known before (``ASSUMED``).
Source: Rasmussen and Williams, Gaussian Processes for Machine Learning, sections 2.7 and 5.4.1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from foundation.student import Z95
from pmu.readings import type_f64

K = TypeVar("K", bound=Hashable)

LENGTHS: Final = (0.08, 0.25)
"""Ours: the deviation forgets its value within so much of the clock's relative range: a knee of the voltage, and a
gentle bend. Both are tried."""

STEP: Final = {"watts": 0.002, "time": 0.0}
"""Ours: voltage is set in steps of some 5 mV, which moves the watts of a clock by so much of what they change by, one
standard deviation; no neighbour shows it."""

ASSUMED: Final = 0.02
ASSUMED_WEIGHT: Final = 8.0
"""Ours: relative size of the deviation before anything is known, and how many points that counts for."""

SIZES: Final = tuple(float(ASSUMED * factor) for factor in np.geomspace(0.1, 16.0, 14))
"""Sizes that are tried."""

WIDE: Final = 10.0
"""Standard deviation of the coefficients, relative to the value at the top: nearly free."""

SHARED: Final = {"watts": 0.9, "time": 0.0}
"""Ours: share of the deviation's variance that all series have together."""

NO_CLOCK: Final = 1e-6
"""Relative clocks less apart are one."""

LEAST_RANGE: Final = 0.1
"""Ours: of a series whose watts hardly change, so much may deviate as if they changed by this share."""

SHAPES: Final[dict[str, Callable[[type_f64], type_f64]]] = {
    "watts": lambda u: np.stack([np.ones_like(u), u, u**3], 1),
    "time": lambda u: np.stack([np.ones_like(u), 1.0 / u], 1),
}


@dataclass(frozen=True, slots=True)
class Given:
    """``values`` at ``clocks`` (ascending or not, any unit), of which each has a standard deviation, and the clocks
    ``at`` which they are wanted."""

    clocks: Sequence[float]
    values: Sequence[float]
    deviations: Sequence[float]
    at: Sequence[float]


@dataclass(frozen=True, slots=True)
class Curve:
    """Predictions at some clocks: ``value`` and ``half`` of the 95 % interval, ``[n]`` each."""

    value: type_f64
    half: type_f64


def predict(shape: str, given: Mapping[K, Given]) -> dict[K, Curve]:
    """The curve of each series. Without any value it is NaN with an infinite interval; with a single clock it is flat,
    and uncertain elsewhere."""
    known = {key: one for key, one in given.items() if len(one.values) and np.isfinite(one.values).all()}
    nothing = {key: Curve(np.full(len(one.at), np.nan), np.full(len(one.at), np.inf)) for key, one in given.items()}
    if not known:
        return nothing
    top = max(max(*one.clocks, *one.at) for one in known.values())
    scales = [float(np.max(np.abs(one.values))) or 1.0 for one in known.values()]
    have = _Rows.of(shape, [np.asarray(one.clocks) / top for one in known.values()], list(known.values()), scales)
    want = _Rows.of(shape, [np.asarray(one.at) / top for one in known.values()], list(known.values()), scales)
    y = np.concatenate([np.asarray(one.values) / scale for one, scale in zip(known.values(), scales, strict=True)])
    noise = np.concatenate(
        [
            np.square(np.maximum(np.nan_to_num(np.asarray(one.deviations, np.float64) / scale, posinf=1.0), 1e-6))
            for one, scale in zip(known.values(), scales, strict=True)
        ]
    )
    mean, deviation = _mixture(have, want, y, noise)
    found, first = dict(nothing), 0
    for (key, one), scale in zip(known.items(), scales, strict=True):
        part = slice(first, first + len(one.at))
        found[key], first = Curve(mean[part] * scale, Z95 * deviation[part] * scale), part.stop
    return found


@dataclass(frozen=True, slots=True)
class _Rows:
    """Clocks of all series one after the other: which series, the shape's terms, relative clock, how much a deviation
    counts there, and the share of it that all have together."""

    series: type_f64
    terms: type_f64
    clocks: type_f64
    ranges: type_f64
    shared: float
    step: float

    @classmethod
    def of(cls, shape: str, clocks: Sequence[type_f64], given: Sequence[Given], scales: Sequence[float]) -> _Rows:
        own = [float(np.ptp(one.values)) / scale for one, scale in zip(given, scales, strict=True)]
        ranges = [max(one, LEAST_RANGE) if SHARED[shape] else 1.0 for one in own]
        return cls(
            np.repeat(np.arange(len(clocks), dtype=np.float64), [len(one) for one in clocks]),
            SHAPES[shape](np.concatenate(clocks)),
            np.concatenate(clocks),
            np.repeat(ranges, [len(one) for one in clocks]),
            SHARED[shape],
            STEP[shape],
        )

    def free(self, other: _Rows) -> type_f64:
        """Covariance of the shapes, whose coefficients are nearly free."""
        return np.asarray(WIDE**2 * (self.terms @ other.terms.T) * self._is_same(other))

    def smooth(self, other: _Rows, length: float) -> type_f64:
        """Covariance of deviations of size 1 (Matern, 5/2)."""
        distance = np.sqrt(5.0) * self._apart(other) / length
        near = (1 + distance + distance**2 / 3) * np.exp(-distance)
        return np.asarray(self._together(other) * near)

    def steps(self, other: _Rows) -> type_f64:
        """Covariance of what each clock has for itself."""
        return np.asarray(self.step**2 * self._together(other) * (self._apart(other) < NO_CLOCK))

    def _apart(self, other: _Rows) -> type_f64:
        return np.asarray(np.abs(self.clocks[:, None] - other.clocks[None, :]))

    def _together(self, other: _Rows) -> type_f64:
        """How far deviations of two rows go together, were their clocks the same."""
        share = self.shared + (1 - self.shared) * self._is_same(other)
        return np.asarray(self.ranges[:, None] * other.ranges[None, :] * share)

    def _is_same(self, other: _Rows) -> type_f64:
        return np.asarray(self.series[:, None] == other.series[None, :], np.float64)


def _mixture(have: _Rows, want: _Rows, y: type_f64, noise: type_f64) -> tuple[type_f64, type_f64]:
    """Mean and standard deviation over all sizes and lengths of the deviation."""
    free, free_cross = have.free(have) + have.steps(have) + np.diag(noise), want.free(have) + want.steps(have)
    smooth_own = np.square(want.ranges)
    free_own = np.einsum("ij,ij->i", want.terms, want.terms) * WIDE**2 + want.step**2 * smooth_own
    smooths = {length: (have.smooth(have, length), want.smooth(have, length)) for length in LENGTHS}
    logarithms, means, variances = [], [], []
    for size, (smooth, smooth_cross) in itertools.product(SIZES, smooths.values()):
        root = np.linalg.cholesky(free + size**2 * smooth)
        white = np.linalg.solve(root, y)
        cross = np.linalg.solve(root, (free_cross + size**2 * smooth_cross).T)
        before = -ASSUMED_WEIGHT / 2 * (2 * np.log(size) + (ASSUMED / size) ** 2)
        logarithms.append(before - float(white @ white) / 2 - float(np.log(np.diag(root)).sum()))
        means.append(cross.T @ white)
        variances.append(free_own + size**2 * smooth_own - np.einsum("ji,ji->i", cross, cross))
    weights = np.exp(np.array(logarithms) - max(logarithms))
    weights /= weights.sum()
    mean = weights @ np.array(means)
    variance = weights @ (np.maximum(variances, 0.0) + np.square(np.array(means) - mean))
    return mean, np.sqrt(variance)

"""The 95 % interval of the mean of neighbouring windows, which are not independent.

Windows are joined to batches: as many as there are stays, or pairs, fours, ... of windows within a stay, until the
means of neighbouring batches are uncorrelated. The batches' scatter then says how certain their mean is (Student's t).
Source: Law, Simulation Modeling and Analysis, section 9.5.3, batch means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from pmu.readings import type_f64

FEWEST: Final = 4
"""Ours: no interval from fewer batches, whose scatter is too uncertain itself."""

CORRELATED: Final = 0.2
"""Ours: neighbouring batches above this correlation are joined, while ``FEWEST`` pairs are left."""

_T: Final = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


class Mean(msgspec.Struct, frozen=True):
    """A mean and half of its 95 % interval (infinite where there are too few windows to say). ``n``: windows."""

    value: float
    half: float
    n: int = 0

    @property
    def deviation(self) -> float:
        """Standard deviation of the mean, as of a normal distribution with this interval."""
        return self.half / Z95


Z95: Final = 1.960


def student_t(freedom: int) -> float:
    """97.5 % quantile of Student's t; the expansion is right to 0.1 % from 10 degrees of freedom on (Abramowitz and
    Stegun, 26.7.5)."""
    if freedom in _T:
        return _T[freedom]
    z = Z95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def mean_of(stays: Sequence[Sequence[float]]) -> Mean:
    """The mean over the windows of one or more stays, each in order. NaN and no interval without any window."""
    kept = [np.asarray([one for one in stay if not math.isnan(one)], np.float64) for stay in stays]
    kept = [stay for stay in kept if stay.size]
    n = sum(stay.size for stay in kept)
    if not n:
        return Mean(math.nan, math.inf)
    value = float(np.concatenate(kept).mean())
    if len(kept) >= FEWEST:
        return Mean(value, _half(np.array([stay.mean() for stay in kept])), n)
    width = 2 if sum(stay.size // 2 for stay in kept) >= FEWEST else 1
    batches = _batches(kept, width)
    while len(batches) >= 2 * FEWEST and _correlation(batches) > CORRELATED:
        width *= 2
        batches = _batches(kept, width)
    return Mean(value, max(_half(batches), _between(kept)), n)


def _batches(stays: Sequence[type_f64], width: int) -> type_f64:
    means = [stay[first : first + width].mean() for stay in stays for first in range(0, len(stay) - width + 1, width)]
    return np.array(means)


def _half(batches: type_f64) -> float:
    if len(batches) < FEWEST:
        return math.inf
    return float(student_t(len(batches) - 1) * batches.std(ddof=1) / math.sqrt(len(batches)))


def _between(stays: Sequence[type_f64]) -> float:
    """What a few stays differ by is no smaller for having many windows in each: half of their span."""
    means = [float(stay.mean()) for stay in stays]
    return (max(means) - min(means)) / 2


def _correlation(batches: type_f64) -> float:
    deviation = batches - batches.mean()
    square = float(deviation @ deviation)
    return float(deviation[1:] @ deviation[:-1]) / square if square > 0 else 0.0

"""Student's t: how far the mean of a few values may be off.

The scatter of a few values is itself uncertain, so their mean needs a wider interval than a normal distribution has:
6.5 times as wide for two values, 2.2 for three, 1.07 for twenty. Source: Abramowitz and Stegun, Handbook of
Mathematical Functions, 26.7.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

Z95: Final = 1.960
"""97.5 % quantile of the normal distribution: half of a 95 % interval in standard deviations."""

_FEW: Final = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228}


def student_t(freedom: int) -> float:
    """97.5 % quantile with so many degrees of freedom; above ten by an expansion right to 0.1 % (26.7.5)."""
    if freedom in _FEW:
        return _FEW[freedom]
    return Z95 + (Z95**3 + Z95) / (4 * freedom) + (5 * Z95**5 + 16 * Z95**3 + 3 * Z95) / (96 * freedom**2)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half of its 95 % interval, for two or more independent values."""
    half = student_t(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), half

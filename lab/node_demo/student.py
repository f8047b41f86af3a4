"""Intervals of a mean over few runs, by Student's t."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

T: Final = {
    2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262, 20: 2.093, 30: 2.045,
}  # fmt: skip
"""Its 97.5 % quantile, by number of values."""


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half of the 95 % interval."""
    return statistics.fmean(values), T[len(values)] * statistics.stdev(values) / math.sqrt(len(values))

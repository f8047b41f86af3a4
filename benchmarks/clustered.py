"""Intervals of a mean and of a median over runs that belong together: all of one workload are one draw.

Runs of one workload on several nodes, or with several seeds, are alike, so they say less of the next workload than
their number suggests. Everything here counts workloads. With ``k`` workloads and ``n`` runs ``x`` in all:

    mean      m = sum of x / n;  variance  k / (k - 1) * sum over workloads of (sum of (x - m))^2 / n^2;  Student's t
              with k - 1 degrees of freedom
    median    the same interval for the share of runs up to the median, a mean of zeros and ones, carried over to the
              runs that have these shares (Woodruff). It has two unlike ends, and is never empty

Sources: Cochran, Sampling Techniques, 9A.2 (clusters of unlike size); Woodruff, Confidence Intervals for Medians and
Other Position Measures, JASA 47 (1952). A bootstrap of workloads was tried: of 5 to 16 it covers 75 to 94 of 100
(``benchmarks.interval_coverage`` counts what these here cover).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from foundation.student import student_t

K = TypeVar("K", bound=Hashable)


class Within(NamedTuple):
    """A value and the ends of its 95 % interval over workloads; both NaN where there is but one workload."""

    value: float
    low: float
    high: float

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    def plus_minus(self, unit: str = "") -> str:
        """In per cent, as of a mean: one digit."""
        half = "" if math.isnan(self.half) else f" ± {100 * self.half:.1f}"
        return f"{100 * self.value:.1f}{half}{unit}".replace("-", "−")

    def ends(self, unit: str = "") -> str:
        """In per cent, as of a median: its ends are unlike."""
        ends = "" if math.isnan(self.half) else f" ({100 * self.low:.0f} to {100 * self.high:.0f})"
        return f"{100 * self.value:.0f}{unit}{ends}".replace("-", "−")


def together(pairs: Iterable[tuple[K, float]]) -> list[list[float]]:
    """The values of each key."""
    found: dict[K, list[float]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return list(found.values())


def mean_over(workloads: Sequence[Sequence[float]]) -> Within:
    """Of all runs."""
    runs = np.concatenate([np.asarray(own, np.float64) for own in workloads])
    mean = float(runs.mean())
    if len(workloads) < 2:
        return Within(mean, math.nan, math.nan)
    squares = sum((float(np.sum(own)) - len(own) * mean) ** 2 for own in workloads)
    count = len(workloads)
    half = student_t(count - 1) * math.sqrt(count / (count - 1) * squares) / len(runs)
    return Within(mean, mean - half, mean + half)


def median_over(workloads: Sequence[Sequence[float]]) -> Within:
    """Of all runs. The ends are those of the runs where the interval of the share has more than all of them."""
    runs = np.concatenate([np.asarray(own, np.float64) for own in workloads])
    median = float(np.median(runs))
    if len(workloads) < 2:
        return Within(median, math.nan, math.nan)
    half = mean_over([(np.asarray(own) <= median).tolist() for own in workloads]).half
    low, high = np.quantile(runs, (max(0.5 - half, 0.0), min(0.5 + half, 1.0)))
    return Within(median, float(low), float(high))

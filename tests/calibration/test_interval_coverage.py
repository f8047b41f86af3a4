"""Stated intervals have the truth as often as they say, whatever method they come from.

``benchmarks.interval_coverage`` draws 300 times and asks for 92 to 98 of 100; here 40 draws, with limits wider by the
interval of such a count.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.clustered import mean_over, median_over, together
from benchmarks.interval_coverage import CASES, QUICK_DRAWS, Case, counted
from calibration.table import clock_curve
from calibration.table.clock_curve import Given, predict
from foundation.student import Z95, mean_interval, student_t
from pmu.readings import type_f64

QUANTILES = {1: 12.706, 2: 4.303, 5: 2.571, 9: 2.262, 10: 2.228, 20: 2.086, 30: 2.042, 60: 2.000, 120: 1.980}
"""Of Student's t at 97.5 %, by degrees of freedom (Abramowitz and Stegun, table 26.10)."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_intervals_have_the_truth_as_often_as_they_say(case: Case) -> None:
    row = counted(case, QUICK_DRAWS)
    low, high = case.limits
    assert low - row.half <= row.counted <= high + row.half, f"{row.counted:.1%} ± {row.half:.1%}"


def test_quantiles_of_students_t_are_the_tables() -> None:
    assert {freedom: student_t(freedom) for freedom in QUANTILES} == pytest.approx(QUANTILES, rel=1e-3)
    mean, half = mean_interval([1.0, 2.0, 3.0])
    assert (mean, half) == (2.0, pytest.approx(4.303 / math.sqrt(3), rel=1e-3))


def test_runs_of_one_workload_count_as_one_draw() -> None:
    """Four alike runs of each say no more than one."""
    once = [[0.5], [0.7], [0.9], [0.6]]
    alike = [own * 4 for own in once]
    assert mean_over(alike) == pytest.approx(mean_over(once))
    assert median_over(alike).half >= median_over(once).half > 0.1
    value, half = mean_interval([0.5, 0.7, 0.9, 0.6])
    assert mean_over(once) == pytest.approx((value, value - half, value + half))
    assert math.isnan(mean_over([[0.5, 0.6]]).low) and math.isnan(median_over([[0.5, 0.6]]).high)
    assert together([("a", 1.0), ("b", 2.0), ("a", 3.0)]) == [[1.0, 3.0], [2.0]]


def test_what_sizes_of_the_deviation_differ_by_is_part_of_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two sizes, each with its own curve: the variance is what they have within, and what is between them."""
    monkeypatch.setattr(clock_curve, "LENGTHS", (0.25,))
    monkeypatch.setattr(clock_curve, "ASSUMED_WEIGHT", 0.0)  # so that neither is nearly certain
    at = np.linspace(1.0, 5.0, 41)
    given = {"fma": Given([1.0, 2.0, 3.0, 4.0, 5.0], [40.0, 51.0, 70.0, 97.0, 140.0], [0.6] * 5, at.tolist())}

    def by(*sizes: float) -> tuple[type_f64, type_f64]:
        monkeypatch.setattr(clock_curve, "SIZES", sizes)
        curve = predict("watts", given)["fma"]
        return curve.value, (curve.half / Z95) ** 2

    (small, small2), (large, large2), (both, both2) = by(0.005), by(0.05), by(0.005, 0.05)
    apart = int(np.argmax(abs(small - large)))
    share = (both[apart] - large[apart]) / (small[apart] - large[apart])
    assert 0.05 < share < 0.95 and abs(small[apart] - large[apart]) > 0.2
    within = share * small2 + (1 - share) * large2
    assert both2 == pytest.approx(within + share * (1 - share) * (small - large) ** 2, rel=1e-6)
    assert both2[apart] > 1.05 * within[apart], "it matters here"

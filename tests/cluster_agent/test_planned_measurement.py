"""``benchmarks/planned_capped.py``: judged on other windows than those that its planner was chosen on."""

from __future__ import annotations

import math

import pytest

from benchmarks import planned_capped
from benchmarks.planned_capped import Row


def row(window: str, policy: str, wait_s: float, wt: float) -> Row:
    return Row(window, 1, policy, wait_s, 1.0, 1.0, wt, 0, 0, 0.0, 0.0, 0.0, 0)


def test_policies_are_compared_by_the_geometric_mean_over_windows_where_neither_is_0() -> None:
    rows = [row("a", "x", 200.0, 0.0), row("a", "y", 100.0, 1.0), row("b", "x", 200.0, 3.0), row("b", "y", 100.0, 1.0)]
    assert planned_capped.ratio(rows, "x", "y", "wait_s") == pytest.approx(2.0)
    assert planned_capped.ratio(rows, "x", "y", "wt") == pytest.approx(3.0)
    assert math.isnan(planned_capped.ratio(rows[:2], "x", "y", "wt"))
    assert (
        planned_capped.compared(rows, "x", "y")
        == "x against y: wait +100.0 %, slowdown +0.0 %, WQT +0.0 %, WT +200.0 %"
    )


def test_no_window_judges_that_the_planner_was_chosen_on() -> None:
    if not planned_capped.DATA.exists():
        pytest.skip("the tables of ../shared/data/eurora are not here")
    judged = {window for _, window in planned_capped.windows(is_quick=False)}
    chosen = {f"{kind}_{number}" for kind in planned_capped.CHOSEN_ON for number in (1, 2)}
    assert len(judged) == 12 and not judged & chosen and planned_capped.EXAMPLE in judged

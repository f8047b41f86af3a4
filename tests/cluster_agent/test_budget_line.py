"""What is promised of a budget that moves: the highest that was in force within the last settle time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_agent.budget.budget_line import BudgetLine

SETTLE_S = 10.0
CHANGES = st.lists(st.tuples(st.integers(0, 15), st.integers(1, 9)), max_size=8)  # (seconds later, budget)


@given(CHANGES)
def test_a_drop_without_notice_is_promised_one_settle_time_later_and_a_raise_at_once(changes) -> None:
    line = BudgetLine(5)
    now_s, in_force = 0.0, [(0.0, 5)]  # (since when, budget)
    for later_s, budget_mw in changes:
        now_s += later_s
        line.change(now_s, budget_mw, [], SETTLE_S)
        in_force.append((now_s, budget_mw))
    for at_s in range(int(now_s), int(now_s) + 25):
        ends_s = [since_s for since_s, _ in in_force[1:]] + [float("inf")]
        held = [mw for (_, mw), end_s in zip(in_force, ends_s, strict=True) if end_s > at_s - SETTLE_S]
        assert line.promised_mw(at_s) == max(held)
        assert (line.lowered_s(at_s) is not None) == (line.promised_mw(at_s) > line.budget_mw)


def test_a_drop_that_was_announced_in_time_is_promised_from_its_time_on() -> None:
    line = BudgetLine(1000)
    line.change(0.0, 1000, [(20.0, 700)], SETTLE_S)
    assert [line.promised_mw(at_s) for at_s in (0.0, 19.9, 20.0)] == [1000, 1000, 700]


def test_a_drop_that_was_announced_late_is_promised_one_settle_time_after_it_was() -> None:
    line = BudgetLine(1000)
    line.change(0.0, 1000, [(4.0, 700)], SETTLE_S)
    assert [line.promised_mw(at_s) for at_s in (4.0, 9.9, 10.0)] == [1000, 1000, 700]
    assert (line.lowered_s(5.0), line.lowered_s(10.0)) == (pytest.approx(10.0), None)


def test_a_budget_set_after_a_step_that_nobody_has_looked_at_allows_what_the_step_did() -> None:
    line = BudgetLine(1000, [(20.0, 700)])
    line.change(21.0, 600, [], SETTLE_S)
    assert line.promised_mw(21.0) == 700

"""The cluster agent says what jobs will draw in the next hours, next to the budget that is announced."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster_agent.history.job_history import LONGEST_TEXT, HistoryRow
from cluster_agent.history.watts_ahead import AHEAD_S, PREDICTED_AT_ONCE, Alive, WattsAhead, request
from cluster_agent.prediction.system_forecast import EVERY_S
from cluster_agent.serve.people_protocol import BudgetView, ForgetHistory, SetSchedule, ShowBudget
from tests.cluster_agent.test_job_history import Recording
from tests.slurm.test_joules import SLURM

DAY_S = 86_400.0


def row(number: int, at_s: float, watts: float = 300.0, user: str = "ada", run_s: float = 3600.0) -> HistoryRow:
    return HistoryRow(str(number), user, "cfd", 2, at_s, at_s, at_s + run_s, run_s, request_s=7200, watts=watts)


def running(number: int, began_s: float, watts: float | None = None, user: str = "ada") -> Alive:
    return Alive(str(number), request(user, "cfd", 2, 7200), began_s, began_s, watts)


def test_a_running_job_counts_with_its_expected_watts_until_it_is_metered() -> None:
    made = WattsAhead(1000.0, [row(number, 1e6) for number in range(9)], 1e6 + DAY_S)
    now_s = 1e6 + DAY_S + EVERY_S
    made.step(now_s, lambda: [running(20, now_s - 60)])
    assert made.hours[0].now_w == pytest.approx(300.0)
    made.step(now_s + EVERY_S, lambda: [running(20, now_s - 60, watts=500.0)])
    assert made.hours[0].now_w == pytest.approx(500.0)
    assert [one.at_s - one.made_s for one in made.hours] == list(AHEAD_S)


def test_bands_come_with_time_and_are_learned_again_after_a_restart() -> None:
    rows = [row(number, 1e6 + 1800.0 * number) for number in range(100)]
    ended = [one for one in rows if one.ended_s <= 1e6 + 2 * DAY_S]
    made = WattsAhead(1000.0, ended, 1e6 + 2 * DAY_S)
    now_s = 1e6 + 2 * DAY_S + EVERY_S
    made.step(now_s, lambda: [running(200, now_s - 1800), running(201, now_s)])
    (first, *_) = made.ahead(now_s)
    assert first.low_w is not None and first.high_w is not None
    assert first.low_w <= first.expected_w == pytest.approx(600.0, rel=0.1) and first.high_w < 1200.0
    assert made.over([(3500.0, 900.0)], now_s) == []
    (line,) = made.over([(3500.0, 400.0), (DAY_S, 1.0)], now_s)
    assert line.startswith("in 1.0 h jobs are expected to draw") and line.endswith("they will be slowed or wait")


def test_a_thousand_new_jobs_are_predicted_in_many_steps_and_without_walltime_too() -> None:
    made = WattsAhead(1000.0, [row(1, 1e6)], 1e6 + DAY_S)
    now_s = 1e6 + DAY_S + EVERY_S
    many = [Alive(str(100 + at), request("ada", "名" * 10_000, 1, 0), now_s, math.inf, None) for at in range(45)]
    for step in range(1 + 45 // PREDICTED_AT_ONCE):
        assert not made.hours
        made.step(now_s + 5 * step, lambda: many)
    assert made.hours[0].now_w == 0.0


def test_a_name_is_known_again_by_as_much_of_it_as_the_history_keeps() -> None:
    long = request("あ" * 10_000, "名" * 10_000, 2, 7200)
    assert long == request("あ" * LONGEST_TEXT, "名" * LONGEST_TEXT, 2, 7200)


def test_a_clock_that_jumps_back_or_far_ahead_stops_nothing() -> None:
    made = WattsAhead(1000.0, [row(1, 1e6)], 1e6 + DAY_S)
    for at_s in (1e6 + 2 * DAY_S, 1e6 - DAY_S, 1e9, 1e6 + 2 * DAY_S + EVERY_S):
        made.step(at_s, lambda at_s=at_s: [running(20, 1e6 + DAY_S, watts=500.0)])
        assert len(made.hours) == len(AHEAD_S)
        assert all(math.isfinite(one.expected_w) for one in made.hours)


def test_watts_that_are_no_number_teach_nothing() -> None:
    made = WattsAhead(1000.0, [row(1, 1e6, math.nan), row(2, 1e6, math.inf), row(3, 1e6, -5.0)], 1e6 + DAY_S)
    made.ended(row(4, 1e6, math.nan))
    made.step(1e6 + DAY_S + EVERY_S, lambda: [running(20, 1e6 + DAY_S)])
    assert made.hours[0].now_w == made.hours[0].expected_w == 0.0


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Recording]:
    made = Recording(tmp_path)
    yield made
    made.server.close()


def view(head: Recording) -> BudgetView:
    found: BudgetView = head.server.handlers[ShowBudget](SLURM, ShowBudget())
    return found


def test_the_budget_is_shown_with_what_jobs_will_draw_and_an_announced_drop_below_it(head: Recording) -> None:
    head.run(1)
    for number in range(3):
        head.start(f"{number}", "n[1-2]", user="ada", title="cfd")
        head.run(40)
        head.end(f"{number}")
    assert view(head).ahead == []
    head.now_s += EVERY_S
    head.run(1)
    head.start("9", "n[1-2]", user="ada", title="cfd")
    head.server._expect_nodes(head.now_s)
    shown = view(head)
    assert [round(one.in_s) for one in shown.ahead] == [round(one) for one in AHEAD_S]
    assert shown.ahead_over == []
    assert head.server._ahead.hours[0].now_w == pytest.approx(300.0, rel=0.05)
    drop = SetSchedule([(1e9 + head.now_s + 3600, 700_000)], "prices.csv")
    head.server.handlers[SetSchedule](SLURM, drop)
    assert not view(head).ahead_over
    head.server.handlers[SetSchedule](SLURM, SetSchedule([(1e9 + head.now_s + 3600, 150_000)], "prices.csv"))
    assert len(view(head).ahead_over) == 1
    head.server.handlers[ForgetHistory](SLURM, ForgetHistory("ada"))
    assert not math.isfinite(head.server._ahead._power.predict(0, request("ada", "cfd", 2, 0)).expected_w)

"""What running and waiting jobs are planned by: ``history``, ``fixed`` and ``shadow``, by hand."""

from __future__ import annotations

import pytest

from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.job_table import GrowingJobs
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition, Fixed, History
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, jobs_of, native_starts

# (submit, run, request, width, user): the first four have ended when the last is submitted
WIDE_AND_NARROW = [(0, 10, 50, 1, 0), (0, 20, 50, 1, 0), (0, 2, 50, 2, 0), (0, 4, 50, 2, 0), (30, 1, 50, 2, 0)]
# the last waits until the first two have ended, at 4
BURST = [(0, 2, 50, 5, 0), (0, 4, 50, 5, 0), (1, 3, 50, 10, 0)]
# from 10 on a job runs that is expected until 20 and has requested 100 s; then a wide one, and one of 12 s next to it
BESIDE = jobs_of([(0, 10, 100, 5, 0), (0, 10, 100, 5, 0), (10, 10, 100, 6, 0), (11, 5, 5, 10, 1), (12, 12, 12, 4, 2)])


def estimates(composition: Composition, rows: list[tuple[int, int, int, int, int]]) -> list[int]:
    replay = NativeReplay(composition, jobs_of(rows), PROCESSORS)
    assert not replay.run(EVERYTHING_ENDED)
    return replay.first_estimate_s.tolist()


@pytest.mark.parametrize(("history", "expected_s"), [("user", 15), ("similar", 3)])
def test_similar_jobs_are_estimated_by_each_other(history: History, expected_s: int) -> None:
    assert estimates(Composition(estimate="mean2", history=history), WIDE_AND_NARROW)[-1] == expected_s


def test_until_two_similar_jobs_have_ended_the_users_last_two_count() -> None:
    rows = [*WIDE_AND_NARROW[:3], WIDE_AND_NARROW[4]]
    assert estimates(Composition(estimate="mean2", history="similar"), rows)[-1] == 15


def test_similar_jobs_are_known_in_a_table_that_grows_too() -> None:
    table = GrowingJobs(16)
    scheduler = NativeScheduler(Composition(estimate="mean2", history="similar"), table.jobs, PROCESSORS)
    for width, run_s in ((1, 10), (1, 20), (2, 2), (2, 4)):
        row = table.add(7, 1000, 0, 50, width)
        scheduler.submit(0, row)
        assert scheduler.decide(0) == [row]
        table.ran(row, run_s)
        scheduler.end(row)
    row = table.add(8, 1000, 30, 50, 1)
    scheduler.submit(30, row)
    assert scheduler.decide(30) == [row]
    assert scheduler.expected_end_s(row) == 30 + 15


@pytest.mark.parametrize(("fixed", "expected_s"), [("submission", 50), ("start", 3)])
def test_an_estimate_fixed_at_the_start_follows_what_ends_while_the_job_waits(fixed: Fixed, expected_s: int) -> None:
    assert estimates(Composition(estimate="mean2", fixed=fixed), BURST)[-1] == expected_s


@pytest.mark.parametrize(
    ("shadow", "wide_s", "beside_s"),
    [(1.0, 20, 25), (1.3, 20, 25), (1.4, 24, 12), (float("inf"), 24, 12)],
)
def test_jobs_may_run_next_to_one_that_is_planned_for_longer(shadow: float, wide_s: int, beside_s: int) -> None:
    starts = native_starts(Composition(estimate="mean2", backfill="easy", shadow=shadow), BESIDE)
    assert (starts[3], starts[4]) == (wide_s, beside_s)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("easy:shadow=2", "shadow=2 needs an estimate that can be too short: estimate=mean2|learned"),
        ("easy:estimate=mean2,shadow=0.5", "shadow=0.5: give 1 or more"),
        ("easy:estimate=mean2,shadow=nan", "shadow=nan: give 1 or more"),
        ("easy:estimate=mean2,shadow=2,correct=incremental", "needs plans that are first estimates, and shadow=2"),
        ("easy:estimate=learned,history=similar", "history=similar needs estimate=mean2"),
        ("easy:fixed=start", "fixed=start needs estimate=mean2"),
    ],
)
def test_what_does_not_go_together_is_answered_in_one_line(policy: str, message: str) -> None:
    with pytest.raises(WrongUseError, match=message.replace("|", r"\|")):
        choose(policy)


def test_a_job_can_be_planned_for_its_request() -> None:
    assert choose("easy-sjbf:estimate=mean2,shadow=inf").composition.shadow == float("inf")

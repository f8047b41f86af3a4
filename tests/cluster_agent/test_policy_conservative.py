"""conservative on a machine of 10 processors, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.policies.registry import choose
from tests.cluster_agent.traces import PROCESSORS, jobs_of, looped_starts, native_starts, traces
from tests.oracle.scheduler import ReferenceScheduler

# Job 1 is the head, reserved at 50 alone; job 2 follows at 60. Job 3 fits now, past the head on what it leaves
# over, but occupies a processor that job 2 needs at 60.
JOBS = [(0, 50, 50, 6, 0), (1, 10, 10, 8, 0), (2, 10, 10, 10, 0), (3, 100, 100, 2, 0), (4, 40, 40, 4, 0)]


def test_a_job_that_would_delay_the_second_in_the_queue_waits_where_easy_lets_it_overtake() -> None:
    assert native_starts(choose("easy").composition, jobs_of(JOBS[:4])) == {0: 0, 1: 50, 2: 103, 3: 3}
    assert native_starts(choose("conservative").composition, jobs_of(JOBS[:4])) == {0: 0, 1: 50, 2: 60, 3: 70}


def test_a_job_that_delays_nobody_overtakes() -> None:
    assert native_starts(choose("conservative").composition, jobs_of(JOBS))[4] == 4


def test_an_early_end_moves_every_reservation_forward() -> None:
    early = [(0, 20, 50, 6, 0), *JOBS[1:3]]
    assert native_starts(choose("conservative").composition, jobs_of(early)) == {0: 0, 1: 20, 2: 30}


# Job 2 has 7 processors from 30 to 90, so job 4 waits for job 3, which ends at 40. Job 5 fits at once, and would have
# one of the processors that job 4 then needs.
BEHIND = [(0, 20, 20, 5, 0), (0, 10, 10, 6, 0), (0, 60, 60, 7, 0), (0, 40, 40, 2, 0), (0, 50, 50, 3, 0)]


def test_a_job_waits_for_a_place_that_one_before_it_finds_late() -> None:
    jobs = jobs_of([*BEHIND, (0, 70, 70, 1, 0)])
    assert native_starts(choose("conservative").composition, jobs) == {0: 0, 1: 20, 2: 30, 3: 0, 4: 40, 5: 90}


# 0 to 50 in use; jobs 1, 2 and 3 of 6 processors are placed at 50, 150, 250, and job 4, which is narrow, next to job 1.
# Job 0 ends at 20. Planned again or moved forward, job 1 starts at once; job 5 comes later and fills what is left.
KEPT = [(0, 20, 50, 10, 0), (1, 100, 100, 6, 0), (2, 10, 100, 6, 0), (3, 10, 60, 10, 0), (4, 30, 30, 4, 0)]


def test_reservations_that_are_kept_move_forward_when_a_job_ends_early() -> None:
    compress = choose("conservative:ends=compress").composition
    assert native_starts(compress, jobs_of(KEPT)) == {0: 0, 1: 20, 2: 120, 3: 130, 4: 20}


@settings(max_examples=100)
@given(jobs=traces())
def test_no_job_starts_later_than_the_place_it_was_first_given(jobs: Jobs) -> None:
    composition = choose("conservative:ends=compress").composition
    scheduler = ReferenceScheduler(composition, jobs, PROCESSORS)
    promised: dict[int, int] = {}
    decide = scheduler.decide

    def watched(now_s: int) -> list[int]:
        started = decide(now_s)
        for job, from_s in scheduler.reserved_s.items():
            promised.setdefault(job, from_s)
        return started

    scheduler.decide = watched  # type: ignore[method-assign]
    starts = looped_starts(scheduler, composition, jobs)
    assert all(starts[job] <= promised[job] for job in starts)


def test_a_guard_has_nothing_to_do_where_reservations_are_kept() -> None:
    with pytest.raises(
        WrongUseError, match="guard needs a head of the queue, and backfill=compress gives every job a place"
    ):
        choose("conservative:ends=compress,guard=5")

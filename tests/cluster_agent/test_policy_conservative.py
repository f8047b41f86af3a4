"""conservative on a machine of 10 processors, by hand."""

from __future__ import annotations

from cluster_agent.scheduler.policies.registry import choose
from tests.cluster_agent.traces import jobs_of, native_starts

# Job 1 is the head, reserved at 50 beside nothing; job 2 follows at 60. Job 3 fits now, past the head on what it leaves
# over, but holds a processor that job 2 needs at 60.
JOBS = [(0, 50, 50, 6, 0), (1, 10, 10, 8, 0), (2, 10, 10, 10, 0), (3, 100, 100, 2, 0), (4, 40, 40, 4, 0)]


def test_a_job_that_would_delay_the_second_in_the_queue_waits_where_easy_lets_it_overtake() -> None:
    assert native_starts(choose("easy").composition, jobs_of(JOBS[:4])) == {0: 0, 1: 50, 2: 103, 3: 3}
    assert native_starts(choose("conservative").composition, jobs_of(JOBS[:4])) == {0: 0, 1: 50, 2: 60, 3: 70}


def test_a_job_that_delays_nobody_overtakes() -> None:
    assert native_starts(choose("conservative").composition, jobs_of(JOBS))[4] == 4


def test_an_early_end_moves_every_reservation_forward() -> None:
    early = [(0, 20, 50, 6, 0), *JOBS[1:3]]
    assert native_starts(choose("conservative").composition, jobs_of(early)) == {0: 0, 1: 20, 2: 30}

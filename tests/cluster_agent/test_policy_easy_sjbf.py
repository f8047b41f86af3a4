"""easy-sjbf on a machine of 10 processors, by hand."""

from __future__ import annotations

from cluster_agent.scheduler.policies.registry import choose
from tests.cluster_agent.traces import jobs_of, native_starts

# 4 processors next to job 0 are free until the head (job 1) starts at 100; jobs 2 and 3 both fit there, not together
JOBS = [(0, 100, 100, 6, 0), (1, 10, 10, 10, 0), (1, 90, 90, 4, 0), (1, 20, 20, 4, 0)]


def test_the_shorter_of_two_jobs_overtakes_first() -> None:
    assert native_starts(choose("easy").composition, jobs_of(JOBS)) == {0: 0, 1: 100, 2: 1, 3: 110}
    assert native_starts(choose("easy-sjbf").composition, jobs_of(JOBS)) == {0: 0, 1: 100, 2: 110, 3: 1}


def test_jobs_of_equal_length_overtake_in_order_of_submission() -> None:
    equal = [*JOBS[:2], (1, 30, 30, 4, 0), (1, 30, 30, 4, 0)]
    assert native_starts(choose("easy-sjbf").composition, jobs_of(equal)) == {0: 0, 1: 100, 2: 1, 3: 31}


def test_the_head_is_the_oldest_job_however_long() -> None:
    jobs = jobs_of([(0, 10, 10, 10, 0), (1, 99, 99, 10, 0), (2, 1, 1, 10, 0)])
    assert native_starts(choose("easy-sjbf").composition, jobs) == {0: 0, 1: 10, 2: 109}

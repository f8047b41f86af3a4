"""fcfs on a machine of 10 processors."""

from __future__ import annotations

from cluster_agent.scheduler.policies.registry import choose
from tests.cluster_agent.traces import jobs_of, native_starts


def test_nobody_starts_before_the_head_however_well_it_would_fit() -> None:
    # (submit, run, request, width, user)
    jobs = jobs_of([(0, 100, 100, 6, 0), (1, 10, 10, 8, 0), (2, 1, 1, 1, 0)])
    assert native_starts(choose("fcfs").composition, jobs) == {0: 0, 1: 100, 2: 100}


def test_requested_times_play_no_part() -> None:
    jobs = jobs_of([(0, 100, 100, 6, 0), (1, 10, 10, 8, 0), (2, 1, 1, 1, 0)])
    longer = jobs_of([(0, 100, 900, 6, 0), (1, 10, 900, 8, 0), (2, 1, 900, 1, 0)])
    fcfs = choose("fcfs").composition
    assert native_starts(fcfs, jobs) == native_starts(fcfs, longer)
    assert not fcfs.needs_requests

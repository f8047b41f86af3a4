"""The guard: the job that fares worst becomes the head of the queue."""

from __future__ import annotations

import pytest

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition
from tests.cluster_agent.traces import PROCESSORS, jobs_of, looped_starts, native_starts
from tests.oracle.scheduler import ReferenceScheduler

# 10 processors until 100; then a wide job of 1000 s, and a short one submitted after it, which does not fit next to it
JOBS = jobs_of([(0, 100, 100, 10, 0), (10, 1000, 1000, 6, 1), (20, 10, 10, 6, 2)])


def test_without_a_guard_the_short_job_waits_for_the_long_one_before_it() -> None:
    assert native_starts(Composition(backfill="easy"), JOBS) == {0: 0, 1: 100, 2: 1100}


def test_with_a_guard_the_job_that_fares_worst_goes_first() -> None:
    # at 100 the long job would have a slowdown of 1.09, the short one of 9
    assert native_starts(Composition(backfill="easy", guard=2.0), JOBS) == {0: 0, 1: 110, 2: 100}


def test_a_guard_that_nobody_passes_changes_nothing() -> None:
    assert native_starts(Composition(backfill="easy", guard=9.0), JOBS) == {0: 0, 1: 100, 2: 1100}


def test_the_guard_puts_a_job_ahead_only_where_something_can_start() -> None:
    """Whom it puts ahead stays there: in a pass without room it would move jobs that gain nothing. Found by a random
    example."""
    rows = [(0, 1, 1), (0, 9, 9), (0, 1, 2), (0, 1, 1), (0, 1, 7), (0, 8, 1), (0, 8, 1), (8, 1, 1)]
    jobs = jobs_of(
        [(submit_s, run_s, run_s, width, int(row == 3)) for row, (submit_s, run_s, width) in enumerate(rows)]
    )
    composition = Composition(estimate="mean2", fixed="start", backfill="list", guard=1.5)
    reference = ReferenceScheduler(composition, jobs, PROCESSORS)
    assert native_starts(composition, jobs) == looped_starts(reference, composition, jobs)


def test_a_guard_that_is_no_slowdown_is_answered_in_one_line() -> None:
    with pytest.raises(WrongUseError, match="guard=0 is not a bounded slowdown: a number above 0"):
        choose("easy:guard=0")

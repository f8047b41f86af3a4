"""Crowded machines, where many jobs of few kinds wait: what a pass leaves out there changes no schedule."""

from __future__ import annotations

import numpy as np
import pytest

from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.policy_phases import Composition
from tests.cluster_agent.traces import PROCESSORS, jobs_of, looped_starts, native_starts
from tests.oracle.scheduler import ReferenceScheduler

KINDS = [(1, 30), (1, 200), (2, 12), (3, 60), (4, 12), (7, 40), (10, 9)]
"""Processors and requested seconds."""


def crowded(seed: int, count: int, gap_s: float) -> Jobs:
    """Jobs in runs of one kind, most of which end early, as arrays of jobs do."""
    random = np.random.default_rng(seed)
    kind = np.repeat(random.integers(0, len(KINDS), count), random.integers(1, 6, count))[:count]
    submit_s = np.sort(random.integers(0, int(count * gap_s), count))
    request_s = np.array(KINDS)[kind, 1]
    run_s = np.where(random.random(count) < 0.2, request_s, random.integers(1, request_s + 1))
    rows = zip(submit_s, run_s, request_s, np.array(KINDS)[kind, 0], random.integers(0, 4, count), strict=True)
    return jobs_of([(int(row[0]), int(row[1]), int(row[2]), int(row[3]), int(row[4])) for row in rows])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "composition",
    [
        Composition(backfill="conservative"),
        Composition(backfill="conservative", ties="sc15", guard=20.0),
        Composition(backfill="conservative", estimate="mean2", correct="incremental"),
    ],
    ids=["plain", "guard", "estimates too low"],
)
def test_conservative_plans_as_far_as_starts_depend_on_it(composition: Composition, seed: int) -> None:
    jobs = crowded(seed, 90, 4.0)
    expected = looped_starts(ReferenceScheduler(composition, jobs, PROCESSORS), composition, jobs)
    assert native_starts(composition, jobs) == expected


@pytest.mark.parametrize("backfill", ["easy", "list"])
def test_blocks_of_jobs_that_are_too_large_are_passed_over(backfill: str) -> None:
    """A guard that never acts makes a pass look at every job."""
    jobs = crowded(1, 6000, 40.0)
    every_one = native_starts(Composition(backfill=backfill, guard=1e12), jobs)  # type: ignore[arg-type]
    assert native_starts(Composition(backfill=backfill), jobs) == every_one  # type: ignore[arg-type]


@pytest.mark.parametrize("backfill", ["easy", "list"])
def test_a_queue_that_is_long_again_is_not_judged_by_the_jobs_that_waited_there_before(backfill: str) -> None:
    """Waves, in turn of wide and of narrow jobs: what is known of stretches of the queue goes where it is short."""
    random = np.random.default_rng(2)
    rows, at_s = [], 0
    for wave in range(60):
        count = int(random.integers(150, 400))
        wide = wave % 2 == 0
        width = np.where(random.random(count) < 0.5, 10, 6) if wide else random.integers(1, 4, count)
        request_s = random.integers(20, 60, count) if wide else random.integers(2, 40, count)
        submit_s = at_s + np.sort(random.integers(0, 50, count))
        users = np.zeros(count, np.int64)
        rows += np.column_stack([submit_s, random.integers(1, request_s + 1), request_s, width, users]).tolist()
        at_s += int((request_s * width).sum() / 2 / PROCESSORS * random.uniform(0.8, 1.1))
    jobs = jobs_of(sorted(tuple(row) for row in rows))
    every_one = native_starts(Composition(backfill=backfill, guard=1e12), jobs)  # type: ignore[arg-type]
    assert native_starts(Composition(backfill=backfill), jobs) == every_one  # type: ignore[arg-type]

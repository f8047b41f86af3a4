"""rule-based on a machine of 10 processors, by hand."""

from __future__ import annotations

import pytest

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.swf import read_swf
from tests.cluster_agent.traces import jobs_of, native_starts
from tests.cluster_agent.worlds import replay

# until 100 four processors are free; the second job is wide, the others fit, the last for longer than until 100
JOBS = jobs_of([(0, 100, 100, 6, 0), (1, 30, 30, 8, 0), (2, 50, 50, 2, 0), (3, 300, 300, 2, 0)])


def test_est_starts_whoever_fits_in_order_of_submission_and_reserves_for_nobody() -> None:
    assert native_starts(choose("rule-based").composition, JOBS) == {0: 0, 1: 100, 2: 2, 3: 3}


def test_a_wide_job_waits_for_as_long_as_narrow_ones_leave_it_no_room() -> None:
    rows = [(10 * i, 15, 15, 5, 0) for i in range(8)]
    starts = native_starts(choose("rule-based").composition, jobs_of([*rows, (1, 5, 5, 10, 1)]))
    assert starts[1] == max(starts.values())  # EASY would start it at 15


def test_strict_lets_nobody_overtake() -> None:
    assert native_starts(choose("rule-based:miss=strict").composition, JOBS) == {0: 0, 1: 100, 2: 100, 3: 130}


def test_walltime_serves_the_shortest_request_first() -> None:
    jobs = jobs_of([(0, 100, 100, 10, 0), (1, 30, 90, 8, 0), (2, 50, 50, 6, 0), (3, 20, 80, 2, 0)])
    assert native_starts(choose("rule-based:rule=walltime,miss=strict").composition, jobs) == {
        0: 0,
        1: 150,
        2: 100,
        3: 100,
    }


def test_profit_serves_the_fewest_watts_per_core_first() -> None:
    """With seed 1 the first four jobs draw 9.5, 10.9, 8.3 and 10.9 W per core."""
    jobs = jobs_of([(0, 9, 9, 10, 0), (0, 9, 9, 10, 0), (0, 9, 9, 10, 0), (0, 9, 9, 10, 0)])
    starts = native_starts(choose("rule-based:rule=profit").composition, jobs)
    assert sorted(starts, key=starts.__getitem__) == [2, 0, 3, 1]


def test_est_needs_no_requested_times_and_walltime_does(tmp_path: object) -> None:
    path = f"{tmp_path}/log.swf"
    with open(path, "w") as log:
        log.write("1 0 -1 10 4 -1 -1 4 -1 -1 1 1 -1 -1 -1 -1 -1 -1\n")
    composition = choose("rule-based").composition
    workload = prepare(read_swf(path), 10, composition.needs_requests)
    assert replay(workload, composition).schedule.start_s.tolist() == [0]
    assert choose("rule-based:rule=walltime,miss=strict").composition.needs_requests


def test_a_negative_seed_is_answered_in_one_line() -> None:
    with pytest.raises(WrongUseError, match="seed=-1 must be 0 or more"):
        choose("rule-based:seed=-1")

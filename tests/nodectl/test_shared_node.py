"""Jobs that share an emulated node: whose the joules of its meters are, next to the truth of its cores."""

from __future__ import annotations

import pytest

from benchmarks.slurm_shared import CASES, Case, measure

BY_SOCKETS = [case for case in CASES if case.place == "a socket each"]
BY_METERS = [case for case in CASES if case.has_meters]


@pytest.mark.parametrize("case", BY_METERS, ids=lambda case: f"{len(case.jobs[0][1])} CPUs, {case.place}")
def test_each_job_gets_what_its_cores_draw_where_cores_have_meters(case: Case) -> None:
    for booked in measure(case, ticks=10):
        assert booked.nodectl_j == pytest.approx(booked.cores_j, rel=0.01)
        assert booked.nodectl_j == pytest.approx(booked.traffic_j, rel=0.12), "no meter shows traffic by core"


@pytest.mark.parametrize("case", BY_SOCKETS, ids=lambda case: case.jobs[0][0])
def test_each_job_gets_what_its_socket_draws_where_it_has_one(case: Case) -> None:
    for booked in measure(case, ticks=10):
        assert booked.nodectl_j == pytest.approx(booked.traffic_j, rel=0.01)


def seen(machine: str, cpus: int, before: str) -> Case:
    """HPL on so many CPUs next to STREAM, on cores without meters."""
    (found,) = [
        one
        for one in CASES
        if (one.machine, one.seen, len(one.jobs[0][1])) == (machine, before, cpus) and one.jobs[1][0] == "stream"
    ]
    return found


def test_a_node_that_has_seen_one_of_two_programs_alone_knows_what_both_draw() -> None:
    for booked in measure(seen("skylake-6146", 12, "one"), ticks=10):
        assert booked.nodectl_j == pytest.approx(booked.cores_j, rel=0.05)
        assert booked.by_time_j != pytest.approx(booked.cores_j, rel=0.1), "processor time says something else"


def test_a_node_that_has_seen_nothing_goes_by_time_and_the_sum_is_right() -> None:
    booked = measure(seen("curie", 8, "none"), ticks=10)
    assert sum(one.nodectl_j for one in booked) == pytest.approx(sum(one.cores_j for one in booked), rel=0.005)
    assert [one.nodectl_j for one in booked] == pytest.approx([one.by_time_j for one in booked], rel=0.05)

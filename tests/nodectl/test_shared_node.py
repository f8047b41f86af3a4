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


def test_the_sum_is_right_where_they_do_not() -> None:
    (case,) = [one for one in CASES if one.machine == "curie" and one.jobs[0][1] == range(2)]
    booked = measure(case, ticks=10)
    assert sum(one.nodectl_j for one in booked) == pytest.approx(sum(one.cores_j for one in booked), rel=0.005)
    assert [one.nodectl_j for one in booked] == pytest.approx([one.by_time_j for one in booked], rel=0.05)

"""With ``violation`` the stated share of jobs, and no more, draws more than it was admitted with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibration.table.pstate_table import SCHEMA, Conditions, Point, Quality, Table
from calibration.table.table_file import write_table
from cluster_agent.errors import WrongUseError
from cluster_agent.prediction.admitted_power import AdmittedPower, Guard
from cluster_agent.prediction.job_power import Submission
from cluster_agent.prediction.node_watts import NodeWatts, node_watts
from cluster_agent.scheduler.policies.registry import choose
from nodectl.calibrated.node_identity import Identity
from tests.calibration.test_policy_values import KERNELS, table_points

FULL_W = 400.0
NODE = NodeWatts(least_w=15.0, most_w=20.0)  # per core


def power(guard: Guard | None) -> AdmittedPower:
    return AdmittedPower(lambda job: FULL_W * job.units, lambda job: 100.0 * job.gpus, "average", guard)


def job(user: str = "ada", units: int = 1, gpus: int = 0) -> Submission:
    return Submission(user, "cfd", units, 16 * units, gpus, 0, units << 20, 3600)


def above(violation: float, jobs: int = 2000, seed: int = 11) -> float:
    """The share of jobs that draw more than admitted, of one user whose jobs scatter with a heavy tail."""
    found, random, count = power(Guard(violation)), np.random.default_rng(seed), 0
    for at in range(jobs):
        watts = 200.0 * float(np.exp(0.1 * random.standard_t(3)))
        count += watts > found.admit(at, job())
        found.learn(at, job(), watts)
    return count / jobs


@pytest.mark.parametrize("violation", (0.02, 0.1, 0.3))
def test_the_stated_share_of_jobs_draws_more_than_admitted(violation: float) -> None:
    assert 0.6 * violation < above(violation) < 1.4 * violation


def test_until_enough_jobs_have_ended_a_job_counts_as_the_measured_node_under_load() -> None:
    by_table, without = power(Guard(0.1, NODE)), power(Guard(0.1))
    assert without.admit(0, job()) == FULL_W
    assert by_table.admit(0, job()) == pytest.approx(16 * (20.0 - 0.1 * 5.0))
    assert by_table.admit(1, job(units=2, gpus=3)) == pytest.approx(32 * (20.0 - 0.1 * 5.0) + 300.0)
    admitted = []
    for number in range(2, 12):
        admitted.append(by_table.admit(number, job("bob")))
        by_table.learn(number, job("bob"), 100.0)
    assert admitted == pytest.approx([312.0] * 10)  # nine that were predicted have to end
    assert by_table.admit(12, job("bob")) == pytest.approx(100.0)


def test_without_a_guard_it_is_the_prediction() -> None:
    found = power(None)
    found.learn(0, job(), 100.0)
    found.learn(1, job(), 100.0)
    assert found.admit(2, job()) == pytest.approx(100.0)


def test_what_is_expected_is_admitted_where_sums_count() -> None:
    found = AdmittedPower(lambda job: FULL_W, lambda job: 0.0, "expected")
    for at, watts in enumerate((100.0, 100.0, 400.0)):
        found.learn(at, job(), watts)
    assert found.admit(9, job()) == pytest.approx(200.0, rel=0.02)
    assert choose("easy-power:of=expected,rule=est").on_nodes.admitted == "expected"


def write(path: Path, points: list[Point]) -> Path:
    who = Identity("Z80", "", 1, 8, 8, "", "", "")
    conditions = Conditions(True, "2026-11-25T00:00:00+00:00", 60.0, True, 30.0, 5.0, 110.0)
    write_table(path, Table(SCHEMA, "", who, conditions, Quality(1, 0, 1, 1.0, 1.0), {}, tuple(points)))
    return path


def test_watts_of_a_node_are_those_of_all_cores_at_the_highest_clock(tmp_path: Path) -> None:
    points = table_points(KERNELS)
    top = [one for one in points if one.khz == max(point.khz for point in points)]
    found = node_watts(write(tmp_path / "t.toml", points))
    watts = [one.node_w / one.cores for one in top if one.level == "all"]
    assert found.least_w == pytest.approx(min(watts)) and found.most_w == pytest.approx(max(watts))


def test_what_cannot_be_a_guard_is_refused_in_one_line(tmp_path: Path) -> None:
    blind = write(tmp_path / "b.toml", table_points(KERNELS, has_meter=False))
    for text, said in (
        ("violation=0.7", "violation=0.7 must be above 0 and at most 0.5"),
        (f"table={blind}", "table= needs violation="),
        ("violation=0.1,margin=1.2", "takes the place of of= and margin="),
        ("violation=0.1,of=maximum", "takes the place of of= and margin="),
        (f"violation=0.1,table={blind}", "b.toml: has no watts of the node"),
        (f"violation=0.1,table={tmp_path}/none.toml", "none.toml: cannot be read"),
    ):
        with pytest.raises(WrongUseError, match=said) as error:
            choose(f"easy-power:{text}")
        assert "\n" not in str(error.value)

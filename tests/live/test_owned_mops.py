"""Where a policy owns the watts, a node without a job counts its minimal operating power: in the plan, and once."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster_agent.budget.ledger import Terms
from cluster_agent.jobs.job import Job
from cluster_agent.serve.config import JobSettings
from foundation.wire.power_messages import Declaration
from tests.live.budgeted import Budgeted

SITE = """name = "site"
summary = ""
[[nodes]]
count = 1
cores = 1
idle_w = 30
frequency_mhz = [2000, 1000]
busy_w = [300, 150]
"""
TABLE = "application,nodes,cores,cap_w,time_s,watts\n1,1,1,300,10,300\n"
MOP_W = 100.0
OWNERS = ("powercap:mode=dvfs", "easy-power", "eco", "prb", "easy-capped", "planned", "moldable")


def declared(mop_w: float) -> Declaration:
    mop_mw = round(mop_w * 1000)
    return Declaration(320_000, mop_mw, mop_mw, mop_mw, "hw")


def served(tmp_path: Path, policy: str, budget_w: float, *mops_w: float) -> Budgeted:
    """Nodes with these MOPs."""
    (tmp_path / "site.toml").write_text(SITE)
    (tmp_path / "table.csv").write_text(TABLE)
    settings = JobSettings(policy, str(tmp_path / "site.toml"), str(tmp_path / "table.csv"))
    by_name = {f"n{number:02}": declared(mop_w) for number, mop_w in enumerate(mops_w)}
    made = Budgeted(len(mops_w), settings, [(0, budget_w)], by_name.__getitem__, Terms(0, 0))
    made.settle()
    return made


def settled(made: Budgeted, job: Job, seconds: int = 4) -> Job:
    for _ in range(seconds):
        made.now_s += 1
        made.settle()
    return job


@pytest.mark.parametrize("policy", OWNERS)
def test_a_job_for_which_the_budget_has_watts_starts_at_once(tmp_path: Path, policy: str) -> None:
    """Four nodes of 100 W MOP under 1300 W: a job on all of them needs 1200 W, none of which is also set aside."""
    made = served(tmp_path, policy, 1300.0, *[MOP_W] * 4)
    job = made.submit(run_s=10, nodes=4, walltime_s=10, name="2" if policy == "moldable" else "")
    made.settle()
    assert (job.state, job.level) == ("running", 0)
    settled(made, job)
    assert {one.cap_mw for one in made.caps.values()} == {300_000}
    assert made.most_over_mw <= 0


@pytest.mark.parametrize("policy", OWNERS)
def test_idle_nodes_count_their_mop_and_a_job_waits_for_what_is_missing(tmp_path: Path, policy: str) -> None:
    """Two busy and two idle nodes are 800 W, which with the machine file's 30 W would be 660 W."""
    made = served(tmp_path, policy, 790.0, *[MOP_W] * 4)
    jobs = [made.submit(run_s=10, nodes=1, walltime_s=10) for _ in range(2)]
    made.settle()
    watts = sum(made.partition.caps_mw().values()) / 1000
    assert watts + 200.0 <= 790.0 and jobs[0].state == "running"
    settled(made, jobs[0])
    assert made.most_over_mw <= 0


@pytest.mark.parametrize("policy", OWNERS)
def test_one_node_with_a_higher_mop_is_set_aside_alone(tmp_path: Path, policy: str) -> None:
    """300 W of a busy node, 250 of the odd one, twice 100."""
    made = served(tmp_path, policy, 750.0, MOP_W, MOP_W, MOP_W, 250.0)
    job = made.submit(run_s=10, nodes=1, walltime_s=10)
    made.settle()
    assert (job.state, job.level) == ("running", 0)
    settled(made, job)
    assert made.most_over_mw <= 0


@pytest.mark.parametrize("policy", OWNERS)
def test_a_restart_plans_with_the_mops_that_the_ledger_has_stored(tmp_path: Path, policy: str) -> None:
    made = served(tmp_path, policy, 1300.0, *[MOP_W] * 4)
    job = settled(made, made.submit(run_s=60, nodes=2, walltime_s=60))
    before = made.partition.planned_mw(), made.partition.watts.idle_mw, made.partition.jobs[job.id].configured
    made.kill_and_restart()
    job = made.partition.jobs[job.id]
    assert (made.partition.planned_mw(), made.partition.watts.idle_mw, job.configured) == before
    settled(made, job)
    assert job.state == "running" and made.most_over_mw <= 0


def test_a_node_that_declares_another_mop_with_each_report_moves_the_plan_only_now_and_then(tmp_path: Path) -> None:
    made = served(tmp_path, "prb", 1300.0, *[MOP_W] * 4)
    begun, again = 0, made.partition._rows.begin_again

    def begin() -> None:
        nonlocal begun
        begun += 1
        again()

    made.partition._rows.begin_again = begin  # type: ignore[method-assign]
    for second in range(20):
        odd = declared(100.0 + second)
        made.declared = {**dict.fromkeys(("n00", "n01", "n02"), declared(MOP_W)), "n03": odd}.__getitem__
        made.now_s += 1
        made.settle()
    assert begun <= 4 and made.most_over_mw <= 0

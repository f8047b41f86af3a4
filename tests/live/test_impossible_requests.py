"""One impossible request stalls nothing: under each policy that ships, all others start although one job never can.
Only policies that are strict by definition, first come, first served, let others wait behind it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from cluster_agent.cluster import Machine, NodeGroup, Topology
from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.power_switching import PowerTimes
from cluster_agent.scheduler.policies import registry
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.switches.live_reservations import Reservation
from tests.live.fakes import Fake
from tests.live.test_live_halves import Halved

NODES = 4
NODE = NodeGroup(
    NODES, 16, idle_w=30, rest_w=10, frequency_mhz=(2000, 1000), busy_w=(100, 80), slowdown=(1.0, 1.5)
)  # fmt: skip
GIVEN = {"portfolio": "portfolio:members=easy|fcfs", "energy-budget": "energy-budget:joules=4e7,from_s=0,to_s=100000"}
"""Parameters of those that have no defaults."""
POLICIES = [GIVEN.get(name, name) for name in registry.names() if registry.runs_live(registry.policy(name))]
OTHERS = ((1, 20, 40), (2, 10, 20), (1, 15, 30), (2, 5, 90), (1, 30, 60))
"""Nodes, run time and walltime of jobs that can run."""


def under(policy: str, full_w: float) -> Fake:
    if policy == "shared":
        with tempfile.TemporaryDirectory() as at:
            return Halved(Path(at), NODES)
    live = choose(policy).live
    given: dict[str, Any] = {"power": PowerTimes()} if "powercap" in policy else {}
    owns = live.power is not None or live.choose is not None
    if owns:
        given["meter"] = lambda: 0
        given["machine"] = Machine("small", (NODE,), Topology(), {})
    if live.choose is not None:
        given["configurations"] = {}
    fake = Fake(NODES, live, **given)
    if owns:
        fake.set_budget((fake.now_s, full_w))
    return fake


def starts(fake: Fake, impossible: dict[str, Any] | None) -> dict[int, float | None]:
    """When the others start, of which one is there before the impossible job; it is still there at the end."""
    jobs = [fake.submit(run_s, nodes, walltime_s) for nodes, run_s, walltime_s in OTHERS[:1]]
    fake.settle()
    never = fake.submit(10, **impossible) if impossible else None
    for nodes, run_s, walltime_s in OTHERS[1:]:
        jobs.append(fake.submit(run_s, nodes, walltime_s))
        fake.step(2)
    for _ in range(60):
        fake.step(3)
    assert never is None or never.started_s is None
    return {at: job.started_s for at, job in enumerate(jobs)}


def is_strict(policy: str) -> bool:
    composed = choose(policy).live
    return composed.backfill == "none" and composed.choose is None


def check_starts(policy: str, found: dict[int, float | None], without: dict[int, float | None]) -> None:
    assert None not in without.values()
    if is_strict(policy):
        assert found == {0: without[0]} | dict.fromkeys(range(1, len(OTHERS))), "first come, first served"
    else:
        assert None not in found.values()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_wants_more_nodes_than_are_up_stalls_nobody(policy: str) -> None:
    found = []
    for impossible in (None, {"nodes": NODES, "walltime_s": 100}):
        fake = under(policy, NODES * 100.0)
        fake.partition.drain("n03", "a fan")
        fake.settle()
        found.append(starts(fake, impossible))
    check_starts(policy, found[1], found[0])


OWN_WATTS = [name for name in POLICIES if name != "rmap" and registry.choose(name).live.owns_watts]
"""``rmap`` gives each node the same share of the budget, so what is not enough for one job is not enough for any."""


@pytest.mark.parametrize("policy", OWN_WATTS)
def test_a_job_that_wants_more_watts_than_the_budget_ever_has_stalls_nobody(policy: str) -> None:
    """Four nodes draw 320 W at least, and two 260 W at most."""
    without, found = (
        starts(under(policy, 300.0), impossible) for impossible in (None, {"nodes": NODES, "walltime_s": 100})
    )
    check_starts(policy, found, without)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_whose_reservation_ends_before_it_could_run_stalls_nobody(policy: str) -> None:
    found = []
    for impossible in (None, {"nodes": 1, "walltime_s": 100, "user": "ada", "reservation": "maint"}):
        fake = under(policy, NODES * 100.0)
        try:
            fake.partition.reserve(Reservation("maint", 1, int(fake.now_s) + 1, 100, ["ada"]))
        except WrongUseError as error:
            assert "does not go with reservations" in str(error)
            return
        fake.step(5)
        found.append(starts(fake, impossible))
    assert found[1] == found[0] and None not in found[0].values()

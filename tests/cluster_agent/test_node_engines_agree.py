"""The native scheduler on unlike nodes against the plain-Python one, on random traces, caps and policies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.cluster import NodeGroup
from cluster_agent.replay.drawn import power_over_time
from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.scheduler.interfaces import Scheduler
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.native.native_unlike import CUnlike
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.power_cap import UNCAPPED, PowerCap
from cluster_agent.scheduler.unlike_nodes.node_aware import PowerSource
from cluster_agent.scheduler.unlike_nodes.node_jobs import Nodes
from cluster_agent.workloads.node_power import PredictedPower
from cluster_agent.workloads.node_trace import NodeTrace
from cluster_agent.workloads.swf import TraceError
from tests.cluster_agent.node_traces import FOUR_NODES, Row, caps, node_rows, trace_of
from tests.cluster_agent.worlds import replay_nodes
from tests.oracle.node_scheduler import NodeScheduler

POLICIES = [
    *("prb:rule=est", "prb:rule=promise,miss=strict,placing=pack", "prb:rule=gpus"),
    *("easy-capped", "easy-capped:rule=est,placing=first", "easy-power", "easy-power:meter=end,margin=0.5"),
]


def traced(
    rows: list[Row], cap: PowerCap, overdue_s: int, job: Sequence[int] = (), nodes: Nodes = FOUR_NODES
) -> NodeTrace:
    """The jobs that can run; ``overdue_s``: every third runs for so much longer than requested."""
    try:
        trace = trace_of(rows, job).on(nodes, cap)
    except TraceError:  # the cap allows none of these jobs
        assume(False)
    jobs = trace.jobs
    run_s = jobs.run_s + overdue_s * (np.arange(len(jobs)) % 3 == 0)
    return replace(trace, jobs=replace(jobs, run_s=run_s))


def power_of(policy: str, trace: NodeTrace) -> PowerSource | None:
    composition = choose(policy).on_nodes
    return None if composition.admitted == "given" else PredictedPower(trace, FOUR_NODES, composition.admitted)


def looped(scheduler: Scheduler, trace: NodeTrace) -> dict[int, int]:
    machine = SimulatedMachine(trace.jobs, "instant")
    run(scheduler, JumpingClock(), machine)
    return machine.start_s


GROUPS = (
    *(NodeGroup(1, 16, idle_w=20, off_w=2, boot_s=boot_s, boot_j=60 * boot_s, switch_off_s=2) for boot_s in (3.5, 0)),
    *(NodeGroup(1, 16, idle_w=20, off_w=2, boot_s=boot_s, boot_j=200, switch_off_s=1) for boot_s in (5, 9)),
)
GO_OFF = [
    *("prb:rule=est,idle_off_s=3", "prb:idle_off_s=1,placing=pack", "prb:idle_off_s=5,miss=strict"),
    *("easy-capped:idle_off_s=1", "easy-capped:idle_off_s=4,rule=est,placing=first"),
]


@given(rows=node_rows(), policy=st.sampled_from([*POLICIES, *GO_OFF, "easy", "fcfs"]), data=st.data())
@settings(max_examples=150)
def test_jobs_that_may_be_on_some_groups_of_nodes_alone_are_there_in_both_engines(
    rows: list[Row], policy: str, data: st.DataObject
) -> None:
    nodes = replace(FOUR_NODES, group=GROUPS)
    names = [("a", "b", "c", "d")[: data.draw(st.integers(0, 4))] for _ in rows]
    nodes = replace(nodes, group=tuple(replace(group, name=name) for group, name in zip(GROUPS, "dcba", strict=True)))
    try:
        trace = replace(trace_of(rows), within=tuple(names)).on(nodes, UNCAPPED)
    except TraceError:  # none of these jobs fits its groups
        assume(False)
    composition = choose(policy).on_nodes
    plain = NodeScheduler(composition, trace.jobs, nodes, UNCAPPED, power_of(policy, trace))
    expected = looped(plain, trace)
    result = replay_nodes(trace, composition, nodes, UNCAPPED, power_of(policy, trace))
    assert dict(enumerate(result.start_s.tolist())) == {job: expected.get(job, -1) for job in range(len(trace.jobs))}
    for job, placed in plain.placed.items():
        found = result.schedule.placed(job).node.tolist()
        assert found == placed.node.tolist()
        assert not trace.jobs.within[job] or all(nodes.group_bit[found] & trace.jobs.within[job])
    free = replay_nodes(
        replace(trace, jobs=replace(trace.jobs, within=0 * trace.jobs.within)),
        composition, nodes, UNCAPPED, power_of(policy, trace),
    )  # fmt: skip
    if free.start_s.tolist() != result.start_s.tolist():
        assert result.switches["clusters"] > 0, "what changed anything is counted"


@pytest.mark.parametrize("policy", POLICIES + GO_OFF)
@given(rows=node_rows(), cap=caps(), overdue_s=st.sampled_from([0, 0, 7, 60]))
@settings(max_examples=40)
def test_the_native_engine_and_the_plain_one_start_the_same_jobs_on_the_same_nodes(
    policy: str, rows: list[Row], cap: PowerCap, overdue_s: int
) -> None:
    nodes = replace(FOUR_NODES, group=GROUPS)
    trace = traced(rows, cap, overdue_s)
    composition = choose(policy).on_nodes
    plain = NodeScheduler(composition, trace.jobs, nodes, cap, power_of(policy, trace))
    expected = looped(plain, trace)
    result = replay_nodes(trace, composition, nodes, cap, power_of(policy, trace))
    assert dict(enumerate(result.start_s.tolist())) == {job: expected.get(job, -1) for job in range(len(trace.jobs))}
    assert result.admitted_w.tolist() == plain.admitted_w.tolist()
    if overdue_s == 0 and composition.admitted == "given":
        assert power_over_time(result).over_j == 0, "boots count as well"
    for job, placed in plain.placed.items():
        found = result.schedule.placed(job)
        assert (found.node.tolist(), found.count.tolist()) == (placed.node.tolist(), placed.count.tolist())

    unlike = CUnlike(composition, trace.jobs, nodes, cap, power_of(policy, trace))
    stepped = NativeScheduler(unlike.phases, trace.jobs, unlike.processors, unlike=unlike)
    assert looped(stepped, trace) == expected

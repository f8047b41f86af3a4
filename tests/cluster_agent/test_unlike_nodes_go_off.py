"""Nodes that differ, go off when they are idle, and boot for the next job: what that delays, draws and saves."""

from __future__ import annotations

import numpy as np
import pytest

from cluster_agent.cluster import NodeGroup
from cluster_agent.replay.drawn import empty_nodes, power_over_time
from cluster_agent.replay.measures import measure
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import PowerCap, constant
from cluster_agent.scheduler.power_phases import Power
from cluster_agent.scheduler.unlike_nodes.node_jobs import Nodes
from tests.cluster_agent.node_traces import Row, result_of, trace_of

GROUP = NodeGroup(1, 16, idle_w=20, off_w=2, boot_s=5, boot_j=300, switch_off_s=2, switch_off_j=30)
POLICY = "easy-capped:rule=est,placing=first,idle_off_s=20"


def machine(nodes: int) -> Nodes:
    return Nodes(np.array([[16, 0, 0, 64]] * nodes, np.int64), group=(GROUP,) * nodes)


def one(submit_s: int, run_s: int, watts: float, units: int = 1) -> Row:
    return submit_s, run_s, run_s, units, 16 * units, 0, 0, watts


@pytest.mark.parametrize(
    ("submit_s", "begins_s", "joules"),
    [
        (30, 30, (400, 0, 0)),  # the timer comes after the pass of its instant
        (31, 37, (400, 0, 330)),  # it boots once it is off
        (100, 105, (400, 2 * 68, 330)),
    ],
)
def test_a_job_begins_once_its_node_is_on_again(submit_s: int, begins_s: int, joules: tuple[float, ...]) -> None:
    result = result_of(POLICY, trace_of([one(0, 10, 40), one(submit_s, 10, 40)]), machine(1))
    assert result.start_s.tolist() == [0, begins_s]
    empty = empty_nodes(result)
    assert (empty.idle_j, empty.off_j, empty.switching_j) == joules
    assert measure(result)["peak_w"] == (60 if begins_s > submit_s else 40), "a boot draws 60 W"


@pytest.mark.parametrize(
    ("from_s", "joules", "boots"),
    [
        (20, (200, 2 * 68, 330), [(100, 105, 60)]),
        (31, (0, 2 * 68, 315), [(100, 105, 60)]),
        (50, (0, 2 * 50, 300), [(100, 105, 60)]),
        (103, (0, 0, 120), [(103, 105, 60)]),
        (105, (0, 0, 0), []),
    ],
)
def test_a_warm_start_counts_from_its_instant_on(
    from_s: int, joules: tuple[float, ...], boots: list[tuple[int, int, float]]
) -> None:
    result = result_of(POLICY, trace_of([one(0, 10, 40), one(100, 10, 40)]), machine(1))
    empty = empty_nodes(result, from_s)
    assert ((empty.idle_j, empty.off_j, empty.switching_j), empty.boots) == (joules, boots)


def test_nodes_stay_on_without_a_time() -> None:
    result = result_of("easy-capped", trace_of([one(0, 10, 40), one(100, 10, 40)]), machine(2))
    assert result.start_s.tolist() == [0, 100]
    measured = measure(result)
    parts = [measured[part] for part in ("idle_j", "off_j", "switching_j", "boots")]
    assert parts == [20 * (110 + 90), 0, 0, 0]


def test_a_boot_waits_for_its_watts() -> None:
    result = result_of(
        POLICY, trace_of([one(0, 10, 40), one(100, 10, 40)]), machine(1), PowerCap((0, 200), (50.0, 100.0))
    )
    assert result.start_s.tolist() == [0, 205]
    assert power_over_time(result).over_j == 0


def test_a_job_gets_nodes_that_are_on_before_others() -> None:
    """The second job keeps the second node on; the third, on which the first node would be free, goes there too."""
    rows = [one(0, 10, 40), one(0, 100, 40), one(101, 10, 40)]
    result = result_of(POLICY, trace_of(rows), machine(2))
    assert result.start_s.tolist() == [0, 0, 101]
    assert result.schedule.placed(2).node.tolist() == [1]


def test_a_boot_leaves_the_head_its_watts() -> None:
    """The third job would take 20 W of the 30 W next to the head, but its boot 60 W."""
    rows = [one(0, 100, 30), one(50, 10, 70, units=2), one(50, 60, 20)]
    result = result_of(POLICY, trace_of(rows), machine(3), constant(100.0))
    assert result.start_s.tolist() == [0, 105, 115]


def test_a_plan_and_a_time_after_which_nodes_go_off_exclude_each_other() -> None:
    composition = choose("planned").on_nodes
    with pytest.raises(ValueError, match="idle_off_s needs boots, and a plan knows none: leave one of them out"):
        Composition(
            order=composition.order,
            backfill="list",
            power=Power(),
            placing="pack",
            plan=composition.plan,
            idle_off_s=60,
        )

"""The phase *plan*: what is due starts if the engine admits it, whatever the planner; else the list schedule."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.errors import ClusterError
from cluster_agent.replay.drawn import power_over_time
from cluster_agent.replay.measures import measure
from cluster_agent.replay.world_run import Result
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.native.native_unlike import CUnlike
from cluster_agent.scheduler.plans.plan_phase import NO_BUDGET, Plan, PlanBudget, Planner, Situation, Start
from cluster_agent.scheduler.plans.planning import Outcome, equal, invalid
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import UNCAPPED, PowerCap, constant
from cluster_agent.scheduler.power_phases import Power
from cluster_agent.scheduler.rules import RULES
from cluster_agent.scheduler.unlike_nodes.node_aware import Placed
from cluster_agent.workloads.node_trace import NodeTrace
from tests.cluster_agent.node_traces import FOUR_NODES, WASTEFUL, Row, caps, node_rows, on_four_nodes, trace_of
from tests.cluster_agent.test_node_engines_agree import looped
from tests.cluster_agent.worlds import replay_nodes

LATE_S = 0.01


def composed(planner: Planner, budget: PlanBudget = NO_BUDGET) -> Composition:
    return Composition(
        order=RULES["walltime"], backfill="list", power=Power(), placing="first", plan=planner, plan_budget=budget
    )


def replayed(planner: Planner, trace: NodeTrace, cap: PowerCap = UNCAPPED, **more: PlanBudget) -> Result:
    return replay_nodes(trace, composed(planner, **more), FOUR_NODES, cap)


def on(*nodes: int) -> Placed:
    return Placed(np.array(nodes, np.int64), np.ones(len(nodes), np.int64))


def all_now(situation: Situation, budget: PlanBudget) -> Plan:
    return [Start(job, situation.now_s) for job in situation.queue.job.tolist()]


def unable(situation: Situation, budget: PlanBudget) -> Plan:
    raise RuntimeError("no licence")


def slow(situation: Situation, budget: PlanBudget) -> Plan:
    time.sleep(2 * LATE_S)
    return all_now(situation, budget)


def twice(situation: Situation, budget: PlanBudget) -> Plan:
    return [*all_now(situation, budget), *all_now(situation, budget)]


def of_the_past(situation: Situation, budget: PlanBudget) -> Plan:
    return [Start(job, situation.now_s - 1) for job in situation.queue.job.tolist()]


def on_no_node(situation: Situation, budget: PlanBudget) -> Plan:
    return [Start(job, situation.now_s, on(4)) for job in situation.queue.job.tolist()]


def never(situation: Situation, budget: PlanBudget) -> Plan:
    return [Start(job, situation.now_s + 1) for job in situation.queue.job.tolist()]


@pytest.mark.parametrize(
    ("planner", "reason"),
    [
        (unable, "raised test_plan_phase.py"),
        (slow, "late: "),
        (twice, "invalid: job 0 does not wait, or starts twice"),
        (of_the_past, "invalid: job 0 starts at -1 s"),
        (on_no_node, "invalid: the nodes of job 0"),
        (lambda situation, budget: None, "invalid: not a sequence of starts"),
        (lambda situation, budget: [1], "invalid: not a sequence of starts"),
        (lambda situation, budget: [], "invalid: nothing runs"),
        (never, "invalid: nothing runs"),
    ],
)
def test_without_a_plan_the_list_schedule_decides_and_the_outcome_says_why(planner: Planner, reason: str) -> None:
    trace, cap = trace_of(WASTEFUL), constant(100.0)
    plain = replay_nodes(
        trace, Composition(order=RULES["walltime"], backfill="list", power=Power(), placing="first"), FOUR_NODES, cap
    )
    result = replayed(planner, trace, cap, budget=PlanBudget(time_s=LATE_S if planner is slow else None))
    assert result.start_s.tolist() == plain.start_s.tolist() == [0, 9, 9]
    first = result.outcomes[0]
    assert (first.now_s, first.decided_by, [job for job, _ in first.started]) == (0, "list", [0])
    assert first.reason.startswith(reason) or reason.removeprefix("raised ") in first.reason
    assert measure(result)["plans"] == {
        "planner": len(result.outcomes) - measure(result)["plans"]["list"],
        "list": sum(one.decided_by == "list" for one in result.outcomes),
        "reasons": {reason.split(":")[0].split()[0]: sum(one.decided_by == "list" for one in result.outcomes)},
    }


def test_a_planned_start_above_the_cap_waits_for_the_next_plan() -> None:
    result = replayed(all_now, trace_of(WASTEFUL), constant(100.0))
    assert result.start_s.tolist() == [0, 9, 9]
    assert [[job for job, _ in one.started] for one in result.outcomes] == [[0], [1, 2]]
    assert {one.decided_by for one in result.outcomes} == {"planner"}


def test_a_start_is_tried_in_the_order_of_the_plan_and_on_its_nodes() -> None:
    def backwards(situation: Situation, budget: PlanBudget) -> Plan:
        return [Start(job, situation.now_s, on(3)) for job in reversed(situation.queue.job.tolist())]

    result = replayed(backwards, trace_of(WASTEFUL), constant(100.0))
    assert result.start_s.tolist() == [10, 0, 0]
    assert [result.schedule.placed(job).node.tolist() for job in range(3)] == [[3]] * 3


def test_nodes_that_are_full_refuse_a_start_and_no_others_are_taken() -> None:
    rows: list[Row] = [(0, 5, 5, 1, 16, 0, 0, 1.0)] * 2

    def on_one(situation: Situation, budget: PlanBudget) -> Plan:
        return [Start(job, situation.now_s, on(2)) for job in situation.queue.job.tolist()]

    assert replayed(on_one, trace_of(rows)).start_s.tolist() == [0, 5]


def test_a_start_planned_for_later_is_due_without_any_event() -> None:
    rows: list[Row] = [(0, 50, 50, 1, 1, 0, 0, 1.0)] * 2

    def second_at_7(situation: Situation, budget: PlanBudget) -> Plan:
        return [Start(job, 7 * job) for job in situation.queue.job.tolist()]

    result = replayed(second_at_7, trace_of(rows))
    assert result.start_s.tolist() == [0, 7]
    assert [one.now_s for one in result.outcomes] == [0, 7]


def test_what_a_planner_sees() -> None:
    rows: list[Row] = [(0, 8, 20, 2, 32, 0, 4, 30.0), (3, 5, 6, 1, 16, 2, 0, 50.0), (3, 5, 5, 1, 4, 0, 0, 40.0)]
    seen: list[Situation] = []

    def noting(situation: Situation, budget: PlanBudget) -> Plan:
        seen.append(situation)
        return all_now(situation, budget)

    replayed(noting, trace_of(rows), PowerCap((0, 100), (200.0, 150.0)))
    one = seen[1]
    assert (one.now_s, one.queue.job.tolist(), one.queue.request_s.tolist()) == (3, [2, 1], [5, 6])
    assert one.need.tolist() == [[4, 0, 0, 0], [16, 2, 0, 0]]
    assert (one.running.job.tolist(), one.running.end_s.tolist(), one.running.watts.tolist()) == ([0], [20], [30.0])
    assert one.running.placed[0].node.tolist() == [2, 3]
    assert one.free.tolist() == [[16, 2, 0, 64], [16, 2, 0, 64], [0, 0, 0, 64], [0, 0, 0, 64]]
    assert (one.cap.at(99), one.cap.at(100), one.placing) == (200.0, 150.0, "first")


def chaotic(seed: int) -> Planner:
    """Some of the queue, some now, some on any nodes; the same for the same situation."""

    def plan(situation: Situation, budget: PlanBudget) -> Plan:
        draw = Random(seed + situation.now_s)
        found = []
        for position, job in enumerate(situation.queue.job.tolist()):
            units, placed = int(situation.queue.units[position]), None
            if draw.random() < 0.5:
                placed = on(*draw.sample(range(len(situation.free)), units))
            if draw.random() < 0.8:
                found.append(Start(job, situation.now_s + draw.choice([0, 0, 1, 5]), placed))
        draw.shuffle(found)
        return found

    return plan


@given(rows=node_rows(), cap=caps(), seed=st.integers(0, 1000))
@settings(max_examples=60)
def test_no_plan_breaks_the_cap_or_a_node_and_every_job_runs(rows: list[Row], cap: PowerCap, seed: int) -> None:
    trace = on_four_nodes(rows, cap)
    result = replayed(chaotic(seed), trace, cap)
    assert result.unstarted == 0 and power_over_time(result).over_j == 0.0
    jobs = trace.jobs
    end_s = result.start_s + jobs.run_s
    for now_s in result.start_s:
        used = FOUR_NODES.has * 0
        for job in np.flatnonzero((result.start_s <= now_s) & (now_s < end_s)):
            placed = result.schedule.placed(int(job))
            assert placed.count.sum() == jobs.units[job]
            used[placed.node] += placed.count[:, None] * jobs.need[job]
        assert (used <= FOUR_NODES.has).all()


def forbidden(situation: Situation, budget: PlanBudget) -> Plan:
    raise AssertionError("the planner was called")


@given(rows=node_rows(), cap=caps(), seed=st.integers(0, 1000))
@settings(max_examples=40)
def test_recorded_outcomes_repeat_a_replay_without_its_planner_in_both_engines(
    rows: list[Row], cap: PowerCap, seed: int
) -> None:
    trace = on_four_nodes(rows, cap)
    first = replayed(chaotic(seed), trace, cap)
    again = replay_nodes(trace, composed(forbidden), FOUR_NODES, cap, recorded=first.outcomes)
    assert equal(again.outcomes, first.outcomes) and again.plan_s == []
    assert again.start_s.tolist() == first.start_s.tolist()
    assert measure(again) == measure(first)
    for planner, recorded in ((chaotic(seed), None), (forbidden, first.outcomes)):
        unlike = CUnlike(composed(planner), trace.jobs, FOUR_NODES, cap, recorded=recorded)
        scheduler = NativeScheduler(unlike.phases, trace.jobs, unlike.processors, unlike=unlike)
        assert looped(scheduler, trace) == dict(enumerate(first.start_s.tolist()))


def test_a_plan_without_a_start_is_a_plan_while_there_are_watts_for_nobody() -> None:
    """Live, nobody knows that watts will come; a replay drops such jobs."""
    situation = seen_by(trace_of(WASTEFUL), constant(100.0))
    assert invalid(situation, []).startswith("invalid: nothing runs")
    poor = replace(situation, cap=constant(float(situation.queue.watts.min()) - 1))
    assert invalid(poor, []) == ""
    assert invalid(replace(poor, cap=constant(float(situation.queue.watts.min()))), []) != ""


def seen_by(trace: NodeTrace, cap: PowerCap) -> Situation:
    """The first situation of a replay."""
    seen: list[Situation] = []

    def noting(situation: Situation, budget: PlanBudget) -> Plan:
        seen.append(situation)
        return all_now(situation, budget)

    replayed(noting, trace, cap)
    return seen[0]


@pytest.mark.parametrize(
    "changed",
    [
        lambda outcomes: outcomes[:-1],
        lambda outcomes: [*outcomes, Outcome(99, "planner", "")],
        lambda outcomes: [Outcome(0, "planner", "", ((0, on(0)), (1, on(0)))), *outcomes[1:]],
        lambda outcomes: [Outcome(1, "planner", ""), *outcomes[1:]],
    ],
)
def test_a_record_of_another_replay_is_one_line(changed: Callable[[list[Outcome]], list[Outcome]]) -> None:
    trace, cap = trace_of(WASTEFUL), constant(100.0)
    recorded = changed(list(replayed(all_now, trace, cap).outcomes))
    with pytest.raises(ClusterError, match="the recorded plan is not of this replay"):
        replay_nodes(trace, composed(forbidden), FOUR_NODES, cap, recorded=recorded)


def test_a_plan_falls_back_on_a_list_schedule_alone() -> None:
    with pytest.raises(ValueError, match="a plan needs backfill=list to fall back on, and this is easy"):
        Composition(order=RULES["est"], backfill="easy", power=Power(), placing="pack", plan=all_now)


def test_a_budget_ends_by_iterations_or_by_time() -> None:
    assert [PlanBudget(2).begun().allows(done) for done in (0, 1, 2)] == [True, True, False]
    assert PlanBudget(1, 1000.0).begun().allows(0)
    short = PlanBudget(1, LATE_S / 10).begun()
    time.sleep(LATE_S)
    assert not short.allows(0)

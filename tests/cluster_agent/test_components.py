"""Heterogeneous jobs: the native engine against the plain-Python one on random worlds, and what no engine may do."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.errors import WrongUseError
from cluster_agent.library import World, replay
from cluster_agent.replay.drawn import power_over_time
from cluster_agent.replay.state_at import state_at
from cluster_agent.replay.world_run import Result
from cluster_agent.scheduler.native.native_list_plan import CSerialPlan
from cluster_agent.scheduler.plans.list_search import weights
from cluster_agent.scheduler.plans.plan_phase import Plan, PlanBudget, Situation, Start
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import UNCAPPED, PowerCap
from cluster_agent.scheduler.power_phases import Power
from cluster_agent.scheduler.rules import RULES
from cluster_agent.scheduler.unlike_nodes.node_aware import Placed
from cluster_agent.workloads.node_power import submission
from cluster_agent.workloads.node_trace import NodeTrace
from cluster_agent.workloads.swf import TraceError
from cluster_agent.workloads.warm_nodes import warm_on
from tests.cluster_agent.node_traces import FOUR_NODES, Row, caps, node_rows, result_of, trace_of
from tests.cluster_agent.test_node_engines_agree import GO_OFF, GROUPS, POLICIES, looped, power_of, traced
from tests.cluster_agent.test_policy_planned import situations_of
from tests.cluster_agent.test_serial_plans import plain
from tests.cluster_agent.worlds import replay_nodes
from tests.oracle.node_scheduler import NodeScheduler

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
NODES = replace(FOUR_NODES, group=GROUPS)


@st.composite
def heterogeneous(draw: st.DrawFn, most: int = 16) -> tuple[list[Row], list[int]]:
    """Rows, and which of them are a job: the first row of a job says when it comes."""
    rows, job = draw(node_rows(most)), list[int]()
    while len(job) < len(rows):
        count = draw(st.sampled_from([1, 1, 2, 2, 3]))
        job += [len(job) + 1 if count > 1 else 0] * count
    return rows, job[: len(rows)]


def on_nodes(world: tuple[list[Row], list[int]], cap: PowerCap, overdue_s: int = 0) -> NodeTrace:
    rows, job = world
    return traced(rows, cap, overdue_s, job, NODES)


@pytest.mark.parametrize("policy", [*POLICIES, *GO_OFF, "easy", "fcfs"])
@given(world=heterogeneous(), cap=caps(), overdue_s=st.sampled_from([0, 0, 7]))
@settings(max_examples=25, deadline=None, phases=UNSHRUNK)
def test_the_native_engine_and_the_plain_one_start_the_same_components_on_the_same_nodes(
    policy: str, world: tuple[list[Row], list[int]], cap: PowerCap, overdue_s: int
) -> None:
    trace = on_nodes(world, cap, overdue_s)
    composition = choose(policy).on_nodes
    cap = UNCAPPED if composition.power is None else cap
    plain = NodeScheduler(composition, trace.jobs, NODES, cap, power_of(policy, trace))
    expected = looped(plain, trace)
    result = replay_nodes(trace, composition, NODES, cap, power_of(policy, trace))
    assert dict(enumerate(result.start_s.tolist())) == {job: expected.get(job, -1) for job in range(len(trace.jobs))}
    if overdue_s == 0 and (trace.jobs.watts <= cap.watts[-1]).all():
        assert not result.unstarted, "what can run, runs"
    for job, placed in plain.placed.items():
        found = result.schedule.placed(job)
        assert (found.node.tolist(), found.count.tolist()) == (placed.node.tolist(), placed.count.tolist())
    if overdue_s == 0 and composition.admitted == "given" and composition.power is not None:
        assert power_over_time(result).over_j == 0, "all components count in the cap"


@pytest.mark.parametrize("rule", ["walltime", "promise,placing=pack"])
@given(world=heterogeneous(), cap=caps(), overdue_s=st.sampled_from([0, 0, 7]))
@settings(max_examples=25, deadline=None, phases=UNSHRUNK)
def test_without_iterations_a_plan_of_lists_is_prb(
    rule: str, world: tuple[list[Row], list[int]], cap: PowerCap, overdue_s: int
) -> None:
    trace = on_nodes(world, cap, overdue_s)
    plain, planned = (
        result_of(f"{name}rule={rule}", trace, FOUR_NODES, cap) for name in ("prb:", "planned:iterations=0,")
    )
    assert planned.start_s.tolist() == plain.start_s.tolist()
    assert {one.decided_by for one in planned.outcomes} == {"planner"}


@given(world=heterogeneous(12), cap=caps(), draw=st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None, phases=UNSHRUNK)
def test_each_job_gets_its_earliest_start_for_all_components_over_its_whole_span(
    world: tuple[list[Row], list[int]], cap: PowerCap, draw: Random
) -> None:
    trace = on_nodes(world, cap)
    assume(trace.jobs.components is not None)
    situations = [one for one in situations_of(trace, cap) if one.components is not None]
    for situation in draw.sample(situations, min(3, len(situations))):
        order = list(range(len(situation.queue.job)))
        schedules = CSerialPlan(situation, weights(situation, "wait"))
        for _ in range(6):  # what an order begins with as the one before it stays
            order.insert(draw.randint(0, len(order) - 1), order.pop())
            found = schedules.start_s(order).tolist()
            expected = plain(situation, order)
            assert [at_s if at_s < 1 << 62 else -1 for at_s in found] == expected


def test_what_components_on_one_node_gave_back_is_taken_once() -> None:
    """From 7 s on the second job has 4 of the first node's 16 cores twice, and is then placed after the third, whose
    five units of 4 cores the first node has no room for."""
    one, third = (0, 5, 5, 1, 4, 0, 0, 60.0), (0, 20, 20, 5, 20, 0, 0, 20.0)
    trace = on_nodes(([(0, 3, 3, 4, 64, 0, 0, 20.0), one, one, third], [0, 2, 2, 0]), PowerCap((0, 7), (40.0, 200.0)))
    situation = situations_of(trace, PowerCap((0, 7), (40.0, 200.0)))[0]
    (first,), (several,), (wide,) = (np.flatnonzero(situation.queue.units == units).tolist() for units in (4, 2, 5))
    changed, fresh = (CSerialPlan(situation, weights(situation, "wait")) for _ in range(2))
    assert changed.start_s([first, several, wide])[several] == 7
    orders = [first, wide, several]
    assert changed.start_s(orders).tolist() == fresh.start_s(orders).tolist()
    for job in orders:
        assert changed.placed(job).count.tolist() == fresh.placed(job).count.tolist()
    assert fresh.placed(wide).count.tolist() == [4, 1]


def test_a_refused_job_says_nothing_about_components_that_need_less() -> None:
    """Two nodes are free. Three units of 10 cores have no room there; one of 10 and two of 1 have."""
    busy, refused = (0, 9, 9, 2, 32, 4, 0, 1.0), (0, 3, 3, 3, 30, 0, 0, 1.0)
    wide, narrow = (0, 4, 4, 1, 10, 0, 0, 1.0), (0, 4, 4, 2, 2, 0, 0, 1.0)
    trace = on_nodes(([busy, refused, wide, narrow], [0, 0, 3, 3]), UNCAPPED)
    for policy in ("prb:rule=est", "planned:iterations=0,rule=est"):
        assert result_of(policy, trace).start_s.tolist() == [0, 9, 0]


def test_refused_components_say_nothing_about_a_job_that_needs_more_than_the_first_of_them() -> None:
    """Next to three units of 6 cores the two nodes have no room for one of 12; for a fourth of 6 they have."""
    busy, wide = (0, 9, 9, 2, 32, 4, 0, 1.0), (0, 4, 4, 1, 12, 0, 0, 1.0)
    trace = on_nodes(([busy, (0, 4, 4, 3, 18, 0, 0, 1.0), wide, (0, 3, 3, 4, 24, 0, 0, 1.0)], [0, 2, 2, 0]), UNCAPPED)
    for policy in ("prb:rule=est", "planned:iterations=0,rule=est"):
        assert result_of(policy, trace).start_s.tolist() == [0, 9, 0]


@pytest.mark.parametrize("policy", ["prb:rule=est,idle_off_s=3", "easy-capped:rule=est,idle_off_s=3"])
def test_a_node_with_two_components_boots_once(policy: str) -> None:
    """Its boot draws 60 W, and 100 W are allowed."""
    one = (50, 5, 5, 1, 4, 0, 0, 1.0)
    trace = on_nodes(([(0, 5, 5, 1, 4, 0, 0, 1.0), one, one], [0, 2, 2]), UNCAPPED)
    nodes = replace(NODES, has=NODES.has[:1], group=GROUPS[:1])
    result = replay_nodes(trace, choose(policy).on_nodes, nodes, PowerCap((0,), (100.0,)))
    assert result.start_s.tolist() == [0, 54]


def test_two_components_on_one_node_start_where_both_have_room_at_once() -> None:
    """Each alone would fit next to the first job, which takes 8 of the 16 cores in the same pass."""
    one = (0, 5, 5, 1, 6, 0, 0, 1.0)
    trace = on_nodes(([(0, 5, 5, 1, 8, 0, 0, 1.0), one, one], [0, 2, 2]), UNCAPPED)

    def all_on_the_first(situation: Situation, budget: PlanBudget) -> Plan:
        return [
            Start(job, situation.now_s, Placed(np.zeros(int(units), np.int64), np.ones(int(units), np.int64)))
            for job, units in zip(situation.queue.job.tolist(), situation.queue.units.tolist(), strict=True)
        ]

    composition = Composition(
        order=RULES["est"], backfill="list", power=Power(), placing="first", plan=all_on_the_first
    )
    result = replay_nodes(trace, composition, FOUR_NODES, UNCAPPED)
    assert result.start_s.tolist() == [0, 5]


@pytest.mark.parametrize("decoder", ["list", "serial", "both"])
@given(world=heterogeneous(), cap=caps())
@settings(max_examples=15, deadline=None, phases=UNSHRUNK)
def test_plans_of_components_are_carried_out_as_planned(
    decoder: str, world: tuple[list[Row], list[int]], cap: PowerCap
) -> None:
    trace = on_nodes(world, cap)
    assume((trace.jobs.watts <= cap.watts[-1]).all())
    result = result_of(f"planned:iterations=20,decoder={decoder}", trace, FOUR_NODES, cap)
    assert not result.unstarted
    assert {one.decided_by for one in result.outcomes} == {"planner"}
    assert power_over_time(result).over_j == 0


@given(world=heterogeneous(), cap=caps())
@settings(max_examples=15, deadline=None, phases=UNSHRUNK)
def test_a_recorded_plan_of_components_is_repeated(world: tuple[list[Row], list[int]], cap: PowerCap) -> None:
    trace, composition = on_nodes(world, cap), choose("planned:iterations=5").on_nodes
    planned = replay_nodes(trace, composition, FOUR_NODES, cap)
    again = replay_nodes(trace, composition, FOUR_NODES, cap, recorded=planned.outcomes)
    assert again.start_s.tolist() == planned.start_s.tolist()


def test_all_components_start_together_or_not_at_all() -> None:
    """The GPUs are busy until 10 s, so the nodes with MICs stay free until then, and a job behind takes them."""
    busy = (0, 10, 10, 2, 2, 4, 0, 1.0)
    gpus, cores = (0, 5, 5, 1, 1, 1, 0, 1.0), (0, 7, 20, 2, 32, 0, 0, 1.0)
    trace = trace_of([busy, gpus, cores, (0, 4, 4, 2, 32, 0, 0, 1.0)], [0, 2, 2, 0])
    result = result_of("easy-capped:rule=est,placing=pack", trace.on(FOUR_NODES, UNCAPPED))
    names = result.jobs.name
    assert names == ("1", "2", "4")
    assert result.start_s.tolist() == [0, 10, 0]
    placed = result.schedule.placed(1)
    assert (placed.node.tolist(), placed.count.tolist()) == ([0, 2, 3], [1, 1, 1])
    assert (int(trace.jobs.run_s[1]), int(trace.jobs.request_s[1])) == (7, 20), "those of the longest component"
    assert trace.jobs.total()[1].tolist() == [33, 1, 0, 0]


def test_the_scarcest_component_chooses_first_however_the_job_was_written() -> None:
    rows = [(0, 5, 5, 2, 32, 0, 0, 1.0), (0, 5, 5, 2, 32, 4, 0, 1.0)]
    for order in (rows, rows[::-1]):
        result = result_of("prb:rule=est", trace_of(order, [1, 1]).on(FOUR_NODES, UNCAPPED))
        assert result.start_s.tolist() == [0]
        assert result.schedule.placed(0).node.tolist() == [0, 1, 2, 3], "GPU nodes first"


def test_a_prediction_counts_the_accelerators_of_all_components() -> None:
    """Not those of the average unit, rounded up, in each."""
    gpus, plain = (0, 5, 5, 1, 2, 2, 0, 1.0), (0, 5, 5, 4, 4, 0, 0, 1.0)
    trace = trace_of([gpus, plain, gpus], [1, 1, 0])
    assert [(one.units, one.cores, one.gpus) for one in (submission(trace, job) for job in (0, 1))] == [
        (5, 6, 2), (1, 2, 2)
    ]  # fmt: skip


@pytest.mark.parametrize("policy", ["fcfs", "easy", "prb:rule=est", "easy-capped", "planned"])
def test_an_impossible_component_stalls_nothing(policy: str) -> None:
    """Each component alone has room, not both: the job is dropped with its line, and all others run."""
    wide, gpus = (0, 5, 5, 4, 64, 0, 0, 1.0), (0, 5, 5, 1, 1, 1, 0, 1.0)
    trace = trace_of([(0, 5, 5, 1, 1, 0, 0, 1.0), wide, gpus, (1, 5, 5, 4, 64, 0, 0, 1.0)], [0, 1, 1, 0])
    left = trace.on(FOUR_NODES, UNCAPPED)
    assert left.jobs.name == ("1", "4")
    assert [str(one) for one in left.findings] == ["jobs too large for the machine's nodes: 1 dropped (first: line 2)"]
    assert not result_of(policy, left).unstarted


def test_a_job_with_too_many_components_is_dropped() -> None:
    rows = [(0, 5, 5, 1, 1, 0, 0, 1.0)] * 18
    with pytest.raises(TraceError, match="jobs with more than 16 components"):
        trace_of(rows, [1] * 17 + [0])


@pytest.mark.parametrize("policy", ["easy-capped:rule=est", "prb:rule=est,placing=pack"])
@given(world=heterogeneous(), at_s=st.integers(0, 40))
@settings(max_examples=15, deadline=None, phases=UNSHRUNK)
def test_a_warm_start_goes_on_with_all_components(policy: str, world: tuple[list[Row], list[int]], at_s: int) -> None:
    trace, composition = on_nodes(world, UNCAPPED), choose(policy).on_nodes
    whole = replay_nodes(trace, composition, NODES, UNCAPPED, at_s=[at_s])
    state = state_at(at_s, whole, policy, None)
    warm, start = warm_on(NODES, "state", state, trace)
    again = replay_nodes(warm, composition, NODES, UNCAPPED, start=start)
    assert again.start_s.tolist() == whole.start_s.tolist()
    assert where(again) == where(whole)


def where(result: Result) -> list[list[list[int]]]:
    """Of each job and component, its nodes."""
    jobs, placed = result.jobs, result.schedule.placed
    return [[sorted(own.node.tolist()) for _, own in jobs.apart(job, placed(job))] for job in range(len(jobs))]


def test_columns_and_a_file_of_slurm_give_the_same_jobs_and_the_same_replay(tmp_path: Path) -> None:
    text = tmp_path / "history.txt"
    at = "2026-03-01T10:00:00|2026-03-01T10:00:00|2026-03-01T10:10:00"
    rows = [f"1|{at}|4|64|", f"2+0|{at}|2|8|gres/gpu=4", f"2+1|{at}|1|16|", f"3|{at}|2|32|"]
    text.write_text("\n".join(["JobID|Submit|Start|End|NNodes|NCPUS|AllocTRES", *rows]) + "\n")
    columns = {"submit_s": [0] * 4, "run_s": [600] * 4, "units": [4, 2, 1, 2], "cores": [64, 8, 16, 32],
               "gpus": [0, 4, 0, 0], "component_of": ["", "2", "2", ""], "name": ["1", "", "", "3"]}  # fmt: skip
    machine = tmp_path / "machine.toml"
    group = "[[nodes]]\ncount = 2\ncores = 16\ngpus = {}\nfrequency_mhz = [2000]\nbusy_w = [100]\nname = '{}'\n"
    machine.write_text(f"name = 'm'\nsummary = 's'\n{group.format(2, 'gpu')}{group.format(0, 'plain')}")
    found = [
        replay(World(jobs, machine=str(machine)), "easy-capped:rule=est")
        for jobs in (str(text), {name: np.array(column) for name, column in columns.items()})
    ]
    for result in found:
        assert result.jobs.name == ("1", "2", "3")
        assert result.start_s.tolist() == [0, 600, 1200]
    again = replay(World(found[1].jobs, machine=str(machine)), "easy-capped:rule=est")
    assert again.start_s.tolist() == [0, 600, 1200], "the jobs of a result can be replayed"


def test_a_closed_loop_refuses_components(tmp_path: Path) -> None:
    columns = {"submit_s": [0, 0], "run_s": [6, 6], "units": [1, 1], "cores": [1, 1], "component_of": ["a", "a"]}
    world = World({name: np.array(column) for name, column in columns.items()}, machine="eurora", closed_loop="queue=4")
    with pytest.raises(WrongUseError, match="not with heterogeneous jobs"):
        replay(world, "prb:rule=est")

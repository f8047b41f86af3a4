"""``planned``: an order by hand that its rule does not find, and what the search never does."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.scheduler.job_columns import Float64s
from cluster_agent.scheduler.native.native_list_plan import CListPlan
from cluster_agent.scheduler.plans.list_search import Objective, list_search, weights
from cluster_agent.scheduler.plans.plan_phase import Plan, PlanBudget, Situation
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import PowerCap, constant
from cluster_agent.scheduler.power_phases import Power
from cluster_agent.scheduler.rules import RULES
from cluster_agent.workloads.node_trace import NodeTrace
from tests.cluster_agent.node_traces import (
    FOUR_NODES,
    WASTEFUL,
    Row,
    caps,
    node_rows,
    on_four_nodes,
    result_of,
    starts,
    trace_of,
)
from tests.cluster_agent.test_node_engines_agree import looped, traced
from tests.cluster_agent.worlds import replay_nodes
from tests.oracle.node_scheduler import NodeScheduler


def test_the_shortest_job_first_wastes_the_cap_and_the_planner_finds_the_order_that_does_not() -> None:
    trace, cap = trace_of(WASTEFUL), constant(100.0)
    assert starts("prb", trace, FOUR_NODES, cap) == [0, 9, 9]
    assert starts("planned:objective=wait", trace, FOUR_NODES, cap) == [10, 0, 0]


def test_the_objective_decides_who_waits() -> None:
    """The short job first: two waits of 600 s, or 1.2 in units of run times. Last: 1000 s, or 1.67."""
    rows = [(0, 600, 600, 1, 1, 0, 0, 60.0), *[(0, 1000, 1000, 1, 1, 0, 0, 50.0)] * 2]
    trace, cap = trace_of(rows), constant(100.0)
    assert starts("planned:objective=wait", trace, FOUR_NODES, cap) == [1000, 0, 0]
    assert starts("planned:objective=slowdown", trace, FOUR_NODES, cap) == [0, 600, 600]


def situations_of(trace: NodeTrace, cap: PowerCap) -> list[Situation]:
    """Those of a list schedule by walltime."""
    found: list[Situation] = []

    def noting(situation: Situation, budget: PlanBudget) -> Plan:
        found.append(situation)
        return list_search("wait")(situation, budget)

    replay_nodes(
        trace,
        Composition(order=RULES["walltime"], backfill="list", power=Power(), placing="first", plan=noting),
        FOUR_NODES,
        cap,
    )
    return found


@pytest.mark.parametrize("rule", ["walltime", "promise,placing=pack", "energy"])
@given(rows=node_rows(), cap=caps(), overdue_s=st.sampled_from([0, 0, 7]))
@settings(max_examples=30)
def test_without_iterations_it_is_prb(rule: str, rows: list[Row], cap: PowerCap, overdue_s: int) -> None:
    trace = traced(rows, cap, overdue_s)
    plain, planned = (
        result_of(f"{name}rule={rule}", trace, FOUR_NODES, cap) for name in ("prb:", "planned:iterations=0,")
    )
    assert planned.start_s.tolist() == plain.start_s.tolist()
    for job in range(len(trace.jobs)):
        assert planned.schedule.placed(job).node.tolist() == plain.schedule.placed(job).node.tolist()
    assert {one.decided_by for one in planned.outcomes} == {"planner"}


@pytest.mark.parametrize("objective", ["wait", "slowdown", "promise"])
@given(rows=node_rows(), cap=caps())
@settings(max_examples=20)
def test_no_plan_is_worse_by_its_objective_than_the_list_schedule_of_the_rule(
    objective: Objective, rows: list[Row], cap: PowerCap
) -> None:
    for situation in situations_of(on_four_nodes(rows, cap), cap):
        weight = weights(situation, objective)
        of_rule = CListPlan(situation, weight).cost(list(range(len(situation.queue.job))))
        plan = list_search(objective)(situation, PlanBudget(30))
        at = {job: position for position, job in enumerate(situation.queue.job.tolist())}
        assert len(plan) == len(at)
        assert sum(weight[at[one.job]] * (one.at_s - situation.now_s) for one in plan) <= of_rule * (1 + 1e-12)


@given(rows=node_rows(), cap=caps(), draw=st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_the_schedule_of_an_order_is_that_of_the_plain_scheduler(rows: list[Row], cap: PowerCap, draw: Random) -> None:
    together = [(0, row[2], *row[2:]) for row in rows]  # all there, and they take what they request
    trace = on_four_nodes(together, cap)
    order = list(range(len(trace.jobs)))
    draw.shuffle(order)
    rank = {job: float(place) for place, job in enumerate(order)}
    given_order = Composition(
        order=lambda queue, now_s: _ranked(queue.job.tolist(), rank), backfill="list", power=Power(), placing="first"
    )
    expected = looped(NodeScheduler(given_order, trace.jobs, FOUR_NODES, cap), trace)

    situation = situations_of(trace, cap)[0]
    at = {job: position for position, job in enumerate(situation.queue.job.tolist())}
    lists = CListPlan(situation, weights(situation, "wait"))
    plan = lists.plan([at[job] for job in order])
    assert {one.job: one.at_s for one in plan} == expected
    cost = lists.cost([at[job] for job in order])
    assert cost == sum(expected.values())
    assert lists.cost([at[job] for job in order], cost) == float("inf")


def _ranked(jobs: list[int], rank: dict[int, float]) -> Float64s:
    return np.array([rank[job] for job in jobs])

"""``planned:decoder=serial``: Bridi's worked examples, a plain schedule second by second, and what a plan may cost."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.scheduler.job_columns import Int64s
from cluster_agent.scheduler.native.native_list_plan import CListPlan, CSerialPlan
from cluster_agent.scheduler.plans.list_search import Decoder, list_search, weights
from cluster_agent.scheduler.plans.plan_phase import PlanBudget, Situation
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.power_cap import PowerCap, constant
from tests.cluster_agent.node_traces import FOUR_NODES, Row, caps, node_rows, on_four_nodes, result_of, starts, trace_of
from tests.cluster_agent.test_policy_planned import situations_of
from tests.cluster_agent.test_policy_prb import FIXTURE_A, FIXTURE_B

UP_TO_S = 1000
"""Longer than ten jobs of ``node_rows`` take, one after the other."""


@pytest.mark.parametrize("decoder", ["list", "serial", "both"])
def test_on_bridis_fixtures_the_plan_is_the_optimum_whatever_rule_it_begins_with(decoder: Decoder) -> None:
    for rule in ("gpus", "walltime", "est"):
        policy = f"planned:objective=wait,decoder={decoder},rule={rule}"
        assert sum(starts(policy, trace_of(FIXTURE_A))) == 720  # by the rule gpus alone 840
        found = starts(policy, trace_of(FIXTURE_B))
        assert sum(found) == 130  # by the rule walltime alone 600
        assert max(start + row[1] for start, row in zip(found, FIXTURE_B, strict=True)) == 660  # 1140


def plain(situation: Situation, order: Sequence[int]) -> list[int]:
    """Each job in turn at its earliest start on the first nodes with room for all its components, one after the other,
    looked for second by second; -1: never."""
    now_s, running = situation.now_s, situation.running
    left = np.repeat(situation.free[None], UP_TO_S, axis=0)
    watts = np.array([situation.cap.at(now_s + second) for second in range(UP_TO_S)])
    for end_s, drawn_w, need, placed in zip(
        running.end_s.tolist(), running.watts.tolist(), running.need, running.placed, strict=True
    ):
        left[end_s - now_s :, placed.node] += placed.count[:, None] * need
        watts[: end_s - now_s] -= drawn_w
    found = [-1] * len(order)
    for job in order:
        lasts_s = int(situation.queue.estimate_s[job])
        for at in range(UP_TO_S - lasts_s):
            span = slice(at, at + lasts_s)
            if watts[span].min() < situation.queue.watts[job]:
                continue
            if (taken := all_at_once(left[span].min(axis=0), situation, job)) is not None:
                found[job] = now_s + at
                left[span] -= taken
                watts[span] -= situation.queue.watts[job]
                break
    return found


def all_at_once(room: Int64s, situation: Situation, job: int) -> Int64s | None:
    """What the components take of each node, if they all have room."""
    parts, taken = situation.components, np.zeros_like(room)
    requests = [(situation.need[job], int(situation.queue.units[job]))]
    if parts is not None:
        rows = range(int(parts.first[job]), int(parts.first[job] + parts.count[job]))
        requests = [(parts.need[row], int(parts.units[row])) for row in rows]
    for need, units in requests:
        count = first_nodes(room - taken, need, units)
        if count is None:
            return None
        taken += count[:, None] * need
    return taken


def first_nodes(room: Int64s, need: Int64s, units: int) -> Int64s | None:
    count = np.zeros(len(room), np.int64)
    for node, one in enumerate(room):
        fits = min(int(have // wanted) for have, wanted in zip(one, need, strict=True) if wanted)
        count[node] = min(max(fits, 0), units - count.sum())
    return count if count.sum() == units else None


@given(rows=node_rows(10), cap=caps(), draw=st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None)
def test_each_job_gets_its_earliest_start_over_its_whole_span(rows: list[Row], cap: PowerCap, draw: Random) -> None:
    situations = situations_of(on_four_nodes(rows, cap), cap)
    for situation in draw.sample(situations, min(3, len(situations))):
        order = list(range(len(situation.queue.job)))
        draw.shuffle(order)
        schedules, expected = CSerialPlan(situation, weights(situation, "wait")), plain(situation, order)
        assert -1 not in expected
        assert schedules.start_s(order).tolist() == expected
        cost = schedules.cost(order)
        assert cost == sum(start_s - situation.now_s for start_s in expected)
        assert schedules.cost(order, cost) == float("inf") and schedules.cost(order, cost + 0.5) == cost
        front = order[: len(order) // 2]
        assert schedules.cost(front) == sum(expected[job] - situation.now_s for job in front)


@pytest.mark.parametrize("kind", [CListPlan, CSerialPlan])
@given(rows=node_rows(10), cap=caps(), draw=st.randoms(use_true_random=False))
@settings(max_examples=10, deadline=None)
def test_the_end_of_the_last_job_costs_and_cuts_a_schedule_no_earlier_than_it_may(
    kind: type[CListPlan], rows: list[Row], cap: PowerCap, draw: Random
) -> None:
    for situation in draw.sample(found := situations_of(on_four_nodes(rows, cap), cap), min(2, len(found))):
        order, weight = list(range(len(situation.queue.job))), weights(situation, "wait")
        draw.shuffle(order)
        start_s = kind(situation, weight).start_s(order)
        last_s = int((start_s + situation.queue.estimate_s).max()) - situation.now_s
        schedules, waits_s = kind(situation, weight, end_weight=2.0), int((start_s - situation.now_s).sum())
        cost = schedules.cost(order)
        assert cost == waits_s + 2.0 * last_s
        assert schedules.cost(order, cost) == float("inf") and schedules.cost(order, cost + 0.5) == cost


@pytest.mark.parametrize("decoder", ["list", "serial"])
def test_with_joules_the_last_job_ends_as_early_as_it_can(decoder: Decoder) -> None:
    """Four short jobs of one node each before a long one leave three nodes idle while that runs; by waits they do."""
    rows = [(0, 10, 10, 1, 16, 0, 0, 1.0)] * 4 + [(0, 40, 40, 1, 16, 0, 0, 1.0)]
    ends = {
        objective: max(at_s + row[1] for at_s, row in zip(starts(policy, trace_of(rows)), rows, strict=True))
        for objective in ("wait", "joules")
        for policy in [f"planned:objective={objective},decoder={decoder},rule=est"]
    }
    assert ends == {"wait": 50, "joules": 40}


@given(rows=node_rows(10), cap=caps(), draw=st.randoms(use_true_random=False))
@settings(max_examples=10, deadline=None)
def test_a_schedule_does_not_depend_on_the_orders_before_it(rows: list[Row], cap: PowerCap, draw: Random) -> None:
    """Orders that begin alike share the begin of their schedules, also after one that was stopped."""
    situation = max(situations_of(on_four_nodes(rows, cap), cap), key=lambda one: len(one.queue.job))
    weight = weights(situation, "wait")
    kept, order = CSerialPlan(situation, weight), list(range(len(situation.queue.job)))
    for _ in range(12):
        order.insert(draw.randint(0, len(order) - 1), order.pop())
        kept.cost(order[: draw.randint(0, len(order))], draw.choice([float("inf"), 50.0 * draw.random()]))
        found, plain = ([(start.job, start.at_s, start.placed.node.tolist(), start.placed.count.tolist())
                         for start in one.plan(order) if start.placed is not None]
                        for one in (kept, CSerialPlan(situation, weight)))  # fmt: skip
        assert found == plain and kept.cost(order) == CSerialPlan(situation, weight).cost(order)


@pytest.mark.parametrize("decoder", ["serial", "both"])
@given(rows=node_rows(), cap=caps())
@settings(max_examples=15, deadline=None)
def test_every_job_runs_below_the_cap_and_the_planner_decides_each_pass(
    decoder: Decoder, rows: list[Row], cap: PowerCap
) -> None:
    result = result_of(f"planned:iterations=20,decoder={decoder}", on_four_nodes(rows, cap), FOUR_NODES, cap)
    assert not result.unstarted
    assert {one.decided_by for one in result.outcomes} == {"planner"}


def test_a_wide_job_keeps_its_reservation_where_the_list_lets_small_ones_overtake_it() -> None:
    """One node of four is busy for 10 s at a time; in the list's plan the wide job comes when they are all over."""
    small = [(at, 10, 10, 1, 16, 0, 0, 1.0) for at in (0, 5, 8, 14, 18, 24, 28)]
    trace = trace_of([*small, (1, 100, 100, 4, 64, 0, 0, 1.0)])
    by = {decoder: starts(f"planned:objective=wait,iterations=0,rule=est,decoder={decoder}", trace)
          for decoder in ("list", "serial")}  # fmt: skip
    wide = trace.jobs.name.index("8")
    assert by["serial"][wide] == 10 and by["list"][wide] > 30


@pytest.mark.parametrize("kind", [CListPlan, CSerialPlan])
def test_what_is_late_costs_more_from_the_second_after_its_promise(kind: type[CListPlan]) -> None:
    trace = trace_of([(0, 100, 100, 1, 16, 0, 0, 60.0), (0, 9, 9, 1, 1, 0, 0, 60.0)])
    trace.jobs.max_wait_s[:] = [1, 100]
    situation = situations_of(trace, constant(100.0))[0]
    at = situation.queue.job.tolist().index(0)
    for promise_s, cost in ((100, 100.0), (99, 102.0)):
        situation.queue.promise_s[1 - at] = promise_s
        schedules = kind(situation, np.ones(2), np.full(2, 2.0))
        assert schedules.cost([at, 1 - at]) == cost


@pytest.mark.parametrize("kind", [CListPlan, CSerialPlan])
def test_a_job_that_never_starts_is_late(kind: type[CListPlan]) -> None:
    trace = trace_of([(0, 100, 100, 1, 16, 0, 0, 60.0), (0, 9, 9, 1, 1, 0, 0, 60.0)])
    situation = situations_of(trace, constant(100.0))[0]
    situation.queue.watts[situation.queue.job.tolist().index(0)] = 101.0
    plain, late = (kind(situation, np.ones(2), extra).cost([0, 1]) for extra in (None, np.full(2, 2.0)))
    assert late == plain + 2.0 and plain > 3e8


def test_the_search_changes_the_front_of_a_long_queue_alone() -> None:
    rows = [(0, 10 + at % 7, 10 + at % 7, 1, 16, 0, 0, 1.0) for at in range(12)]
    situation = situations_of(trace_of(rows), constant(100.0))[0]
    plan = list_search("slowdown", decoder="serial", front=4)(situation, PlanBudget(40))
    assert len({one.job for one in plan}) == 12
    of_rule = CSerialPlan(situation, weights(situation, "slowdown")).start_s(list(range(12)))
    assert max(one.at_s for one in plan) <= of_rule.max() + 20


def test_the_old_text_of_options_keeps_its_plans() -> None:
    """Frozen schedules are by ``planned`` without a decoder."""
    assert choose("planned").parameters["decoder"] == "list"
    assert choose("planned").composed.plan_budget == PlanBudget(300)

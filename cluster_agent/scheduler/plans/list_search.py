"""A planner: local search over the orders of a schedule (ours).

A list schedule under a cap wastes watts when the jobs that its rule puts first do not go together. The search starts
with the order of the rule, tries those of the other rules and that by joules per weight, then changes the best order in
one place at a time, and keeps what costs less: the sum over the waiting jobs of weight x wait. So its plan is never
worse, by that sum, than the schedule of the rule's order. Half of the changes swap two jobs, half move one; one of the
places is mostly near the front, where the starts that are due now are decided.

An order becomes a schedule by a decoder. ``list``: at each instant every job is tried in the order, and what fits
starts; so small jobs overtake wide ones again and again. ``serial``: each job in the order gets its earliest start over
its whole span next to those before it, so that every job has a reservation. ``both``: the cheaper of the two plans.

What Bridi's dispatchers optimise exactly (PhD thesis, Bologna 2018, ch. 3 and 4) is searched here within a bound of
work: his constraint solver had seconds to minutes for each plan.
"""

from __future__ import annotations

import random
from typing import Final, Literal, TypeAlias

import numpy as np

from cluster_agent.scheduler.job_columns import Float64s
from cluster_agent.scheduler.native.native_list_plan import CListPlan, CSerialPlan
from cluster_agent.scheduler.plans.plan_phase import Plan, PlanBudget, Planner, Situation
from cluster_agent.scheduler.rules import RULES, promised_s

Decoder: TypeAlias = Literal["list", "serial", "both"]

Objective: TypeAlias = Literal["wait", "slowdown", "promise", "late", "joules"]
"""The weight of a job's wait: 1; 1 / its estimate (bounded slowdown); 1 / the wait that its queue promises (WQT of
Bridi, ch. 4). ``late`` (ours): as ``promise``, and each job that waits for longer than promised costs one more.
``joules`` (ours): what nodes draw without a job until the last job of the plan ends. Jobs that run at one level draw
the same whenever they start, so these joules grow with that end alone, which is what costs; of equal ends the lowest
sum of waits counts."""

TIE: Final = 1e-9
"""Ours: what a second of a wait costs with ``joules``, where a second of the end costs 1."""

TAU_S: Final = 60
"""The tau of bounded slowdown in the published figures for Eurora."""

NEAR: Final = 6.0
"""Ours: how many places earlier in the mean, and one, a change brings a job with ``serial``."""

FRONT: Final = 32
"""Ours: with ``serial`` the search changes so many jobs at the front of an order and counts these alone. Those behind
change nothing for them, and few are due soon."""


def weights(situation: Situation, objective: Objective) -> Float64s:
    """What a second of each waiting job's wait costs."""
    queue = situation.queue
    if objective == "wait":
        return np.ones(len(queue.job))
    if objective == "joules":
        return np.full(len(queue.job), TIE)
    if objective == "slowdown":
        return 1.0 / np.maximum(queue.estimate_s, TAU_S)
    return 1.0 / promised_s(queue)


def list_search(objective: Objective, seed: int = 0, decoder: Decoder = "list", front: int = FRONT) -> Planner:
    """The planner. Equal situations and iterations give equal plans."""

    def plan(situation: Situation, budget: PlanBudget) -> Plan:
        weight = weights(situation, objective)
        late = np.ones(len(weight)) if objective == "late" else None
        firsts = first_orders(situation, weight)
        found = []
        for kind in _DECODERS[decoder]:
            schedules = kind(situation, weight, late, end_weight=float(objective == "joules"))
            found.append((schedules, _searched(schedules, firsts, budget, random.Random(seed), front)))
        best, order = found[0] if len(found) == 1 else min(found, key=lambda one: one[0].cost(one[1]))
        return best.plan(order)

    return plan


_DECODERS: Final[dict[Decoder, tuple[type[CListPlan], ...]]] = {
    "list": (CListPlan,),
    "serial": (CSerialPlan,),
    "both": (CListPlan, CSerialPlan),
}


def _searched(
    schedules: CListPlan, firsts: list[list[int]], budget: PlanBudget, draw: random.Random, front: int
) -> list[int]:
    """The best order that is found: among that of the rule and ``firsts``, and then by changes of the best of these."""
    order = list(range(len(firsts[0])))
    least, tried, behind = schedules.cost(order), [order], list[int]()
    if len(order) < 2:
        return order
    for done, first in enumerate(firsts):
        if not budget.allows(done):
            return order
        if first not in tried and (cost := schedules.cost(first, least)) < least:
            order, least = first, cost
        tried.append(first)
    done, change = len(firsts), moved
    if isinstance(schedules, CSerialPlan):
        order, behind, change = order[:front], order[front:], brought_forward
        least = schedules.cost(order)
    while budget.allows(done):
        changed, done = change(order, draw), done + 1
        if (cost := schedules.cost(changed, least)) < least:
            order, least = changed, cost
    return order + behind


def first_orders(situation: Situation, weight: Float64s) -> list[list[int]]:
    """Fewest joules requested per weight first, since under a cap jobs compete for watts times seconds; and the orders
    of all rules."""
    queue = situation.queue
    scores = [queue.estimate_s * queue.watts / weight, *(rule(queue, situation.now_s) for rule in RULES.values())]
    return [np.lexsort((queue.job, score)).tolist() for score in scores]


def moved(order: list[int], draw: random.Random) -> list[int]:
    """The order with one change."""
    n = len(order)
    one = int(n * draw.random() ** 2)
    other = int(n * draw.random())
    changed = order.copy()
    if draw.random() < 0.5:
        changed[one], changed[other] = changed[other], changed[one]
    else:
        changed.insert(one, changed.pop(other))
    return changed


def brought_forward(order: list[int], draw: random.Random) -> list[int]:
    """The order with one job a few places earlier: in a serial schedule that changes what comes behind it alone."""
    late = 1 + int((len(order) - 1) * draw.random())
    changed = order.copy()
    changed.insert(max(late - 1 - int(draw.expovariate(1 / NEAR)), 0), changed.pop(late))
    return changed

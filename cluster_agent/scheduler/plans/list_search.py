"""A planner: local search over the orders of a list schedule (ours).

A list schedule under a cap wastes watts when the jobs that its rule puts first do not go together. The search starts
with the order of the rule, tries those of the other rules and that by joules per weight, then changes the best order in
one place at a time, and keeps what costs less: the sum over the waiting jobs of weight x wait. So its plan is never
worse, by that sum, than the list schedule of the rule. Half of the changes swap two jobs, half move one; one of the
places is mostly near the front, where the starts that are due now are decided.

What Bridi's dispatchers optimise exactly (PhD thesis, Bologna 2018, ch. 3 and 4) is searched here within a bound of
work: his constraint solver had seconds to minutes for each plan.
"""

from __future__ import annotations

import random
from typing import Final, Literal, TypeAlias

import numpy as np

from cluster_agent.scheduler.job_columns import Float64s
from cluster_agent.scheduler.native.native_list_plan import CListPlan
from cluster_agent.scheduler.plans.plan_phase import Plan, PlanBudget, Planner, Situation
from cluster_agent.scheduler.rules import RULES, promised_s

Objective: TypeAlias = Literal["wait", "slowdown", "promise"]
"""The weight of a job's wait: 1; 1 / its estimate (bounded slowdown); 1 / the wait that its queue promises (WQT of
Bridi, ch. 4)."""

TAU_S: Final = 60
"""The tau of bounded slowdown in the published figures for Eurora."""


def weights(situation: Situation, objective: Objective) -> Float64s:
    """What a second of each waiting job's wait costs."""
    queue = situation.queue
    if objective == "wait":
        return np.ones(len(queue.job))
    if objective == "slowdown":
        return 1.0 / np.maximum(queue.estimate_s, TAU_S)
    return 1.0 / promised_s(queue)


def list_search(objective: Objective, seed: int = 0) -> Planner:
    """The planner. Equal situations and iterations give equal plans."""

    def plan(situation: Situation, budget: PlanBudget) -> Plan:
        weight = weights(situation, objective)
        lists = CListPlan(situation, weight)
        order = list(range(len(situation.queue.job)))
        least = lists.cost(order)
        firsts, draw, done = first_orders(situation, weight), random.Random(seed), 0
        while len(order) > 1 and budget.allows(done):
            changed = firsts[done] if done < len(firsts) else moved(order, draw)
            cost = lists.cost(changed, least)
            if cost < least:
                order, least = changed, cost
            done += 1
        return lists.plan(order)

    return plan


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

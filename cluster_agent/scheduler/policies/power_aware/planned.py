"""A plan of all waiting jobs, made again at every event: the best order of a list schedule that a local search finds.

The first policy with the phase *plan* (``scheduler.plans``). With ``iterations=0`` it is ``prb``.
"""

from __future__ import annotations

import msgspec

from cluster_agent.scheduler.plans.list_search import Decoder, Objective, list_search
from cluster_agent.scheduler.plans.plan_phase import PlanBudget
from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.policy_phases import Composition, Placing
from cluster_agent.scheduler.power_phases import Levels, Power
from cluster_agent.scheduler.rules import RULES, RuleName


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``rule``: the order that the search begins with, and that decides where there is no plan. ``objective``: of the
    plan. ``decoder``: how an order becomes a plan. ``iterations``: orders tried for each plan. ``time_s``: seconds of
    each plan, at most; then equal replays need the record of the plan to be equal. ``levels``: live, whether jobs may
    run below the highest caps of their nodes; a replay has one level."""

    rule: RuleName = "walltime"
    placing: Placing = "first"
    objective: Objective = "promise"
    decoder: Decoder = "list"
    iterations: int = 300
    time_s: float | None = None
    seed: int = 0
    levels: Levels = "all"


def compose(params: Params) -> Composition:
    """Every waiting job is tried in the order that the search found; the list schedule of the rule is the
    fall-back."""
    return Composition(
        order=RULES[params.rule],
        backfill="list",
        placing=params.placing,
        power=Power(lowers_caps=params.levels == "all"),
        plan=list_search(params.objective, params.seed, params.decoder),
        plan_budget=PlanBudget(params.iterations, params.time_s),
    )


POLICY = Policy(
    name="planned",
    summary="Nodes and watts: plans all waiting jobs by local search over the orders of prb; a bound on each plan.",
    source="the plan at every event and its objectives: Bridi, PhD thesis, Bologna 2018, ch. 3-4; the search: ours",
    params=Params,
    compose=compose,
)

"""Backfilling with a budget of joules for a window: ``energybud``, ``reducepc`` and the plain ``powercap``
(``energy_window``).

Until the window begins and after it has ended there is no budget. Jobs that run when it begins are counted and go on.
"""

from __future__ import annotations

from math import isinf
from typing import Literal

from cluster_agent.scheduler.energy_window import Budget, Rule, Test
from cluster_agent.scheduler.policies.api import EstimateParams, Policy
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_phases import Power


class Params(EstimateParams, frozen=True, forbid_unknown_fields=True):
    """``joules`` in [from_s, to_s), infinite: no budget. ``node_w``: the watts with which a busy node counts; none: the
    machine's maximum. ``test`` goes with rules that store. ``backfill``: who gets a reservation, the head or every job;
    with ``rule=reducepc`` the head."""

    joules: float = float("inf")
    from_s: int = 0
    to_s: int = 0
    rule: Rule = "energybud"
    test: Test | None = None
    tick_s: int = 60
    node_w: float | None = None
    backfill: Literal["easy", "conservative"] = "easy"


def compose(params: Params) -> Composition:
    """EASY, or a place for every job, in processors and joules."""
    if params.test is not None and params.rule == "powercap":
        raise ValueError(f"test={params.test} needs rule=energybud or reducepc: powercap stores no joules")
    if not params.joules >= 0:
        raise ValueError(f"joules={params.joules:g}: give a number from 0")
    if not 0 < params.tick_s <= 3600:
        raise ValueError(f"tick_s={params.tick_s}: give 1 to 3600 seconds")
    if not isinf(params.joules) and not 0 <= params.from_s < params.to_s:
        raise ValueError("a budget needs a window: from_s=...,to_s=..., in seconds of the log")
    budget = Budget(params.joules, params.from_s, params.to_s, params.rule, params.test or "path", params.tick_s)
    return Composition(
        **params.phases(),
        backfill=params.backfill,
        power=Power(budget=None if isinf(params.joules) else budget, node_w=params.node_w),
    )


POLICY = Policy(
    name="energy-budget",
    summary="EASY with a budget of joules for a window; what is not used is kept for later.",
    source="Glesser, Road to exascale, PhD thesis, Grenoble 2016, ch. 5; Dutot et al., CCGrid 2017",
    params=Params,
    compose=compose,
)

"""Backfilling with a budget of joules for a window: ``energybud``, ``reducepc`` and the plain ``powercap``
(``energy_window``).

Until the window begins and after it has ended there is no budget. Jobs that run when it begins are counted and go on.
"""

from __future__ import annotations

import hashlib
from math import isinf
from typing import Literal

from msgspec.structs import replace

from cluster_agent.cap_steps import FOREVER_S, caps_of, read_bytes
from cluster_agent.scheduler.energy_window import Budget, Rule, Test
from cluster_agent.scheduler.policies.api import EstimateParams, Policy
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_phases import Power
from foundation.shell.extension import Origin


class Params(EstimateParams, frozen=True, forbid_unknown_fields=True):
    """``joules`` in [from_s, to_s), infinite: no budget. ``profile``: a file ``from_s,watts``, which gives the joules
    under its watts and the window, from its first step, or ``from_s``, to its last, or ``to_s``; a last one that ends
    itself counts too. ``node_w``: the watts with which a busy node counts; none: the machine's maximum. ``test`` goes
    with rules that store. ``backfill``: who gets a reservation, the head or every job; with ``rule=reducepc`` the
    head."""

    joules: float = float("inf")
    from_s: int = 0
    to_s: int = 0
    profile: str | None = None
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
    origin = None
    if params.profile is not None:
        params, origin = _of_profile(params, params.profile)
    if not isinf(params.joules) and not 0 <= params.from_s < params.to_s:
        raise ValueError("a budget needs a window: from_s=...,to_s=..., in seconds of the log")
    window = params.joules, params.from_s, params.to_s
    budget = Budget(*window, params.rule, params.test or "path", params.tick_s, profile=origin)
    return Composition(
        **params.phases(),
        backfill=params.backfill,
        power=Power(budget=None if isinf(params.joules) else budget, node_w=params.node_w),
    )


def _of_profile(params: Params, path: str) -> tuple[Params, Origin]:
    """With the joules and the window of the profile, and the mark of what was read."""
    if not isinf(params.joules):
        raise ValueError(f"give joules or profile={path}, not both")
    content = read_bytes(path)
    steps = caps_of(path, content)
    if not steps:
        raise ValueError(f"profile={path}: has no watts; write from_s,watts and its steps")
    last_s = steps[-1].from_s if steps[-1].to_s == FOREVER_S else steps[-1].to_s
    if last_s == steps[0].from_s:
        raise ValueError(f"profile={path}: has one step, and none says when the window ends; add one")
    from_s, to_s = params.from_s or steps[0].from_s, params.to_s or last_s
    if from_s >= last_s:
        raise ValueError(f"profile={path}: ends at {last_s} s, not after from_s={from_s}; give an earlier from_s")
    if to_s > last_s:
        raise ValueError(f"profile={path}: ends at {last_s} s, before to_s={to_s}; give an earlier to_s")
    lasts = [(max(min(step.to_s, to_s) - max(step.from_s, from_s), 0), step.watts) for step in steps]
    if sum(length_s for length_s, _ in lasts) < to_s - from_s:
        raise ValueError(f"profile={path}: has no watts for a part of {from_s} to {to_s} s; complete it")
    joules = sum(length_s * watts for length_s, watts in lasts)
    origin = Origin(path, hashlib.sha256(content).hexdigest())
    return replace(params, joules=joules, from_s=from_s, to_s=to_s), origin


POLICY = Policy(
    name="energy-budget",
    summary="EASY with a budget of joules for a window; what is not used is kept for later.",
    source="Glesser, Road to exascale, PhD thesis, Grenoble 2016, ch. 5; Dutot et al., CCGrid 2017",
    params=Params,
    compose=compose,
)

"""Priorities by age, size, fair-share and energy fair-share, EASY backfilling behind the head.

``cpu`` and ``energy`` alone are the thesis's FS and EFS, both are FS+EFS. ``factor=relative`` is as in its simulation:
each usage over the highest, the sum in ascending order.
"""

from __future__ import annotations

from typing import Literal

from cluster_agent.scheduler.orders.priority import WEEK_S, Priority, read_accounts
from cluster_agent.scheduler.policies.api import EstimateParams, Policy
from cluster_agent.scheduler.policy_phases import Composition


class Params(EstimateParams, frozen=True, forbid_unknown_fields=True):
    """Weights; how usage decays and counts; a file of shares and efficiencies, or random efficiencies with a seed."""

    age: float = 0.0
    size: float = 0.0
    cpu: float = 1.0
    energy: float = 1.0
    factor: Literal["exponential", "relative"] = "exponential"
    decay: Literal["continuous", "period"] = "continuous"
    half_life_s: float = float(WEEK_S)
    period_s: int = 86400
    oldest_s: int = WEEK_S
    damping: float = 1.0
    users: str | None = None
    spread: float = 0.0
    seed: int = 1


def compose(params: Params) -> Composition:
    """``ValueError`` for numbers out of range."""
    for name in ("half_life_s", "period_s", "oldest_s", "damping"):
        if not 0 < getattr(params, name) < float("inf"):
            raise ValueError(f"{name}={getattr(params, name):g} must be above 0")
    if not 0 <= params.spread < 1:
        raise ValueError(f"spread={params.spread:g} must be at least 0 and below 1")
    if params.seed < 0:
        raise ValueError(f"seed={params.seed} must be 0 or more")
    if any(not abs(weight) < float("inf") for weight in (params.age, params.size, params.cpu, params.energy)):
        raise ValueError("age, size, cpu and energy must be finite")
    return Composition(
        **params.phases(),
        priority=Priority(
            params.age,
            params.size,
            params.cpu,
            params.energy,
            params.half_life_s,
            params.period_s if params.decay == "period" else None,
            params.oldest_s,
            params.damping,
            params.factor == "relative",
            read_accounts(params.users) if params.users else {},
            params.spread,
            params.seed,
        ),
        backfill="easy",
    )


POLICY = Policy(
    name="multifactor",
    summary="Age, size, fair-share and energy fair-share, weighted; EASY backfilling behind the head.",
    source="Georgiou, Glesser, Rzadca, Trystram, CCGrid 2015; Glesser, thesis, Grenoble 2016, ch. 6; SLURM multifactor",
    params=Params,
    compose=compose,
)

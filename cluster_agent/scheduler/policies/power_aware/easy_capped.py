"""EASY backfilling on unlike nodes under a power cap: the head reserves nodes and watts.

With ``rule=est`` this is EASY. By default the queue is ordered by the joules that a job requests, over its slowdown so
far: under a cap jobs compete for watts times seconds, and with the slowdown no job waits for ever.
"""

from __future__ import annotations

import msgspec

from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.policy_phases import Composition, Placing
from cluster_agent.scheduler.power_phases import Power
from cluster_agent.scheduler.rules import RULES, RuleName


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``rule`` orders the queue, heads and backfilled jobs alike."""

    rule: RuleName = "aged-energy"
    placing: Placing = "pack"
    idle_off_s: int | None = None


def compose(params: Params) -> Composition:
    """One reservation, for the head."""
    return Composition(
        order=RULES[params.rule],
        backfill="easy",
        placing=params.placing,
        power=Power(),
        idle_off_s=params.idle_off_s,
    )


POLICY = Policy(
    name="easy-capped",
    summary="Nodes and watts: the head reserves both; jobs are served by joules requested over slowdown so far.",
    source="after Lifka, JSSPP 1995; watts as a resource: Bridi, PhD thesis, Bologna 2018, ch. 3-5; rule: ours",
    params=Params,
    compose=compose,
)

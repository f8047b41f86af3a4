"""EASY backfilling on unlike nodes under a power cap: the head reserves nodes and watts.

With ``rule=est`` this is EASY. By default the queue is served by the joules that a job asks for, over the slowdown that
it has by now: under a cap watts times seconds are what jobs compete for, and the second part lets nobody wait for ever.
"""

from __future__ import annotations

import msgspec

from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.unlike_nodes.node_aware import NodeComposition, Placing
from cluster_agent.scheduler.unlike_nodes.node_rules import RULES, RuleName


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``rule`` orders the queue, heads and backfilled jobs alike."""

    rule: RuleName = "aged-energy"
    placing: Placing = "pack"


def compose(params: Params) -> NodeComposition:
    """One reservation, for the head."""
    return NodeComposition(RULES[params.rule], "easy", params.placing)


POLICY = Policy(
    name="easy-capped",
    summary="Nodes and watts: the head reserves both; jobs are served by joules asked over slowdown so far.",
    source="after Lifka, JSSPP 1995; watts as a resource: Bridi, PhD thesis, Bologna 2018, ch. 3-5; rule: ours",
    params=Params,
    compose=compose,
)

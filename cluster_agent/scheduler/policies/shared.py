"""Jobs on nodes of two shares: halves of their cores, or of a GPU's time (``unlike_nodes.shared_nodes``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from cluster_agent.scheduler.job_columns import Float64s
from cluster_agent.scheduler.plans.pairing import Pairing, Rule
from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.sharing.matching import MOST_JOBS, matched


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``rule``: see ``scheduler.plans.pairing``. ``floor``: the least speed next to a partner, as a share of that alone
    on whole nodes; a job's own row may say otherwise. ``window``: so many jobs of the queue are matched at once."""

    rule: Rule = "matched"
    floor: float = 0.95
    window: Annotated[int, msgspec.Meta(ge=1, le=MOST_JOBS - 4)] = 10


def compose(params: Params) -> Composition:
    """The rule as a planner; list scheduling is its fall-back."""
    if not 0 <= params.floor <= 1:
        raise ValueError(f"floor={params.floor:g}: give 0 to 1; alone is 1")
    plan = Pairing(params.rule, params.floor, params.window, _match)
    return Composition(backfill="list", plan=plan)


def _match(saved: Float64s) -> Sequence[int]:
    partners: list[int] = matched(saved).tolist()
    return partners


POLICY = Policy(
    name="shared",
    summary="Nodes that two jobs share: who runs next to whom, by measured speeds, so that nobody is slowed too much.",
    source="compact, spread, no_preference: REGALE D2.3, 2024, §2.1; the matching: ours",
    params=Params,
    compose=compose,
)

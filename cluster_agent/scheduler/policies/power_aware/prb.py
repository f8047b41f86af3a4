"""Priority rules on unlike nodes under a power cap: every waiting job is tried in the order of a rule.

Bridi's rule-based baselines, with the watts of the cap as one more resource, as in the dispatchers of Borghesi et al.
This one looks at the cap over the whole span of a job, theirs only at its start.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.policy_phases import Composition, Placing
from cluster_agent.scheduler.power_phases import Power
from cluster_agent.scheduler.rules import RULES, RuleName


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``miss``: what happens when a job does not fit: the next one is tried, or (``strict``) no job overtakes."""

    rule: RuleName = "walltime"
    miss: Literal["list", "strict"] = "list"
    placing: Placing = "first"
    idle_off_s: int | None = None


def compose(params: Params) -> Composition:
    """No reservations."""
    return Composition(
        order=RULES[params.rule],
        backfill="list" if params.miss == "list" else "none",
        placing=params.placing,
        power=Power(),
        idle_off_s=params.idle_off_s,
    )


POLICY = Policy(
    name="prb",
    summary="Nodes and watts: tries every waiting job in the order of a rule.",
    source="Bridi, PhD thesis, Bologna 2018, ch. 6; Borghesi et al., CP 2015 and Sustainable Computing 2018",
    params=Params,
    compose=compose,
)

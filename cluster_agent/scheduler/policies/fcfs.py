"""First come, first served, strictly: no job starts before the head of the queue."""

from __future__ import annotations

import msgspec

from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.policy_phases import Composition


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None: the schedule depends on submissions, widths and ends alone."""


def compose(params: Params) -> Composition:
    """The queue in order of submission, without backfilling."""
    return Composition(backfill="none")


POLICY = Policy(
    name="fcfs",
    summary="First come, first served; no job overtakes.",
    source="Feitelson et al., Theory and practice in parallel job scheduling, JSSPP 1997",
    params=Params,
    compose=compose,
)

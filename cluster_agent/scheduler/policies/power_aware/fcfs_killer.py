"""First come, first served under a power cap that is met by killing: the baseline of REGALE D2.3 §4.1.

Nothing prepares for a cap, announced or not: jobs start while they fit under the present cap (``ahead=false``), and
when a cap begins or drops, jobs are killed until the rest fits. The parameters are what the report leaves open.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from cluster_agent.scheduler.cap_reactions import Victim, kills
from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_phases import Power


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``ahead`` (ours): no job starts that would run into an announced cap. ``queue``: the jobs that wait."""

    victim: Victim = "newest-start"
    killed: Literal["requeued", "lost"] = "requeued"
    ahead: bool = False
    queue: Literal["fcfs", "easy"] = "fcfs"


def compose(params: Params) -> Composition:
    """Only running jobs are affected, so any order of the queue would work."""
    return Composition(
        backfill="none" if params.queue == "fcfs" else "easy",
        power=Power(react=kills(params.victim), requeue=params.killed == "requeued", looks_ahead=params.ahead),
    )


POLICY = Policy(
    name="fcfs-killer",
    summary="First come, first served; when a cap begins or drops, newest jobs are killed until the rest fits.",
    source="REGALE deliverable D2.3, 2023, §4.1: FCFS_killer",
    params=Params,
    compose=compose,
)

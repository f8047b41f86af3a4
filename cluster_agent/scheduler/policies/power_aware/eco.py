"""Users volunteer jobs to be slowed, so that fewer jobs are killed: FCFS_eco_mode of REGALE D2.3 §4.1.

======================  ========================================================================================
a cap begins or drops   EcoJobs to their floor; kill until the cluster fits, others first; raise EcoJobs again
a cap ends              EcoJobs to the highest frequency
a job ends              its watts and processors go to the queue (``freed=queue``)
a job is submitted      it waits; whoever fits in processors and in watts starts
======================  ========================================================================================

The open points of the report as parameters: E1 ``floor``, E2 ``raised`` (see ``scheduler/eco_reaction``), E3 EcoJobs
only, others are killed, never slowed, E4 jobs count with a node's highest watts, E5 ``start``, E6 ``freed``, E7
``victim``, E8 ``killed``, E9 idle nodes draw and stay on, E10 watts are modelled and have no lag, E11 a cap that rises
raises EcoJobs too.
"""

from __future__ import annotations

from typing import Literal

from cluster_agent.scheduler.cap_reactions import Raise, slows_then_kills
from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.policies.power_aware import fcfs_killer
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_phases import Ends, Power, Volunteers

FREED: dict[str, Ends] = {"queue": "unheard", "queue-first": "after", "eco-first": "before"}


class Params(fcfs_killer.Params, frozen=True, forbid_unknown_fields=True):
    """Volunteers are the jobs of one ``volunteers`` queue of the log, or a random ``share`` with ``seed``."""

    share: float = 0.5
    seed: int = 1
    volunteers: int | None = None
    floor: float = 0.5
    raised: Raise = "singly"
    start: Literal["slowed", "full"] = "slowed"
    freed: Literal["queue", "queue-first", "eco-first"] = "queue"


def compose(params: Params) -> Composition:
    """The killer, with a step before and one after."""
    if not 0 <= params.share <= 1:
        raise ValueError(f"share={params.share:g} must be a share of the jobs, from 0 to 1")
    if not 0 < params.floor <= 1:
        raise ValueError(f"floor={params.floor:g} must be a share of a node's highest watts, above 0 and at most 1")
    return Composition(
        backfill="none" if params.queue == "fcfs" else "easy",
        power=Power(
            floor_share=params.floor,
            react=slows_then_kills(params.victim, params.raised),
            requeue=params.killed == "requeued",
            volunteers=Volunteers(params.volunteers, params.share, params.seed),
            starts_slowed=params.start == "slowed",
            reacts_to_ends=FREED[params.freed],
            looks_ahead=params.ahead,
        ),
    )


POLICY = Policy(
    name="eco",
    summary="fcfs-killer, but jobs of volunteers are slowed first, and killed last.",
    source="REGALE deliverable D2.3, 2023, §4.1: FCFS_eco_mode",
    params=Params,
    compose=compose,
)

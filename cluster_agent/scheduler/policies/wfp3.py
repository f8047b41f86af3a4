"""WFP3: the queue is ordered by wait over estimate, and by width.

With the third power a job that has waited longer than it will run passes quickly to the front, and the width keeps
large jobs from starving. The head gets EASY's reservation, as on the machine where this was used (Cobalt, Intrepid).
"""

from __future__ import annotations

from cluster_agent.scheduler.orders.score_formula import score
from cluster_agent.scheduler.policies.api import EstimateParams, Policy
from cluster_agent.scheduler.policy_phases import Composition


class Params(EstimateParams, frozen=True, forbid_unknown_fields=True):
    """``power`` is 3 in the paper."""

    power: float = 3.0


def compose(params: Params) -> Composition:
    """Highest (wait / estimate)^power x width first, equal ones in order of submission; EASY behind that."""
    if not 0 <= params.power < float("inf"):
        raise ValueError(f"power={params.power:g} must be 0 or more")

    return Composition(
        **params.phases(),
        score=score(f"-(wait / estimate) ** {params.power!r} * width"),
        backfill="easy",
    )


POLICY = Policy(
    name="wfp3",
    summary="Serves (wait / estimate)^3 x processors, highest first; EASY backfilling behind the head.",
    source="Tang, Lan, Desai, Buettner, Fault-aware, utility-based job scheduling on Blue Gene/P systems, CLUSTER 2009",
    params=Params,
    compose=compose,
)

"""Conservative backfilling: a job may start early only if it delays no job ahead of it.

There are two published readings. ``ends=replan`` plans all waiting jobs again at every event, in order of submission: a
job can lose a reservation that it had, but holes are filled in order of the queue. ``ends=compress`` keeps each
reservation and only moves it forward when a job ends early.
"""

from __future__ import annotations

from typing import Literal

from cluster_agent.scheduler.policies.api import EstimateParams, Policy
from cluster_agent.scheduler.policy_phases import Composition


class Params(EstimateParams, frozen=True, forbid_unknown_fields=True):
    """How long jobs are taken to run; ``ends``: what an early end does to reservations."""

    ends: Literal["replan", "compress"] = "replan"


def compose(params: Params) -> Composition:
    """A reservation for every waiting job."""
    return Composition(**params.phases(), backfill="conservative" if params.ends == "replan" else "compress")


POLICY = Policy(
    name="conservative",
    summary="Every waiting job gets a reservation; no job delays one ahead of it.",
    source="Mu'alem and Feitelson, IEEE TPDS 12(6), 2001; Glesser, PhD thesis, Grenoble 2016, ch. 2",
    params=Params,
    compose=compose,
)

"""Conservative backfilling: a job may start early only if it delays nobody ahead of it.

Of the two published readings this is the one that plans all waiting jobs anew at every event, in order of submission.
The other keeps each reservation and only moves it forward when a job ends early. Planned anew, a job can lose a
reservation that it had, but holes are filled in order of the queue.
"""

from __future__ import annotations

from cluster_agent.scheduler.phases import Composition
from cluster_agent.scheduler.policies.api import EstimateParams, Policy


class Params(EstimateParams, frozen=True, forbid_unknown_fields=True):
    """How long jobs are taken to run."""


def compose(params: Params) -> Composition:
    """A reservation for every waiting job."""
    return Composition(**params.phases(), backfill="conservative")


POLICY = Policy(
    name="conservative",
    summary="Every waiting job gets a reservation, planned anew at every event; nobody delays a job ahead.",
    source="Mu'alem and Feitelson, IEEE TPDS 12(6), 2001; Glesser, PhD thesis, Grenoble 2016, ch. 2",
    params=Params,
    compose=compose,
)

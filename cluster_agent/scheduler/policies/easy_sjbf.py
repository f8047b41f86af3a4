"""EASY with shortest-job backfilling first (SJBF): the head is the oldest job, but those that overtake it are tried in
order of their estimated run time, equal ones in order of submission."""

from __future__ import annotations

from cluster_agent.scheduler.policies.api import EstimateParams, Policy
from cluster_agent.scheduler.policy_phases import Composition


class Params(EstimateParams, frozen=True, forbid_unknown_fields=True):
    """``estimate=mean2,correct=incremental`` is EASY++."""


def compose(params: Params) -> Composition:
    """EASY's one reservation; the backfill scan is sorted."""
    return Composition(**params.phases(), backfill="easy", scan="shortest")


POLICY = Policy(
    name="easy-sjbf",
    summary="EASY whose backfilling tries short jobs first; with estimate=mean2,correct=incremental: EASY++.",
    source="Tsafrir, Etzion, Feitelson, IEEE TPDS 18(6), 2007; Gaussier, Glesser, Reis, Trystram, SC'15",
    params=Params,
    compose=compose,
)

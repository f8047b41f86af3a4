"""EASY backfilling: later jobs may start if they do not delay the head of the queue.

``ties=sc15`` repeats the simulator of the SC'15 campaign. Its schedulers that backfill in order of submission run a
pass at a submission only if the new job itself fits what is free; those that backfill shortest first always run one.
The decisions are in C: ``start_heads`` and ``easy`` of ``csrc/pass.c``.
"""

from __future__ import annotations

from cluster_agent.scheduler.policies.api import EstimateParams, Policy
from cluster_agent.scheduler.policy_phases import Composition


class Params(EstimateParams, frozen=True, forbid_unknown_fields=True):
    """How long jobs are taken to run."""


def compose(params: Params) -> Composition:
    """One reservation, for the head; the others in order of submission."""
    is_rare = params.published.ties == "sc15"
    return Composition(**params.phases(), backfill="easy", passes_if_new_fits=is_rare)


POLICY = Policy(
    name="easy",
    summary="The head gets a reservation; others may start before it if they do not delay that.",
    source="Lifka, The ANL/IBM SP scheduling system, JSSPP 1995; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001",
    params=Params,
    compose=compose,
)

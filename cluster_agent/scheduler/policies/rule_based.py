"""Bridi's rule-based baselines on a number of processors (``prb`` has them on nodes): waiting jobs are tried in the
order of a rule, without reservations.

A job log has no watts. Bridi's profits use random watts per core between 7.8 and 11.11, and so do ours.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from msgspec.structs import replace

from cluster_agent.scheduler import rules
from cluster_agent.scheduler.job_columns import Float64s
from cluster_agent.scheduler.policies.api import EstimateParams, Policy
from cluster_agent.scheduler.policy_phases import Composition, Queue

LEAST_W, MOST_W = 7.8, 11.11  # per core (Bridi, §6.5)
RANDOM_WATTS: Final = 4096
"""Ours: after so many jobs the random watts repeat."""


class Params(EstimateParams, frozen=True, forbid_unknown_fields=True):
    """``miss``: what happens when a job does not fit: the next one is tried, or (``strict``) no job overtakes. ``seed``
    is that of the watts."""

    rule: Literal["est", "walltime", "profit"] = "est"
    miss: Literal["list", "strict"] = "list"
    seed: int = 1


def compose(params: Params) -> Composition:
    """No reservations. ``walltime`` orders by the estimate, which is the request unless ``estimate`` is another."""
    if params.seed < 0:
        raise ValueError(f"seed={params.seed} must be 0 or more")
    core_w = np.random.default_rng(params.seed).uniform(LEAST_W, MOST_W, RANDOM_WATTS)

    def profit(queue: Queue, now_s: int) -> Float64s:
        return rules.profit(replace(queue, watts=queue.width * core_w[queue.job % RANDOM_WATTS]), now_s)

    return Composition(
        **params.phases(),
        order={"est": None, "walltime": rules.walltime, "profit": profit}[params.rule],
        backfill="list" if params.miss == "list" else "none",
    )


POLICY = Policy(
    name="rule-based",
    summary="Tries every waiting job in the order of a rule; no job has a reservation.",
    source="Bridi, PhD thesis, Bologna 2018, ch. 2 and 6; list scheduling: Graham, 1966",
    params=Params,
    compose=compose,
)

"""Smallest area first: the queue in order of processors x estimate, but jobs that wait for too long come first."""

from __future__ import annotations

import numpy as np

from cluster_agent.scheduler.job_columns import Int64s
from cluster_agent.scheduler.policies.api import EstimateParams, Policy
from cluster_agent.scheduler.policy_phases import Composition, Queue


class Params(EstimateParams, frozen=True, forbid_unknown_fields=True):
    """A job that has waited for ``oldest_s`` goes to the front. The others are those of all policies."""

    oldest_s: int = 86_400


def compose(params: Params) -> Composition:
    """The order, and EASY behind the head of the queue."""
    if params.oldest_s < 0:
        raise ValueError(f"oldest_s={params.oldest_s}: give 0 seconds or more")

    def order(queue: Queue, now_s: int) -> Int64s:
        is_old = now_s - queue.submit_s >= params.oldest_s
        key = np.where(is_old, queue.submit_s, queue.width * queue.estimate_s)
        return np.lexsort((queue.job, key, ~is_old))

    return Composition(**params.phases(), order=order, backfill="easy")


POLICY = Policy(
    name="smallest-area",
    summary="Smallest processors x estimate first, old jobs before all; EASY behind the head.",
    source="after Carastan-Santos, de Camargo, Trystram, Zrigui, CCGrid 2019 (SAF)",
    params=Params,
    compose=compose,
)

"""The orders in which a queue can be served on unlike nodes: the lowest score first, equal ones in order of submission.

``est``, ``walltime`` and ``profit`` are the rules of Bridi's chapters 6 and 7 (PhD thesis, Bologna 2018), ``gpus`` that
of his worked examples (ch. 4), ``promise`` follows his objective WQT there: waits in proportion to what the queue
promises. The others are ours.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import numpy as np

from cluster_agent.scheduler import rules
from cluster_agent.scheduler.unlike_nodes.node_aware import NodeQueue, NodeRule
from cluster_agent.scheduler.unlike_nodes.node_jobs import CORES, GPUS, Float64s

RuleName: TypeAlias = Literal["walltime", "est", "profit", "gpus", "promise", "energy", "aged-energy"]

NO_PROMISE_S: Final = 86400
"""Ours: the promised wait of a queue without a promise: a day."""


def est(queue: NodeQueue, now_s: int) -> Float64s:
    """As ``rules.est``."""
    return rules.est(queue.submit_s)


def walltime(queue: NodeQueue, now_s: int) -> Float64s:
    """As ``rules.walltime``."""
    return rules.walltime(queue.request_s)


def profit(queue: NodeQueue, now_s: int) -> Float64s:
    """As ``rules.profit``."""
    return rules.profit(queue.total[:, CORES], queue.watts)


def gpus(queue: NodeQueue, now_s: int) -> Float64s:
    """Decreasing number of GPUs."""
    return -queue.total[:, GPUS].astype(np.float64)


def promise(queue: NodeQueue, now_s: int) -> Float64s:
    """Decreasing wait in units of what the queue promises."""
    promised_s = np.where(queue.max_wait_s > 0, queue.max_wait_s, NO_PROMISE_S)
    return -(now_s - queue.submit_s) / promised_s


def energy(queue: NodeQueue, now_s: int) -> Float64s:
    """Increasing joules, if the job takes what it requests: under a cap jobs compete for watts."""
    return queue.request_s * queue.watts


def aged_energy(queue: NodeQueue, now_s: int) -> Float64s:
    """As ``energy``, divided by the slowdown that the job would have if it started now, so that no job waits for
    ever."""
    return queue.request_s * queue.watts / (1 + (now_s - queue.submit_s) / queue.request_s)


RULES: Final[dict[str, NodeRule]] = {
    "walltime": walltime,
    "est": est,
    "profit": profit,
    "gpus": gpus,
    "promise": promise,
    "energy": energy,
    "aged-energy": aged_energy,
}

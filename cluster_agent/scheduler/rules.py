"""Orders of a queue by a score, on processors and on nodes: the lowest is served first.

``est``, ``walltime`` and ``profit`` are the rules of Bridi's chapters 6 and 7 (PhD thesis, Bologna 2018), ``gpus`` that
of his worked examples (ch. 4), ``promise`` follows his objective WQT there: waits in proportion to what the queue
promises. The others are ours.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import numpy as np

from cluster_agent.scheduler.job_columns import Float64s
from cluster_agent.scheduler.policy_phases import Order, Queue

RuleName: TypeAlias = Literal["walltime", "est", "profit", "gpus", "promise", "energy", "aged-energy"]

NO_PROMISE_S: Final = 86400
"""Ours: the promised wait of a queue without a promise: a day."""


def est(queue: Queue, now_s: int) -> Float64s:
    """Increasing earliest start, which for jobs that wait is the time of their submission."""
    return queue.submit_s.astype(np.float64)


def walltime(queue: Queue, now_s: int) -> Float64s:
    """Increasing estimate, which is the requested time unless the policy has another one."""
    return queue.estimate_s.astype(np.float64)


def profit(queue: Queue, now_s: int) -> Float64s:
    """Decreasing price of a job's cores over the cost of its energy; with prices that are the same for all jobs that is
    cores per watt."""
    return np.asarray(-queue.width.astype(np.int64) / np.maximum(queue.watts, 1.0), np.float64)


def gpus(queue: Queue, now_s: int) -> Float64s:
    """Decreasing number of GPUs."""
    return -queue.gpus


def promise(queue: Queue, now_s: int) -> Float64s:
    """Decreasing wait in units of what the queue promises."""
    scores: Float64s = -(now_s - queue.submit_s) / promised_s(queue)
    return scores


def promised_s(queue: Queue) -> Float64s:
    """The promised waits, ``NO_PROMISE_S`` where there is none."""
    return np.where(np.isnan(queue.promise_s), NO_PROMISE_S, queue.promise_s)


def energy(queue: Queue, now_s: int) -> Float64s:
    """Increasing joules: under a cap jobs compete for watts."""
    return queue.joules


def aged_energy(queue: Queue, now_s: int) -> Float64s:
    """As ``energy``, divided by the slowdown that the job would have if it started now, so that no job waits for
    ever."""
    scores: Float64s = queue.joules / (1 + (now_s - queue.submit_s) / queue.estimate_s)
    return scores


RULES: Final[dict[str, Order]] = {
    "walltime": walltime,
    "est": est,
    "profit": profit,
    "gpus": gpus,
    "promise": promise,
    "energy": energy,
    "aged-energy": aged_energy,
}

"""What an *order* phase answers, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from cluster_agent.errors import ClusterError
from cluster_agent.scheduler.job_columns import Float64s, Int32s, Int64s
from cluster_agent.scheduler.policy_phases import Order, Queue
from foundation.shell.extension import in_one_line


def nothing_known(job: Int32s) -> Mapping[str, Float64s]:
    """Of processors without watts."""
    return {}


def patient(order: Order, say: Callable[[str], None]) -> Order:
    """``order`` for a live partition: while it raises errors, or answers what is no order, the queue stays as it is,
    and jobs go on to start. ``say`` is called when that begins and when it is over."""
    trouble = ""

    def ordered(queue: Queue, now_s: int) -> Int64s:
        nonlocal trouble
        before = trouble
        try:
            positions, trouble = served(order, queue, now_s), ""
        except Exception as error:
            positions = np.arange(len(queue.job))
            trouble = in_one_line(error)
        if trouble and not before:
            say(f"ALARM: the policy does not order the queue, which stays as it is: {trouble}")
        elif before and not trouble:
            say("the alarm is over: the policy orders the queue again")
        return positions

    return ordered


def served(order: Order, queue: Queue, now_s: int) -> Int64s:
    """The positions in the order that ``order`` returns, or scores; ``ClusterError`` unless each position occurs once,
    which the native queue needs."""
    n = len(queue.job)
    found = np.asarray(order(queue, now_s))
    if found.dtype.kind == "f" and found.shape == (n,):
        return np.lexsort((queue.job, found))
    positions = found.astype(np.int64) if found.dtype.kind in "iu" else np.full(found.shape, -1)
    is_served = np.zeros(n, np.bool_)
    is_served[positions[(positions >= 0) & (positions < n)]] = True
    if positions.shape != (n,) or not is_served.all():
        raise no_order(n, positions.size, now_s)
    return positions


def no_order(waiting: int, size: int, now_s: int) -> ClusterError:
    """What is said of an answer of so many values that is no order of the waiting jobs."""
    return ClusterError(
        f"the policy's order must return each of the positions 0 to {waiting - 1} of the waiting jobs once, as an"
        f" array of integers, or a score for each as an array of floats; at {now_s} s it returned {size} values for"
        f" {waiting} jobs" + ("" if size != waiting else " that are not these")
    )

"""The queue as the columns that an *order* phase gets, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cluster_agent.errors import ClusterError
from cluster_agent.scheduler.job_columns import Float64s, Int32s, Int64s, Jobs
from cluster_agent.scheduler.policy_phases import Known, Order, Queue
from foundation.shell.extension import in_one_line


def nothing_known(job: Int32s) -> Mapping[str, Float64s]:
    """Of processors without watts."""
    return {}


def columns(
    jobs: Jobs,
    queued: Sequence[int] | Int32s,
    estimate_s: Mapping[int, int] | Int64s,
    known: Known = nothing_known,
) -> Queue:
    """The waiting jobs ``queued``, in that order."""
    job = np.asarray(queued, np.int32)
    estimates = estimate_s[job] if isinstance(estimate_s, np.ndarray) else [estimate_s[one] for one in queued]
    return Queue(
        job=job,
        submit_s=jobs.submit_s[job],
        request_s=jobs.request_s[job],
        estimate_s=np.asarray(estimates, np.int64),
        width=jobs.width[job],
        user=jobs.user[job],
        **known(job),
    )


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
        raise ClusterError(
            f"the policy's order must return each of the positions 0 to {n - 1} of the waiting jobs once, as an"
            f" array of integers, or a score for each as an array of floats; at {now_s} s it returned"
            f" {positions.size} values that are not these"
        )
    return positions

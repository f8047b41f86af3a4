"""The queue as the columns that an *order* phase sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cluster_agent.scheduler.jobs import Int32s, Int64s, Jobs
from cluster_agent.scheduler.phases import Queue


def columns(jobs: Jobs, queued: Sequence[int] | Int32s, estimate_s: Mapping[int, int] | Int64s) -> Queue:
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
    )

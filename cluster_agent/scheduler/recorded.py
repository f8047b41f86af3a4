"""What happened before a replay begins: the start of each job, by the record (``workloads.state_file``).

A warm start carries the record out through the same events and passes as any replay. Until ``until_s`` a pass orders
the queue and keeps its plans, but starts a job only when the record does; what it does not start then, the machine
starts at the end of the instant. So no phase needs a state of its own in the file: estimates, corrections, learners,
fair-share and reservations come out of the events. Where the record is the policy's own, its passes decide what was
recorded, and the schedule goes on as if it had never been cut.
"""

from __future__ import annotations

import msgspec
import numpy as np

from cluster_agent.scheduler.job_columns import Int32s, Int64s


class Recorded(msgspec.Struct, frozen=True):
    """``start_s``: per job, -1: not started before ``until_s``."""

    start_s: Int64s
    until_s: int
    passes_at_once: bool
    """Whether a pass is due at ``until_s`` without another event: not if this policy has made all passes before it."""

    @property
    def order(self) -> Int32s:
        """The jobs that were started, in the order of their starts."""
        started = np.flatnonzero(self.start_s >= 0)
        return started[np.argsort(self.start_s[started], kind="stable")].astype(np.int32)

    def may_start(self, now_s: int, job: int) -> bool:
        """Whether a pass may start the job now."""
        return now_s >= self.until_s or int(self.start_s[job]) == now_s

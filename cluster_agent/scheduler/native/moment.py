"""A replay as it was at an instant: all before ``at_s`` has happened, nothing of ``at_s`` itself."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from cluster_agent.scheduler.job_columns import Float64s, Int32s, Int64s


class Moment(msgspec.Struct, frozen=True):
    """Columns of jobs, of which the first ``submitted`` are known. ``start_s``: when the start was decided, -1: it
    waits. What follows ``end_s`` is None without watts, but kills and losses where nodes fail."""

    at_s: int
    submitted: int
    start_s: Int64s
    end_s: Int64s  # -1: it has not ended
    level: Int32s | None = None
    done_s: Mapping[int, float] = {}
    """Of running jobs: seconds of their runs that they have done, counted at the highest frequency."""
    kills: Int32s | None = None
    lost: Int64s | None = None
    lost_j: Float64s | None = None
    joules: Mapping[str, float] = {}

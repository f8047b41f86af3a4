"""A closed loop's submissions, as the native replay takes them (``csrc/answering.h``).

``replay.closed_loop`` describes the loops. The tables of a replay are in the order of submission, which is known only
during the replay: a job's row is filled in when the job comes.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent._native import ffi
from cluster_agent.scheduler.job_columns import Int32s, Int64s, Jobs
from cluster_agent.scheduler.native.native_tables import pointer


class Answering(msgspec.Struct, frozen=True):
    """Columns by row of the log; ``moved``: of the log, and of the table that they fill in order of submission."""

    queued: int  # how many jobs are kept waiting; 0: users with think times
    submit_s: Int64s
    user: Int32s
    gap_s: Int64s  # after the submission of the same user before it,
    think_s: Int64s  # or, if not -1, after the end of all earlier ones of the same user
    preceding: Int32s | None = None  # or after the end of this earlier row alone; -1: as in the log
    moved: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []

    def table(self, log: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Another column to be filled; it begins with the log's values, so that every row is valid."""
        log = np.ascontiguousarray(log)
        self.moved.append((log, log.copy()))
        return self.moved[-1][1]


class CAnswering:
    """``answers_t`` over the columns of ``Answering``, which it keeps alive."""

    def __init__(self, answering: Answering, jobs: Jobs) -> None:
        """``jobs``: the table, whose times of submission are filled in too."""
        self._columns = [
            pointer("int64_t", answering.submit_s),
            pointer("int32_t", answering.user),
            pointer("int64_t", answering.gap_s),
            pointer("int64_t", answering.think_s),
            ffi.NULL if answering.preceding is None else pointer("int32_t", answering.preceding),
        ]
        self._pairs = [(ffi.from_buffer(log), ffi.from_buffer(table)) for log, table in answering.moved]
        sizes = [log[:1].nbytes for log, _ in answering.moved]  # a row may have several values
        self._moved = ffi.new("moved_t[]", [[*pair, size] for pair, size in zip(self._pairs, sizes, strict=True)])
        self._submitted = pointer("int64_t", jobs.submit_s)
        self.c = ffi.new(
            "answers_t *",
            [len(jobs), jobs.n_users, answering.queued, *self._columns, len(sizes), self._moved, self._submitted],
        )

"""A table of jobs that grows: the engine takes whole tables, but live jobs come one by one.

The engine reads a job's row only when that job is submitted, started or has ended. So the table has all its rows from
the start, and they are filled one after the other: the kernel provides memory for a column only where it is written,
here as in the native scheduler. A table is full after ``CAPACITY`` runs of jobs; then the partition begins with another
scheduler and the jobs that are alive, just as after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from cluster_agent.scheduler.job_columns import Jobs

CAPACITY: Final = 1 << 17
"""Ours: lasts some days on a busy partition; 40 MB when full."""

USERS: Final = 1 << 12
NOBODY: Final = 0
"""The user of the placeholder rows of nodes that are away."""


class GrowingJobs:
    """``jobs`` for the engine, filled by ``add``. The last row is never used and has the highest user number, since the
    engine reads the number of users of a table only once."""

    def __init__(
        self,
        capacity: int = CAPACITY,
        users: int = USERS,
        known: Sequence[int] = (),
        has_best_effort: bool = False,
    ) -> None:
        """``known``: users who have a number from the start; ``has_best_effort``: whether some jobs may be that."""
        self.jobs = Jobs(
            number=np.zeros(capacity, np.int64),
            submit_s=np.zeros(capacity, np.int64),
            run_s=np.zeros(capacity, np.int64),
            request_s=np.zeros(capacity, np.int64),
            width=np.zeros(capacity, np.int32),
            user=np.zeros(capacity, np.int32),
            best_effort=np.zeros(capacity, np.bool_) if has_best_effort else None,
        )
        self.jobs.user[-1] = users - 1
        self._rows = 0
        self._users = {-1: NOBODY} | {uid: number for number, uid in enumerate(known[: users - 1], 1)}

    def knows(self, uid: int) -> bool:
        """Whether the user has a number."""
        return uid in self._users

    @property
    def uids(self) -> list[int]:
        """By number; -1: nobody yet."""
        return [*self._users, *(-1 for _ in range(self.jobs.n_users - len(self._users)))]

    @property
    def rows(self) -> int:
        """How many are filled in."""
        return self._rows

    def has_room(self, jobs: int, placeholders: int) -> bool:
        """Whether so many rows can be added: jobs, each of another user, and placeholders of nodes that are away."""
        return self._rows + jobs + placeholders < len(self.jobs) and len(self._users) + jobs <= self.jobs.user[-1] + 1

    def add(self, number: int, uid: int, submit_s: int, request_s: int, width: int) -> int:
        """Add a row; return its index. ``uid`` -1: no user."""
        row, jobs = self._rows, self.jobs
        if row + 1 >= len(jobs):
            raise IndexError("the table of jobs is full")
        self._rows += 1
        jobs.number[row], jobs.submit_s[row], jobs.width[row] = number, submit_s, width
        jobs.run_s[row] = jobs.request_s[row] = request_s
        jobs.user[row] = self._users.setdefault(uid, len(self._users))
        return row

    def yields(self, row: int) -> None:
        """It has a best-effort job."""
        assert self.jobs.best_effort is not None
        self.jobs.best_effort[row] = True

    def ran(self, row: int, run_s: int) -> None:
        """Note that the job ended after so many seconds, at least 1; policies learn from it."""
        self.jobs.run_s[row] = max(min(run_s, int(self.jobs.request_s[row])), 1)

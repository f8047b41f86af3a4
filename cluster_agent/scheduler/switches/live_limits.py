"""Limits of users over a table of jobs that grows, for the engine of a live partition.

A row of the table is filled in when its job comes. Each user has a counter for each kind of limit, so the engine's
columns have their full size from the start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.switches.limit_rules import Rule
from cluster_agent.scheduler.switches.limits import Limits


class Claim(NamedTuple):
    """A job by what counts for a limit."""

    user: str
    nodes: int

    def amount(self, what: str) -> int:
        """What it adds to a counter."""
        return 1 if what == "jobs" else self.nodes


class LiveLimits:
    """``rules``: of users, by name. ``rows`` and ``users``: as many as the table has room for."""

    def __init__(self, rules: Sequence[Rule], rows: int = 0, users: int = 0) -> None:
        self._most = {(rule.what, rule.value): rule.most for rule in rules}
        self._whats = list(dict.fromkeys(rule.what for rule in rules))
        self._room = users
        self._users: dict[int, int] = {}
        counts_jobs = np.repeat([what == "jobs" for what in self._whats], users)
        most, counter = np.zeros(len(counts_jobs), np.int64), np.full((rows, len(self._whats)), -1, np.int32)
        no_partitions = np.zeros((0, 2), np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64)
        self.limits = Limits(("limits",), *no_partitions, most, counts_jobs, counter)
        """For the engine, which reads what ``add`` writes."""

    def add(self, row: int, uid: int, user: str) -> None:
        """The row has a job of this user."""
        number = self._users.setdefault(uid, len(self._users))
        for key, what in enumerate(self._whats):
            if (most := self.most(what, user)) is not None:
                counter = key * self._room + number
                self.limits.most[counter], self.limits.counter[row, key] = most, counter

    def most(self, what: str, user: str) -> int | None:
        """The user's own limit in place of that for all; None: there is none."""
        return self._most.get((what, user), self._most.get((what, None)))

    def check(self, job: Claim) -> None:
        """``WrongUseError`` for a job that is alone more than its user may have."""
        for what in self._whats:
            if (most := self.most(what, job.user)) is not None and job.amount(what) > most:
                raise WrongUseError(f"{job.nodes} nodes requested, and {job.user} may have {most} at once")

    def over(self, waiting: Iterable[tuple[int, Claim]], running: Iterable[Claim]) -> dict[int, str]:
        """Why each of the waiting jobs, by number, may not start however many nodes are idle; others are left out."""
        used: Counter[tuple[str, str]] = Counter()
        for one in running:
            used.update({(what, one.user): one.amount(what) for what in self._whats})
        found = {}
        for number, job in waiting:
            for what in self._whats:
                has, most = used[what, job.user], self.most(what, job.user)
                if most is not None and has + job.amount(what) > most:
                    needs = "" if what == "jobs" else f", and it needs {job.nodes}"
                    found[number] = f"{job.user} has {has} of at most {most} {what} at once{needs}"
        return found

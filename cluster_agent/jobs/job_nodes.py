"""The nodes of the partition as jobs need them: which are up, which may get jobs, which have one.

    idle ──► allocated ──► idle        a job comes and goes
      │           │
      ▼           ▼
    draining (no more jobs; by hand, or since it did not start one) ──► resumed by hand
        also while it refuses jobs, or still runs one that was given up ──► by itself, when that is over
    down (no report for ``down_after_s``) ──► its former state, with the next report; *drained* if it is drained, since
    somebody may be mending it

    idle ──► powering-off ──► off ──► booting ──► idle     where nodes are switched (``power``), else never
                   └──────────┬──────────┘
                              ▼
                            down (it did not do it) ──► resumed by hand, or switched again by hand

A node that has never reported is down, and so is one whose agent does not run jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from cluster_agent.jobs.power_switching import Switched

SHARES: Final = 2
"""Of a node, the halves of its cores. A job that shares with nobody takes both."""

NOT_HALVED: Final = "cannot keep two jobs on halves of its cores: an older nodectl, one core, or an emulated node"

NodeState: TypeAlias = Literal["idle", "allocated", "draining", "drained", "down", "powering-off", "off", "booting"]


@dataclass(slots=True)
class Node:
    """One node. ``heard_s``: when it last reported its jobs; ``spoke_s``: when it last sent anything; -inf: never.
    ``runs``: those of the jobs that have the node, and which half of it each: 0 or 1, -1 both. ``idle_s``: since when
    it is idle."""

    name: str
    heard_s: float = float("-inf")
    without_jobs_s: float = float("-inf")  # when it last reported no jobs; -inf: its last report had some
    runs_only: str = ""  # the only command that it runs; "": any
    runs_names: Sequence[str] = ()  # the only first arguments of that command (``NodeJobs``); empty: not reported
    runs_uid: int = -1  # the only user whose jobs it runs; -1: any, or not reported
    boot_id: str = ""
    is_up: bool = False
    drained: str | None = None  # the reason
    runs: dict[int, int] = field(default_factory=dict)  # by row of the engine's table
    yields: set[int] = field(default_factory=set)  # those of the rows of best-effort jobs, which others may preempt
    leaving: set[int] = field(default_factory=set)  # ... and which are preempted: to the engine it is free of these
    away_row: int | None = None  # while it is away: its placeholder in the engine's table
    away_until_s: int | None = None  # when the scheduler may count on it again; None: not known
    spoke_s: float = float("-inf")
    idle_s: float | None = None
    switched: Switched | None = None  # None: it is on like any other
    refuses: str = ""  # why it starts no job now, by its own report
    left_over: str = ""  # what of a job that has not this node any more still runs there, by its report
    has: tuple[int, int, int, int] | None = None  # as ``JobSpec.per_node``; None: the policy takes nodes as alike
    halves: str = ""  # how it keeps two jobs apart (``NodeJobs.halves``); "": not at all
    is_halved: bool = False  # two jobs may have it
    queue: str | None = None  # the only queue whose jobs it gets, "" where it gets none; None: of any

    @property
    def state(self) -> NodeState:
        """One word; down and drained come before draining, since they say more."""
        if self.switched is not None:
            return "down" if self.switched.state == "failed" else self.switched.state
        if not self.is_up:
            return "down" if self.drained is None else "drained"
        if self.gets_none:
            return "draining"
        return "allocated" if self.runs else "idle"

    @property
    def free_shares(self) -> int:
        """Those that no job has."""
        halves = [half for row, half in self.runs.items() if row not in self.leaving]
        return 0 if -1 in halves else SHARES - len(halves)

    @property
    def free_half(self) -> int:
        """One that no job has, of a node that has a free share."""
        return 1 if 0 in self.runs.values() else 0

    @property
    def may_be_silent(self) -> bool:
        """Whether nobody expects a report of it: it is drained, or switched."""
        return self.drained is not None or self.state in ("powering-off", "off", "booting")

    @property
    def gets_none(self) -> str:
        """Why it gets no more jobs though it is up; empty: it gets them."""
        drained = "drained" if self.drained == "" else self.drained
        own = drained or self.left_over or self.refuses or ("a node of no queue" if self.queue == "" else "")
        return own or (NOT_HALVED if self.is_halved and self.boot_id and not self.halves else "")

    def serves(self, queue: str) -> bool:
        """Whether it gets jobs of this queue."""
        return self.queue is None or self.queue == queue

    @property
    def may_start(self) -> bool:
        """Whether a job may be started on it now, on what is free of it."""
        return self.is_up and self.free_shares > 0 and self._gets_jobs

    @property
    def may_yield(self) -> bool:
        """Whether a job may be started on it in place of best-effort jobs that have it now."""
        has_them_alone = bool(self.yields) and self.runs.keys() <= self.yields | self.leaving
        return self.is_up and has_them_alone and self._gets_jobs

    @property
    def _gets_jobs(self) -> bool:
        return self.switched is None and not self.gets_none

    @property
    def is_away(self) -> bool:
        """Whether something of it is free, or has best-effort jobs, and gets no other job."""
        if self.yields:
            return not self.may_yield
        return self.free_shares > 0 and not self.may_start

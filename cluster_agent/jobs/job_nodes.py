"""The nodes as the jobs' side sees them: who is there, who may get jobs, who has one.

    idle ──► allocated ──► idle        a job comes and goes
      │           │
      ▼           ▼
    draining (no more jobs; by hand, or since it did not start one) ──► resumed by hand
    down (nothing heard for ``down_after_s``) ──► as before, once it is heard again

    idle ──► powering-off ──► off ──► booting ──► idle     where nodes are switched (``power``), else never
                   └──────────┬──────────┘
                              ▼
                            down (it did not do it) ──► resumed by hand, or switched again by hand

A node that has never been heard of is down, and so is one whose agent does not run jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from cluster_agent.jobs.power_switching import Switched

NodeState: TypeAlias = Literal["idle", "allocated", "draining", "down", "powering-off", "off", "booting"]


@dataclass(slots=True)
class Node:
    """One node. ``heard_s``: when it last spoke of its jobs, ``spoke_s``: of anything; -inf never. ``run``: the run of
    a job that has it. ``idle_s``: since when it is idle."""

    name: str
    heard_s: float = float("-inf")
    without_jobs_s: float = float("-inf")  # when it last said that it knows of none; -inf: it knows of some
    runs_only: str = ""  # the one command that it runs; "" any
    runs_names: Sequence[str] = ()  # and with which first word (``NodeJobs``); none: it does not say
    boot_id: str = ""
    is_up: bool = False
    drained: str | None = None  # the reason
    run: int | None = None  # a row of the engine's table
    hold: int | None = None  # the row that keeps the scheduler from counting on it
    hold_until_s: int | None = None  # when the scheduler may count on it again; None: nobody knows
    spoke_s: float = float("-inf")
    idle_s: float | None = None
    switched: Switched | None = None  # None: it is on like any other

    @property
    def state(self) -> NodeState:
        """One word; down before draining, since it says more."""
        if self.switched is not None:
            return "down" if self.switched.state == "failed" else self.switched.state
        if not self.is_up:
            return "down"
        if self.drained is not None:
            return "draining"
        return "idle" if self.run is None else "allocated"

    @property
    def may_start(self) -> bool:
        """Whether a job may be given to it now."""
        return self.is_up and self.drained is None and self.run is None and self.switched is None

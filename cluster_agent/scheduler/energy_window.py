"""Joules for a window of time: a limit in watts, and a ledger of what stays below it.

A budget of B joules in [from_s, to_s) is the limit L = B / (to_s - from_s). While the cluster's power is below L, the
difference is stored; while it is above, the difference is taken from the store, which may be overdrawn. Each ``tick_s``
the true joules are read; between two readings the planned watts are used. The rules (Glesser, PhD thesis, Grenoble
2016, ch. 5; Dutot et al., CCGrid 2017) say which jobs may raise power above L:

powercap    none. That is a power cap, known when it begins
reducepc    the head of the queue. For jobs behind it the limit is lower by what is set aside for the head each second
energybud   all, but jobs behind the head only with joules that the head will not need

Jobs behind the head do not delay it in joules either. The thesis does not define "enough" joules for a job that would
raise power above L; ``test`` chooses:

path    all that the job and those that run will draw above L until to_s, if they run to their limits. With true limits
        and watts the store is then never overdrawn (ours, the default)
job     what is drawn above L now, for as long as the job may run. Several such jobs can count on the same joules
whole   all the joules that the job may draw

With a place for every job (``backfill=conservative``, energybud) all jobs reserve joules (ours): those stored at a
later time are those stored now, and L less what is planned by then of jobs that run or have a place. A job's place is
the first time at which processors, watts and joules suffice: from then until the window ends the store never falls
below 0, if the job runs to its limit. One that waits for nothing but joules starts at that very second: they are read
then.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from cluster_agent.cluster import UW
from foundation.shell.extension import Origin

Rule: TypeAlias = Literal["energybud", "reducepc", "powercap"]
Test: TypeAlias = Literal["path", "job", "whole"]

MOST_UW: Final = 2**55
"""36 GW: effectively no limit, and its products fit the engine's whole numbers."""


class Budget(msgspec.Struct, frozen=True):
    """See above. ``joules`` are the whole cluster's, idle nodes included."""

    joules: float
    from_s: int
    to_s: int
    rule: Rule = "energybud"
    test: Test = "path"
    tick_s: int = 60  # thesis, ch. 5
    stored_j: float = 0.0  # when the window begins
    profile: Origin | None = None  # the file that the joules and the window come from

    @property
    def limit_w(self) -> float:
        """L."""
        return self.joules / (self.to_s - self.from_s)

    @property
    def limit_uw(self) -> int:
        """L, in whole microwatts."""
        return MOST_UW if self.limit_w * UW > MOST_UW else round(self.limit_w * UW)


class Stored(msgspec.Struct, frozen=True):
    """The store of a budget whose window is open, as it outlives its scheduler: ``stored_j`` at ``at_s``, since when
    ``drawn_uw`` may be drawn. Jobs only end while no scheduler runs, so no more is."""

    from_s: int  # of the window
    read_s: int  # the last reading
    at_s: int
    stored_j: float
    drawn_uw: int

    def at(self, now_s: int, budget: Budget) -> float:
        """The joules that are stored by now; from ``at_s`` on the budget counts as it is now."""
        return self.stored_j + (budget.limit_uw - self.drawn_uw) * max(now_s - self.at_s, 0) / UW

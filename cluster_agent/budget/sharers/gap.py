"""When to plan caps again: at most once in a gap, except for what cannot wait.

A cap takes time to have an effect, longer under load, so ends of jobs, new tags and new measurements are gathered. A
start does not wait, since the job would run at the MOP of idle nodes until then (REGALE D2.3 §4.2, D7). A change of
the budget does not wait either, since a drop must be obeyed in time. Nor do nodes that join with more watts than are
free, or a node that wants to leave, since its agent ends soon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

Event: TypeAlias = Literal["start", "end", "budget", "tag", "need", "node", "over", "leave"]

AT_ONCE: Final = frozenset({"start", "budget", "over", "leave"})


@dataclass(frozen=True, slots=True)
class Gap:
    """What is waiting. Times are seconds of any clock that does not go back; no update yet: -inf. ``least_s``: the time
    between any two updates, even for what cannot wait, since many events may come at once."""

    gap_s: float = 60.0
    least_s: float = 0.0
    updated_s: float = -math.inf
    due_s: float = math.inf

    def after(self, now_s: float, event: Event) -> Gap:
        """Note an event; the next plan is due at ``due_s`` of the result."""
        due_s = max(now_s, self.updated_s + (self.least_s if event in AT_ONCE else self.gap_s))
        return replace(self, due_s=min(self.due_s, due_s))

    def is_due(self, now_s: float) -> bool:
        """Whether to plan again now."""
        return now_s >= self.due_s

    def updated(self, now_s: float) -> Gap:
        """The caps were planned again, with all events so far."""
        return replace(self, updated_s=now_s, due_s=math.inf)

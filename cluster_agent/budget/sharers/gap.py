"""When to share anew: not more often than once in a gap, but for what cannot wait.

A cap takes its time to act, more so under load, so ends of jobs, new tags and new measurements are gathered. A start
does not wait, since the job would run at the MOP of idle nodes until then (REGALE D2.3 §4.2, D7). A change of the
budget does not wait either: a drop has to be obeyed in time. Nor do nodes that came with more watts than there
are, or one that asks to leave, since its agent ends soon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

Event: TypeAlias = Literal["start", "end", "budget", "tag", "need", "node", "over", "leave"]

AT_ONCE: Final = frozenset({"start", "budget", "over", "leave"})


@dataclass(frozen=True, slots=True)
class Gap:
    """What is waiting. Times are seconds of any clock that does not go back; no update yet: -inf. ``least_s`` is
    between any two updates, where there may be many events at once."""

    gap_s: float = 60.0
    least_s: float = 0.0
    updated_s: float = -math.inf
    due_s: float = math.inf

    def after(self, now_s: float, event: Event) -> Gap:
        """Something happened; from ``due_s`` of the answer on, it is time."""
        due_s = max(now_s, self.updated_s + (self.least_s if event in AT_ONCE else self.gap_s))
        return replace(self, due_s=min(self.due_s, due_s))

    def is_due(self, now_s: float) -> bool:
        """Whether to share anew now."""
        return now_s >= self.due_s

    def updated(self, now_s: float) -> Gap:
        """It was shared anew, for all that had happened."""
        return replace(self, updated_s=now_s, due_s=math.inf)

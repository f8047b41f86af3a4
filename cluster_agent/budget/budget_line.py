"""The budget over time: what is in force, and what is announced.

A drop is obeyed before it comes: from one settle time ahead on, the lower budget counts. So a drop that was announced
that early finds the partition below it, even if a node was cut off in between. Times are the cluster agent's own
clock (CLOCK_BOOTTIME, seconds); whoever reads a schedule by wall clock turns it into these.

A drop that comes without notice holds one settle time later (rule 10). Until then nodes may draw what was in force
before, which is no alarm: ``promised_mw`` is what they must keep to at any time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MOST_W: Final = 10**12
"""Ours: of any budget; no partition draws that."""


@dataclass(slots=True)
class BudgetLine:
    """A budget in mW of DC node power, and the steps to come as (when, mW) in order of time."""

    budget_mw: int
    steps: list[tuple[float, int]] = field(default_factory=list)
    _before: list[tuple[float, int]] = field(default_factory=list)  # (until when, what may still be drawn)

    def change(self, now_s: float, budget_mw: int, steps: list[tuple[float, int]], settle_s: float) -> None:
        """From now on this budget and these steps hold; if less is left, one settle time from now."""
        self.advance(now_s)
        self.allow(now_s + settle_s, self.budget_mw)
        self.budget_mw, self.steps = budget_mw, steps

    def allow(self, until_s: float, drawn_mw: int) -> None:
        """Until then nodes may draw this much: it takes so long to lower them."""
        self._before = [one for one in self._before if one[0] > until_s or one[1] > drawn_mw]
        self._before.append((until_s, drawn_mw))

    def promised_mw(self, now_s: float) -> int:
        """What all nodes together, and what is fixed, may draw now at most."""
        self.advance(now_s)
        return max([self.budget_mw, *(mw for until_s, mw in self._before if now_s < until_s)])

    def lowered_s(self, now_s: float) -> float | None:
        """Until when more than the budget may be drawn; None: it may not."""
        self.advance(now_s)
        return max((until_s for until_s, mw in self._before if now_s < until_s and mw > self.budget_mw), default=None)

    def announce(self, at_s: float, budget_mw: int) -> None:
        """From ``at_s`` on the budget will be ``budget_mw``; an earlier word on that time or a later one is void."""
        self.steps = [step for step in self.steps if step[0] < at_s]
        self.steps.append((at_s, budget_mw))

    def set(self, budget_mw: int) -> None:
        """The budget is this from now on, whatever was announced."""
        self.budget_mw = budget_mw
        self.steps = []

    def advance(self, now_s: float) -> None:
        """Steps whose time has come take effect."""
        while self.steps and self.steps[0][0] <= now_s:
            self.budget_mw = self.steps.pop(0)[1]

    def spendable_mw(self, now_s: float, ahead_s: float) -> int:
        """The least budget between now and ``ahead_s`` from now."""
        self.advance(now_s)
        return min([self.budget_mw, *(mw for at_s, mw in self.steps if at_s <= now_s + ahead_s)])

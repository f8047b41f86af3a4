"""The budget over time: what is in force, and what is announced.

A drop is obeyed before it comes: from one settle time ahead on, the lower budget counts. So a drop that was announced
that early finds the partition below it, even if a node was cut off in between. Times are the cluster agent's own
clock (CLOCK_BOOTTIME, seconds); whoever reads a schedule by wall clock turns it into these.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class BudgetLine:
    """A budget in mW of DC node power, and the steps to come as (when, mW) in order of time."""

    budget_mw: int
    steps: list[tuple[float, int]] = field(default_factory=list)

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

"""The budget over time: what is in force, and what is announced.

An announced drop counts from one settle time before it comes: the partition is then below the lower budget in time,
even if a node is cut off in between. A drop without notice counts at once, but takes up to one settle time to reach
every node (rule 10). Until then nodes may draw what was in force before, which is no alarm: ``promised_mw`` is what
they must keep to at any time. Times are seconds of the cluster agent's own clock (CLOCK_BOOTTIME); whoever reads a
schedule by wall clock converts it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MOST_W: Final = 10**12
"""Ours: the highest budget that is accepted; no partition draws that much."""


@dataclass(slots=True)
class BudgetLine:
    """A budget in mW of DC node power, and the steps to come as (when, mW) in order of time."""

    budget_mw: int
    steps: list[tuple[float, int]] = field(default_factory=list)
    _before: list[tuple[float, int]] = field(default_factory=list)  # (until when, what may still be drawn)

    def change(self, now_s: float, budget_mw: int, steps: list[tuple[float, int]], settle_s: float) -> None:
        """Put this budget and these steps in force; nodes have one settle time to come down to a lower budget."""
        self.advance(now_s)
        self.allow(now_s + settle_s, self.budget_mw)
        self.budget_mw, self.steps = budget_mw, steps

    def allow(self, until_s: float, most_mw: int) -> None:
        """Allow this much power until then, since lowering the nodes takes so long."""
        self._before = [one for one in self._before if one[0] > until_s or one[1] > most_mw]
        self._before.append((until_s, most_mw))

    def promised_mw(self, now_s: float) -> int:
        """The most that all nodes and the fixed power together may draw now."""
        self.advance(now_s)
        return max([self.budget_mw, *(mw for until_s, mw in self._before if now_s < until_s)])

    def lowered_s(self, now_s: float) -> float | None:
        """Until when more than the budget may be drawn; None: not now."""
        self.advance(now_s)
        return max((until_s for until_s, mw in self._before if now_s < until_s and mw > self.budget_mw), default=None)

    def is_never_above(self, now_s: float, budget_mw: int, steps: list[tuple[float, int]]) -> bool:
        """Whether this budget with these steps would allow more at no time from now on than this line does."""
        self.advance(now_s)
        present, other = [(now_s, self.budget_mw), *self.steps], [(now_s, budget_mw), *steps]
        return all(_at(other, at_s) <= _at(present, at_s) for at_s, _ in (*present, *other))

    def announce(self, at_s: float, budget_mw: int) -> None:
        """From ``at_s`` on the budget will be ``budget_mw``. This replaces what was announced for that time or
        later."""
        self.steps = [step for step in self.steps if step[0] < at_s]
        self.steps.append((at_s, budget_mw))

    def set(self, budget_mw: int) -> None:
        """Put this budget in force now and cancel all announced steps."""
        self.budget_mw = budget_mw
        self.steps = []

    def advance(self, now_s: float) -> None:
        """Put the steps in force whose time has come."""
        while self.steps and self.steps[0][0] <= now_s:
            self.budget_mw = self.steps.pop(0)[1]

    def spendable_mw(self, now_s: float, ahead_s: float) -> int:
        """The least budget between now and ``ahead_s`` from now."""
        self.advance(now_s)
        return min([self.budget_mw, *(mw for at_s, mw in self.steps if at_s <= now_s + ahead_s)])


def _at(steps: list[tuple[float, int]], at_s: float) -> int:
    return [mw for from_s, mw in steps if from_s <= max(at_s, steps[0][0])][-1]

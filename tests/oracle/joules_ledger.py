"""The store of a budget of joules in plain Python: what ``csrc/budget.c`` is tested against."""

from __future__ import annotations

from dataclasses import dataclass

from cluster_agent.scheduler.energy_window import Budget


@dataclass(slots=True)
class Ledger:
    """The store of a budget: read at ``read_s``, and continued with planned watts until ``pass_s``."""

    budget: Budget
    next_s: int  # the next reading is due
    is_open: bool = False
    read_j: float = 0.0
    since_j: float = 0.0
    read_s: int = 0
    pass_s: int = 0
    drawn_uw: int = 0  # planned, since pass_s

    @property
    def stored_j(self) -> float:
        """Below 0: overdrawn."""
        return self.read_j + self.since_j

    def read(self, now_s: int, drawn_uj: int) -> bool:
        """Take a reading: the joules since the last one. False when the window is over."""
        budget = self.budget
        if self.is_open:
            self.read_j += (float(budget.limit_uw) * float(now_s - self.read_s) - float(drawn_uj)) / 1e6
        self.is_open = now_s < budget.to_s
        self.next_s = min(now_s + budget.tick_s, budget.to_s)
        self.since_j = 0.0
        self.read_s = self.pass_s = now_s
        return self.is_open

    def book(self, now_s: int, drawn_uw: int) -> None:
        """Start a pass; from here on this power is planned."""
        self.since_j += float(self.budget.limit_uw - self.drawn_uw) * float(now_s - self.pass_s) / 1e6
        self.pass_s, self.drawn_uw = now_s, drawn_uw

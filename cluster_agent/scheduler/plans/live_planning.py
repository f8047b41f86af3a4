"""A planner in a live partition: a bound on the time of its plans, and one line in the log when it does not decide.

The cluster agent has one thread. While a planner works no node is heard and no grant is renewed, so each plan has a
bound in seconds, also where the policy sets none. The bound is the planner's to keep: it is not interrupted, and an
answer that is late is not used. Plans are not stored: after a restart the first pass plans again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from cluster_agent.scheduler.plans.plan_phase import PlanBudget, Planner, Situation
from cluster_agent.scheduler.plans.planning import Planning, Tried

LIVE_TIME_S: Final = 0.5
"""Ours: the default, and the most (``jobs.admission``). A quarter of the shortest lease (``[nodes] lease_s`` is 2 s or
more), so that a grant is renewed in time even if every turn of the agent's loop has a plan."""

QUIET_S: Final = 60
"""Ours: the alarm is over once the planner has decided for so long, or a planner that is late now and then would fill
the log."""


class LivePlanning(Planning):
    """Keeps the outcome of the last pass alone. ``say`` logs when the list schedule begins to decide, and when that is
    over."""

    def __init__(self, planner: Planner, budget: PlanBudget, say: Callable[[str], None]) -> None:
        super().__init__(planner, budget if budget.time_s is not None else replace(budget, time_s=LIVE_TIME_S))
        self._say = say
        self._since_s: int | None = None  # the last pass that the list schedule decided, while the alarm is on

    def decide(self, situation: Situation) -> Tried:
        """As in a replay."""
        self.outcomes.clear()
        self.plan_s.clear()
        found = super().decide(situation)
        now_s, reason = situation.now_s, self.outcomes[0].reason
        if reason:
            if self._since_s is None:
                self._say(f"ALARM: the policy's list schedule decides, not its planner: {reason}")
            self._since_s = now_s
        elif self._since_s is not None and now_s - self._since_s >= QUIET_S:
            self._since_s = None
            self._say("the alarm is over: the planner decides again")
        return found

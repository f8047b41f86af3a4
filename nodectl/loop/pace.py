"""The period: deadlines that do not drift, how late each tick was, and longer periods when the agent costs too much.

Deadlines are multiples of the period on the monotonic clock, so a late tick does not delay the ones after it; a period
that was missed is skipped and counted. BDPO's lesson (REGALE D2.3 §3.4): a daemon whose CPU time grows harms the job
that it saves energy for. So the loop measures its own CPU time, and doubles its period when that is above the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nodectl.config import Budget
from nodectl.loop.histogram import Histogram
from pmu.ports import Clock

TICKS_JUDGED: Final = 32  # ours: a mean over fewer would back off after one slow file


class Pace:
    """When the next tick is due, and how late the ticks were.

    ``wait(deadline_ns)`` sleeps until the deadline, or less if it is interrupted: the next deadline is then the same.
    ``least_s``: no period is shorter, since a knob that is written in each would not have followed the last write
    (``nodectl.knobs.timing``); what interrupts a sleep keeps it, too.
    """

    def __init__(
        self,
        clock: Clock,
        period_ms: float,
        budget: Budget,
        wait: Callable[[int], None] | None = None,
        least_s: float = 0.0,
    ) -> None:
        self._clock = clock
        self._wait = wait or clock.sleep_until_ns
        self._budget = budget
        self.least_s = least_s
        self._requested_ns = max(round(period_ms * 1e6), round(least_s * 1e9))
        self._longest_ns = max(round(budget.max_period_ms * 1e6), self._requested_ns)
        self.period_ns = self._requested_ns
        self._deadline_ns = clock.now_ns()
        self._work_ns = 0
        self._judged = 0
        self.lateness = Histogram()
        self.missed = 0

    def sleep(self, until_ns: int | None = None) -> int:
        """Wait for the next deadline, or ``until_ns`` if that is earlier; returns by how many ns it was missed."""
        self._deadline_ns += self.period_ns
        if until_ns is not None:
            self._deadline_ns = min(self._deadline_ns, until_ns)
        behind_ns = self._clock.now_ns() - self._deadline_ns
        if behind_ns >= self.period_ns:
            skipped = behind_ns // self.period_ns
            self.missed += skipped
            self._deadline_ns += skipped * self.period_ns
        self._wait(self._deadline_ns)
        lateness_ns = self._clock.now_ns() - self._deadline_ns
        if lateness_ns < 0:
            self._deadline_ns -= self.period_ns
            return 0
        self.lateness.add(lateness_ns)
        return lateness_ns

    def spent(self, work_ns: int) -> str | None:
        """Count one tick's CPU time; returns a line for the log if this has changed the period, else None."""
        self._work_ns += work_ns
        self._judged += 1
        if self._judged < TICKS_JUDGED or not self._budget.core_share:
            return None
        mean_ns = self._work_ns / self._judged
        self._work_ns = self._judged = 0
        allowed_ns = self._budget.core_share * self.period_ns
        before_ns = self.period_ns
        if mean_ns > allowed_ns:
            self.period_ns = min(before_ns * 2, self._longest_ns)
        elif (
            mean_ns < allowed_ns / 4 and before_ns > self._requested_ns
        ):  # a quarter: half would bounce between two periods
            self.period_ns = max(before_ns // 2, self._requested_ns)
        if self.period_ns == before_ns:
            return None
        return (
            f"a tick costs {mean_ns / 1e6:.2f} ms of CPU time, the budget is {allowed_ns / 1e6:.2f} ms:"
            f" period now {self.period_ns / 1e6:g} ms"
        )

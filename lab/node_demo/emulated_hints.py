"""Hints that an emulated program on GPUs gives, from the phases that it truly executes, in virtual time.

The workload files say nothing of copies. Assumed (ours): a phase in which the SMs are under REGALE's 10 % occupied
begins with a big copy and launches no kernel before its end, and each other phase begins with the launch of one.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Final

from nodectl.jobs.hint_watch import HintWatch
from pmu.ports import Clock
from pmu.readings import NO_RAW_HINTS, Hint, RawHints
from twin.physics.model import Twin

OCCUPIED: Final = 0.10
"""REGALE D2.3 §3.4."""

STEP_NS: Final = 1_000_000
"""Ours: how often the program's phase is looked at; the delay of a hint in virtual time is at most twice that."""


class EmulatedHints(HintWatch):
    """Of the first group of GPUs; ``wait`` ends a sleep when its phase has changed."""

    def __init__(self, twin: Twin, clock: Clock) -> None:
        super().__init__(lambda: None)
        self._twin, self._clock = twin, clock
        groups = list(enumerate(twin.workload.groups)) if twin.workload else []
        self._group, group = next(((number, group) for number, group in groups if group.on_gpu), (-1, None))
        parts = group.program if group else ()
        self._ends_s = list(accumulate(seconds for _, _, seconds in parts))
        self._is_copy = [group.phases[phase].occupancy < OCCUPIED for phase, _, _ in parts] if group else []
        self._hints = NO_RAW_HINTS

    def read(self) -> RawHints:
        """The hints now."""
        if not self._ends_s or self._twin.finished:
            return self._hints
        rounds, into_s = divmod(self._twin.work_s()[self._group] + 1e-9, self._ends_s[-1])
        part = min(bisect_right(self._ends_s, into_s), len(self._ends_s) - 1)
        before, number = self._hints, int(rounds) * len(self._ends_s) + part + 1
        if number > before.phases:
            is_copy = self._is_copy[part]
            self._hints = RawHints(
                1, number, part + 1, Hint.COPY if is_copy else Hint.KERNEL, before.copies + is_copy,
                before.kernels + (not is_copy), 0, 0, number,
            )  # fmt: skip
        return self._hints

    def wait(self, deadline_ns: int) -> None:
        """Sleep to the deadline, or until the program gives a hint; then one step more, in which the agent wakes."""
        before = self._hints
        while self._clock.now_ns() < deadline_ns and self.read() == before:
            self._clock.sleep_until_ns(min(deadline_ns, self._clock.now_ns() + STEP_NS))
        if self._hints != before:
            self._clock.sleep_until_ns(min(deadline_ns, self._clock.now_ns() + STEP_NS))

"""Leases: how long each written knob may stay moved without a renewal.

Times are CLOCK_BOOTTIME, nanoseconds, and are given: nothing here reads a clock but ``LeasedKnob``, at the last moment
before a write. Whoever was stopped (SIGSTOP, a suspended machine) and goes on must not carry out what it had read
before. So a request has an end, and before each single write the time since the step before is looked at: a pause
longer than the lease means that this process was stopped, and the rest of the request is not written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from nodectl.knobs.api import Companion, Knob, KnobError


def boottime_ns() -> int:
    """CLOCK_BOOTTIME: goes on while the machine is suspended, and nobody can set it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Leases:
    """The end of each written knob's lease."""

    def __init__(self) -> None:
        self._ends: dict[str, int] = {}

    def renew(self, names: Iterable[str], end_ns: int) -> None:
        """These knobs are written, and may stay so until then."""
        self._ends.update(dict.fromkeys(names, end_ns))

    def end(self, names: Iterable[str]) -> None:
        """These knobs are back, or never were moved."""
        for name in names:
            self._ends.pop(name, None)

    def over(self, now_ns: int) -> list[str]:
        """The knobs whose lease is over."""
        return [name for name, end_ns in self._ends.items() if end_ns <= now_ns]

    def left_ns(self, now_ns: int) -> int | None:
        """Time until the first lease ends; None without leases."""
        return max(min(self._ends.values()) - now_ns, 0) if self._ends else None

    def __len__(self) -> int:
        return len(self._ends)


class Permission:
    """Whether this process may write now: within a request that is not too old, or while it puts knobs back."""

    def __init__(self, now_ns: Callable[[], int] = boottime_ns, is_newest: Callable[[], bool] = lambda: True) -> None:
        """``is_newest``: no other process has taken over the node's knobs since."""
        self._now_ns, self._is_newest = now_ns, is_newest
        self._step_ns = self._pause_ns = 0
        self.is_late = False

    def begin(self, made_ns: int, lease_ns: int) -> bool:
        """A request was read: is it young enough? From now on no pause may be longer than its lease."""
        now_ns = self._now_ns()
        self._step_ns, self._pause_ns = now_ns, lease_ns
        self.is_late = now_ns - min(made_ns, now_ns) >= lease_ns
        return not self.is_late

    def end(self) -> None:
        """The request is done; knobs may be put back at any time."""
        self._pause_ns = 0

    def check(self, name: str) -> None:
        """Before each write; ``KnobError`` if it must not be done any more."""
        if not self._is_newest():
            self.is_late = True
            raise KnobError(f"{name}: another process has taken over this node's knobs; not written")
        if not self._pause_ns:
            return
        now_ns = self._now_ns()
        self.is_late = self.is_late or now_ns - self._step_ns >= self._pause_ns
        if self.is_late:
            raise KnobError(f"{name}: the writer was stopped for longer than the lease; not written")
        self._step_ns = now_ns


class LeasedKnob:
    """``Knob`` that is written only while ``permission`` lasts; all else is the knob's own."""

    def __init__(self, knob: Knob, permission: Permission) -> None:
        self.name, self.unit, self.latency_s = knob.name, knob.unit, knob.latency_s
        self._knob, self._permission = knob, permission
        self.read, self.read_back = knob.read, knob.read_back
        self.number, self.shown, self.matches = knob.number, knob.shown, knob.matches
        self.overruled, self.explain = knob.overruled, knob.explain
        self.recipe = knob.recipe

    def __getattr__(self, name: str) -> Any:
        """What only its kind knows, such as its highest value."""
        return getattr(self._knob, name)

    def set(self, value: int) -> None:
        """Move the knob, if it still may be."""
        self._permission.check(self.name)
        self._knob.set(value)

    def set_companion(self, companion: Companion, value: int) -> None:
        """Put a file back that decides whether the knob is in force."""
        self._permission.check(self.name)
        self._knob.set_companion(companion, value)  # type: ignore[attr-defined]  # only knobs with companions have one set

    def restore(self, captured: str) -> None:
        """Put the knob back, if no other process has done so."""
        self._permission.check(self.name)
        self._knob.restore(captured)

"""Time as a client sees it: real, or a simulated controller's own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A clock that never goes back."""

    def now_s(self) -> float:
        """Seconds since some fixed point."""

    def sleep(self, duration_s: float) -> None:
        """Let time pass."""


class RealClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        """Seconds of ``CLOCK_MONOTONIC``."""
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        """Sleep."""
        time.sleep(duration_s)

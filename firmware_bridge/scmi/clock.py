"""A client's time: real, or the virtual time of a simulated controller."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A clock that never goes back."""

    def now_s(self) -> float:
        """Seconds since a fixed moment."""

    def sleep(self, duration_s: float) -> None:
        """Wait."""


class RealClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        """Seconds of ``CLOCK_MONOTONIC``."""
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        """Sleep."""
        time.sleep(duration_s)


class SlowClock:
    """The time of a controller that is simulated: it runs ``slowdown`` times slower than real time."""

    def __init__(self, slowdown: int) -> None:
        self._slowdown = slowdown

    def now_s(self) -> float:
        """Seconds of the controller."""
        return time.monotonic() / self._slowdown

    def sleep(self, duration_s: float) -> None:
        """Sleep that much longer."""
        time.sleep(duration_s * self._slowdown)

"""Time on a live partition: how long is waited for what, and the clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Times:
    """Ours, all of them; seconds. ``lost_after_s`` is long, since what a silent node runs may still be running: a job
    that is given up then and queued again can run twice if its node was only cut off."""

    down_after_s: float = 15.0
    lost_after_s: float = 300.0
    retry_s: float = 2.0
    start_within_s: float = 60.0
    save_every_s: float = 10.0


def steady_time() -> Callable[[], float]:
    """Unix time as of now, going on with CLOCK_BOOTTIME whatever is done to the wall clock."""
    offset_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return lambda: offset_s + time.clock_gettime(time.CLOCK_BOOTTIME)


class EngineClock:
    """The engine's clock: whole seconds that never run backwards. It does not wait: whoever calls ``turn`` does."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._last_s = now, 0
        self.due_s: int | None = None

    def now_s(self) -> int:
        """The present."""
        self._last_s = max(self._last_s, int(self._now()))
        return self._last_s

    def wait_until(self, time_s: int | None) -> bool:
        """Never: the loop is over for now, and goes on at ``time_s``."""
        self.due_s = time_s
        return False

"""Time on a live partition: how long it waits for what, and its clocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Times:
    """Ours, all of them; seconds. ``lost_after_s`` is long, since a silent node may still run its job. If the job were
    given up and requeued earlier, it would run twice when its node was only cut off."""

    down_after_s: float = 15.0
    lost_after_s: float = 300.0
    retry_s: float = 2.0
    start_within_s: float = 60.0
    save_every_s: float = 10.0


class EngineClock:
    """The engine's clock: whole seconds that never go back. It does not wait; whoever calls ``turn`` does."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._last_s = now, 0
        self.due_s: int | None = None

    def now_s(self) -> int:
        """The present."""
        self._last_s = max(self._last_s, int(self._now()))
        return self._last_s

    def wait_until(self, time_s: int | None) -> bool:
        """Never waits: the loop ends for now, and goes on at ``time_s``."""
        self.due_s = time_s
        return False

"""How late the cluster agent's loop is: the longest time between a wake-up and the end of what it caused, of late."""

from __future__ import annotations

from typing import Final

WINDOW_S: Final = 30.0
"""Ours: two scrapes of Prometheus, so that no scrape misses a slow round."""


class LoopLag:
    """The worst of this window and of the one before, so that a slow round shows for 30 to 60 s."""

    def __init__(self) -> None:
        self._ends_s = 0.0
        self._worst_s, self._before_s = 0.0, 0.0

    def add(self, now_s: float, lag_s: float) -> None:
        """Count one round of the loop. ``now_s``: of a clock that never goes back."""
        if now_s >= self._ends_s:
            is_next = now_s < self._ends_s + WINDOW_S
            self._before_s = self._worst_s if is_next else 0.0
            self._worst_s, self._ends_s = 0.0, now_s + WINDOW_S
        self._worst_s = max(self._worst_s, lag_s)

    @property
    def worst_s(self) -> float:
        """Seconds, the pause included in which messages gather (``server.ROUND_S``)."""
        return max(self._worst_s, self._before_s)

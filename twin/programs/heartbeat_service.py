"""Calibration's heartbeat on a served twin: commands of the control socket. Each connection has its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twin.errors import TwinError
from twin.physics.model import Twin
from twin.physics.responsiveness import Heartbeat

LEAST_PERIOD_S = 1e-3
"""Ours: beats of a quicker one would fill a response."""


class HeartbeatConversation:
    """One connection: ``heartbeat-start`` with ``period_s``, and ``heartbeat-beats``."""

    def __init__(self, twin: Twin, seed: int) -> None:
        self._twin, self._seed = twin, seed
        self._heartbeat: Heartbeat | None = None
        self.commands: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
            "heartbeat-start": self._start,
            "heartbeat-beats": lambda _: self._beats(),
        }

    def close(self) -> None:
        """The connection has ended, and its thread with it."""
        self._heartbeat = None

    def _start(self, given: Mapping[str, Any]) -> None:
        period_s = float(given["period_s"])
        if period_s < LEAST_PERIOD_S:
            raise TwinError(f"heartbeat: a period of {period_s:g} s is below {LEAST_PERIOD_S:g} s")
        self._heartbeat = Heartbeat(self._twin, period_s, self._seed)

    def _beats(self) -> tuple[list[float], float]:
        if self._heartbeat is None:
            raise TwinError("heartbeat-start comes first")
        return self._heartbeat.beats()

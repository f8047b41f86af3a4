"""The heartbeat and the late files of an emulated node in this process, for measuring its limits in its own time."""

from __future__ import annotations

from collections.abc import Callable

from calibration.limits.heartbeat import PERIOD_S, EmulatedHeartbeat
from twin.physics.model import Twin
from twin.physics.responsiveness import Heartbeat


def emulated_heartbeat(twin: Twin, seed: int = 1, period_s: float = PERIOD_S) -> EmulatedHeartbeat:
    """A thread of this node."""

    def beat(each_s: float) -> Callable[[], tuple[list[float], float]]:
        return Heartbeat(twin, each_s, seed).beats

    return EmulatedHeartbeat(beat, period_s)

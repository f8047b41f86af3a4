"""A power cap that changes at announced times."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent.cap_steps import FOREVER_S, Cap
from cluster_agent.scheduler.job_columns import Int64s


class PowerCap(msgspec.Struct, frozen=True):
    """Steps of (time, watts), times ascending. The first cap is in force from 0 on and the last one without end."""

    time_s: tuple[int, ...]
    watts: tuple[float, ...]

    def at(self, now_s: int) -> float:
        """The cap in force."""
        return self.watts[self._step(now_s)]

    def at_times(self, time_s: Int64s) -> npt.NDArray[np.float64]:
        """The same at each of these times."""
        steps = np.searchsorted(np.array(self.time_s), time_s, side="right") - 1
        watts: npt.NDArray[np.float64] = np.array(self.watts)[np.maximum(steps, 0)]
        return watts

    def least(self, from_s: int, to_s: int) -> float:
        """The lowest cap in [from_s, to_s)."""
        return min(self.watts[self._step(from_s) : max(bisect_left(self.time_s, to_s), self._step(from_s) + 1)])

    def changes(self, from_s: int, to_s: int) -> Sequence[int]:
        """The times in (from_s, to_s) at which a new cap begins."""
        return self.time_s[bisect_right(self.time_s, from_s) : bisect_left(self.time_s, to_s)]

    def next_change_s(self, now_s: int) -> int | None:
        """The first change after ``now_s``."""
        index = bisect_right(self.time_s, now_s)
        return self.time_s[index] if index < len(self.time_s) else None

    def _step(self, now_s: int) -> int:
        return max(bisect_right(self.time_s, now_s) - 1, 0)


def constant(watts: float) -> PowerCap:
    """One cap for ever."""
    return PowerCap((0,), (watts,))


def from_caps(caps: Sequence[Cap]) -> PowerCap:
    """The caps of a file, all known from the start: a node scheduler also keeps the caps to come."""
    steps: dict[int, float] = {0: float("inf")}
    for cap in caps:
        steps[cap.from_s] = cap.watts
        if cap.to_s < FOREVER_S:
            steps[cap.to_s] = float("inf")
    times_s = sorted(steps)
    return PowerCap(tuple(times_s), tuple(steps[time_s] for time_s in times_s))


UNCAPPED = constant(float("inf"))

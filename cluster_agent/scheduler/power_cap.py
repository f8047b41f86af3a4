"""A power cap as a step function of time: the caps of a file, of a profile, of a live budget, or one for ever."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from math import ceil, floor, inf
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cluster_agent.cap_steps import FOREVER_S, Cap
from cluster_agent.cluster import UW
from cluster_agent.scheduler.job_columns import Int64s

NO_CAP: Final = 2**63 - 1
"""As many microwatts as anybody wants."""

ROUNDING_UW: Final = 1e-3
"""Ours: rounding errors of doubles, in microwatts, are less."""


def whole_uw(watts: float) -> int:
    """A bound as schedulers compare with it: whole microwatts, rounded down; infinite is ``NO_CAP``."""
    return NO_CAP if watts == inf else floor(watts * UW + ROUNDING_UW)


def drawn_uw(watts: float) -> int:
    """What a job draws, as schedulers add it up: whole microwatts, rounded up."""
    return ceil(watts * UW - ROUNDING_UW)


class PowerCap(tuple[Cap, ...]):
    """Caps in order of time that do not overlap, none between them. As a step function, the first step is in force from
    0 on and the last one without end."""

    def __new__(cls, time_s: Sequence[int], watts: Sequence[float]) -> PowerCap:
        """Steps, all known from the start: each lasts until the next one, and the first one counts before it, too."""
        if time_s[0] > 0:
            time_s, watts = (0, *time_s), (watts[0], *watts)
        return cls.of(map(Cap, time_s, [*time_s[1:], FOREVER_S], watts))

    @classmethod
    def of(cls, caps: Iterable[Cap]) -> PowerCap:
        """These caps."""
        return super().__new__(cls, caps)

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes."""
        return PowerCap.of, (tuple(self),)

    @cached_property
    def _steps(self) -> dict[int, float]:
        steps: dict[int, float] = {0: float("inf")}
        for cap in self:
            steps[cap.from_s] = cap.watts
            if cap.to_s < FOREVER_S:
                steps[cap.to_s] = float("inf")
        return dict(sorted(steps.items()))

    @cached_property
    def time_s(self) -> tuple[int, ...]:
        """When each step begins."""
        return tuple(self._steps)

    @cached_property
    def watts(self) -> tuple[float, ...]:
        """Of each step; infinite: no cap."""
        return tuple(self._steps.values())

    @property
    def uw(self) -> tuple[int, ...]:
        """The steps in whole microwatts."""
        return tuple(map(whole_uw, self.watts))

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


UNCAPPED = PowerCap.of(())

"""How promptly programs of the emulated node run: fast, until its power limits are too low.

Below the machine's ``responsive_above_w`` a node still runs, but so slowly that its programs miss their times: a thread
that should wake sleeps on for tenths of a second, and a write to an attribute file takes nearly one. A little above, a
wake-up is late as in a queue near its capacity. Law and numbers are ours, for want of a published one; what is known is
that some settable limits hang a component (REGALE D2.3 section 4.2).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import numpy as np

from twin.physics.curves import stream
from twin.physics.model import Twin

WAKE_S: Final = 60e-6
"""Ours: median lateness of a sleeping thread; 50 us are Linux's default timer slack."""
WAKE_SPREAD: Final = 0.4
"""Ours: standard deviation of its logarithm."""
QUEUE_SHARE: Final = 0.02
"""Ours: at a limit 2 % above the lowest that is responsive a wake-up is late twice as long as far above it."""
HUNG_S: Final = 0.3
"""Ours: median lateness below it."""
HUNG_WRITE_S: Final = 0.8
"""Ours: of a write below it; less than what a writer process waits for."""


def write_delay_s(twin: Twin) -> float:
    """How long a write to an attribute file takes now, beyond the usual."""
    least_w = twin.machine.power.responsive_above_w
    return HUNG_WRITE_S if least_w and twin.packages_limit_w < least_w else 0.0


class Heartbeat:
    """A thread of the emulated node that sleeps until multiples of ``period_s``, from now on."""

    def __init__(self, twin: Twin, period_s: float, seed: int = 1) -> None:
        self._twin, self._period_ns = twin, round(period_s * 1e9)
        self._random = stream(seed, "heartbeat")
        self._due_ns = twin.time_ns
        self._next(1)

    def beats(self) -> tuple[list[float], float]:
        """How late each beat since the call before was, seconds, and by how much one is overdue now."""
        late: list[float] = []
        now_ns = self._twin.time_ns
        while self._due_ns <= now_ns and (late_ns := self._late_ns()) <= now_ns - self._due_ns:
            late.append(late_ns / 1e9)
            self._next(1 + late_ns // self._period_ns)
        return late, max(now_ns - self._due_ns, 0) / 1e9

    def _next(self, periods: int) -> None:
        self._due_ns += periods * self._period_ns
        self._factor = float(np.exp(WAKE_SPREAD * self._random.standard_normal()))

    def _late_ns(self) -> int:
        """The lateness of the beat that is due, by the limits from then until now."""
        least_w, changes = self._twin.machine.power.responsive_above_w, self._twin.limit_changes
        place = bisect_right(changes, (self._due_ns, np.inf))
        limit_w = changes[max(place - 1, 0)][1]
        usual_s = WAKE_S * self._factor
        if not least_w:
            return round(usual_s * 1e9)
        if limit_w >= least_w:
            queue = QUEUE_SHARE * least_w / max(limit_w - least_w, 1e-3 * least_w)
            return round(usual_s * (1.0 + queue) * 1e9)
        raised_ns = next((at_ns for at_ns, watts in changes[place:] if watts >= least_w), None)
        hung_ns = round(HUNG_S * self._factor * 1e9)
        return hung_ns if raised_ns is None else min(hung_ns, raised_ns - self._due_ns + round(usual_s * 1e9))

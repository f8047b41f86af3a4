"""How IPC answered when a policy lowered a clock: the share of the clock's fall that it followed.

Instructions per *reference* cycle are a speed. Work that waits for memory keeps it at a lower clock, computing loses it
with the clock. Counters say a program's IPC wrongly by some ten per cent, and always alike, so one program's IPC
compared with its own at another clock errs far less than the IPC itself:

    follows = (IPC at the highest clock / IPC now - 1) / (highest clock / clock now - 1)

It is the share of the work's time that follows the clock: 0 waits, 1 computes. So after one look the clock goes to the
lowest at which the work loses no more than is allowed. An IPC that changes by ``CHANGED`` within a clock is other work,
and nothing is known of it. What was found to follow too much is remembered by its IPC at the highest clock, so that
phases that alternate are not tried again and again; after ``AGAIN_S`` it is forgotten, since two programs may show one
IPC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pmu.readings import type_f64, type_i64

type_bools = npt.NDArray[np.bool_]

PROBE: Final = 0.85
"""Ours: the first step goes so low, as a share of the highest clock, since the answer to 100 MHz drowns in noise."""

LOWER: Final = 0.97
"""Ours: a mean clock that is no lower than this says nothing: other CPUs of its domain keep it up."""

READ: Final = 5
"""Ours: intervals at either clock before the answer counts; one interval's IPC scatters by some 2 %."""

MOST: Final = 10
"""Ours: weight of what was seen before, in intervals, at most."""

CHANGED: Final = 0.1
"""Ours: relative change of IPC within a clock that means other work."""

ALIKE: Final = 0.06
"""Ours: relative difference of IPC up to which work is taken for what was refused before."""

FOLLOWS: Final = 0.5
"""Ours: work that follows the clock more saves next to nothing at a lower one."""

REMEMBERED: Final = 4
"""Ours: kinds of work that were refused, of each CPU."""

AGAIN_S: Final = 300.0
"""Ours: at 0.5 s and 15 % of the clock a look each five minutes costs computing work nothing."""


@dataclass(frozen=True, slots=True)
class ClockResponse:
    """Per logical CPU: mean IPC and clock, and of how many intervals, at the highest clock (``top``) and at the present
    lower one (``now``); the IPCs that were refused, and nanoseconds since the last refusal."""

    top: type_f64  # [3, n_cpus]: IPC, kHz, intervals
    now: type_f64
    refused: type_f64  # [n_cpus, REMEMBERED], NaN: none
    since_ns: type_i64

    @classmethod
    def unknown(cls, cpus: int) -> ClockResponse:
        """Before anything ran."""
        return cls(
            np.zeros((3, cpus)), np.zeros((3, cpus)), np.full((cpus, REMEMBERED), np.nan), np.zeros(cpus, np.int64)
        )

    def seen(
        self, is_top: type_bools, judged: type_bools, ipc: type_f64, khz: type_f64, elapsed_ns: int
    ) -> tuple[ClockResponse, type_bools]:
        """After an interval; and the CPUs that do other work than before."""
        judged = judged & np.isfinite(khz) & (ipc > 0)
        top, is_new = _with(self.top, judged & is_top, ipc, khz)
        now, has_changed = _with(self.now, judged & ~is_top, ipc, khz)
        now[2, is_top | ~judged] = 0.0
        top[2, has_changed] = 0.0
        since_ns = self.since_ns + elapsed_ns
        refused = np.where((since_ns >= AGAIN_S * 1e9)[:, None], np.nan, self.refused)
        return ClockResponse(top, now, refused, since_ns), is_new | has_changed

    @property
    def follows(self) -> type_f64:
        """The share of each CPU; NaN where too little was seen. CPUs with about the node's median IPC do the same work,
        and have its median share: others wait for the slowest at the next barrier, so a clock of its own gains none."""
        is_known = (self.top[2] >= READ) & (self.now[2] >= READ) & (self.now[1] < LOWER * self.top[1])
        found = np.full(len(self.since_ns), np.nan)
        top, now = self.top[:, is_known], self.now[:, is_known]
        found[is_known] = (top[0] / now[0] - 1.0) / (top[1] / now[1] - 1.0)
        if is_known.any():
            same = is_known & (np.abs(self.top[0] / np.median(top[0]) - 1.0) <= CHANGED)
            found[same] = np.median(found[same]) if same.any() else np.nan
        return found

    def level(self, relative: type_f64, loss: float) -> type_i64:
        """Of a ladder's clocks, relative to the highest, the lowest at which the work of each CPU loses no more than
        ``loss``, as an index; -1 where too little was seen."""
        follows = self.follows
        lost = np.maximum(follows, 0.0)[:, None] * (1.0 / relative[None, :] - 1.0)
        found: type_i64 = np.where(follows > FOLLOWS, 0, (lost <= loss).sum(1) - 1)
        return np.where(np.isfinite(follows), found, -1)

    @property
    def may_lower(self) -> type_bools:
        """CPUs of which enough was seen at the highest clock, and whose work was not refused before."""
        away = np.abs(self.refused / np.maximum(self.top[0], 1e-9)[:, None] - 1.0)
        found: type_bools = (self.top[2] >= READ) & ~(away <= ALIKE).any(1)
        return found

    def refusing(self, cpus: type_bools) -> ClockResponse:
        """The work of these CPUs stays at the highest clock: the oldest refusal makes room."""
        refused = np.where(cpus[:, None], np.roll(self.refused, 1, 1), self.refused)
        refused[cpus, 0] = self.top[0, cpus]
        now = self.now.copy()
        now[2, cpus] = 0.0
        return ClockResponse(self.top, now, refused, np.where(cpus, 0, self.since_ns))

    def moved(self, cpus: type_bools) -> ClockResponse:
        """Another clock begins on these CPUs: nothing was seen at it."""
        now = self.now.copy()
        now[2, cpus] = 0.0
        return ClockResponse(self.top, now, self.refused, self.since_ns)


def _with(means: type_f64, cpus: type_bools, ipc: type_f64, khz: type_f64) -> tuple[type_f64, type_bools]:
    """Means with one interval more on these CPUs; where the IPC has changed they begin again."""
    before, after = means[0], means.copy()
    has_changed = cpus & (means[2] > 0) & (np.abs(ipc / np.maximum(before, 1e-9) - 1.0) > CHANGED)
    n = np.where(has_changed, 0.0, np.minimum(means[2], MOST - 1.0))
    for row, value in enumerate((ipc, khz)):
        after[row, cpus] = ((means[row] * n + value) / (n + 1.0))[cpus]
    after[2, cpus] = (n + 1.0)[cpus]
    return after, has_changed

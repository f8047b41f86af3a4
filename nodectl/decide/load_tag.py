"""The load tag of a node, from its counters: memory, mixed or compute; "" where it is unknown.

A tag says how much a job loses when its clocks fall (REGALE D2.3 §4.2: COMPUTE heavily, MIXED moderately, MEMORY
little). The source gives no numbers. The marks here are midway between the values of *beta*, the share of time that
scales with the clock, of typical codes: STREAM 0.21, NAS 0.4, message passing and Linpack 0.9 (Glesser, thesis,
section 3.1: degradation from 2.7 to 1.2 GHz).

Beta comes from stalled cycles where the machine counts them (``policies.parts.cpu_views``), corrected for the clock.
Elsewhere IPC is used. It also falls with the clock, by an amount that depends on beta. So a tag fits only if the IPC
that its typical beta predicts for the highest clock is in the tag's range; the present tag is tried first. The marks of
IPC are ours, rough, and for two-socket x86 nodes.

CPUs that spin while they wait for a GPU look like a compute load: a node with a busy GPU has no tag.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np

from nodectl.policies.parts.clocks import ClockLadder
from nodectl.policies.parts.cpu_views import observe
from pmu.layout import Layout
from pmu.readings import Sample

Tag: TypeAlias = Literal["", "memory", "mixed", "compute"]

MEASURED: Final = "measured"
"""The source of the tag, as reports name it."""

BETA: Final = (0.3, 0.65)
IPC: Final = (0.8, 1.35)
"""At or below the first value a load is memory-bound, at or above the second compute-bound."""

TYPICAL_BETA: Final[dict[Tag, float]] = {"memory": 0.21, "mixed": 0.4, "compute": 0.9}
MARGIN: Final = 0.1
"""Hysteresis: a tag changes only when the value is past the mark by this part of the mark."""
SECONDS_TO_CHANGE: Final = 5
"""A tag changes after so many seconds in a row with the new one."""
SECOND_S: Final = 1.0
STEP_MHZ: Final = 100
"""As in the policies; only the highest clock of the ladder matters here."""
IDLE: Final = 0.05
"""Only CPUs that are busy for more than this share count, as in the policies."""
GPU_AT_WORK: Final = 0.1
"""Ours, after REGALE D2.3 §3.4, whose daemon treats a GPU below this occupancy as idle."""


def has_gpu_work(sample: Sample) -> bool:
    """Whether any GPU is busy, so that busy CPUs may only be waiting for it."""
    return bool((sample.gpu.sm_occupancy >= GPU_AT_WORK).any())


@dataclass(frozen=True, slots=True)
class Counted:
    """Means over one second: beta, IPC, and the clock as a share of the highest. NaN where it is not counted."""

    beta: float
    ipc: float
    clock: float


def classify(counted: Counted, present: Tag = "") -> Tag:
    """The tag of one second, given the present tag; "" without counters."""
    if np.isfinite(counted.beta):
        return _placed(counted.beta, BETA, present)
    if not np.isfinite(counted.ipc) or not counted.clock > 0:
        return ""
    slower = 1 / counted.clock - 1
    order: tuple[Tag, ...] = ("compute", "mixed", "memory")  # at low clocks several fit: the sensitive one, capped last
    for tag in (present, *order) if present else order:
        at_top = counted.ipc * (1 + TYPICAL_BETA[tag] * slower)
        if _placed(at_top, IPC, present) == tag:
            return tag
    return "mixed"


def _placed(value: float, marks: tuple[float, float], present: Tag) -> Tag:
    low, high = marks
    low *= 1 + (MARGIN if present == "memory" else -MARGIN if present else 0.0)
    high *= 1 + (-MARGIN if present == "compute" else MARGIN if present else 0.0)
    return "memory" if value <= low else "compute" if value >= high else "mixed"


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A filter: ``tag`` changes after ``SECONDS_TO_CHANGE`` seconds in a row with another one, also with "" (idle, no
    counters). Pure: ``after`` returns the next state."""

    tag: Tag = ""
    candidate: Tag = ""
    n: int = 0

    def after(self, seen: Tag) -> TagFilter:
        """The filter after one more second with the tag ``seen``."""
        if seen == self.tag:
            return replace(self, candidate=self.tag, n=0)
        n = self.n + 1 if seen == self.candidate and self.n else 1
        return TagFilter(seen) if n >= SECONDS_TO_CHANGE else TagFilter(self.tag, seen, n)


class LoadTag:
    """The tag of a node: ``add`` every sample, read ``tag`` for each report."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._ladder = ClockLadder.of(layout, STEP_MHZ)
        self._filter = TagFilter()
        self._sums = np.zeros(3)  # beta, IPC and clock, times seconds
        self._seen_s = self._elapsed_s = 0.0
        self._has_gpu_work = False

    @property
    def tag(self) -> Tag:
        """The load tag; "" while it is unknown."""
        return self._filter.tag

    def add(self, sample: Sample) -> None:
        """Count one interval."""
        self._elapsed_s += sample.elapsed_s
        self._has_gpu_work |= has_gpu_work(sample)
        for view in observe(self._layout, self._ladder, sample, IDLE):
            if view is not None:
                self._sums += np.array((view.beta, view.ipc, view.clock)) * sample.elapsed_s
                self._seen_s += sample.elapsed_s
        if self._elapsed_s >= SECOND_S * (1 - 1e-6):
            seen: Tag = ""
            if self._seen_s > 0 and not self._has_gpu_work:
                seen = classify(Counted(*(self._sums / self._seen_s).tolist()), self.tag)
            self._filter = self._filter.after(seen)
            self._sums = np.zeros(3)
            self._seen_s = self._elapsed_s = 0.0
            self._has_gpu_work = False

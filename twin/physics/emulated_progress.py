"""Progress that an emulated program reports: whole units of its own, counted from the work truly done.

The iterations of real programs are neither equal nor all of one kind. So the work of a unit differs between phases
(random, from half to twice the requested work), single units scatter about that, and a unit that has begun when a phase
ends is finished in the next one. So units per second can be compared only within a phase, or over whole rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from twin.physics.curves import type_f64

UNLIKE = 2.0
"""Ours: the mean unit of a phase takes at most this multiple of the requested work, and at least its inverse."""

SCATTER = 0.1
"""Ours: relative standard deviation of the lengths of single units."""


class ProgressCount(msgspec.Struct, frozen=True):
    """How a program counts. ``unit_s``: mean seconds of work (at the highest clock) of a unit in each of its phases.
    After ``done_s`` seconds of work in a round the program has done ``units`` mean units. Unit k of the whole run ends
    ``ends[k]`` mean units after the start."""

    unit_s: tuple[float, ...]
    done_s: type_f64
    units: type_f64
    ends: type_f64

    def finished(self, done_s: float) -> int:
        """Whole units after this many seconds of work."""
        rounds, rest_s = divmod(done_s, float(self.done_s[-1]))
        come = rounds * float(self.units[-1]) + float(np.interp(rest_s, self.done_s, self.units))
        return int(np.searchsorted(self.ends, come * (1.0 + 1e-12), side="right"))


def progress_count(
    unit_s: float, phases: int, program: Sequence[tuple[int, float]], repeat: int, random: np.random.Generator
) -> ProgressCount:
    """For a program of (phase, seconds) that is executed ``repeat`` times, with units of about ``unit_s`` seconds."""
    means = unit_s * UNLIKE ** random.uniform(-1.0, 1.0, phases)
    seconds = np.array([work_s for _, work_s in program])
    done_s = np.concatenate(([0.0], np.cumsum(seconds)))
    units = np.concatenate(([0.0], np.cumsum(seconds / means[[phase for phase, _ in program]])))
    lengths = np.maximum(1.0 + SCATTER * random.standard_normal(int(repeat * units[-1] * 1.5) + 16), SCATTER)
    return ProgressCount(tuple(means.tolist()), done_s, units, np.cumsum(lengths))

"""Whether counters show the clock that is really there.

The clock of a busy CPU is its cycles over its reference cycles, times the rate at which these count: that of the
time-stamp counter. Where nobody says that rate, the nominal clock stands for it (``pmu.instruments.cpufreq``), and on a
machine where the two differ every clock is wrong by the same factor. A table would then mix measured clocks with those
of the limits. The lowest limit shows it: no turbo and hardly a power limit moves the clock there.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

MOST_OFF: Final = 0.03
"""Ours: nominal clocks have two digits or three, and firmware rounds a limit by less."""


def why_wrong(shown_khz: Sequence[float], lowest_khz: int, reference_khz: int) -> str:
    """Why clocks cannot be believed, by those of busy CPUs at the lowest limit, one line; empty if they can be."""
    if not shown_khz:
        return ""
    shown = statistics.median(shown_khz)
    if abs(shown / lowest_khz - 1) <= MOST_OFF:
        return ""
    return (
        f"busy CPUs show {shown / 1000:.0f} MHz at the lowest limit, {lowest_khz / 1000:.0f} MHz: their reference"
        f" cycles do not count at {reference_khz / 1000:.0f} MHz, or the limit is not kept; clocks cannot be measured"
    )

"""What ``uncore-bounded`` takes from a table: how much of waiting follows the uncore's clock, and what that draws.

    share    the time that does not follow the core clock is waiting; the part of it that grows as the uncore's clock
             falls, of the kernel that has most; the upper end of the interval counts
    clock_w  watts that go with the square of the uncore's clock, of the kernel that draws least: its watts have the
             fewest other reasons to change, and no power limit
    floor    the clock at which ``fma``, which needs none of it, costs the fewest joules

All come from speeds and watts alone: no counter that errs from program to program is in them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from calibration.table.pstate_table import Point

LEVEL: Final = "all"

MOSTLY_WAITS: Final = 0.3
"""Ours: of a kernel that waits for less of its time, noise of its speed would say what waiting follows."""

LEAST_SHARE: Final = 0.05
"""Ours: some of waiting is for the uncore's own parts, whatever a sweep found."""


LEAST_W: Final = 0.1
"""Ours: of a clock that draws nothing. 0 would mean that it is not known, and so worth lowering."""


def uncore_values(points: Sequence[Point], uncore: Sequence[Point]) -> dict[str, float]:
    """Parameters that the rows decide; those that they do not are left out."""
    series = {name: [one for one in uncore if one.kernel == name] for name in dict.fromkeys(p.kernel for p in uncore)}
    found = {}
    waits = {name: _waits(points, name) for name in series}
    shares = [_follows(own) / waits[name] for name, own in series.items() if waits[name] >= MOSTLY_WAITS]
    if shares:
        found["share"] = _digits(min(max(*shares, LEAST_SHARE), 1.0))
    least = min(series.values(), key=lambda own: own[-1].package_w)
    squares = [(one.khz / least[-1].khz) ** 2 for one in least]
    found["clock_w"] = _digits(max(float(np.polyfit(squares, [one.package_w for one in least], 1)[0]), LEAST_W))
    if own := series.get("fma"):
        cheapest = max(own, key=lambda one: one.units_per_j)
        found["floor"] = math.floor(1e4 * cheapest.khz / own[-1].khz) / 1e4
    return found


def _waits(points: Sequence[Point], kernel: str) -> float:
    """The share of a kernel's time at the highest clock that does not follow the core clock."""
    own = [one for one in points if (one.kernel, one.level) == (kernel, LEVEL)]
    if not own or not own[0].clock_khz < own[-1].clock_khz:
        return 0.0
    stretch = own[-1].clock_khz / own[0].clock_khz - 1.0
    return 1.0 - (1.0 / own[0].speed - 1.0) / stretch


def _follows(own: Sequence[Point]) -> float:
    """The share of its time that grows with the uncore's clock, at most, over its measured points."""
    top = own[-1].khz
    lower = [one for one in own if one.is_measured and one.khz < top]
    if not lower or not all(one.speed > one.speed_half for one in lower):
        return math.inf  # nothing is known: all of it may
    return max((1.0 / (one.speed - one.speed_half) - 1.0) / (top / one.khz - 1.0) for one in lower)


def _digits(value: float) -> float:
    """Four digits: no meter here is better."""
    return float(f"{value:.4g}")

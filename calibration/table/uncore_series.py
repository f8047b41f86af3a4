"""Kernels under limits of the uncore's clock: watts and speed on all cores at their highest clock.

The uncore (mesh, last-level cache, memory controllers) has a clock of its own. A kernel without a limit was measured
already, so two more stays, at the lowest and the middle clock, make a series of three; then the point with the widest
interval follows until the aim is reached. Between measured clocks the curves are those of the core clock's
(``clock_curve``): watts ``a + b u + c u^3``, the time of a unit ``a + b / u``. No sample shows the uncore's clock, so
that found is the limit: where firmware keeps it lower, under a power limit say, points of different limits are alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from calibration.kernels.port import Kernel
from calibration.measure.node_session import WINDOW_S, Setting, label
from calibration.table.adaptive_sweep import LONG_BUDGET_S, MOST_STAYS, SETTLE_S, WINDOWS, Sweep
from calibration.table.pstate_table import Point, all_points

LEVEL: Final = "all"

MOST_OF_BUDGET: Final = 0.2
"""Ours: what of a budget these rows may take."""


def reserved_s(budget_s: float, kernels: int) -> float:
    """What of a budget is kept for them: two stays of each kernel, none of a short budget (0: there is no budget)."""
    needed_s = 2 * kernels * (SETTLE_S + WINDOWS * WINDOW_S)
    return needed_s if budget_s >= LONG_BUDGET_S and needed_s <= MOST_OF_BUDGET * budget_s else 0.0


def measure_uncore(sweep: Sweep, budget_s: float = 0.0) -> None:
    """Add the stays to a sweep that has run. ``budget_s``: of the sweep and these together; 0: none."""
    clocks, top_khz = sweep.session.uncore.clocks, sweep.session.clocks[-1]
    if not clocks:
        return
    for kernel in sweep.kernels:
        for khz in (clocks[0], clocks[len(clocks) // 2]):
            if not sweep.stays_at(Setting(label(kernel), LEVEL, top_khz, khz)):
                sweep.stay_at(kernel, LEVEL, top_khz, khz)
    while (widest := _next(sweep, budget_s)) is not None:
        sweep.stay_at(*widest)


def uncore_points(sweep: Sweep) -> tuple[Point, ...]:
    """The rows of every kernel that was measured under a limit of the uncore."""
    clocks, top_khz = sweep.session.uncore.clocks, sweep.session.clocks[-1]
    measured = sweep.measured()
    limited = {setting.kernel for setting in measured if setting.uncore_khz}
    found = {}
    for setting, one in measured.items():
        if setting.kernel in limited and setting.level == LEVEL and setting.khz == top_khz:
            khz = setting.uncore_khz or clocks[-1]
            key = Setting(setting.kernel, LEVEL, khz)
            found[key] = msgspec.structs.replace(one, setting=key, khz=float(khz))
    return all_points(clocks, found)


def _next(sweep: Sweep, budget_s: float) -> tuple[Kernel, str, int, int] | None:
    """The point with the widest interval; None when the aim or the budget's end is reached."""
    if budget_s and sweep.spent_s + sweep.stay_s > budget_s:
        return None
    has_meter, top_khz = sweep.session.has_meter, sweep.session.clocks[-1]
    wide = [(point.relative_half(has_meter, is_measurable=True), kernel, point) for kernel, point in _open(sweep)]
    width, kernel, point = max(wide, key=lambda one: one[0], default=(0.0, None, None))
    return (kernel, LEVEL, top_khz, point.khz) if kernel and point and width > sweep.aim.precision else None


def _open(sweep: Sweep) -> Iterator[tuple[Kernel, Point]]:
    """Points that one more stay may narrow. The highest clock is the sweep's own."""
    by_label = {label(kernel): kernel for kernel in sweep.kernels}
    clocks, top_khz = sweep.session.uncore.clocks, sweep.session.clocks[-1]
    for point in uncore_points(sweep):
        setting = Setting(point.kernel, LEVEL, top_khz, point.khz)
        if point.kernel in by_label and point.khz != clocks[-1] and sweep.stays_at(setting) < MOST_STAYS:
            yield by_label[point.kernel], point

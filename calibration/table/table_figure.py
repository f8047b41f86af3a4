"""A table as a picture: over the clock the watts, the speed, and the joules per unit, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from calibration.table.least_energy import joules_w
from calibration.table.pstate_table import Point, Table

type_value = Callable[[Point], tuple[float, float]]
"""Of a point a value and half of its interval."""


def draw(table: Table, level: str, out: Path) -> None:
    """Write the picture. ``OSError`` if it cannot be."""
    has_meter = table.conditions.has_meter
    rows = [("clock limit, GHz", [table.of(kernel, own) for kernel, own in table.series() if own == level])]
    limited = [tuple(one for one in table.uncore if one.kernel == kernel) for kernel, _ in table.series()]
    if any(points and points[0].level == level for points in limited):
        rows.append(("limit of the uncore, GHz", [points for points in limited if points]))
    figure, axes = plt.subplots(len(rows), 3, figsize=(13.2, 3.8 * len(rows)), layout="constrained", squeeze=False)
    for of_row, (clock, series) in zip(axes, rows, strict=True):
        _panels(of_row, clock, series, has_meter)
    emulated = "EMULATED: " if table.conditions.is_emulated else ""
    figure.suptitle(
        f"{emulated}{table.identity.cpu_model or 'unknown processor'}, {level} cores, 95 % intervals;"
        " dots: measured, lines: between",
        fontsize=10,
    )
    try:
        figure.savefig(out)
    finally:
        plt.close(figure)


def _panels(axes: Sequence[Axes], clock: str, series: Sequence[Sequence[Point]], has_meter: bool) -> None:
    """One row: all kernels over one clock."""
    what = "node" if has_meter else "packages and DRAM"
    panels: tuple[tuple[str, type_value], ...] = (
        (f"{what}, W", _watts(has_meter)),
        ("speed, of the highest clock's", lambda one: (one.speed, one.speed_half)),
        (f"{what}, J per unit over the highest clock's", _joules(series)),
    )
    for axis, (title, value) in zip(axes, panels, strict=True):
        for number, points in enumerate(series):
            _curve(axis, points[0].kernel, points, value, f"C{number % 10}")
        axis.set_xlabel(clock)
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)


def _curve(axis: Axes, kernel: str, points: Sequence[Point], value: type_value, colour: str) -> None:
    ghz = np.array([one.khz for one in points]) / 1e6
    middle, half = np.array([value(one) for one in points]).T
    half = np.where(np.isfinite(half), half, 0.0)
    axis.plot(ghz, middle, color=colour, label=kernel)
    axis.fill_between(ghz, middle - half, middle + half, color=colour, alpha=0.2)
    measured = np.array([one.is_measured for one in points])
    axis.plot(ghz[measured], middle[measured], "o", color=colour, markersize=3)


def _watts(has_meter: bool) -> type_value:
    def value(one: Point) -> tuple[float, float]:
        if has_meter:
            return one.node_w, one.node_half
        return joules_w(one, has_meter), float(np.hypot(one.package_half, np.nan_to_num(one.dram_half, posinf=0.0)))

    return value


def _joules(series: Sequence[Sequence[Point]]) -> type_value:
    top = {points[0].kernel: 1.0 / points[-1].units_per_j for points in series}

    def value(one: Point) -> tuple[float, float]:
        joules = 1.0 / one.units_per_j / top[one.kernel]
        return joules, joules * one.units_per_j_half / one.units_per_j

    return value

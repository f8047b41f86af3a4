"""Measured sweeps: the watts, and mostly the speed, of some workloads at several clocks of one card or package.

A sweep is a CSV file with a header and one row per measurement. The columns go by the names of the tables that there
are (``COLUMNS``); the least that is needed is a workload, a clock and watts. Without a speed or a time, work is taken
to follow the clock. Rows of one workload at one clock are averaged.

What a row was measured under besides the clock must not vary within a curve: of power limits, memory clocks and
numbers of threads the highest is taken, of each card on its own. Rows that their source calls suspect are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from foundation.foreign_text import foreign_text, rows_by_name
from foundation.shell.errors import nearest
from twin.errors import TwinError

COLUMNS: Final = {
    "card": ("card", "gpu"),
    "workload": ("workload", "application", "code", "kernel"),
    "clock_mhz": ("clock_mhz", "core_mhz", "clock_mhz_requested", "frequency_mhz", "core_ghz_median"),
    "speed": ("speed", "relative_performance"),
    "time": ("kernel_time_s", "energy_over_power_s", "runtime_s", "time_s", "time_ms", "window_s"),
    "power_w": ("power_w", "rapl_package_w", "mean_power_w", "cpu_power_w"),
    "uncore": ("uncore_ghz_median",),
}
"""Of each quantity, the columns that may have it. In a row the first of them with a value counts."""

ALIKE: Final = ("power_limit_w", "mem_mhz", "threads")
"""Conditions of which the highest is taken."""

GHZ: Final = ("core_ghz_median",)

LEAST, MOST = 1e-15, 1e15
"""Ours: no quantity of a sweep is smaller or larger, in any unit; sums and quotients of such numbers are numbers."""


class Curve(msgspec.Struct, frozen=True):
    """One workload: watts and speed at ascending clocks. ``speed`` is relative to that at the highest clock, at which
    it is 1. ``uncore``: clock of the uncore relative to its highest; empty if it was not recorded."""

    workload: str
    clock_mhz: tuple[float, ...]
    speed: tuple[float, ...]
    power_w: tuple[float, ...]
    has_speed: bool = True
    uncore: tuple[float, ...] = ()


class Point(msgspec.Struct, frozen=True):
    """One row of a sweep. ``speed`` is absolute, in any unit; None if nothing says it."""

    card: str
    workload: str
    clock_mhz: float
    power_w: float
    speed: float | None
    uncore: float | None
    conditions: tuple[float | None, ...]


def read_sweep(path: Path, card: str | None = None, power_column: str | None = None) -> list[Curve]:
    """The curves of one card, which need not be named if there is only one; TwinError if there are none.

    ``power_column``: the column of the watts, where a table has several. Workloads with fewer than three clocks say
    nothing about a law and are left out.
    """
    points = list(_points(path, power_column))
    cards = sorted({point.card for point in points})
    if card is None and len(cards) > 1:
        raise TwinError(f"{path}: has several cards, name one: {', '.join(cards)}")
    if card is not None and card not in cards:
        raise TwinError(f'{path}: has no card "{card}"{nearest(card, cards)}')
    own = _at_the_highest_conditions([point for point in points if card in (None, point.card)])
    curves = [_curve(name, [point for point in own if point.workload == name]) for name in _names(own)]
    curves = [curve for curve in curves if len(curve.clock_mhz) >= 3]
    if not curves:
        raise TwinError(f"{path}: has no workload that was measured at three clocks")
    return curves


def cards_of(path: Path) -> list[str]:
    """The names of the cards in a sweep; one empty name if it names none."""
    return sorted({point.card for point in _points(path, None)})


def _names(points: Iterable[Point]) -> list[str]:
    return list(dict.fromkeys(point.workload for point in points))


def _points(path: Path, power_column: str | None) -> Iterable[Point]:
    try:
        header, found = rows_by_name(foreign_text(path.read_bytes()), comment="#")
        rows = list(found)
    except OSError as error:
        raise TwinError(f"{path}: {error.strerror}") from None
    columns = dict(COLUMNS)
    if power_column is not None:
        columns["power_w"] = (power_column,)
    for quantity in ("clock_mhz", "power_w"):
        if not set(columns[quantity]) & set(header):
            raise TwinError(f"{path}: has no column for {quantity}: one of {', '.join(columns[quantity])}")
    for number, row in rows:
        if not row.get("suspect"):
            yield _point(path, number, row, columns)


def _point(path: Path, number: int, row: dict[str, str], columns: dict[str, tuple[str, ...]]) -> Point:
    def value(quantity: str) -> float | None:
        for name in columns[quantity]:
            if row.get(name):
                return _number(path, number, name, row[name]) * (1e3 if name in GHZ else 1.0)
        return None

    def text(quantity: str) -> str:
        return next((row[name] for name in columns[quantity] if row.get(name)), "")

    clock, watts, speed, time = value("clock_mhz"), value("power_w"), value("speed"), value("time")
    if not clock or not watts:
        raise TwinError(f"{path}:{number}: clock or watts are missing")
    if speed == 0:
        raise TwinError(f"{path}:{number}: the speed is 0: leave such a row out")
    if speed is None and time:
        speed = 1.0 / time
    size = f" {row['size']}" if row.get("size") else ""
    conditions = tuple(_number(path, number, name, row[name]) if row.get(name) else None for name in ALIKE)
    return Point(text("card"), text("workload") + size, clock, watts, speed, value("uncore") or None, conditions)


def _number(path: Path, number: int, name: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        raise TwinError(f'{path}:{number}: {name}: "{text}" is not a number') from None
    if not (found == 0 or LEAST <= found <= MOST):
        raise TwinError(f"{path}:{number}: {name}: {text} is negative or nothing that was measured")
    return found


def _at_the_highest_conditions(points: list[Point]) -> list[Point]:
    highest = [max((p.conditions[i] or 0.0 for p in points), default=0.0) for i in range(len(ALIKE))]
    return [
        p
        for p in points
        if all(value is None or value == most for value, most in zip(p.conditions, highest, strict=True))
    ]


def _curve(name: str, points: list[Point]) -> Curve:
    clocks = sorted({point.clock_mhz for point in points})
    at = [[point for point in points if point.clock_mhz == clock] for clock in clocks]
    speed = _means([[point.speed for point in group] for group in at])
    uncore = _means([[point.uncore for point in group] for group in at])
    shown = speed or clocks
    return Curve(
        workload=name,
        clock_mhz=tuple(clocks),
        speed=tuple(value / shown[-1] for value in shown),
        power_w=tuple(_means([[point.power_w for point in group] for group in at])),
        has_speed=bool(speed),
        uncore=tuple(value / max(uncore) for value in uncore),
    )


def _means(groups: Sequence[Sequence[float | None]]) -> list[float]:
    """The mean of each group; none at all if one value is missing."""
    found = [[value for value in group if value is not None] for group in groups]
    if any(len(values) < len(group) for values, group in zip(found, groups, strict=True)):
        return []
    return [sum(values) / len(values) for values in found]

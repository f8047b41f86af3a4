"""A table, and two tables side by side, as lines for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from calibration.table.least_energy import least_energy
from calibration.table.pstate_table import Point, Table
from foundation.shell.text_table import render

FEW: Final = 5
"""Rows of each kernel and level, unless all are wanted."""


COMPARED: Final = ("package_w", "node_w", "speed")


def show_lines(table: Table, is_all: bool = False) -> list[str]:
    """Where it is from, rows, clocks of fewest joules, bias and remarks."""
    who, cond, quality = table.identity, table.conditions, table.quality
    emulated = "EMULATED " if cond.is_emulated else ""
    lines = [
        f"{emulated}{who.packages} x {who.cpu_model or 'unknown processor'}, {who.cores} cores, {who.node}, measured"
        f" {cond.measured_at} in {cond.seconds:.0f} s ({quality.share_of_full:.0%} of a full sweep), expires"
        f" {table.expires_at}",
        f"microcode {who.microcode or '?'}, firmware {who.firmware or '?'}, Linux {who.kernel or '?'}, {who.driver}",
        f"{len(table.points)} points, {quality.measured_points} measured; widest 95 % interval"
        f" +-{_number(quality.widest_pct)} %; idle {_number(cond.idle_package_w)} W packages,"
        f" {_number(cond.idle_node_w)} W node",
        "",
    ]
    rows = []
    for kernel, level in table.series():
        points = table.of(kernel, level)
        rows += [_cells(point) for point in (points if is_all else _few(points))]
    headings = ("kernel", "cores", "GHz", "found", "package W", "DRAM W", "node W", "speed", "IPC", "units/J", "how")
    lines += [render(headings, rows), ""]
    lines += _uncore_lines(table, is_all, headings[4:])
    lines += ["Clocks within 1 % of the fewest joules per unit, GHz:"]
    cells = [
        (one.kernel, one.level, _clocks(one.by_node) or "no meter", _clocks(one.by_rapl)) for one in least_energy(table)
    ]
    lines += [render(("kernel", "cores", "by the node's meter", "by RAPL alone"), cells), ""]
    lines += [
        f"{policy} takes: {', '.join(f'{name} {value:g}' for name, value in values.items())}"
        for policy, values in table.policies.items()
    ]
    lines += [f"bias: {line}" for line in quality.bias]
    lines += [f"remark: {line}" for line in quality.remarks]
    return lines


def _uncore_lines(table: Table, is_all: bool, headings: Sequence[str]) -> list[str]:
    """The same columns, without the clock as found, which no sample shows."""
    if not table.uncore:
        return []
    rows = []
    for kernel in dict.fromkeys(point.kernel for point in table.uncore):
        points = tuple(point for point in table.uncore if point.kernel == kernel)
        for point in points if is_all else _few(points):
            cells = _cells(point)
            rows.append((*cells[:3], *cells[4:]))
    title = f"Under limits of the uncore, all cores at {table.points[-1].khz / 1e6:g} GHz:"
    return [title, render(("kernel", "cores", "uncore", *headings), rows), ""]


def diff_lines(first: Table, second: Table) -> tuple[list[str], bool]:
    """Points of both that differ by more than their two intervals together, and whether there are any."""
    if first.conditions.is_emulated != second.conditions.is_emulated:
        return ["one is of an emulated node, the other is not: not compared"], True
    lines = [
        f"{name}: {getattr(first.identity, name)} | {getattr(second.identity, name)}"
        for name in first.identity.__struct_fields__
        if getattr(first.identity, name) != getattr(second.identity, name)
    ]
    pairs = [("", *pair) for pair in _in_common(first.points, second.points)]
    pairs += [("uncore ", *pair) for pair in _in_common(first.uncore, second.uncore)]
    if not pairs:
        return [*lines, "they have no point in common"], True
    values = [(of, a, what, *_both(a, b, what)) for of, a, b in pairs for what in COMPARED]
    rows = [
        (
            a.kernel, a.level, f"{of}{a.khz / 1e6:g}", what, f"{one:.4g}", f"{other:.4g}",
            f"{100 * (other / one - 1):+.1f} %",
        )
        for of, a, what, one, other, half in values
        if abs(one - other) > half
    ]  # fmt: skip
    if rows:
        lines.append(render(("kernel", "cores", "GHz", "what", "first", "second", "change"), rows))
    if wide := sum(math.isinf(half) for *_, half in values):
        lines.append(f"{wide} values have no interval and were not compared")
    lines.append(f"{len(pairs)} points in common, {len(rows)} values differ by more than their intervals")
    return lines, bool(rows)


def _in_common(first: Sequence[Point], second: Sequence[Point]) -> list[tuple[Point, Point]]:
    others = {(point.kernel, point.level, point.khz): point for point in second}
    return [(p, others[key]) for p in first if (key := (p.kernel, p.level, p.khz)) in others]


def _both(a: Point, b: Point, what: str) -> tuple[float, float, float]:
    """A value of both points, and half of the interval of their difference."""
    stem = what.removesuffix("_w")
    half = math.hypot(getattr(a, f"{stem}_half"), getattr(b, f"{stem}_half"))
    return getattr(a, what), getattr(b, what), half


def _few(points: tuple[Point, ...]) -> list[Point]:
    if len(points) <= FEW:
        return list(points)
    return [points[round(i * (len(points) - 1) / (FEW - 1))] for i in range(FEW)]


def _cells(one: Point) -> tuple[str, ...]:
    return (
        one.kernel,
        f"{one.level} ({one.cores})",
        f"{one.khz / 1e6:g}",
        f"{one.clock_khz / 1e6:.2f}",
        _with(one.package_w, one.package_half),
        _with(one.dram_w, one.dram_half),
        _with(one.node_w, one.node_half),
        _with(one.speed, one.speed_half, 3),
        _with(one.ipc, one.ipc_half, 2),
        f"{one.units_per_j:.3g}",
        "measured" if one.is_measured else "between",
    )


def _with(value: float, half: float, digits: int = 1) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.{digits}f} +-{half:.{digits}f}" if math.isfinite(half) else f"{value:.{digits}f}"


def _number(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "?"


def _clocks(clocks: tuple[int, ...]) -> str:
    return ", ".join(f"{khz / 1e6:g}" for khz in clocks)

"""How nodes of one model differ: what each draws and does for the same work at the same clock, over the median node.

Every clock of every kernel on all cores that all tables have is compared, in logarithms. Errors within one kernel go
together (temperature, interpolation), so a node's interval comes from its intervals there, and is no narrower than
half of what its kernels differ by. RAPL's own gain is part of a node's factor: what a sharer counts are these same
readings. A sharer divides watts of whole nodes: without a node meter the watts outside the packages must be given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from calibration.table.pstate_table import Point, Table
from foundation.shell.errors import NodectlError
from pmu.readings import type_f64

LEVEL: Final = "all"

FEWEST: Final = 5
"""Ours: nodes below which no one is called an outlier: their scatter is not known."""

OUTLIER: Final = 3.5
"""Modified z-score above which a value is one (Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993)."""

LEAST: Final = 0.01
"""Ours: below 1 % nothing is an outlier, however alike the others are."""

TO_DEVIATION: Final = 1.4826
"""Median absolute deviation to standard deviation, of a normal distribution."""


class VariabilityError(NodectlError):
    """Tables that cannot be compared; one line."""


class Factor(msgspec.Struct, frozen=True):
    """A quantity of a node over that of the median node, and half of its 95 % interval."""

    value: float
    half: float


class NodeFactors(msgspec.Struct, frozen=True):
    """``watts``: by the node's meter where all have one, else of packages and what was given for the rest.
    ``outlier``: why it is one, or empty."""

    node: str
    watts: Factor
    speed: Factor
    outlier: str = ""


class Variability(msgspec.Struct, frozen=True):
    """``watts_pct``, ``speed_pct``: from the lowest to the highest node. ``remarks``: what else differs."""

    model: str
    is_emulated: bool
    by_meter: bool
    points: int
    nodes: tuple[NodeFactors, ...]
    watts_pct: float
    speed_pct: float
    remarks: tuple[str, ...]


def compared(tables: Mapping[str, Table], rest_w: float = 0.0) -> Variability:
    """By node name. ``rest_w``: what a node draws outside its packages, where not every node has a meter.
    ``VariabilityError`` unless they are of at least two nodes of one model, with points in common."""
    names, remarks = sorted(tables), []
    if len(names) < 2:
        raise VariabilityError("one table says nothing about differences: give those of at least two nodes")
    first = tables[names[0]]
    for name in names[1:]:
        _refuse_unlike(names[0], first, name, tables[name])
        who = tables[name].identity
        for what in ("microcode", "firmware", "kernel", "driver"):
            if getattr(who, what) != getattr(first.identity, what):
                remarks.append(
                    f"{name}: {what} {getattr(who, what) or '?'}, {names[0]} has {getattr(first.identity, what) or '?'}"
                )
    points = _common([tables[name] for name in names])
    by_meter = all(table.conditions.has_meter for table in tables.values())
    watts = _factors(points, _by_meter if by_meter else lambda one: (one.package_w + rest_w, one.package_half))
    speed = _factors(points, lambda one: (one.units_per_s, one.units_per_s * one.speed_half / one.speed))
    reasons = _outliers(names, watts, speed)
    nodes = tuple(
        NodeFactors(name, one, other, reasons.get(name, ""))
        for name, one, other in zip(names, watts, speed, strict=True)
    )
    return Variability(
        first.identity.cpu_model, first.conditions.is_emulated, by_meter, sum(len(own[0]) for own in points.values()),
        nodes, _span(watts), _span(speed), tuple(remarks),
    )  # fmt: skip


def _refuse_unlike(name: str, first: Table, other_name: str, other: Table) -> None:
    if first.conditions.is_emulated != other.conditions.is_emulated:
        raise VariabilityError(f"{name} and {other_name}: one is of an emulated node, the other is not")
    for what in ("cpu_model", "packages", "cores", "threads"):
        mine, its = getattr(first.identity, what), getattr(other.identity, what)
        if mine != its:
            raise VariabilityError(
                f"{other_name}: {what} {its or '?'}, {name} has {mine or '?'}: only nodes of one model are compared"
            )


def _common(tables: Sequence[Table]) -> dict[str, list[list[Point]]]:
    """By kernel, of each table the points at all clocks that all tables have."""
    found: dict[str, list[list[Point]]] = {}
    for kernel, level in tables[0].series():
        own = [{point.khz: point for point in table.of(kernel, level)} for table in tables]
        clocks = sorted(set(own[0]).intersection(*own))
        if level == LEVEL and clocks:
            found[kernel] = [[one[khz] for khz in clocks] for one in own]
    if not found:
        raise VariabilityError("the tables have no kernel and clock on all cores in common")
    return found


def _by_meter(point: Point) -> tuple[float, float]:
    return point.node_w, point.node_half


def _factors(
    points: Mapping[str, list[list[Point]]], value_and_half: Callable[[Point], tuple[float, float]]
) -> list[Factor]:
    """For each node, over all kernels."""
    logs: list[type_f64] = []  # [kernels][nodes]
    halves: list[type_f64] = []
    for own in points.values():
        pairs = np.array([[value_and_half(point) for point in node] for node in own])  # [nodes, clocks, 2]
        values = np.log(pairs[..., 0])
        logs.append((values - np.median(values, 0)).mean(1))
        halves.append((pairs[..., 1] / pairs[..., 0]).mean(1))
    found = []
    for by_kernel, own_halves in zip(np.array(logs).T, np.array(halves).T, strict=True):
        noise = math.sqrt(float(np.square(own_halves).sum())) / len(own_halves)
        half = max(noise, float(by_kernel.max() - by_kernel.min()) / 2)
        middle = math.exp(float(by_kernel.mean()))
        found.append(Factor(middle, middle * half))
    return found


def _outliers(names: Sequence[str], watts: Sequence[Factor], speed: Sequence[Factor]) -> dict[str, str]:
    if len(names) < FEWEST:
        return {}
    reasons: dict[str, list[str]] = {}
    for verb, words, factors in (("draws", ("less", "more"), watts), ("is", ("slower", "faster"), speed)):
        away = np.array([one.value - 1 for one in factors])
        away -= np.median(away)
        usual = TO_DEVIATION * float(np.median(np.abs(away)))
        for name, one, far in zip(names, factors, away.tolist(), strict=True):
            if abs(far) > max(OUTLIER * usual, one.half, LEAST):
                reasons.setdefault(name, []).append(f"{verb} {abs(far):.1%} {words[far > 0]}")
    return {name: " and ".join(found) + " than the median node" for name, found in reasons.items()}


def _span(factors: Sequence[Factor]) -> float:
    values = [one.value for one in factors]
    return 100 * (max(values) - min(values))

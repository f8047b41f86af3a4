"""From watts to speed by what a node of the partition was measured to do: its P-state table as the model of each tag.

``fma`` stands for COMPUTE and ``stream`` for MEMORY jobs, on all cores; for MIXED the mix of computing and reading that
loses at the lowest clock what is nearest to the middle of the two. TDP is the most that the node drew.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

from cluster_agent.budget.sharers.speed import SpeedModel
from cluster_agent.budget.sharers.view import Tag
from cluster_agent.errors import WrongUseError
from cluster_agent.prediction.node_watts import LEVEL, of_table, rows_of

KERNELS: Final = {Tag.COMPUTE: "fma", Tag.MEMORY: "stream"}

type_curve = list[tuple[float, float]]
"""Watts of the node and speed, the highest clock first."""


def tables_of(path: Path) -> dict[Tag, SpeedModel]:
    """The model of each tag. ``WrongUseError`` in one line that names the file."""
    curves, idle_w = of_table(path, lambda values: (_curves(values), float(values["conditions"]["idle_node_w"])))
    if missing := [kernel for kernel in KERNELS.values() if len(curves.get(kernel, ())) < 2]:
        raise WrongUseError(f"{path}: has no watts of the node and speeds of {missing[0]} on {LEVEL} cores")
    chosen = {tag: curves[kernel] for tag, kernel in KERNELS.items()}
    if mixed := _mixed(curves):
        chosen[Tag.MIXED] = mixed
    tdp_w = max(curve[0][0] for curve in curves.values() if curve)
    try:
        return {tag: _model(path, tag, curve, idle_w / tdp_w, tdp_w) for tag, curve in chosen.items()}
    except ValueError as error:
        raise WrongUseError(f"{path}: {error}") from None


def _curves(values: dict[str, Any]) -> dict[str, type_curve]:
    """By kernel; a point that draws no less than the one above it, or is no slower, is left out."""
    rows = rows_of(values, "kernel", "level", "khz", "node_w", "speed")
    found: dict[str, type_curve] = {}
    for kernel, level, _, node_w, speed in sorted(rows, key=lambda row: -row[2]):
        if level != LEVEL or not math.isfinite(node_w):
            continue
        curve = found.setdefault(kernel, [])
        if not curve or (node_w < curve[-1][0] and speed < curve[-1][1]):
            curve.append((float(node_w), float(speed)))
    return found


def _mixed(curves: dict[str, type_curve]) -> type_curve:
    ends = [1.0 / curves[kernel][-1][1] for kernel in KERNELS.values()]
    middle = sum(ends) / len(ends)
    mixes = [curve for kernel, curve in curves.items() if kernel not in KERNELS.values() and len(curve) > 1]
    return min(mixes, key=lambda curve: abs(1.0 / curve[-1][1] - middle), default=[])


def _model(path: Path, tag: Tag, curve: type_curve, idle: float, tdp_w: float) -> SpeedModel:
    return SpeedModel(
        name=f"{tag.name} of {path}",
        idle=idle,
        power=tuple(watts / tdp_w for watts, _ in curve),
        speed=tuple(speed / curve[0][1] for _, speed in curve),
        source=f"P-state table {path}",
    )

"""Inlet temperatures of this partition, kept on the disk: a file a day, a row every quarter of an hour.

``DAY.npz`` has the names of nodes, their degrees ``[steps, nodes]`` in half precision (a hundredth of a degree), the
watts of all nodes together, and which quarters of an hour since 1970 the rows are. A row that comes twice counts once.
Each file comes by one rename; the oldest are removed. A thousand nodes take at most 200 kB a day.
"""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from cluster_agent.errors import ClusterError
from cluster_agent.thermal_hazard.hazard_features import DAY_S, Readings
from cluster_agent.thermal_hazard.inlet_tables import HIGHEST_C, LOWEST_C, STEP_S
from foundation.sealed_file import SealedFileError, write_whole

KEPT_DAYS: Final = 400
"""Ours: a year and a month, so that a model learns from a summer and a winter."""

Rows = tuple[list[str], Any, Any, Any]
"""Names of nodes, steps, degrees ``[steps, nodes]`` and watts ``[steps]``."""


def keep(folder: Path, wall_s: float, inlet_c: Mapping[str, float], power_w: float) -> None:
    """Add a row of this time. ``ClusterError`` if it cannot be written; then nothing has changed."""
    folder.mkdir(mode=0o755, exist_ok=True)
    path = folder / f"{time.strftime('%Y-%m-%d', time.gmtime(wall_s))}.npz"
    names, steps, degrees, watts = _read(path) or ([], np.empty(0, np.int64), np.empty((0, 0)), np.empty(0))
    step = int(wall_s // STEP_S)
    all_names = [*names, *sorted(set(inlet_c) - set(names))]
    row = np.array([inlet_c.get(name, np.nan) for name in all_names])
    row[~((row >= LOWEST_C) & (row <= HIGHEST_C))] = np.nan
    others = steps != step
    grown = np.full((len(steps), len(all_names)), np.nan)
    grown[:, : len(names)] = degrees
    file = io.BytesIO()
    np.savez_compressed(
        file, allow_pickle=False, nodes=np.array(all_names, "U"), step=np.append(steps[others], step),
        inlet_c=np.vstack([grown[others], row]).astype(np.float16), power_w=np.append(watts[others], power_w),
    )  # fmt: skip
    try:
        write_whole(path, file.getvalue())
    except SealedFileError as error:
        raise ClusterError(str(error)) from None
    for old in sorted(folder.glob("????-??-??.npz"))[:-KEPT_DAYS]:
        old.unlink(missing_ok=True)


def kept(folder: Path, until_s: float, days: float = KEPT_DAYS) -> tuple[Readings, list[str], list[str]]:
    """What was kept of so many days until then; the names of the nodes; and files that are damaged and left out.
    ``ClusterError`` if there is nothing."""
    last, damaged, found = int(until_s // STEP_S), list[str](), list[Rows]()
    first = last - round(days * DAY_S / STEP_S) + 1
    for path in sorted(folder.glob("????-??-??.npz")):
        rows = _read(path)
        if rows is None:
            damaged.append(path.name)
        elif ((rows[1] >= first) & (rows[1] <= last)).any():
            found.append(rows)
    if not found:
        raise ClusterError(f"{folder}: no inlet temperatures of the last {days:g} days")
    first = max(first, min(int(steps.min()) for _, steps, _, _ in found))
    places: dict[str, int] = {}
    for names, _, _, _ in found:
        for name in names:
            places.setdefault(name, len(places))
    inlet_c, power_w = np.full((last - first + 1, len(places)), np.nan), np.full(last - first + 1, np.nan)
    for names, steps, degrees, watts in found:
        is_within = (steps >= first) & (steps <= last)
        at = steps[is_within] - first
        inlet_c[np.ix_(at, [places[name] for name in names])] = degrees[is_within]
        power_w[at] = watts[is_within]
    return Readings(first * STEP_S, STEP_S, inlet_c, power_w), [*places], damaged


def _read(path: Path) -> Rows | None:
    """None for a file that is not there or damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            names, steps, degrees, watts = (file[name] for name in ("nodes", "step", "inlet_c", "power_w"))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    if degrees.shape != (len(steps), len(names)) or watts.shape != steps.shape or steps.dtype.kind != "i":
        return None
    return names.tolist(), steps, degrees.astype(np.float64), watts

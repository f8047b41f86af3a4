"""Predictions as the table that ``clusterctl replay --configurations FILE`` and RMAP's policies read."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from calibration.model.application_model import GUARD, ApplicationModel

COLUMNS: Final = ("application", "nodes", "cores", "cap_w", "time_s", "watts")


def write_table(path: Path, models: Mapping[str, ApplicationModel], quantile: float = GUARD) -> None:
    """A line for each application and configuration of its grid, in that order; watts of all packages at ``quantile``,
    times at the median. Replaces the file. ``OSError`` as of any file."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for name, model in models.items():
            time_s, watts = model.predict().time_s.tolist(), model.watts(quantile).tolist()
            for (nodes, cores, cap_w), seconds, power in zip(model.grid.points.tolist(), time_s, watts, strict=True):
                writer.writerow([name, int(nodes), int(cores), f"{cap_w:g}", f"{seconds:.6g}", f"{power:.6g}"])

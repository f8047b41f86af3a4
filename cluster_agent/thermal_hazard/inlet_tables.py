"""Inlet temperatures from Parquet, as Marconi100's monitoring has published them (M100 ExaData).

A folder like ``year_month=22-01/plugin=ipmi_pub/metric=ambient`` has files with the columns ``timestamp``, ``value``
(degrees, every 20 s) and ``node``. They are read a piece at a time and averaged over steps, so a year of a thousand
nodes needs about a gigabyte and never all rows at once. A temperature that no room has is left out and counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from cluster_agent.errors import WrongUseError
from cluster_agent.thermal_hazard.hazard_features import Readings
from cluster_agent.thermal_hazard.hazard_label import Floats
from cluster_agent.workloads.parquet_tables import OF_VALUES
from foundation.shell.command_line import distribution

STEP_S: Final = 900.0
COLUMNS: Final = ("timestamp", "value", "node")
LOWEST_C, HIGHEST_C = -20.0, 90.0
"""Ours: air that a node takes in."""

MOST_CELLS: Final = 100_000_000
"""Ours: nodes times steps; a year of 2,800 nodes."""


@dataclass
class _Grid:
    """Sums and counts of readings ``[steps, nodes]``, which grow as later steps and other nodes come."""

    nodes: dict[str, int] = field(default_factory=dict)
    pieces: list[tuple[Any, Any, Any]] = field(default_factory=list)
    left_out: int = 0

    def add(self, step: Any, node: Any, names: Sequence[str], value: Any) -> None:
        """Readings of one piece, averaged over steps: the piece itself can then be forgotten."""
        place = np.array([self.nodes.setdefault(name, len(self.nodes)) for name in names], np.int64)[node]
        is_sound = (value >= LOWEST_C) & (value <= HIGHEST_C)
        self.left_out += int((~is_sound).sum())
        cells, at = np.unique(np.stack([step[is_sound], place[is_sound]]), axis=1, return_inverse=True)
        sums = np.bincount(at.ravel(), value[is_sound], cells.shape[1])
        self.pieces.append((cells, sums, np.bincount(at.ravel(), minlength=cells.shape[1])))


def read_inlets(path: Path) -> tuple[Readings, list[str], int]:
    """Readings every quarter of an hour, the names of the nodes, and how many values were left out, from a file or all
    ``*.parquet`` below a folder; ``WrongUseError`` names the file."""
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise WrongUseError(f"{path}: no *.parquet below it")
    grid = _Grid()
    for file in files:
        for step, node, names, value in _pieces(file):
            grid.add(step, node, names, value)
    found = [piece for piece in grid.pieces if piece[0].size]
    if not found:
        raise WrongUseError(f"{path}: no temperature from {LOWEST_C:g} to {HIGHEST_C:g} degrees")
    first = min(int(cells[0].min()) for cells, _, _ in found)
    steps = max(int(cells[0].max()) for cells, _, _ in found) - first + 1
    if steps * len(grid.nodes) > MOST_CELLS:
        raise WrongUseError(
            f"{path}: {len(grid.nodes)} nodes over {steps * STEP_S / 86400:.0f} days are too many: give fewer months"
        )
    return (
        Readings(first * STEP_S, STEP_S, _means(found, first, (steps, len(grid.nodes)))),
        [*grid.nodes],
        grid.left_out,
    )


def _means(pieces: Sequence[tuple[Any, Any, Any]], first: int, shape: tuple[int, int]) -> Floats:
    sums, counts = np.zeros(shape, np.float32), np.zeros(shape, np.int32)
    for (step, node), total, count in pieces:  # no cell is twice in one piece
        sums[step - first, node] += total
        counts[step - first, node] += count
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(counts > 0, sums / counts, np.nan).astype(np.float64)


def _pieces(path: Path) -> Iterator[tuple[Any, Any, list[str], Any]]:
    """Steps, places in names, names and degrees of each piece of a file, without rows that lack one of them."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq  # large, and only needed here
    except ModuleNotFoundError:
        raise WrongUseError(f"reading Parquet needs pyarrow; pip install '{distribution()}[export]'") from None
    try:
        with pq.ParquetFile(path) as file:
            if missing := [name for name in COLUMNS if name not in file.schema_arrow.names]:
                raise WrongUseError(f"{path}: no column {', '.join(missing)}; it needs {', '.join(COLUMNS)}")
            for batch in file.iter_batches(1 << 20, columns=list(COLUMNS), use_threads=False):
                batch = pa.Table.from_batches([batch]).drop_null().combine_chunks()
                if not batch.num_rows:
                    continue
                when = batch["timestamp"].cast(pa.timestamp("s", batch["timestamp"].type.tz), safe=False)
                nodes = batch["node"].cast(pa.string()).dictionary_encode().combine_chunks()
                yield (
                    when.cast(pa.int64()).to_numpy() // int(STEP_S),
                    np.asarray(nodes.indices),
                    nodes.dictionary.to_pylist(),
                    batch["value"].cast(pa.float64()).to_numpy(),
                )
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else "damaged Parquet file"  # pyarrow has a text of its own
        raise WrongUseError(f"{path}: cannot read the temperatures: {reason}") from None
    except (pa.ArrowException, AttributeError, *OF_VALUES) as error:
        reason = " ".join(str(error).split())[:200]
        raise WrongUseError(f"{path}: no table of temperatures ({reason})") from None

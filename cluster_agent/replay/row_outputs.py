"""The files of a replay that keeps its jobs as rows: nodes, configurations. Those of large logs are in ``outputs``.

jobs.csv, jobs.parquet     in the columns of Batsim 4; empty where nothing is known; the latter has more columns
power.csv, power.parquet   watts and cap over time, as steps
metrics.json               measures of the schedule
manifest.json              what it was made from
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cluster_agent.replay import written_whole
from cluster_agent.replay.outputs import CSV_COLUMNS, write_json

TEXTS = {"job_id", "workload_name", "profile", "final_state", "allocated_resources", "metadata"}
NUMBERS = {"stretch", "consumed_energy"}


def write_rows(
    directory: str,
    jobs: Mapping[str, Sequence[Any]],
    more: Mapping[str, Sequence[Any]],
    power: tuple[Sequence[float], Sequence[float], Sequence[float]],
    metrics: Mapping[str, Any],
    manifest: Mapping[str, Any],
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> list[str]:
    """Write all files into ``directory``; returns lines about files that need a package that is missing.

    ``jobs`` has columns by the names of ``CSV_COLUMNS`` (None, or none at all: empty), ``more`` others, ``power``
    times, watts and caps (infinite: none), ``files`` the content of others.
    """
    steps = [
        (int(time_s), float(watts), None if cap_w == float("inf") else float(cap_w))
        for time_s, watts, cap_w in zip(*power, strict=True)
    ]
    notes = []
    empty = [None] * len(jobs["job_id"])
    columns = {name: jobs.get(name, empty) for name in CSV_COLUMNS.split(",")}
    with written_whole.folder(directory) as root:
        with (root / "jobs.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([tuple(columns), *zip(*columns.values(), strict=True)])
        with (root / "power.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("time", "watts", "cap"), *steps])
        try:
            _write_parquet(root, columns, more, steps)
        except ModuleNotFoundError:
            notes.append(
                "jobs.parquet, power.parquet are not written: they need pyarrow (pip install 'nodectl[export]')"
            )
        write_json(root, metrics, manifest)
        for name, content in files.items():
            (root / name).write_bytes(content)
    return notes


def _write_parquet(
    root: Path,
    given: Mapping[str, Sequence[Any]],
    more: Mapping[str, Sequence[Any]],
    steps: Sequence[tuple[int, float, float | None]],
) -> None:
    import pyarrow as pa  # large, and only needed here
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {}
    for name, values in given.items():
        kind = pa.string() if name in TEXTS else pa.float64() if name in NUMBERS else pa.int64()
        if name in NUMBERS:
            values = [None if value is None else float(value) for value in values]
        columns[name] = pa.array(values, kind, from_pandas=False)
    columns["success"] = pa.array([bool(one) for one in given["success"]])
    columns |= {name: pa.array(list(values)) for name, values in more.items()}
    pq.write_table(pa.table(columns), root / "jobs.parquet", compression="zstd")
    kinds = (pa.int64(), pa.float64(), pa.float64())
    table = {
        name: pa.array([step[at] for step in steps], kind)
        for at, (name, kind) in enumerate(zip(("time", "watts", "cap"), kinds, strict=True))
    }
    pq.write_table(pa.table(table), root / "power.parquet", compression="zstd")

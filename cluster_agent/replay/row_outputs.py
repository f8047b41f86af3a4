"""The files of a replay that keeps its jobs as rows: nodes, configurations. Those of large logs are in ``outputs``.

jobs.csv, jobs.parquet     in the columns of Batsim 4; empty where nothing is known; the latter has more columns
power.csv, power.parquet   watts and cap over time, as steps
metrics.json               measures of the schedule
manifest.json              what it was made from
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from cluster_agent.replay import written_whole
from cluster_agent.replay.outputs import CSV_COLUMNS, write_json

TEXTS = {"job_id", "workload_name", "profile", "final_state", "allocated_resources", "metadata"}
NUMBERS = {"stretch", "consumed_energy"}


class Ran(NamedTuple):
    """What is written of a job, wherever it ran. ``start_s`` -1: it never started."""

    name: str
    submit_s: int
    width: int
    request_s: int
    is_cut: bool
    start_s: int
    run_s: int
    allocated: str | None
    energy_j: float | None  # None: not known


def columns_of(workload: str, jobs: Iterable[Ran]) -> dict[str, list[Any]]:
    """The columns of ``CSV_COLUMNS`` that are known."""
    rows = [_row(workload, one) for one in jobs]
    return {name: [row.get(name) for row in rows] for name in CSV_COLUMNS.split(",")}


def _row(workload: str, job: Ran) -> dict[str, Any]:
    row: dict[str, Any] = {
        "job_id": job.name,
        "workload_name": workload,
        "submission_time": job.submit_s,
        "requested_number_of_resources": job.width,
        "requested_time": job.request_s,
        "success": int(job.start_s >= 0 and not job.is_cut),
        "final_state": "NOT_STARTED",
    }
    if job.start_s < 0:
        return row
    wait_s = job.start_s - job.submit_s
    return row | {
        "final_state": "COMPLETED_WALLTIME_REACHED" if job.is_cut else "COMPLETED_SUCCESSFULLY",
        "starting_time": job.start_s,
        "execution_time": job.run_s,
        "finish_time": job.start_s + job.run_s,
        "waiting_time": wait_s,
        "turnaround_time": wait_s + job.run_s,
        "stretch": f"{(wait_s + job.run_s) / job.run_s:.6f}",
        "allocated_resources": job.allocated,
        "consumed_energy": None if job.energy_j is None else f"{job.energy_j:.1f}",
    }


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

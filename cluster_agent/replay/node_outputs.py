"""The files of a replay on nodes.

jobs.csv       in the columns of Batsim 4; resources are nodes, empty where nothing is known
jobs.parquet   the same and ours: user, queue, units, watts as admitted and as drawn
power.parquet  watts and cap over time, as steps
metrics.json   what the schedule was worth (``node_run``)
manifest.json  what it was made from
"""

from __future__ import annotations

import csv
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cluster_agent.errors import ClusterError
from cluster_agent.replay.node_run import NodeResult, power_over_time
from cluster_agent.replay.outputs import CSV_COLUMNS
from cluster_agent.scheduler.jobs import Int64s
from cluster_agent.scheduler.policies.registry import Choice


def write(directory: str, result: NodeResult, metrics: dict[str, Any], manifest: dict[str, Any]) -> list[str]:
    """Write all files into ``directory``; what could not be written for want of a package, in words."""
    root = Path(directory)
    notes = []
    rows = [_row(result, job) for job in range(len(result.trace.jobs))]
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (root / "jobs.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, CSV_COLUMNS.split(","), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        try:
            _write_parquet(root, result, rows)
        except ModuleNotFoundError:
            notes.append(
                "jobs.parquet, power.parquet are not written: they need pyarrow (pip install 'nodectl[export]')"
            )
        for name, content in (("metrics.json", metrics), ("manifest.json", manifest)):
            (root / name).write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
    except OSError as error:
        raise ClusterError(f"{error.filename or directory}: {error.strerror or error}; choose another --out") from None
    return notes


def manifest(
    result: NodeResult, machine: str, cap: str | None, choice: Choice, command: Sequence[str], version: str
) -> dict[str, Any]:
    """What a replay is made from."""
    trace = result.trace
    return {
        "command": list(command),
        "trace": {
            "path": trace.path,
            "sha256": trace.sha256,
            "jobs": len(trace.jobs),
            "findings": [
                {"what": one.what, "done": one.done, "count": one.count, "first_line": one.first_line}
                for one in trace.findings
            ],
        },
        "machine": {"nodes": len(result.nodes), "given_by": machine},
        "cap": cap,
        "policy": {
            "name": choice.policy.name,
            "parameters": {field: getattr(choice.params, field) for field in choice.params.__struct_fields__},
        },
        "seed": None,  # nothing here is drawn
        "versions": {"nodectl": version, "python": platform.python_version(), "numpy": np.__version__},
    }


def intervals(nodes: Int64s) -> str:
    """``0-3 7``."""
    runs: list[list[int]] = []
    for node in sorted(int(one) for one in nodes):
        if runs and node == runs[-1][1] + 1:
            runs[-1][1] = node
        else:
            runs.append([node, node])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _row(result: NodeResult, job: int) -> dict[str, Any]:
    trace, start_s = result.trace, int(result.start_s[job])
    jobs = trace.jobs
    submit_s, run_s = int(jobs.jobs.submit_s[job]), int(jobs.jobs.run_s[job])
    row: dict[str, Any] = {
        "job_id": jobs.name[job],
        "workload_name": Path(trace.path).name.replace(",", "_"),
        "submission_time": submit_s,
        "requested_number_of_resources": int(jobs.units[job]),
        "requested_time": int(jobs.jobs.request_s[job]),
        "success": int(start_s >= 0 and not trace.is_cut[job]),
        "final_state": "NOT_STARTED",
    }
    if start_s < 0:
        return row
    wait_s = start_s - submit_s
    return row | {
        "final_state": "COMPLETED_WALLTIME_REACHED" if trace.is_cut[job] else "COMPLETED_SUCCESSFULLY",
        "starting_time": start_s,
        "execution_time": run_s,
        "finish_time": start_s + run_s,
        "waiting_time": wait_s,
        "turnaround_time": wait_s + run_s,
        "stretch": f"{(wait_s + run_s) / run_s:.6f}",
        "allocated_resources": intervals(result.scheduler.placed[job].node),
        # joules of a job whose watts are assumed are not known
        "consumed_energy": f"{jobs.watts[job] * run_s:.1f}" if jobs.knows_watts[job] else None,
    }


def _write_parquet(root: Path, result: NodeResult, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa  # large, and only needed here
    import pyarrow.parquet as pq

    jobs = result.trace.jobs
    texts = {"job_id", "workload_name", "profile", "final_state", "allocated_resources", "metadata"}
    numbers = {"stretch", "consumed_energy"}
    columns: dict[str, Any] = {}
    for name in CSV_COLUMNS.split(","):
        kind = pa.string() if name in texts else pa.float64() if name in numbers else pa.int64()
        values = [row.get(name) for row in rows]
        if name in numbers:
            values = [None if value is None else float(value) for value in values]
        columns[name] = pa.array(values, kind, from_pandas=False)
    columns["success"] = pa.array([bool(row["success"]) for row in rows])
    columns |= {
        "user": pa.array(result.trace.user),
        "queue": pa.array(jobs.queue),
        "cores": pa.array(jobs.jobs.width.tolist(), pa.int64()),
        "drawn_w": pa.array([float(one) for one in jobs.watts]),
        "drawn_w_known": pa.array(jobs.knows_watts.tolist()),
        "admitted_w": pa.array([float(one) for one in result.scheduler.admitted_w]),
    }
    pq.write_table(pa.table(columns), root / "jobs.parquet", compression="zstd")
    power = power_over_time(result)
    steps = {"time_s": power.time_s.tolist(), "watts": power.watts.tolist()}
    cap_w = [None if one == float("inf") else float(one) for one in power.cap_w]
    table = pa.table({**steps, "cap_w": pa.array(cap_w, pa.float64())})
    pq.write_table(table, root / "power.parquet", compression="zstd")

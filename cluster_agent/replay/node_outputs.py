"""The files of a replay on nodes (``row_outputs``): resources are nodes, and jobs.parquet also has user, queue, and the
watts that were admitted and used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cluster_agent.replay.node_run import NodeResult, power_over_time
from cluster_agent.replay.outputs import CSV_COLUMNS
from cluster_agent.replay.row_outputs import write_rows
from cluster_agent.scheduler.job_columns import Int64s


def write(
    directory: str,
    result: NodeResult,
    metrics: dict[str, Any],
    manifest: dict[str, Any],
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> list[str]:
    """Write all files into ``directory``, ``files`` as they are; returns lines about files that need a package that is
    missing."""
    jobs, power = result.trace.jobs, power_over_time(result)
    more = {
        "user": result.trace.user,
        "queue": jobs.queue,
        "cores": jobs.jobs.width.tolist(),
        "drawn_w": jobs.watts.tolist(),
        "drawn_w_known": jobs.knows_watts.tolist(),
        "admitted_w": [float(one) for one in result.admitted_w],
    }
    rows = [_row(result, job) for job in range(len(jobs))]
    columns = {name: [row.get(name) for row in rows] for name in CSV_COLUMNS.split(",")}
    steps = power.time_s.tolist(), power.watts.tolist(), power.cap_w.tolist()
    return write_rows(directory, columns, more, steps, metrics, manifest, files)


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
        "allocated_resources": intervals(result.schedule.placed(job).node),
        # a job whose watts are assumed has no known joules
        "consumed_energy": f"{jobs.watts[job] * run_s:.1f}" if jobs.knows_watts[job] else None,
    }

"""The files of a replay on nodes (``row_outputs``): resources are nodes, and jobs.parquet also has user, queue, and the
watts that were admitted and used."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import starmap
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from cluster_agent.replay.node_run import NodeResult, power_over_time
from cluster_agent.replay.row_outputs import Ran, columns_of, write_rows
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
    placed = [result.schedule.placed(job).node if at_s >= 0 else None for job, at_s in enumerate(result.start_s)]
    energy_j = np.where(jobs.knows_watts, jobs.watts, 0.0) * jobs.jobs.run_s
    ran = zip(
        jobs.name,
        jobs.jobs.submit_s.tolist(),
        jobs.units.tolist(),
        jobs.jobs.request_s.tolist(),
        result.trace.is_cut.tolist(),
        result.start_s.tolist(),
        jobs.jobs.run_s.tolist(),
        [None if nodes is None else intervals(nodes) for nodes in placed],
        # a job whose watts are assumed has no known joules
        [one if is_known else None for one, is_known in zip(energy_j.tolist(), jobs.knows_watts, strict=True)],
        strict=True,
    )
    columns = columns_of(Path(result.trace.path).name.replace(",", "_"), starmap(Ran, ran))
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

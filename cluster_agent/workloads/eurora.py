"""Tables of the Eurora jobs with their predicted power (../shared/data/eurora, from Borghesi's PA-HPC-SIM).

``jobs`` (CSV, plain or gzipped, or Parquet with a column ``instance``): ``job, queue, submit, start, end, req_nodes,
req_cores, cores, gpus, mics, mem_kb, walltime_s, app, nodes, predicted_power_w``, and if need be ``max_wait_s``, the
wait that the job is promised, in place of its queue's. A job has one unit per node that it
used, each with its share of ``cores``, ``gpus``, ``mics`` and ``mem_kb``. ``instances``, ``nodes``, ``queues`` and
``power_caps`` are tables in the same folder.

As in PA-HPC-SIM, runs end at the walltime, so that schedules compare. A predicted power of 0 counts as unknown.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.power_cap import PowerCap
from cluster_agent.scheduler.unlike_nodes.node_jobs import Nodes
from cluster_agent.workloads.job_log import LONGEST_S
from cluster_agent.workloads.node_trace import NodeTrace, NodeTraceBuilder, Unusable
from cluster_agent.workloads.parquet_tables import read_columns
from cluster_agent.workloads.swf import TraceError
from cluster_agent.workloads.text_tables import rows_of
from foundation.shell.errors import nearest

COLUMNS: Final = ("job", "queue", "submit", "start", "end", "cores", "gpus", "mics", "mem_kb", "walltime_s", "nodes")
"""Those that a table of jobs must have."""

QUEUES: Final = {"debug": 3600, "parallel": 21600, "np_longpar": 86400, "longpar": 86400, "reservation": 1800}
"""The longest wait that each of Eurora's queues promises, in seconds (``queues.csv``)."""

UNIT_W, GPU_W, MIC_W = 40.0, 62.0, 115.0
"""The power that PA-HPC-SIM assumes for a job of unknown power: two idle sockets of 20 W, a GPU of 12 + 50 W, a MIC."""

RESERVATION_WAIT_S: Final = 1800
"""The promise that PA-HPC-SIM assumes for other queues, which have the jobs of reservations (R1234)."""


def read_jobs(path: str, instance: str | None = None, is_strict: bool = False) -> NodeTrace:
    """The jobs of a table, or of one ``instance`` of it.

    ``TraceError`` if there is none, or, if ``is_strict``, at the first row that would be dropped or corrected.
    """
    chosen: set[str] | None = None
    if path.endswith(".parquet"):
        rows, sha256 = _parquet(path, instance)
    else:
        rows, sha256 = rows_of(path)
        if instance is not None:
            chosen = _jobs_of_instance(Path(path), instance)
    builder = NodeTraceBuilder(path if instance is None else f"{path}:{instance}", sha256, is_strict)
    for line, row in rows:
        if chosen is None or row["job"] in chosen:
            builder.add(line, lambda row=row: _job(row))  # type: ignore[misc]
    return builder.finish()


def _job(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row in the terms of ``NodeTraceBuilder``."""
    submit_s, start_s, end_s = (_seconds(row, column) for column in ("submit", "start", "end"))
    units = len(str(row["nodes"] or "").split()) or 1
    counts = {column: _number(row, column) for column in ("cores", "gpus", "mics", "mem_kb", "walltime_s")}
    power = str(row.get("predicted_power_w") if row.get("predicted_power_w") is not None else "")
    queue = str(row["queue"])
    return {
        "name": str(row["job"]),
        "submit_s": submit_s,
        "wait_s": start_s - submit_s,
        "run_s": end_s - start_s,
        "request_s": counts["walltime_s"],
        "units": units,
        "cores": counts["cores"],
        "gpus": counts["gpus"],
        "mics": counts["mics"],
        "memory_kib": counts["mem_kb"],
        "watts": _float(power, "predicted_power_w") if power else None,
        "queue": queue,
        "max_wait_s": _number(row, "max_wait_s") if row.get("max_wait_s") else QUEUES.get(queue, RESERVATION_WAIT_S),
        "ignored": () if queue in QUEUES and queue != "reservation" else ("belong to a reservation",),
    }


def _seconds(row: Mapping[str, Any], column: str) -> int:
    value = row[column]
    try:
        when = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        if when.tzinfo is not None:
            raise ValueError(value)
    except ValueError:
        raise Unusable(
            "rows with something that is no time", f"{column} is {value!r}: write YYYY-MM-DD HH:MM:SS"
        ) from None
    # local times without zone: only differences are used, and clocks were not changed in these days
    return int((when - datetime(1970, 1, 1)).total_seconds())


def _number(row: Mapping[str, Any], column: str) -> int:
    return int(_float(row[column], column))


def _float(value: Any, column: str) -> float:
    try:
        if math.isfinite(found := float(value)):
            return found
        raise ValueError(value)
    except (TypeError, ValueError, OverflowError):
        raise Unusable("rows with something that is no number", f"{column} is {value!r}: write a number") from None


# --- the tables in the same folder


def instances(path: str) -> list[str]:
    """The instances of a table of jobs: of its ``instances`` column, or of ``instances.csv`` in the same folder."""
    if path.endswith(".parquet"):
        return sorted({str(one) for one in read_columns(path, ["instance"])["instance"]})
    return [row["instance"] for _, row in rows_of(str(_neighbour(Path(path), "instances")))[0]]


def _jobs_of_instance(path: Path, instance: str) -> set[str]:
    names = []
    table = str(_neighbour(path, "instances"))
    for line, row in rows_of(table)[0]:
        if "instance" not in row or "job_ids" not in row:
            raise TraceError(f"{table}:{line}: columns instance and job_ids are needed; fetch the table again")
        if row["instance"] == instance:
            return set(row["job_ids"].split())
        names.append(row["instance"])
    raise WrongUseError(f"--instance {instance}: {table} has no instance of that name{nearest(instance, names)}")


def _neighbour(path: Path, table: str) -> Path:
    for name in (f"{table}.csv.gz", f"{table}.csv"):
        if (path.parent / name).exists():
            return path.parent / name
    raise TraceError(f"{path}: no {table}.csv or {table}.csv.gz next to it; leave out --instance or fetch that table")


def read_nodes(path: str, system: str) -> Nodes:
    """The nodes of one ``system`` of a ``nodes`` table."""
    rows, _ = rows_of(path)
    known = []
    has = []
    for line, row in rows:
        try:
            known.append(row["system"])
            if row["system"] == system:
                has.append([_amount(row[column]) for column in ("cores", "gpus", "mics", "mem_kb")])
        except (KeyError, ValueError) as error:
            raise TraceError(f"{path}:{line}: a node has system,cores,gpus,mics,mem_kb ({error}); correct it") from None
    if not has:
        raise WrongUseError(f"{path}: no system is called {system!r}{nearest(system, set(known))}")
    return Nodes(np.array(has, np.int64), UNIT_W, GPU_W, MIC_W)


def read_queues(path: str) -> dict[str, int]:
    """The wait that each queue promises, in seconds."""
    found = {}
    for line, row in rows_of(path)[0]:
        try:
            found[row["queue"]] = _amount(row["max_wait_s"])
        except (KeyError, ValueError) as error:
            raise TraceError(f"{path}:{line}: a queue has queue,max_wait_s ({error}); correct it") from None
    return found


def _amount(text: str) -> int:
    """``ValueError`` unless it is a number from 0 that a table can have."""
    if not 0 <= (found := int(text)) <= LONGEST_S:
        raise ValueError(f"{found} is not from 0 to {LONGEST_S}")
    return found


# --- caps


def read_cap_profile(path: str, profile: str | None) -> PowerCap:
    """One ``profile`` of a table of caps (``profile,offset_s,cap_w``), offsets from the first submission.

    The first cap is in force from 0 on. The ``WrongUseError`` names file and line.
    """
    steps: list[tuple[int, float]] = []
    known: dict[str, None] = {}
    for line, row in rows_of(path)[0]:
        try:
            known[row["profile"]] = None
            if row["profile"] != profile:
                continue
            time_s, watts = int(row["offset_s"]), float(row["cap_w"])
        except (KeyError, TypeError, ValueError):
            raise WrongUseError(f"{path}:{line}: a cap has profile,offset_s,cap_w; correct or delete it") from None
        if not watts > 0 or not 0 <= time_s <= LONGEST_S:
            raise WrongUseError(
                f"{path}:{line}: an offset that is no time, or a cap that is not above 0 W; correct the line"
            )
        if steps and time_s <= steps[-1][0]:
            raise WrongUseError(f"{path}:{line}: {time_s} s is not after {steps[-1][0]} s; sort the profile by time")
        steps.append((time_s, watts))
    if not steps:
        given = f"no profile is called {profile!r}" if profile else "it has several profiles"
        raise WrongUseError(f"{path}: {given}; write --cap {path}:PROFILE with one of {', '.join(known)}")
    times_s, watts_ = zip(*steps, strict=True)
    return PowerCap(times_s, watts_)


# --- Parquet


def _parquet(path: str, instance: str | None) -> tuple[Iterator[tuple[int, dict[str, Any]]], str]:
    if instance is None:
        names = instances(path)
        example = f"{len(names)} of them, such as {names[0]}" if names else "there are none"
        raise WrongUseError(f"{path}: it has several instances; choose one with --instance NAME ({example})")
    columns = read_columns(path, ("instance", *COLUMNS), ("predicted_power_w", "max_wait_s"), ("instance", instance))
    if not columns["instance"]:
        near = nearest(instance, instances(path))
        raise WrongUseError(f"--instance {instance}: {path} has no instance of that name{near}")
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return enumerate(rows, 1), hashlib.sha256(Path(path).read_bytes()).hexdigest()

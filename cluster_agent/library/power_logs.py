"""The jobs of a log with the watts that they drew, for the evaluation of predictions: whatever the log's format.

Job logs (SWF, with ``--job-watts``), the text of sacct, tables of Eurora's jobs, and PM100's job table, whose columns
are those of its own documentation (github.com/francescoantici/PM100-data, ``documentation/job_features.md``): times,
``user_id``, ``num_nodes_alloc``, ``num_cores_req``, ``num_gpus_req``, ``mem_req`` (GB), ``time_limit`` (minutes),
``partition``, ``qos``, and watts of the whole job, a list of samples or one figure. Jobs without watts are left out,
and counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np

from cluster_agent.cluster import MOST_W, UW
from cluster_agent.errors import WrongUseError
from cluster_agent.library.given import World
from cluster_agent.prediction.evaluation import LoggedJob, on_line
from cluster_agent.prediction.job_power import Submission
from cluster_agent.prediction.models import Model
from cluster_agent.prediction.on_line import OnLinePower
from cluster_agent.prediction.system_forecast import EVERY_S, Hour, Runs, forecasts
from cluster_agent.workloads.swf import TraceError
from foundation.shell.extension import Extension

Part: TypeAlias = Literal["node", "cpu", "memory", "gpu"]

PM100_NEEDED: Final = ("user_id", "submit_time", "start_time", "end_time", "num_nodes_alloc")
PM100_USED: Final = ("num_cores_req", "num_gpus_req", "mem_req", "time_limit", "partition", "qos", "job_name")
PM100_WATTS: Final[Mapping[Part, tuple[str, ...]]] = {
    "node": ("node_power_consumption", "power_consumption"),
    "cpu": ("cpu_power_consumption",),
    "memory": ("mem_power_consumption",),
    "gpu": ("gpu_power_consumption",),
}
KIB_PER_GB: Final = 1 << 20

MOST_LOOKS: Final = 6000
"""Ours: looks at the past of a log: two months of quarter hours. Of a longer log the end counts."""


class PowerLog(msgspec.Struct, frozen=True):
    """Jobs in the order of submission. ``tdp_w``: full load of what a job requests. ``findings``: what was left out, in
    words."""

    jobs: list[LoggedJob]
    tdp_w: Callable[[Submission], float]
    findings: list[str]


def read_power_log(given: World, node_w: float | None = None, is_pm100: bool = False, part: Part = "node") -> PowerLog:
    """``node_w``: what a node draws at full load, for a log whose machine is not given. ``WrongUseError`` or
    ``TraceError`` in one line."""
    if node_w is not None and not 0 < node_w < MOST_W:
        raise WrongUseError(f"--node-w {node_w:g}: give watts above 0 and below {MOST_W:g}")
    if is_pm100:
        made = _pm100(given.path, _needed_w(given, node_w), part)
    elif part != "node":
        raise WrongUseError(f"--part {part}: this log has watts of whole nodes only; leave it out")
    else:
        made = _of_trace(given, node_w) if given.on_nodes else _of_processors(given)
    if not made.jobs:
        why = f" ({'; '.join(made.findings)})" if made.findings else ""
        raise TraceError(f"{given.path}: no job with watts in it{why}; nothing can be evaluated")
    return made


def hours_of(read: PowerLog, model: Extension[Model] | None = None) -> list[Hour]:
    """Forecasts of the partition's watts for one to six hours, all through the log: what would have been said."""
    jobs = read.jobs
    said = on_line(OnLinePower(read.tdp_w, model=model), jobs)
    runs = Runs.of(
        [(job.submit_s, job.start_s, job.end_s) for job in jobs], [job.submission.request_s for job in jobs],
        np.array([job.watts for job in jobs]), np.array([one.expected_w for one in said]),
    )  # fmt: skip
    until_s = jobs[-1].submit_s
    from_s = max(jobs[0].submit_s, until_s - MOST_LOOKS * EVERY_S)
    return forecasts(runs, from_s, until_s, [3600.0 * hour for hour in range(1, 7)])


def _needed_w(given: World, node_w: float | None) -> float:
    if node_w is None:
        raise WrongUseError(f"{given.path}: it does not say what a node draws; give --node-w WATTS (at full load)")
    return node_w


def _of_trace(given: World, node_w: float | None) -> PowerLog:
    from cluster_agent.cluster import load_machine
    from cluster_agent.scheduler.unlike_nodes.node_jobs import nodes_of
    from cluster_agent.workloads.node_power import submission, tdp_w

    trace = given.table
    machine = given.load_machine() or (load_machine("eurora") if given.is_eurora else None)
    if machine is None:
        watts_of_node = _needed_w(given, node_w)
        full_w: Callable[[Submission], float] = lambda job: watts_of_node * job.units  # noqa: E731
    else:
        nodes = nodes_of(machine)
        full_w = lambda job: tdp_w(nodes, job)  # noqa: E731
    trace = msgspec.structs.replace(
        trace, text=tuple(f"{text} {queue}".strip() for text, queue in zip(trace.text, trace.jobs.queue, strict=True))
    )
    found = []
    for job, wait_s in enumerate(trace.wait_s.tolist()):
        if trace.jobs.knows_watts[job]:
            submit_s = float(trace.jobs.submit_s[job])
            end_s = submit_s + wait_s + float(trace.jobs.run_s[job])
            found.append(
                LoggedJob(submit_s, submit_s + wait_s, end_s, submission(trace, job), float(trace.jobs.watts[job]))
            )
    return PowerLog(found, full_w, _left_out(len(trace.jobs) - len(found), "without watts"))


def _of_processors(given: World) -> PowerLog:
    from cluster_agent.library.fitting import with_job_watts
    from cluster_agent.scheduler.native.governor import Watts
    from cluster_agent.workloads.job_log import prepare
    from cluster_agent.workloads.job_watts import submission

    machine, log = given.load_machine(), given.log
    if machine is None or given.watts_of_jobs() is None or log is None:
        raise WrongUseError(
            f"{given.path}: a log of processors has no watts; give --machine NAME and --job-watts FILE|generated"
        )
    workload, findings = prepare(log, machine.processors), list[str]()
    workload, watts = with_job_watts(given, Watts.of(machine, None), workload, findings.append)
    assert watts is not None and watts.job_busy_uw is not None
    jobs, busy_w = workload.jobs, watts.job_busy_uw * workload.jobs.width / UW
    full_w = watts.plan_uw[0] / UW
    found = []
    for job, wait_s in enumerate(workload.wait_s.clip(0).tolist()):
        words = workload.words.get(int(jobs.number[job]))
        if words is not None and not words.has_watts:
            continue
        submit_s = float(jobs.submit_s[job])
        start_s = submit_s + wait_s
        found.append(
            LoggedJob(submit_s, start_s, start_s + float(jobs.run_s[job]), submission(workload, job),
                      float(busy_w[job]))
        )  # fmt: skip
    if not found:
        raise WrongUseError(f"{given.path}: --job-watts has watts of none of its jobs")
    return PowerLog(found, lambda job: full_w * job.units, findings)


def _left_out(count: int, why: str) -> list[str]:
    return [f"jobs {why}: {count} left out"] if count else []


# --- PM100


def _pm100(path: str, node_w: float, part: Part) -> PowerLog:
    rows, columns = _rows(path, part)
    if not columns:
        raise TraceError(f"{path}: no column {' or '.join(PM100_WATTS[part])}: it has no watts of that part")
    found, wrong = [], Counter[str]()
    for row in rows:
        job = _job(row, columns[0])
        if isinstance(job, LoggedJob):
            found.append(job)
        else:
            wrong[job] += 1
    findings = [line for why, count in sorted(wrong.items()) for line in _left_out(count, why)]
    found.sort(key=lambda job: job.submit_s)
    return PowerLog(found, lambda job: node_w * job.units, findings)


def _rows(path: str, part: Part) -> tuple[Iterator[Mapping[str, Any]], list[str]]:
    """The rows by column, and those columns of them that have the part's watts."""
    if path.endswith(".parquet"):
        from cluster_agent.workloads.parquet_tables import read_columns

        table = read_columns(path, PM100_NEEDED, (*PM100_USED, *PM100_WATTS[part]))
        columns = [name for name in PM100_WATTS[part] if name in table]
        return (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)), columns
    from cluster_agent.workloads.text_tables import rows_of

    listed = [row for _, row in rows_of(path)[0]]
    there = listed[0] if listed else {}
    if missing := [name for name in PM100_NEEDED if name not in there]:
        raise TraceError(f"{path}: no column {', '.join(missing)}: not PM100's job table")
    return iter(listed), [name for name in PM100_WATTS[part] if name in there]


def _job(row: Mapping[str, Any], column: str) -> LoggedJob | str:
    """Why it is left out, if it is."""
    submit_s, start_s, end_s = (_seconds(row[name]) for name in ("submit_time", "start_time", "end_time"))
    if not (submit_s <= start_s <= end_s):  # NaN too
        return "with times that cannot be"
    watts = _watts(row[column])
    if not watts:
        return "without watts"
    units = max(round(_number(row["num_nodes_alloc"], 1.0)), 1)
    limit_s = 60 * _number(row.get("time_limit"), 0.0)
    texts = (row.get(name) for name in ("job_name", "partition", "qos"))
    submission = Submission(
        user=str(row["user_id"]),
        text=" ".join(str(text) for text in texts if text not in (None, "")),
        units=units,
        cores=max(round(_number(row.get("num_cores_req"), 1.0)), 1),
        gpus=round(_number(row.get("num_gpus_req"), 0.0)),
        mics=0,
        memory_kib=round(KIB_PER_GB * _number(row.get("mem_req"), 0.0)),
        request_s=round(min(max(limit_s, 0.0), 1e9)),
    )
    return LoggedJob(submit_s, start_s, max(end_s, start_s + 1.0), submission, sum(watts) / len(watts), max(watts))


def _watts(value: Any) -> list[float]:
    """Of one figure, a list of samples, or such a list as text; empty: there are none that can be."""
    if isinstance(value, str):
        value = value.strip("[] ").replace(",", " ").split()
    elif not isinstance(value, Sequence):
        value = [value]
    found = [_number(one, math.nan) for one in value]
    return [one for one in found if 0 < one < MOST_W]


def _number(value: Any, otherwise: float) -> float:
    """``otherwise`` for what is missing, no number, or infinite."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return found if math.isfinite(found) else otherwise


def _seconds(value: Any) -> float:
    """Unix seconds of a time, a text of one, or a number of seconds; NaN for anything else."""
    try:
        return (value if isinstance(value, datetime) else datetime.fromisoformat(str(value))).timestamp()
    except (ValueError, OverflowError, OSError):
        return _number(value, math.nan)

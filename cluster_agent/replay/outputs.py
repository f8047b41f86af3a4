"""The files of a replay.

jobs.csv       in the columns of Batsim 4, which evalys and others read; empty where unknown
jobs.parquet   the same columns and ours: user, first estimate, corrections, why the job started when it did
metrics.json   measures of the schedule (``measures``)
manifest.json  what it was made from; equal manifests have equal results
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent._native import ffi, lib
from cluster_agent.replay import written_whole
from cluster_agent.replay.log_run import Result
from cluster_agent.scheduler.job_columns import Bools, Int64s
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.native.native_tables import pointer
from cluster_agent.scheduler.policies.registry import Choice
from cluster_agent.workloads import swf
from cluster_agent.workloads.job_log import PRECEDED, Workload

if TYPE_CHECKING:
    from cluster_agent.replay.event_log import Setting

CSV_COLUMNS: Final = (
    "job_id,workload_name,profile,submission_time,requested_number_of_resources,requested_time,success,final_state,"
    "starting_time,execution_time,finish_time,waiting_time,turnaround_time,stretch,allocated_resources,"
    "consumed_energy,metadata"
)
CHUNK_ROWS: Final = 1 << 14
ROW_BYTES: Final = 448  # without its texts (``jobs_csv.h``)
INTERVAL_BYTES: Final = 24  # "2147483647-2147483647 " and a little


class Rows:
    """The results as ``job_rows_t``, with the columns that it points to."""

    def __init__(self, result: Result) -> None:
        jobs, schedule = result.workload.jobs, result.schedule
        self.workload = workload_name(result.workload)
        self.start_s, self.run_s = schedule.start_s, result.run_s
        self.processors, self.offsets = _processors(schedule)
        self._name = ffi.new("char[]", self.workload.encode())
        columns: dict[str, npt.NDArray[Any]] = {
            "number": jobs.number,
            "submit_s": jobs.submit_s,
            "run_s": self.run_s,
            "request_s": jobs.request_s if result.workload.has_requests else np.full(len(jobs), -1),
            "start_s": self.start_s,
            "width": jobs.width,
            "is_cut": result.workload.is_cut.view(np.uint8),
            "is_killed": result.is_killed.view(np.uint8),
            "offsets": self.offsets,
        }
        if schedule.watts is not None:
            columns["energy_j"] = self.energy_j = schedule.job_j
        kinds = {
            np.dtype(np.float64): "double",
            np.dtype(np.int64): "int64_t",
            np.dtype(np.int32): "int32_t",
            np.dtype(np.uint8): "uint8_t",
        }
        self._columns = {
            name: pointer(kinds[array.dtype], np.ascontiguousarray(array)) for name, array in columns.items()
        }
        self.c = ffi.new(
            "job_rows_t *",
            {
                "n_jobs": len(jobs),
                "workload": self._name,
                "processors": pointer("char", self.processors),
                **self._columns,
            },
        )

    def csv(self) -> Iterator[memoryview]:
        """All rows, in pieces."""
        n = len(self.start_s)
        for first in range(0, n, CHUNK_ROWS):
            last = min(first + CHUNK_ROWS, n)
            text_bytes = (last - first) * len(self._name) + int(self.offsets[last] - self.offsets[first])
            out = np.empty(ROW_BYTES * (last - first) + text_bytes, np.uint8)
            yield out[: lib.jobs_csv_write(self.c, first, last, pointer("char", out))].data


def _processors(schedule: NativeReplay) -> tuple[npt.NDArray[np.uint8], Int64s]:
    """The processors of all jobs as text, one after the other, and where each begins."""
    first, count = schedule.interval_first, schedule.interval_count
    offsets = np.empty(len(count) + 1, np.int64)
    text = np.empty(INTERVAL_BYTES * int(count.sum()) + 1, np.uint8)
    columns = pointer("int64_t", first), pointer("int32_t", count), len(count)
    size = lib.processors_write(schedule.c_intervals, *columns, pointer("int64_t", offsets), pointer("char", text))
    return text[:size], offsets


def workload_name(workload: Workload) -> str:
    """The file's name without its endings; commas would break the table."""
    name = Path(workload.log.path).name
    for ending in (".gz", ".swf"):
        name = name.removesuffix(ending)
    return name.replace(",", "_")


def write(directory: str, result: Result, metrics: dict[str, Any], manifest: dict[str, Any]) -> list[str]:
    """Write all files into ``directory``; returns lines about files that need a package that is missing."""
    notes = []
    with written_whole.folder(directory) as root:
        rows = Rows(result)
        with (root / "jobs.csv").open("wb") as file:
            file.write(CSV_COLUMNS.encode() + b"\n")
            for piece in rows.csv():
                file.write(piece)
        try:
            write_parquet(root / "jobs.parquet", result, rows)
        except ModuleNotFoundError:
            notes.append("jobs.parquet is not written: it needs pyarrow (pip install 'nodectl[export]')")
        if result.schedule.watts is not None:
            with (root / "power.csv").open("wb") as file:
                file.write(b"time,watts,cap\n")
                file.write(result.schedule.power_csv())
        write_json(root, metrics, manifest)
    return notes


def write_json(root: Path, metrics: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    """Write ``metrics.json`` and ``manifest.json``, which every replay has."""
    for name, content in (("metrics.json", metrics), ("manifest.json", manifest)):
        (root / name).write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


def write_parquet(path: Path, result: Result, rows: Rows) -> None:
    """The table of jobs in columns."""
    # before Arrow is loaded: with the memory that NumPy has used before, the kernel need not clear new pages
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    import pyarrow as pa  # large, and only needed here
    import pyarrow.parquet

    jobs, schedule, n = result.workload.jobs, result.schedule, len(result.workload.jobs)
    start_s, is_cut, run_s = rows.start_s, result.workload.is_cut, rows.run_s
    unknown = start_s < 0
    wait_s = start_s - jobs.submit_s

    def text(bytes_: Any, offsets: Int64s) -> Any:
        return pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(bytes_))

    def words(codes: npt.NDArray[Any], *choices: str) -> Any:
        ends = np.cumsum([0, *(len(choice.encode()) for choice in choices)])
        return pa.DictionaryArray.from_arrays(_numbers(codes.astype(np.int8)), text("".join(choices).encode(), ends))

    def flags(values: Bools) -> Any:
        return pa.Array.from_buffers(pa.bool_(), n, [None, pa.py_buffer(np.packbits(values, bitorder="little"))])

    states = ("COMPLETED_SUCCESSFULLY", "COMPLETED_WALLTIME_REACHED", "NOT_STARTED", "COMPLETED_KILLED")
    table = pa.table(
        {
            "job_id": _numbers(jobs.number),
            "workload_name": words(np.zeros(n), rows.workload),
            "profile": pa.nulls(n, pa.string()),
            "submission_time": _numbers(jobs.submit_s),
            "requested_number_of_resources": _numbers(jobs.width),
            "requested_time": _numbers(jobs.request_s) if result.workload.has_requests else pa.nulls(n, pa.int64()),
            "success": flags(~is_cut & ~unknown & ~result.is_killed),
            "final_state": words(np.where(unknown, 2, np.where(result.is_killed, 3, is_cut)), *states),
            "starting_time": _numbers(start_s, ~unknown),
            "execution_time": _numbers(run_s, ~unknown),
            "finish_time": _numbers(start_s + run_s, ~unknown),
            "waiting_time": _numbers(wait_s, ~unknown),
            "turnaround_time": _numbers(wait_s + run_s, ~unknown),
            "stretch": _numbers((wait_s + run_s) / np.maximum(run_s, 1), ~unknown),
            "allocated_resources": text(rows.processors, rows.offsets),
            "consumed_energy": _numbers(rows.energy_j) if schedule.watts else pa.nulls(n, pa.float64()),
            "metadata": pa.nulls(n, pa.string()),
            "user": _numbers(result.workload.log.columns[swf.USER, result.workload.row]),
            "first_estimate": _numbers(schedule.first_estimate_s),
            "corrections": _numbers(schedule.corrections),
            "reason": words(np.where(unknown, 2, schedule.overtook), "in turn", "backfilled", "not started"),
        }
    )
    if schedule.watts is not None:
        frequency_mhz = np.array(schedule.watts.machine.node.frequency_mhz, np.int64)[schedule.level]
        table = table.append_column("frequency_mhz", _numbers(frequency_mhz, ~unknown))
        table = table.append_column("kills", _numbers(schedule.kills))
        table = table.append_column("lost_processor_s", _numbers(schedule.lost))
        write_power(path.with_name("power.parquet"), result)
    pyarrow.parquet.write_table(
        table,
        path,
        row_group_size=1 << 16,  # the pages of a group are in memory until it is complete
        compression="zstd",
        compression_level=1,
        use_dictionary=["reason"],
    )


def _numbers(values: npt.NDArray[Any], is_known: Bools | None = None) -> Any:
    """An Arrow column. ``pa.array`` would import numpy.ma, and pandas where it is installed."""
    import pyarrow as pa

    valid = None if is_known is None or is_known.all() else pa.py_buffer(np.packbits(is_known, bitorder="little"))
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(np.ascontiguousarray(values))])


def write_power(path: Path, result: Result) -> None:
    """The cluster's watts and cap over time: a row is valid until the next; a cap of null means no cap."""
    import pyarrow as pa
    import pyarrow.parquet

    times_s, power_w, cap_w = result.schedule.power
    table = {"time": _numbers(times_s), "watts": _numbers(power_w), "cap": _numbers(cap_w, ~np.isinf(cap_w))}
    pyarrow.parquet.write_table(pa.table(table), path)


class MadeFrom(NamedTuple):
    """What a replay is made from, as its world says it."""

    trace: tuple[str, str, int, Sequence[swf.Finding]]  # path, SHA-256, jobs, findings
    machine: Mapping[str, Any]
    cap: str | None
    not_modelled: Mapping[str, int]
    more: Mapping[str, Any]
    unmeasured: int | None = None  # jobs without measured watts; None: watts are not of the log


def manifest(
    made_from: MadeFrom, setting: Setting, choice: Choice, command: Sequence[str], version: str
) -> dict[str, Any]:
    """The content of ``manifest.json``."""
    import platform  # only here: most short replays write no files

    path, sha256, jobs, findings = made_from.trace
    given = {field: getattr(choice.params, field) for field in choice.params.__struct_fields__}
    not_modelled = dict(made_from.not_modelled)
    if setting.closed_loop == "preceding":
        not_modelled.pop(PRECEDED, None)
    return {
        "command": list(command),
        "trace": {
            "path": path,
            "sha256": sha256,
            "jobs": jobs,
            "findings": [
                {"what": one.what, "done": one.done, "count": one.count, "first_line": one.first_line}
                for one in findings
            ],
            "not_modelled": not_modelled,
            **({} if made_from.unmeasured is None else {"unmeasured": made_from.unmeasured}),
        },
        "machine": dict(made_from.machine),
        "cap": made_from.cap,
        "policy": {
            "name": choice.policy.name,
            "parameters": {field: value for field, value in given.items() if value is not None},
            **({"origin": msgspec.to_builtins(choice.origin)} if choice.origin else {}),
        },
        "seed": setting.seed if setting.closed_loop else None,  # nothing else here is random
        "versions": {"nodectl": version, "python": platform.python_version(), "numpy": np.__version__},
        **made_from.more,
        "closed_loop": setting.closed_loop,
    }


def write_swf(path: str, workload: Workload, start_s: Int64s, run_s: Int64s, policy: str) -> None:
    """The schedule as a job log: wait, run, processors and request as replayed, the rest as it was. ``start_s`` -1: the
    job never started."""
    jobs = workload.jobs
    columns = workload.log.columns[:, workload.row]
    columns[swf.SUBMIT], columns[swf.RUN] = jobs.submit_s, run_s
    columns[swf.REQUEST] = jobs.request_s if workload.has_requests else -1
    columns[swf.ALLOCATED] = columns[swf.WANTED] = jobs.width
    columns[swf.WAIT] = np.where(start_s < 0, -1, start_s - jobs.submit_s)
    columns[swf.STATUS] = np.where(start_s < 0, swf.CANCELLED, np.where(workload.is_cut, swf.FAILED, swf.COMPLETED))
    columns = np.ascontiguousarray(columns)
    out = np.empty(columns.size * 21, np.uint8)
    size = lib.swf_format(pointer("int64_t", columns), len(jobs), pointer("char", out))
    header = {
        "Version": "2.2",
        "Computer": f"replay of {workload_name(workload)}",
        "MaxJobs": str(len(jobs)),
        "MaxRecords": str(len(jobs)),
        "MaxProcs": str(workload.processors),
        "Note": f"scheduled by {policy}; status {swf.FAILED}: ended at the requested time",
    }
    content = "".join(f"; {key}: {value}\n" for key, value in header.items()).encode() + out[:size].tobytes()
    with written_whole.one_file(path, "--swf") as file:
        file.write_bytes(swf.compressed(content) if path.endswith(".gz") else content)

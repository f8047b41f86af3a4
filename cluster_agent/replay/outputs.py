"""The files of a replay.

jobs.csv                   the columns of Batsim 4; empty where unknown
jobs.parquet               the same columns and ours (``output_columns``)
power.csv, power.parquet   the cluster's watts and cap over time, as steps; no cap is empty
metrics.json               measures of the schedule (``measures``)
manifest.json              what it was made from; equal manifests have equal results
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent._native import ffi, lib
from cluster_agent.cluster import UW
from cluster_agent.replay import written_whole
from cluster_agent.replay.drawn import PowerOverTime, power_over_time
from cluster_agent.replay.output_columns import ALLOCATED, BATSIM, Cells, Column, Numbers, Shown, columns
from cluster_agent.replay.world_run import Result
from cluster_agent.scheduler.job_columns import Int64s
from cluster_agent.scheduler.native.governor import NO_CAP
from cluster_agent.scheduler.native.native_tables import pointer
from cluster_agent.scheduler.policies.registry import Choice
from cluster_agent.scheduler.switches import OPTIONS as SWITCHES
from cluster_agent.scheduler.switches.failures import are_drawn
from cluster_agent.workloads import swf
from cluster_agent.workloads.clusters.cluster_table import table_of
from cluster_agent.workloads.job_log import PRECEDED

if TYPE_CHECKING:
    from cluster_agent.replay.event_log import Setting

CHUNK_ROWS: Final = 1 << 10  # so few that their text is in a core's cache until the kernel has copied it
GROUP_ROWS: Final = 1 << 16  # of jobs.parquet; what they have been allocated is in memory until they are written
ROW_BYTES: Final = 448  # without its texts (``jobs_csv.h``)
STEP_BYTES: Final = 72


def write_into(
    root: Path,
    result: Result,
    metrics: Mapping[str, Any],
    manifest: Mapping[str, Any],
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> list[str]:
    """Write all files into a folder that is there (an absolute path), ``files`` as they are; returns lines about those
    that need a package that is missing. ``OSError`` if the folder is not there, or is full."""
    notes, shown = [], Shown(result)
    has_watts = result.world.kind != "processors" or result.schedule.watts is not None
    power = power_over_time(result) if has_watts else None
    with (root / "jobs.csv").open("wb") as file, ExitStack() as closing:
        try:
            parquet = closing.enter_context(_Parquet(root, shown, columns(result), power))
        except ModuleNotFoundError:
            parquet = None
        file.write(",".join(column.name for column in BATSIM).encode() + b"\n")
        for first, allocated, rows in (
            _processors_in_turn(shown) if result.world.kind == "processors" else _whole(shown)
        ):
            file.writelines(rows)
            if parquet is not None:
                parquet.write(first, allocated)
    if power is not None:
        (root / "power.csv").write_bytes(b"time,watts,cap\n" + power_csv(power))
    if parquet is None:
        left_out = "jobs.parquet, power.parquet are" if power is not None else "jobs.parquet is"
        from foundation.shell.command_line import distribution  # only here: a replay is as long as its imports

        notes.append(f"{left_out} not written: this needs pyarrow (pip install '{distribution()}[export]')")
    for name, content in (("metrics.json", metrics), ("manifest.json", manifest)):
        (root / name).write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
    for name, as_is in files.items():
        (root / name).write_bytes(as_is)
    return notes


def _whole(shown: Shown) -> Iterator[tuple[int, Cells, Iterator[bytes]]]:
    """All rows, as ``_processors_in_turn``."""
    yield 0, shown.allocated, _rows(shown)


def _rows(shown: Shown) -> Iterator[bytes]:
    """Of jobs.csv, in pieces."""
    import csv  # only here: processors have rows by C

    lines: list[str] = []
    writer = csv.writer(_Lines(lines), lineterminator="\n")
    writer.writerows(zip(*(column.cells(shown).cells() for column in BATSIM), strict=True))
    yield "".join(lines).encode()


class _Lines:
    """A file that keeps what is written."""

    def __init__(self, lines: list[str]) -> None:
        self.write = lines.append


def _processors_in_turn(shown: Shown) -> Iterator[tuple[int, Cells, Iterator[memoryview]]]:
    """Of each group of jobs on processors: the first one, their allocated resources, and their rows by C."""
    jobs, result = shown.jobs, shown.result
    name = ffi.new("char[]", shown.trace.name.encode())
    given: dict[str, npt.NDArray[Any]] = {
        "number": jobs.number,
        "submit_s": jobs.submit_s,
        "run_s": shown.run_s,
        "request_s": jobs.request_s if shown.has_requests else np.full(len(jobs), -1),
        "start_s": shown.start_s,
        "width": jobs.width,
        "is_cut": shown.is_cut.view(np.uint8),
        "is_killed": shown.is_killed.view(np.uint8),
    }
    if result.schedule.watts is not None:
        given["energy_j"] = shown.energy_j.values
    given = {key: np.ascontiguousarray(array) for key, array in given.items()}
    kinds = {"f8": "double", "i8": "int64_t", "i4": "int32_t", "u1": "uint8_t"}
    for group, allocated in enumerate(shown.allocated_in_turn(GROUP_ROWS)):
        first = GROUP_ROWS * group
        of_group = {"offsets": allocated.offsets} | {key: array[first:] for key, array in given.items()}
        pointers = {key: pointer(kinds[array.dtype.str[1:]], array) for key, array in of_group.items()}
        content, n = pointer("char", allocated.content), len(allocated.offsets) - 1
        rows = ffi.new("job_rows_t *", {"n_jobs": n, "workload": name, "processors": content, **pointers})
        yield first, allocated, _c_rows(rows, allocated.offsets, len(name))


def _c_rows(rows: Any, offsets: Int64s, name_bytes: int) -> Iterator[memoryview]:
    """In pieces, each in the memory of the one before."""
    bounds = [*range(0, len(offsets) - 1, CHUNK_ROWS), len(offsets) - 1]
    text_bytes = max((int(offsets[last] - offsets[first]) for first, last in pairwise(bounds)), default=0)
    out = np.empty((ROW_BYTES + name_bytes) * CHUNK_ROWS + text_bytes, np.uint8)
    for first, last in pairwise(bounds):
        yield out[: lib.jobs_csv_write(rows, first, last, pointer("char", out))].data


def power_csv(power: PowerOverTime) -> bytes:
    """The steps as lines of text, the watts with six decimals and nothing where there is no cap."""
    table, is_capped = np.full((len(power.time_s), 3), NO_CAP, np.int64), ~np.isinf(power.cap_w)
    table[:, 0], table[:, 1] = power.time_s, np.rint(power.watts * UW)
    table[is_capped, 2] = np.rint(power.cap_w[is_capped] * UW)
    out = np.empty(STEP_BYTES * len(table), np.uint8)
    return out[: lib.power_csv_write(pointer("power_step_t", table), len(table), pointer("char", out))].tobytes()


class _Parquet:
    """jobs.parquet, in groups of rows as they come, and power.parquet. ``ModuleNotFoundError`` without pyarrow."""

    def __init__(self, root: Path, shown: Shown, table: Sequence[Column], power: PowerOverTime | None) -> None:
        # before Arrow is loaded: with the memory that NumPy has used before, the kernel need not clear new pages
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
        import pyarrow as pa  # large, and only needed here
        import pyarrow.parquet as pq

        self._table, self._new_writer, self._path = pa.table, pq.ParquetWriter, root / "jobs.parquet"
        self._writer: Any = None  # needs the types of the first rows
        self._columns = {one.name: None if one.name == ALLOCATED else one.cells(shown).arrow() for one in table}
        if power is not None:
            cap = Numbers(power.cap_w, ~np.isinf(power.cap_w))
            steps = {"time": Numbers(power.time_s), "watts": Numbers(power.watts), "cap": cap}
            pq.write_table(pa.table({name: one.arrow() for name, one in steps.items()}), root / "power.parquet")

    def __enter__(self) -> _Parquet:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, first: int, allocated: Cells) -> None:
        """The jobs from ``first`` on that these resources are of."""
        texts = allocated.arrow()
        given = self._columns.items()
        rows = self._table({name: texts if one is None else one.slice(first, len(texts)) for name, one in given})
        if self._writer is None:
            how = {"compression": "zstd", "compression_level": 1, "use_dictionary": ["reason"]}
            self._writer = self._new_writer(self._path, rows.schema, **how)
        self._writer.write_table(rows, row_group_size=GROUP_ROWS)


def manifest(
    result: Result,
    setting: Setting,
    choice: Choice,
    command: Sequence[str],
    version: str,
    state: Mapping[str, Any] | None = None,
    machine_sha256: str = "",
) -> dict[str, Any]:
    """The content of ``manifest.json``. ``state``: what it has about the state that the replay starts from.
    ``machine_sha256``: of the machine's file, if there is one."""
    import platform  # only here: most short replays write no files

    world, trace = result.world, result.world.trace
    not_modelled = trace.not_modelled()
    if setting.closed_loop == "preceding":
        not_modelled.pop(PRECEDED, None)
    unmeasured = {"unmeasured": int((~world.jobs.knows_watts).sum())} if world.kind == "nodes" else {}
    tables = None if world.ways is None else world.ways.tables
    more = {
        "job_watts": setting.job_watts,
        "configurations": None if tables is None else tables.manifest(),
        "state": state,
        "plan_from": setting.plan_from,
        "pairs": setting.pairs,
        **{name: getattr(setting, name) for name in SWITCHES},
        **{f"{name}_sha256": mark for name, mark in world.marks.items()},
    }
    return {
        "command": list(command),
        "trace": {
            "path": trace.path,
            "sha256": trace.sha256,
            "jobs": len(world.jobs),
            "findings": [
                {"what": one.what, "done": one.done, "count": one.count, "first_line": one.first_line}
                for one in trace.findings
            ],
            "not_modelled": not_modelled,
            **unmeasured,
        },
        "machine": _machine(result, setting, machine_sha256),
        "cap": setting.cap or (f"{world.caps.watts[0]:g}" if world.ways is not None else None),
        "policy": {
            "name": choice.policy.name,
            "parameters": {field: value for field, value in choice.parameters.items() if value is not None},
            **_files_of(choice),
        },
        "seed": _seed(setting),
        "versions": {"nodectl": version, "python": platform.python_version(), "numpy": np.__version__},
        **{name: value for name, value in more.items() if value is not None},
        "closed_loop": setting.closed_loop,
    }


def _files_of(choice: Choice) -> dict[str, Any]:
    """The marks of the files that the policy is made of."""
    files = {"origin": choice.origin, "model": choice.model_origin, "profile_file": choice.profile_origin}
    return {name: msgspec.to_builtins(one) for name, one in files.items() if one}


def _seed(setting: Setting) -> int | None:
    """None: nothing is drawn."""
    return setting.seed if setting.closed_loop or are_drawn(setting.failures) else None


def _machine(result: Result, setting: Setting, sha256: str) -> dict[str, Any]:
    world, of_file = result.world, {"sha256": sha256} if sha256 else {}
    if world.nodes is not None:
        given_by = setting.machine or table_of(world.trace.path) or "eurora"
        return {"nodes": len(world.nodes), "given_by": given_by} | of_file
    if world.ways is not None:
        return {"nodes": world.workload.processors, "given_by": setting.machine} | of_file
    given_by = "--machine" if setting.machine else "MaxProcs" if setting.state is None else "--state"
    more = {"given": setting.machine} if setting.machine and not setting.machine.isdecimal() else {}
    return {"processors": world.workload.processors, "given_by": given_by, **more, **of_file}


def write_swf(path: str, result: Result, policy: str) -> None:
    """The schedule as a job log: wait, run, processors and request as replayed, the rest as it was."""
    workload, jobs, start_s, run_s, width = result.world.workload, result.jobs, result.start_s, result.run_s, None
    if result.world.ways is not None:
        width = np.array([one.nodes for one in result.chosen if one is not None]) * result.world.ways.cores
    columns = workload.log.columns[:, workload.row]
    columns[swf.SUBMIT], columns[swf.RUN] = jobs.submit_s, run_s
    columns[swf.REQUEST] = jobs.request_s if workload.has_requests else -1
    columns[swf.ALLOCATED] = columns[swf.WANTED] = jobs.width if width is None else width
    columns[swf.WAIT] = np.where(start_s < 0, -1, start_s - jobs.submit_s)
    columns[swf.STATUS] = np.where(start_s < 0, swf.CANCELLED, np.where(workload.is_cut, swf.FAILED, swf.COMPLETED))
    columns = np.ascontiguousarray(columns)
    out = np.empty(columns.size * 21, np.uint8)
    size = lib.swf_format(pointer("int64_t", columns), len(jobs), pointer("char", out))
    header = {
        "Version": "2.2",
        "Computer": f"replay of {workload.name}",
        "MaxJobs": str(len(jobs)),
        "MaxRecords": str(len(jobs)),
        "MaxProcs": str(workload.processors),
        "Note": f"scheduled by {policy}; status {swf.FAILED}: ended at the requested time",
    }
    content = "".join(f"; {key}: {value}\n" for key, value in header.items()).encode() + out[:size].tobytes()
    with written_whole.one_file(path, "--swf") as file:
        file.write_bytes(swf.compressed(content) if path.endswith(".gz") else content)

"""A site's own history: the text of ``sacct --parsable2`` (Slurm), one line per job and per job step.

Made by, for example::

    sacct --allusers --duplicates --parsable2 --starttime 2026-01-01 --endtime 2026-02-01 --format \\
    JobID,JobName,User,Account,Partition,Submit,Start,End,ElapsedRaw,TimelimitRaw,State,NNodes,NCPUS,ReqMem,AllocTRES,\\
    ConsumedEnergyRaw

Needed: ``JobID, Submit, Start, End, NNodes, NCPUS`` (or ``AllocCPUS``). Used where present: ``Timelimit(Raw)``,
``State, User, Partition, JobName, Account, AllocTRES`` (or ``ReqTRES``, ``AllocGRES``, ``ReqGRES``) and ``ReqMem``,
``ConsumedEnergyRaw``. Watts are joules over run time; joules of 0 mean that nobody measured (Slurm's sacct manual).
Where the allocation's own line has no joules those of its steps are summed. Array tasks, and each run of a requeued
job, are jobs of their own. What did not run (pending, cancelled before its start) is dropped. Every job counts as
submitted when it was; columns ``Dependency`` and ``Reservation`` are only counted (``not_modelled``). Columns:
https://slurm.schedmd.com/sacct.html.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from cluster_agent.workloads.node_trace import NodeTrace, NodeTraceBuilder, Unusable
from cluster_agent.workloads.swf import TraceError
from cluster_agent.workloads.text_tables import text_of

NEEDED: Final = ("JobID", "Submit", "Start", "End", "NNodes")
ENERGY_STEPS_LEFT_OUT: Final = ("extern",)
"""Covers the whole allocation again."""

NO_TIME: Final = ("", "None", "Unknown")
UNITS_KIB: Final = {"K": 1, "M": 1 << 10, "G": 1 << 20, "T": 1 << 30, "P": 1 << 40}
MIC_NAMES: Final = ("mic", "phi")


def read_sacct(path: str, is_strict: bool = False) -> NodeTrace:
    """The jobs of the text; ``TraceError`` if there is none, or, if ``is_strict``, at the first that must be
    corrected."""
    text, sha256 = text_of(path)
    reader = csv.reader(io.StringIO(text), delimiter="|", quoting=csv.QUOTE_NONE)
    header = next(reader, [])
    missing = [name for name in NEEDED if name not in header]
    if not {"NCPUS", "AllocCPUS"} & set(header):
        missing.append("NCPUS")
    if missing:
        raise TraceError(f"{path}:1: no column {', '.join(missing)}; add it to sacct's --format, with --parsable2")
    builder = NodeTraceBuilder(path, sha256, is_strict)
    allocations: list[tuple[int, dict[str, str]]] = []
    steps_j: dict[int, float] = {}  # by the index of the allocation above the steps
    for values in reader:
        if not values:
            continue
        if len(values) != len(header):
            what = "lines with another number of columns than the first"
            builder.note(reader.line_num, what, "dropped", f"it has {len(values)} of {len(header)}: export it again")
            continue
        row = dict(zip(header, values, strict=True))
        job, dot, step = row["JobID"].partition(".")
        if not dot:
            allocations.append((reader.line_num, row))
        elif allocations and allocations[-1][1]["JobID"] == job and step not in ENERGY_STEPS_LEFT_OUT:
            at = len(allocations) - 1
            steps_j[at] = steps_j.get(at, 0.0) + _joules(row)
    seen: set[str] = set()
    for at, (line, row) in enumerate(allocations):
        ignored = _ignored(row, row["JobID"] in seen)
        seen.add(row["JobID"])
        builder.add(
            line,
            lambda row=row, at=at, ignored=ignored: _job(row, steps_j.get(at, 0.0)) | {"ignored": ignored},  # type: ignore[misc]
        )
    return builder.finish()


def _job(row: Mapping[str, str], steps_j: float) -> dict[str, Any]:
    _check_has_run(row)
    start_s, end_s = _time(row, "Start"), _time(row, "End")
    units = _count(row, "NNodes")
    cores = _count(row, "NCPUS" if "NCPUS" in row else "AllocCPUS")
    resources = ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES")
    tres = _tres(next((row[name] for name in resources if row.get(name)), ""))
    joules = _joules(row) or steps_j
    submit_s, run_s = _time(row, "Submit"), end_s - start_s
    return {
        "name": row["JobID"],
        "submit_s": submit_s,
        "wait_s": start_s - submit_s,
        "run_s": run_s,
        "request_s": _limit(row),
        "units": units,
        "cores": cores,
        "gpus": tres["gpus"],
        "mics": tres["mics"],
        "memory_kib": tres["memory_kib"] or _memory(row.get("ReqMem", ""), units, cores),
        "watts": joules / run_s if joules > 0 and run_s > 0 else None,
        "queue": row.get("Partition", ""),
        "user": row.get("User", ""),
        "text": " ".join(row[name] for name in ("JobName", "Account", "Partition") if row.get(name)),
    }


def _ignored(row: Mapping[str, str], is_again: bool) -> tuple[str, ...]:
    """What the job states and no replay looks at."""
    states = {
        "are tasks of an array": "_" in row["JobID"],
        "are later runs of a requeued job": is_again,
        "belong to a reservation": bool(row.get("Reservation")),
        "wait for a preceding job": row.get("Dependency", "") not in ("", "(null)"),
    }
    return tuple(what for what, is_so in states.items() if is_so)


def _check_has_run(row: Mapping[str, str]) -> None:
    """``Unusable`` unless the job has started and ended."""
    state = row.get("State", "").split(" ")[0]  # "CANCELLED by 1000"
    if row["Start"] in NO_TIME or state in ("PENDING", "REQUEUED", "RESIZING"):
        raise Unusable("jobs that did not run", "leave them out with sacct --state")
    if row["End"] in NO_TIME or state in ("RUNNING", "SUSPENDED"):
        raise Unusable("jobs that have not ended", "choose an earlier --endtime")


def _time(row: Mapping[str, str], column: str) -> int:
    try:
        when = datetime.fromisoformat(row[column])
    except ValueError:
        fix = f"{column} is {row[column]!r}: export it with SLURM_TIME_FORMAT=standard"
        raise Unusable("jobs with something that is no time", fix) from None
    return int((when.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds())


def _count(row: Mapping[str, str], column: str) -> int:
    if not row[column].isdecimal():
        raise Unusable("jobs with something that is no number", f"{column} is {row[column]!r}: write a number")
    return int(row[column])


def _joules(row: Mapping[str, str]) -> float:
    try:
        return float(row.get("ConsumedEnergyRaw") or 0)
    except ValueError:
        return 0.0  # not measured here


def _limit(row: Mapping[str, str]) -> int | None:
    """Seconds, or None where the job had no limit of its own (``UNLIMITED``, ``Partition_Limit``)."""
    if (raw := row.get("TimelimitRaw", "")).isdecimal():
        return 60 * int(raw) or None
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+)(?::(\d+))?", row.get("Timelimit", ""))
    if not found:
        return None
    days, first, second, third = (int(part or 0) for part in found.groups())
    if found[4] is None and found[1] is None:  # minutes:seconds
        return 60 * first + second or None
    return 86400 * days + 3600 * first + 60 * second + third or None


def _tres(text: str) -> dict[str, int]:
    """``cpu=16,mem=64G,node=1,gres/gpu=2,gres/gpu:a100=2`` or the older ``gpu:2,mic:1``.

    A typed entry repeats the untyped one, so of each kind the larger sum counts.
    """
    found = {"gpus": 0, "mics": 0, "memory_kib": 0}
    typed = {"gpus": 0, "mics": 0}
    for part in text.split(","):
        entry = re.fullmatch(r"(?:gres/)?([A-Za-z_]+)(?::([A-Za-z_][\w.-]*))?[:=]([\d.]+)([KMGTP]?)\w*", part.strip())
        if not entry:
            continue
        name, kind, amount = entry[1], entry[2], float(entry[3])
        if name == "mem":
            found["memory_kib"] = round(amount * UNITS_KIB[entry[4] or "M"])
        elif name == "gpu" or name in MIC_NAMES:
            counted = "gpus" if name == "gpu" else "mics"
            if kind:
                typed[counted] += int(amount)
            else:
                found[counted] = int(amount)
    for counted, amount in typed.items():
        found[counted] = max(found[counted], amount)
    return found


def _memory(text: str, units: int, cores: int) -> int:
    """``4000Mc`` per core and ``64Gn`` per node (before Slurm 21.08), ``64G`` for the job."""
    found = re.fullmatch(r"([\d.]+)([KMGTP]?)([cn]?)", text)
    if not found:
        return 0
    times = {"c": cores, "n": units, "": 1}[found[3]]
    return round(float(found[1]) * UNITS_KIB[found[2] or "M"] * times)

"""A site's own history: the text of ``sacct --parsable2`` (Slurm), one line per job and per job step.

Made by, for example::

    sacct --allusers --duplicates --parsable2 --starttime 2026-01-01 --endtime 2026-02-01 --format \\
    JobID,JobName,User,Account,Partition,Submit,Start,End,ElapsedRaw,TimelimitRaw,State,NNodes,NCPUS,ReqMem,AllocTRES,\\
    ConsumedEnergyRaw

Needed: ``JobID, Submit, Start, End, NNodes, NCPUS`` (or ``JobIDRaw, AllocNodes, AllocCPUS``). Used where present:
``Elapsed(Raw)``, ``Timelimit(Raw)``, ``State, User, Partition, JobName, Account, AllocTRES`` (or ``ReqTRES``,
``AllocGRES``, ``ReqGRES``), ``ReqMem``, ``NodeList`` and ``ConsumedEnergy(Raw)``.

**Time.** ``ElapsedRaw`` says how long a job ran: it has no suspensions in it, and no change of the clock. Only without
it the run is the time from ``Start`` to ``End``, which are local times unless ``SLURM_TIME_FORMAT`` gives an offset.

**Energy.** Slurm meters nodes, not steps: each step has the joules of its nodes while it ran, so steps that overlap
have the same joules, and a job's own line may have their sum. Each of ``extern`` (all nodes, all the time), ``batch``,
``interactive`` (the first node) and the numbered steps, of those that overlap the one with the most, is a lower bound
of what the nodes used. The highest of them counts, but no more than the job's own line has. Watts are joules over run
time; joules of 0 mean that nobody measured. Sentinels and watts that no node draws are taken as unmeasured.

The components of a heterogeneous job (400+0, 400+1) are one job, whose components start together. Array tasks and each
run of a requeued job are jobs of their own. What did not run
(pending, cancelled before its start) is dropped. Every job counts as submitted when it was; columns ``Dependency`` and
``Reservation`` are only counted (``not_modelled``).
Sources: https://slurm.schedmd.com/sacct.html; Slurm 23.11, ``src/slurmctld/step_mgr.c`` (a job's joules).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cluster_agent.cluster import MOST_PROCESSORS
from cluster_agent.workloads import sacct_values as values
from cluster_agent.workloads.node_trace import NodeTrace, NodeTraceBuilder, Unusable
from cluster_agent.workloads.swf import TraceError
from cluster_agent.workloads.text_tables import header_at, text_of

COLUMNS: Final = (
    "JobID", "JobIDRaw", "JobName", "User", "Account", "Partition", "Submit", "Start", "End", "Elapsed", "ElapsedRaw",
    "Timelimit", "TimelimitRaw", "State", "NNodes", "AllocNodes", "NCPUS", "AllocCPUS", "ReqMem", "AllocTRES",
    "ReqTRES", "AllocGRES", "ReqGRES", "ConsumedEnergy", "ConsumedEnergyRaw", "NodeList", "Dependency", "Reservation",
)  # fmt: skip
NEEDED: Final = (
    ("JobID", "JobIDRaw"),
    ("Submit",),
    ("Start",),
    ("End",),
    ("NNodes", "AllocNodes"),
    ("NCPUS", "AllocCPUS"),
)
"""Of each, one must be there; the first counts."""

MOST_NODE_W: Final = 20_000.0
"""Ours: no node draws more; the densest GPU servers have supplies of 15 to 18 kW."""

HOUR_S: Final = 3600
WHOLE_TIME: Final = ("extern", "batch", "interactive")
"""Steps that last as long as the job."""

RAN: Final = ("COMPLETED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED")
NOT_ENDED: Final = ("RUNNING", "SUSPENDED", "CONFIGURING", "STOPPED", "SIGNALING", "STAGE_OUT")
BEFORE_START: Final = (
    "CANCELLED", "DEADLINE", "REVOKED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT",
)  # fmt: skip
"""States in which a job that lasted 0 s has not started, unless it had nodes."""

type_row = dict[str, str]


@dataclass(slots=True)
class _Allocation:
    line: int
    row: type_row
    steps: list[type_row]


def read_sacct(path: str, is_strict: bool = False) -> NodeTrace:
    """The jobs of the text; ``TraceError`` if there is none, or, if ``is_strict``, at the first that must be
    corrected."""
    text, sha256 = text_of(path)
    builder = NodeTraceBuilder(path, sha256, is_strict, is_measured=True)
    allocations = _allocations(path, text, builder)
    seen = Counter[str]()
    is_local: bool | None = None
    for one in allocations:
        run = seen[one.row["JobID"]]
        seen[one.row["JobID"]] += 1
        if is_local is None and (first := values.moment(one.row["Submit"])) is not None:
            is_local = first.is_local
        builder.add(one.line, lambda one=one, run=run, is_local=is_local: _job(one, run, is_local))  # type: ignore[misc]
    return builder.finish()


# --- lines


def _allocations(path: str, text: str, builder: NodeTraceBuilder) -> list[_Allocation]:
    """The lines of jobs, each with those of its steps."""
    found: list[_Allocation] = []
    last: dict[str, _Allocation] = {}
    early: list[tuple[int, type_row]] = []  # steps above the line of their job
    for line, row in _rows(path, text, builder):
        job, dot, _ = row["JobID"].partition(".")
        if not dot:
            last[job] = _Allocation(line, row, [])
            found.append(last[job])
        elif job in last:
            last[job].steps.append(row)
        else:
            early.append((line, row))
    for line, row in early:
        job = row["JobID"].partition(".")[0]
        if job in last:
            last[job].steps.append(row)
        else:
            builder.note(line, "steps without the line of their job", "left out", "export it again, without a filter")
    return found


def _rows(path: str, text: str, builder: NodeTraceBuilder) -> Iterator[tuple[int, type_row]]:
    """The rows by column. A name or comment with an end of line in it makes one row of several lines."""
    all_lines = text.split("\n")
    header = header_at(all_lines)
    mark, names = _columns(f"{path}:{header + 1}", all_lines[header])
    for number, line in enumerate(all_lines[:header], 1):
        if line.strip():
            builder.note(number, "lines above the names of the columns", "left out", "export it with 2>/dev/null")
    lines = enumerate(all_lines[header + 1 :], header + 2)
    parts: list[tuple[int, str]] = []  # lines that are too short so far
    marks = 0
    for number, line in lines:
        here = line.count(mark)
        if here == len(names) - 1:  # whole, so what came before it was not
            _drop(parts, len(names), mark, builder)
            parts, marks = [], 0
            row = _row(names, line.split(mark))
            if row is not None:
                yield number, row
            continue
        if not parts and not line.strip():
            continue
        parts.append((number, line))
        marks += here
        if marks == len(names) - 1:
            row = _row(names, "\n".join(one for _, one in parts).split(mark))
            if row is not None:
                yield parts[0][0], row
            parts, marks = [], 0
        elif marks >= len(names):
            _drop(parts, len(names), mark, builder)
            parts, marks = [], 0
    _drop(parts, len(names), mark, builder)


def _drop(parts: Sequence[tuple[int, str]], columns: int, mark: str, builder: NodeTraceBuilder) -> None:
    for number, line in parts:
        if line.strip():
            what = "lines with another number of columns than the first"
            fix = f"it has {line.count(mark) + 1} of {columns}: export it again"
            builder.note(number, what, "dropped", fix)


def _columns(where: str, header: str) -> tuple[str, list[str]]:
    """What separates the columns, and their names. A separator at the end (``--parsable``) gives a last name of ""."""
    mark = _mark(where, header)
    known = {name.lower(): name for name in COLUMNS}
    names = [known.get(name.strip().lower(), name.strip()) for name in header.split(mark)]
    _check_needed(where, names)
    if twice := [name for at, name in enumerate(names) if name and name in names[:at]]:
        raise TraceError(f"{where}: the column {twice[0]} occurs twice; name it once in sacct's --format")
    return mark, names


def _check_needed(where: str, names: list[str]) -> None:
    missing = [choice[0] for choice in NEEDED if not set(choice) & set(names)]
    if names[0].startswith(('"', "'")):
        raise TraceError(f"{where}: its columns are in quotes, which sacct does not write; export it with --parsable2")
    if len(missing) == len(NEEDED):
        raise TraceError(f"{where}: it does not name the columns of sacct; export it again without --noheader")
    if missing:
        raise TraceError(f"{where}: no column {', '.join(missing)}; add it to sacct's --format, with --parsable2")


def _mark(where: str, header: str) -> str:
    """``|``, or what ``--delimiter`` was given."""
    found = re.search(r"(?i)\bjob(?:idraw|id|name)\b(\W+)\w", header)
    mark = "|" if "|" in header or not found else found[1]
    if (mark.isspace() and mark != "\t") or mark.strip() == ",":  # for people, or with commas that AllocTRES has too
        raise TraceError(f"{where}: its columns are not separated by '|'; export it with sacct --parsable2")
    return mark


def _row(names: list[str], cells: list[str]) -> type_row | None:
    """By column, those of ``NEEDED`` by their first name; None for a header among the rows (exports one after the
    other)."""
    row = {name: cell.strip().lstrip("\ufeff") for name, cell in zip(names, cells, strict=True)}
    for choice in NEEDED:
        row[choice[0]] = next((row[name] for name in choice if name in row), "")
    return None if row["JobID"].lower() in ("jobid", "jobidraw") else row


# --- jobs

type_notes = list[tuple[str, str, str]]
"""What was corrected of a job, as arguments of ``NodeTraceBuilder.note``."""


def _job(one: _Allocation, run: int, is_local: bool | None) -> dict[str, Any]:
    """One job in the terms of ``NodeTraceBuilder``, or a component of one. ``run``: how often it has run before."""
    row, notes = one.row, type_notes()
    submit_s, wait_s, run_s = _times(row, is_local, notes)
    units, cores = _count(row, "NNodes"), _count(row, "NCPUS")
    found = values.resources([row.get(name, "") for name in ("AllocTRES", "AllocGRES", "ReqTRES", "ReqGRES")])
    return {
        "name": row["JobID"],
        "submit_s": submit_s,
        "wait_s": wait_s,
        "run_s": run_s,
        "request_s": _limit(row, notes),
        "units": units,
        "cores": cores,
        "gpus": found.gpus,
        "mics": found.mics,
        "memory_kib": _memory(row, found, units, cores, notes),
        "watts": _watts(one, found.joules, run_s, units, notes),
        "queue": row.get("Partition", ""),
        "user": row.get("User", ""),
        "text": " ".join(row[name] for name in ("JobName", "Account", "Partition") if row.get(name)),
        "ignored": _ignored(row, run > 0),
        "component_of": (row["JobID"].partition("+")[0], run) if "+" in row["JobID"] else (),
        "notes": notes,
    }


def _times(row: type_row, is_local: bool | None, notes: type_notes) -> tuple[int, int, int]:
    """When it was submitted, how long it waited and ran; ``Unusable`` unless it has started and ended."""
    state = values.state(row.get("State", ""))
    if row["Start"] in values.NO_TIME or state == "PENDING":
        raise _did_not_run()
    if row["End"] in values.NO_TIME or state in NOT_ENDED:
        raise Unusable("jobs that have not ended", "choose an earlier --endtime")
    submit_s, start_s, end_s = (_time(row, column, is_local) for column in ("Submit", "Start", "End"))
    run_s = values.seconds(row.get("ElapsedRaw", ""), row.get("Elapsed", ""))
    run_s = end_s - start_s if run_s is None else run_s
    if run_s == 0 and _had_no_nodes(row, state):
        raise _did_not_run()
    wait_s = start_s - submit_s
    if is_local and -HOUR_S <= wait_s < 0:  # the clock was set back while it waited
        fix = "export with SLURM_TIME_FORMAT=%FT%T%z"
        notes.append(("jobs that start in the hour before their submission", "taken as started an hour later", fix))
        wait_s += HOUR_S
    return submit_s, wait_s, run_s


def _memory(row: type_row, found: values.Resources, units: int, cores: int, notes: type_notes) -> int:
    memory_kib = found.memory_kib or values.memory_kib(row.get("ReqMem", ""), units, cores)
    if found.is_odd or memory_kib is None:
        fix = "correct AllocTRES, AllocGRES or ReqMem"
        notes.append(("jobs with an amount of memory or cards that is no number", "taken as none", fix))
    return memory_kib or 0


def _limit(row: type_row, notes: type_notes) -> int | None:
    request_s, is_odd = values.limit_s(row.get("TimelimitRaw", ""), row.get("Timelimit", ""))
    if not is_odd and (request_s or 0) <= values.MOST_LIMIT_S:
        return request_s
    notes.append(("jobs with a time limit that is none", "taken as without", "write minutes into TimelimitRaw"))
    return None


def _did_not_run() -> Unusable:
    return Unusable("jobs that did not run", "leave them out with sacct --state")


def _had_no_nodes(row: type_row, state: str) -> bool:
    """Whether a job that lasted 0 s never started. One that ended within its first second has nodes."""
    if state in RAN:
        return False
    if "NodeList" in row:
        return row["NodeList"] in ("", "None assigned", "None", "(null)")
    if "AllocTRES" in row:
        return not row["AllocTRES"]
    return state in BEFORE_START


def _ignored(row: type_row, is_again: bool) -> tuple[str, ...]:
    """What the job states and no replay looks at."""
    states = {
        "are tasks of an array": "_" in row["JobID"],
        "are later runs of a requeued job": is_again,
        "belong to a reservation": bool(row.get("Reservation")),
        "wait for a preceding job": row.get("Dependency", "") not in ("", "(null)"),
    }
    return tuple(what for what, is_so in states.items() if is_so)


def _time(row: type_row, column: str, is_local: bool | None) -> int:
    found = values.moment(row[column])
    if found is None:
        fix = f"{column} is {_short(row[column])}: export it with SLURM_TIME_FORMAT=standard"
        raise Unusable("jobs with something that is no time", fix)
    if found.is_local != is_local:
        fix = f"{column} is {_short(row[column])}: export all with SLURM_TIME_FORMAT=%FT%T%z"
        raise Unusable("jobs with a time that has no offset from UTC, unlike others, or only it has one", fix)
    return found.at_s


def _count(row: type_row, column: str) -> int:
    found = values.count(row[column])
    if found is None:
        fix = f"{column} is {_short(row[column])}: write a number up to {MOST_PROCESSORS}"
        raise Unusable("jobs with something that is no number", fix)
    return found


def _short(text: str) -> str:
    """For a message: one line, whatever the field has."""
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


# --- energy


def _watts(one: _Allocation, of_tres: str, run_s: int, units: int, notes: type_notes) -> float | None:
    """Of the whole job on average; None: unmeasured."""
    done, fix = "taken as unmeasured", "leave its ConsumedEnergyRaw empty"
    own_j, is_odd = _joules(one.row, of_tres)
    steps = [(row, *_joules(row)) for row in one.steps]
    of_steps_j = _of_steps([(row, joules) for row, joules, _ in steps])
    joules = min(own_j, of_steps_j) if own_j and of_steps_j else own_j or of_steps_j
    if not joules:
        if is_odd or any(odd for _, _, odd in steps):
            notes.append(("jobs with joules that no meter gives (a sentinel of Slurm, or no number)", done, fix))
        return None
    if run_s > 0 and joules / run_s > MOST_NODE_W * max(units, 1):
        notes.append((f"jobs with more than {MOST_NODE_W / 1000:g} kW a node", done, fix))
        return None
    return joules / run_s if run_s > 0 else None


def _joules(row: type_row, of_tres: str = "") -> tuple[float, bool]:
    return values.joules(row.get("ConsumedEnergyRaw") or row.get("ConsumedEnergy") or of_tres)


def _of_steps(steps: Sequence[tuple[type_row, float]]) -> float:
    """The joules that the nodes used at least, by the steps."""
    most_j = 0.0
    numbered: list[tuple[float, float, float]] = []
    for row, joules in steps:
        if row["JobID"].partition(".")[2] in WHOLE_TIME:
            most_j = max(most_j, joules)
        elif joules:
            numbered.append((*_span(row), joules))
    return max(most_j, _apart(numbered))


def _span(row: type_row) -> tuple[float, float]:
    """From when to when a step ran; all the time if that is not known."""
    start = values.moment(row["Start"])
    run_s = values.seconds(row.get("ElapsedRaw", ""), row.get("Elapsed", ""))
    if start is not None and run_s is None and (end := values.moment(row["End"])) is not None:
        run_s = end.at_s - start.at_s
    if start is None or run_s is None:
        return -float("inf"), float("inf")
    return start.at_s, start.at_s + max(run_s, 0)


def _apart(spans: Sequence[tuple[float, float, float]]) -> float:
    """The most joules of spans of which no two overlap (weighted interval scheduling, O(n log n))."""
    ends: list[float] = []
    best = [0.0]
    for start, end, joules in sorted(spans, key=lambda one: one[1]):
        best.append(max(best[-1], best[bisect_right(ends, start)] + joules))
        ends.append(end)
    return best[-1]

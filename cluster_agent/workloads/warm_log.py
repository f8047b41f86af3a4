"""A state and what comes after it, as one log: the jobs of ``--state``, and those that a LOG submits later.

A job of the state that the log has too, by its number, is one job. Its start is the state's, and its end if it has
ended; for how long it runs else, the log says. A job of the state alone runs for its ``run_s``, else for its request.
What the log submits before the state was taken and the state does not have is dropped, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from cluster_agent.scheduler.job_columns import Bools, Int64s
from cluster_agent.scheduler.recorded import Recorded
from cluster_agent.workloads.job_log import LONGEST_S, Workload, prepare, width_of
from cluster_agent.workloads.state_file import MachineState, StateError, StateJob, wider_than
from cluster_agent.workloads.swf import (
    CANCELLED,
    COMPLETED,
    NUMBER,
    REQUEST,
    RUN,
    STATUS,
    SUBMIT,
    USER,
    WANTED,
    Finding,
    Log,
)

COLUMNS: Final = 18
FIRST_LINE: Final = 2
"""The line of the first job in a state that was exported."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a warm replay starts. ``passes_at_once``: see ``Recorded``."""

    path: str
    sha256: str
    state: MachineState
    passes_at_once: bool


@dataclass(frozen=True, slots=True)
class Warm:
    """``in_no_log``: jobs that wait or run in the state, and of which no log says for how long they run."""

    workload: Workload
    recorded: Recorded
    in_no_log: int


def warm(start: Start, log: Log | None, processors: int, needs_requests: bool = True, is_strict: bool = False) -> Warm:
    """The jobs for a machine of ``processors``, and when those of the state were started. ``log`` None: no others."""
    state = start.state
    if reason := wider_than(state.jobs, processors):
        raise StateError(f"{start.path}: {reason}")
    left_out = without_room(state.jobs, processors)
    lines = {job.job: place + FIRST_LINE for place, job in enumerate(state.jobs)}
    jobs = [job for job in state.jobs if job.job not in left_out]
    joined, alone = _joined(start, jobs, lines, log)
    workload = prepare(joined, processors, needs_requests, is_strict)
    if left_out:
        what, fix = "jobs of the state that have ended and had no room next to the others", "correct their times"
        finding = Finding(what, "left out", len(left_out), min(lines[job] for job in left_out), fix)
        workload = replace(workload, findings=(*workload.findings, finding))
    start_of = {job.job: job.start_s for job in jobs if job.start_s is not None}
    start_s = np.array([start_of.get(number, -1) for number in workload.jobs.number.tolist()], np.int64)
    if gone := start_of.keys() - set(workload.jobs.number.tolist()):
        raise StateError(f"{start.path}: job {min(gone)} was started, and the log has it as no job: correct its line")
    in_no_log = sum(job.what != "ended" for job in alone)
    return Warm(workload, Recorded(start_s, state.t0_s, start.passes_at_once), in_no_log)


def without_room(jobs: list[StateJob], processors: int) -> set[int]:
    """Jobs that have ended without which the others fit the machine at any time; of those in question, the one that
    started last. A live partition starts jobs within the second in which others end."""
    left_out: set[int] = set()
    used, active = 0, dict[int, StateJob]()
    for _, is_start, _, job in sorted(_steps(jobs)):
        if not is_start:
            used -= job.width if active.pop(job.job, None) else 0
            continue
        used += job.width
        if job.what == "ended":
            active[job.job] = job
        while used > processors:  # those that run fit, so there is one that has ended
            last = max(active.values(), key=lambda one: (one.start_s, one.job))
            del active[last.job]
            left_out.add(last.job)
            used -= last.width
    return left_out


def _steps(jobs: list[StateJob]) -> list[tuple[int, bool, int, StateJob]]:
    """Ends and starts by time, at one instant ends first."""
    steps = []
    for job in jobs:
        if job.start_s is not None:
            steps.append((job.start_s, True, job.job, job))
            if job.what == "ended" and job.stays_s is not None:
                steps.append((job.start_s + job.stays_s, False, job.job, job))
    return steps


def _joined(start: Start, jobs: list[StateJob], lines: dict[int, int], log: Log | None) -> tuple[Log, list[StateJob]]:
    """The jobs of the state and those of the log that come later; and which of the state are not in the log."""
    if log is None:
        log = Log(start.path, start.sha256, {}, np.empty((COLUMNS, 0), np.int64), np.empty(0, np.int64), ())
    columns, findings = log.columns.copy(), list(log.findings)
    columns[SUBMIT] += np.where(columns[SUBMIT] >= 0, _shift_s(start, log), 0)
    row_of, is_early = _rows_of(start, jobs, log.path, columns)
    late = []
    for job in jobs:
        if job.job in row_of and _known(columns[:, row_of[job.job]], job, start.state.t0_s):
            late.append(row_of[job.job])
    if late:
        what, fix = "jobs that run in the state and had ended in the log", "take the state later"
        findings.append(_finding(log, np.array(late), what, "taken as ending with the state", fix))
    is_early[list(row_of.values())] = False
    if is_early.any():
        what, fix = "jobs submitted before the state that it does not have", "add them to the state, or delete them"
        findings.append(_finding(log, np.flatnonzero(is_early), what, "dropped", fix))
    alone = [job for job in jobs if job.job not in row_of]
    columns = np.concatenate([_columns(alone, start.state.t0_s), columns[:, ~is_early]], axis=1)
    line = np.concatenate([np.array([lines[job.job] for job in alone], np.int64), log.lines[~is_early]])
    if alone:
        order = np.argsort(columns[SUBMIT], kind="stable")
        columns, line = columns[:, order], line[order]
    return Log(log.path, log.sha256, log.header, columns, line, tuple(findings)), alone


def _shift_s(start: Start, log: Log) -> int:
    """Seconds from the state's second 0 to the log's."""
    unix_s, state = unix_start_s(log), start.state
    if state.zero_unix_s is None or log.path == start.path:
        return 0
    if unix_s is None and state.source == "partition":
        raise StateError(
            f"{log.path}: its header has no UnixStartTime, and the times of {start.path} are Unix seconds: add a line"
            f" `; UnixStartTime: SECONDS` (the state was taken at {state.t0_s})"
        )
    return 0 if unix_s is None else unix_s - state.zero_unix_s


def unix_start_s(log: Log) -> int | None:
    """The Unix time of the log's second 0, if its header states it."""
    first = log.header.get("UnixStartTime", "").split(maxsplit=1)[:1]
    return int(first[0]) if first and first[0].isdecimal() and int(first[0]) <= LONGEST_S else None


def _rows_of(start: Start, jobs: list[StateJob], path: str, columns: Int64s) -> tuple[dict[int, int], Bools]:
    """Which row of the log each job of the state is, and which rows are submitted before the state was taken."""
    is_early = (columns[SUBMIT] >= 0) & (columns[SUBMIT] < start.state.t0_s)
    job_of = {job.job: job for job in jobs}
    row_of: dict[int, int] = {}
    width = width_of([*columns])
    for row in np.flatnonzero(np.isin(columns[NUMBER], np.array(list(job_of), np.int64))).tolist():
        number = int(columns[NUMBER, row])
        job = job_of[number]
        if number in row_of:
            raise StateError(f"{path}: job {number} is in it twice, and once in {start.path}: renumber one (column 1)")
        if (int(columns[SUBMIT, row]), int(width[row])) != (job.submit_s, job.width):
            raise StateError(
                f"{path}: job {number} is submitted at {columns[SUBMIT, row]} s for {width[row]} processors, and in"
                f" {start.path} at {job.submit_s} s for {job.width}: renumber it if it is another job (column 1)"
            )
        row_of[number] = row
    return row_of, is_early


def _known(row: Int64s, job: StateJob, t0_s: int) -> bool:
    """Complete the log's row by what the state knows; whether the job had ended in the log before the state."""
    if job.what == "queued":
        row[RUN] = row[RUN] if row[RUN] >= 0 else job.stays_s or -1
        return False
    least_s, was_s = _least_s(job, t0_s), int(row[RUN])
    row[STATUS] = COMPLETED if row[STATUS] == CANCELLED else row[STATUS]
    row[RUN] = least_s if job.what == "ended" else max(was_s if was_s >= 0 else job.stays_s or 1, least_s)
    row[REQUEST] = max(row[REQUEST], least_s) if row[REQUEST] > 0 else row[REQUEST]
    return job.what == "running" and 0 <= was_s < least_s


def _least_s(job: StateJob, t0_s: int) -> int:
    """For how long the job has run: until its end, or until the state was taken."""
    if job.start_s is None:
        return 0
    return max((t0_s if job.end_s is None else job.end_s) - job.start_s, 1)


def _columns(jobs: list[StateJob], t0_s: int) -> Int64s:
    """Rows of a log for these jobs."""
    columns = np.full((COLUMNS, len(jobs)), -1, np.int64)
    for row, job in zip(columns.T, jobs, strict=True):
        run_s = max(job.stays_s or 1, _least_s(job, t0_s))
        row[[NUMBER, SUBMIT, RUN, WANTED, USER, STATUS]] = job.job, job.submit_s, run_s, job.width, job.user, COMPLETED
        row[REQUEST] = -1 if job.request_s is None else max(job.request_s, _least_s(job, t0_s))
    return columns


def _finding(log: Log, rows: Int64s, what: str, done: str, fix: str) -> Finding:
    return Finding(what, done, len(rows), int(log.lines[rows].min()), fix)

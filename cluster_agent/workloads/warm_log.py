"""A state and what comes after it, as one log: the jobs of ``--state``, and those that a LOG submits later.

A job of the state that the log has too, by its number, is one job. Its start is the state's, and its end if it has
ended; for how long it runs else, the log says. A job of the state alone runs for its ``run_s``, else for its request.
What the log submits before the state was taken and the state does not have is dropped, and counted.

The jobs are those of the policy that led to the state, to be replayed from the start (``again``), or those of another
one that starts from it (``Recorded``). For that one a job runs at the highest frequency for so long that at its level
it ends when it did, or when what is left of it is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from cluster_agent.cap_steps import FOREVER_S, Cap
from cluster_agent.scheduler import recorded
from cluster_agent.scheduler.energy_window import Budget
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


class Start(msgspec.Struct, frozen=True):
    """Where a warm replay starts. ``slowdown``: of the machine's frequencies; None: it has no watts, and levels do not
    count."""

    path: str
    sha256: str
    state: MachineState
    slowdown: Sequence[float] | None = None


class Warm(msgspec.Struct, frozen=True):
    """``recorded`` None: the policy's own past. ``in_no_log``: jobs that wait or run in the state, and of which no log
    says for how long they run."""

    workload: Workload
    recorded: Recorded | None
    in_no_log: int


def again(start: Start, log: Log | None, processors: int, needs_requests: bool = True, is_strict: bool = False) -> Warm:
    """The jobs for a machine of ``processors`` and for the policy that led to the state. ``log`` None: no others."""
    _check(start, processors)
    joined, alone = _joined(start, start.state.jobs, log, is_own=True)
    return Warm(prepare(joined, processors, needs_requests, is_strict), None, _in_no_log(alone))


def warm(start: Start, log: Log | None, processors: int, needs_requests: bool = True, is_strict: bool = False) -> Warm:
    """The same for another policy, and when those of the state were started."""
    _check(start, processors)
    state = start.state
    killed = {job.job for job in state.jobs if job.is_killed}
    crowded = without_room([job for job in state.jobs if not job.is_killed], processors)
    jobs = [job for job in state.jobs if job.job not in killed | crowded]
    joined, alone = _joined(start, jobs, log)
    workload = prepare(joined, processors, needs_requests, is_strict)
    findings = [
        *_left_out(state, crowded, "that have ended and had no room next to the others", "correct their times"),
        *_left_out(state, killed, "that were killed, from which no policy learns", "nothing needs to be done"),
    ]
    workload = replace(workload, findings=(*workload.findings, *findings))
    return Warm(workload, _recorded(start, jobs, workload), _in_no_log(alone))


def in_order(start: Start, workload: Workload) -> Recorded:
    """When the jobs were started, where they join the queue in the state's order."""
    _check(start, workload.processors)
    state = start.state
    starts = [
        recorded.Start(job.start_s, index, _pace(start, job)[0])
        for index, job in enumerate(state.jobs[: len(workload.jobs)])
        if job.start_s is not None
    ]
    return Recorded(sorted(starts), state.t0_s)


def _recorded(start: Start, jobs: list[StateJob], workload: Workload) -> Recorded:
    index = {number: job for job, number in enumerate(workload.jobs.number.tolist())}
    starts = []
    for job in jobs:
        if job.start_s is None:
            continue
        if job.job not in index:
            line = f"job {job.job} was started, and the log has it as no job: correct its line"
            raise StateError(f"{start.path}: {line}")
        starts.append(recorded.Start(job.start_s, index[job.job], _pace(start, job)[0]))
    return Recorded(sorted(starts), start.state.t0_s)


def _left_out(state: MachineState, jobs: set[int], which: str, fix: str) -> list[Finding]:
    if not jobs:
        return []
    return [Finding(f"jobs of the state {which}", "left out", len(jobs), min(_lines(state)[job] for job in jobs), fix)]


def budget_from(budget: Budget, state: MachineState) -> Budget | None:
    """What is left of a budget: its limit, and what the state says that it has stored, else none. None: it is over."""
    if budget.from_s >= state.t0_s:
        return budget
    if budget.to_s <= state.t0_s:
        return None
    left_j = budget.limit_w * (budget.to_s - state.t0_s)
    return replace(budget, from_s=state.t0_s, joules=left_j, stored_j=state.stored_j or 0.0)


def caps_from(caps: Sequence[Cap], t0_s: int) -> list[Cap]:
    """The caps for a policy that starts from the state: none before, then all that is known."""
    return [
        replace(cap, from_s=max(cap.from_s, t0_s), announced_s=max(cap.announced_s, t0_s))
        for cap in caps
        if cap.to_s > t0_s
    ]


def moved(caps: Sequence[Cap], seconds: int) -> list[Cap]:
    """All of them so much later."""
    return [
        replace(
            cap,
            from_s=cap.from_s + seconds,
            to_s=min(cap.to_s + seconds, FOREVER_S),
            announced_s=cap.announced_s + seconds,
        )
        for cap in caps
    ]


def _lines(state: MachineState) -> dict[int, int]:
    return {job.job: place + FIRST_LINE for place, job in enumerate(state.jobs)}


def _in_no_log(alone: list[StateJob]) -> int:
    return sum(job.what != "ended" for job in alone)


def _check(start: Start, processors: int) -> None:
    reason, levels = wider_than(start.state.jobs, processors), len(start.slowdown or ())
    for job in start.state.jobs:
        if job.level >= levels > 0:
            has = f"the machine has {levels}: give the state's --machine"
            reason = reason or f"job {job.job} is at frequency {job.level} (0 is the highest), and {has}"
    if reason:
        raise StateError(f"{start.path}: {reason}")


def _pace(start: Start, job: StateJob) -> tuple[int, float]:
    """The frequency at which the job is started, and its slowdown."""
    if start.slowdown is None:
        return 0, 1.0
    if job.start_s is not None and job.end_s is not None and job.end_s - job.start_s < start.slowdown[job.level]:
        return 0, 1.0
    return job.level, start.slowdown[job.level]


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


def _joined(start: Start, jobs: list[StateJob], log: Log | None, is_own: bool = False) -> tuple[Log, list[StateJob]]:
    """The jobs of the state and those of the log that come later; and which of the state are not in the log."""
    if log is None:
        log = Log(start.path, start.sha256, {}, np.empty((COLUMNS, 0), np.int64), np.empty(0, np.int64), ())
    columns, findings, lines = log.columns.copy(), list(log.findings), _lines(start.state)
    columns[SUBMIT] += np.where(columns[SUBMIT] >= 0, shift_s(start, log), 0)
    row_of, is_early = _rows_of(start, jobs, log.path, columns)
    late = []
    for job in jobs:
        if not is_own and job.job in row_of and _known(start, columns[:, row_of[job.job]], job):
            late.append(row_of[job.job])
    if late:
        what, fix = "jobs that run in the state and had ended in the log", "take the state later"
        findings.append(Finding(what, "taken as ending with the state", len(late), int(log.lines[late].min()), fix))
    is_early[list(row_of.values())] = False
    if is_early.any():
        findings.append(not_in_state(log.lines[is_early]))
    alone = [job for job in jobs if job.job not in row_of]
    columns = np.concatenate([_columns(start, alone, is_own), columns[:, ~is_early]], axis=1)
    line = np.concatenate([np.array([lines[job.job] for job in alone], np.int64), log.lines[~is_early]])
    if alone:
        order = np.argsort(columns[SUBMIT], kind="stable")
        columns, line = columns[:, order], line[order]
    return Log(log.path, log.sha256, log.header, columns, line, tuple(findings)), alone


def not_in_state(lines: Int64s) -> Finding:
    """That the jobs of these lines are left out."""
    what, fix = "jobs submitted before the state that it does not have", "add them to the state, or delete them"
    return Finding(what, "dropped", len(lines), int(lines.min()), fix)


def shift_s(start: Start, log: Log | None) -> int:
    """Seconds from the state's second 0 to the log's."""
    if log is None or start.state.zero_unix_s is None or log.path == start.path:
        return 0
    unix_s, state = unix_start_s(log), start.state
    if unix_s is None and state.source == "partition":
        raise StateError(
            f"{log.path}: its header has no UnixStartTime, and the times of {start.path} are Unix seconds: add a line"
            f" `; UnixStartTime: SECONDS` (the state was taken at {state.t0_s})"
        )
    return 0 if unix_s is None or state.zero_unix_s is None else unix_s - state.zero_unix_s


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


def _known(start: Start, row: Int64s, job: StateJob) -> bool:
    """Complete the log's row by what the state knows; whether the job had ended in the log before the state."""
    if job.what == "queued":
        row[RUN] = row[RUN] if row[RUN] >= 0 else job.stays_s or -1
        return False
    was_s = int(row[RUN]) if row[RUN] >= 0 else None
    row[STATUS] = COMPLETED if row[STATUS] == CANCELLED else row[STATUS]
    row[RUN] = _length_s(start, job, was_s)
    row[REQUEST] = _requested_s(start, job, int(row[REQUEST])) if row[REQUEST] > 0 else row[REQUEST]
    return job.what == "running" and was_s is not None and _so_far_s(start, job, was_s) < _least_s(start, job)


def _least_s(start: Start, job: StateJob) -> int:
    """For how long the job has run, counted at the highest frequency: until its end, or until the state was taken."""
    if job.start_s is None:
        return 0
    until_s = start.state.t0_s if job.end_s is None else job.end_s
    wall_s, slowdown = until_s - job.start_s, _pace(start, job)[1]
    return max(int(wall_s / slowdown) if job.what == "ended" else ceil(wall_s / slowdown), 1)


def _so_far_s(start: Start, job: StateJob, length_s: int) -> int:
    """So long a run of ``length_s`` is made that what is left of it when the state was taken is what is left."""
    if job.done_s is None or job.start_s is None:
        return length_s
    return length_s + round((start.state.t0_s - job.start_s) / _pace(start, job)[1] - job.done_s)


def _length_s(start: Start, job: StateJob, in_log_s: int | None) -> int:
    """For how long the job is to run. ``in_log_s``: in the log, if it is known."""
    least_s = _least_s(start, job)
    if job.what == "ended":
        return least_s if start.slowdown is None else min(job.run_s or least_s, least_s)
    return max(_so_far_s(start, job, job.stays_s or 1 if in_log_s is None else in_log_s), least_s)


def _requested_s(start: Start, job: StateJob, request_s: int) -> int:
    return max(_so_far_s(start, job, request_s) if job.what == "running" else request_s, _least_s(start, job))


def _columns(start: Start, jobs: list[StateJob], is_own: bool) -> Int64s:
    """Rows of a log for these jobs."""
    columns = np.full((COLUMNS, len(jobs)), -1, np.int64)
    for row, job in zip(columns.T, jobs, strict=True):
        row[[NUMBER, SUBMIT, WANTED, USER, STATUS]] = job.job, job.submit_s, job.width, job.user, COMPLETED
        if is_own:
            longest_s = job.request_s if job.is_killed else None  # it was killed before that
            row[RUN], row[REQUEST] = job.run_s or longest_s or job.stays_s or 1, job.request_s or -1
            continue
        row[RUN] = _length_s(start, job, None)
        row[REQUEST] = -1 if job.request_s is None else _requested_s(start, job, job.request_s)
    return columns

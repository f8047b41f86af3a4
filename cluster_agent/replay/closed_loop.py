"""Closed loop: submissions that follow from the schedule. A user who waits for results submits the next job later.

In a log the submission times are fixed, so a slower scheduler only has longer queues and a faster one idle processors.
Here they follow from what the scheduler does (Shmueli, Feitelson, IEEE TPDS 20(10), 2009; Zakay, Feitelson, MASCOTS
2014):

think=log       A job whose user had no job left when he submitted it comes as long after the end of his last job as in
                the log. A job that he submitted earlier comes as long after his submission before it as in the log.
think=SECONDS   as think=log, but the think time is random, exponential with this mean
queue=N         jobs come in the order of the log, each one second after fewer than N are waiting
preceding       a job that by the log waits for another one (columns 17 and 18 of the Standard Workload Format) comes as
                long after the end of that one as the log says; the others come as in the log

A job comes at least one second after the event that it follows. The result is a workload with other submission times,
in their order; an ordinary replay of it gives the same schedule. The loop is native (``csrc/answering.h``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.job_columns import Int32s, Int64s, Jobs
from cluster_agent.scheduler.native.answering import Answering
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.power_phases import Power
from cluster_agent.workloads.job_log import Workload
from cluster_agent.workloads.job_watts import of_jobs
from cluster_agent.workloads.swf import NUMBER, PRECEDING, THINK, WAIT, Finding

PRECEDES: Final = "preceding"
NONE_PRECEDES: Final = "no job of this trace says that it waits for an earlier one; choose another loop"
Precedes: TypeAlias = tuple[Int32s, Int64s]
"""For each job the place of the one before it, -1: none; and seconds after the end of that one."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """``think_s`` and ``queue`` None: the think times of the log, of users or of jobs that others precede."""

    think_s: float | None = None
    queue: int | None = None
    is_preceding: bool = False
    seed: int = 0


def closed_loop(text: str, seed: int) -> ClosedLoop:
    """``think=log``, ``think=SECONDS``, ``queue=N`` or ``preceding``; ``WrongUseError`` otherwise."""
    key, _, value = text.partition("=")
    try:
        if text == "think=log":
            return ClosedLoop(seed=seed)
        if text == PRECEDES:
            return ClosedLoop(is_preceding=True, seed=seed)
        if key == "think" and 1 <= float(value) < float("inf"):
            return ClosedLoop(think_s=float(value), seed=seed)
        if key == "queue" and int(value) >= 1:
            return ClosedLoop(queue=int(value), seed=seed)
    except ValueError:
        pass
    known = "think=log, think=SECONDS (1 or more), queue=JOBS (1 or more) or preceding"
    raise WrongUseError(f"--closed-loop {text}: give {known}")


def answering(
    workload: Workload, watts: Watts | None, power: Power | None, loop: ClosedLoop
) -> tuple[Workload, Watts | None, Answering]:
    """A workload to be filled in by a replay of the loop: the jobs as submitted, and their watts in that order.

    ``watts`` have the columns that the policy needs (``job_watts.of_jobs``).
    """
    columns = workload.log.columns[:, workload.row]
    precedes: Precedes | None = None
    if loop.is_preceding:
        precedes, missing = _precedes(columns[NUMBER], columns[PRECEDING], columns[THINK])
        if len(missing):
            workload = replace(
                workload, findings=(*workload.findings, _not_before(workload.log.lines[workload.row[missing]]))
            )
    jobs, answers = submissions(workload.jobs, columns[WAIT], loop, precedes)
    table = answers.table
    submitted = replace(workload, jobs=jobs, row=table(workload.row), is_cut=table(workload.is_cut))
    if watts is not None:
        is_predicted = watts.new_predictor is not None  # the predictor must see jobs in the order of submission
        watts = replace(
            watts,
            job_busy_uw=None if watts.job_busy_uw is None else table(watts.job_busy_uw),
            job_plan_uw=None if watts.job_plan_uw is None or is_predicted else table(watts.job_plan_uw),
            job_lowest=None if watts.job_lowest is None else table(watts.job_lowest),
        )
        if power is not None:
            watts = of_jobs(watts, submitted, power)
    return submitted, watts, answers


def submissions(
    jobs: Jobs, waited_s: Int64s, loop: ClosedLoop, precedes: Precedes | None = None
) -> tuple[Jobs, Answering]:
    """A table of jobs to be filled in by a replay of the loop. ``waited_s``: in the log, below 0 where unknown.
    ``precedes``: with ``preceding``."""
    gap_s, think_s = _users(jobs, waited_s, loop)
    preceding = None
    if loop.is_preceding:
        if precedes is None:
            raise WrongUseError(f"--closed-loop {PRECEDES}: {NONE_PRECEDES}")
        preceding, think_s = precedes
    answers = Answering(loop.queue or 0, jobs.submit_s, jobs.user, gap_s, think_s, preceding)
    return Jobs(**{name: answers.table(getattr(jobs, name)) for name in Jobs.__slots__}), answers


def never_came(lines: Int64s) -> Finding:
    """That the jobs of these lines were not submitted."""
    what, fix = "jobs that never came, as those before them never started", "give more watts or joules"
    return Finding(what, "taken as submitted at the end", len(lines), int(lines.min()), fix)


def _precedes(number: Int64s, preceding: Int64s, think_s: Int64s) -> tuple[Precedes, Int64s]:
    """For each job the place of the one that it waits for, if that is an earlier one, and how long it comes after that
    one has ended; and the places of those that name one which is not."""
    order = np.argsort(number, kind="stable")
    at = np.minimum(np.searchsorted(number, preceding, side="left", sorter=order), len(number) - 1)
    place = order[at]
    is_earlier = (number[place] == preceding) & (place < np.arange(len(number))) & (preceding > 0)
    if not is_earlier.any():
        raise WrongUseError(f"--closed-loop {PRECEDES}: {NONE_PRECEDES}")
    found = np.where(is_earlier, place, -1).astype(np.int32)
    return (found, np.maximum(think_s, 1)), np.flatnonzero((preceding > 0) & ~is_earlier)


def _not_before(lines: Int64s) -> Finding:
    what, fix = "jobs that wait for a job which is not above them", "write -1 in column 17"
    return Finding(what, "submitted as in the log", len(lines), int(lines.min()), fix)


def _users(jobs: Jobs, waited_s: Int64s, loop: ClosedLoop) -> tuple[Int64s, Int64s]:
    """For each job: seconds since its user's last submission; think time in seconds after the last end, -1 if the user
    did not wait for that. Jobs submitted without waiting for each other form a batch and stay together."""
    order = np.argsort(jobs.user, kind="stable")
    user, submit_s = jobs.user[order].astype(np.int64), jobs.submit_s[order]
    ended_s = submit_s + (np.maximum(waited_s, 0) + jobs.run_s)[order]  # unknown: taken as 0
    is_first = np.ones(len(jobs), np.bool_)
    is_first[1:] = user[1:] != user[:-1]
    later_s = user * (int(ended_s.max(initial=0)) + 1)  # orders the ends by user first
    last_end_s = np.roll(np.maximum.accumulate(ended_s + later_s) - later_s, 1)
    thought_s = submit_s - last_end_s
    has_thought = ~is_first & (thought_s >= 0)
    if loop.think_s:
        thought_s = np.rint(np.random.default_rng(loop.seed).exponential(loop.think_s, len(jobs))).astype(np.int64)[
            order
        ]
    gap_s, think_s = np.empty_like(jobs.submit_s), np.empty_like(jobs.submit_s)
    gap_s[order] = submit_s - np.roll(submit_s, 1)
    think_s[order] = np.where(has_thought, np.maximum(thought_s, 1), -1)
    return gap_s, think_s

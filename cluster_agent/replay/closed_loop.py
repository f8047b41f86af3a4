"""Closed loop: submissions that follow from the schedule. A user who waits for results submits the next job later.

In a log the submission times are fixed, so a slower scheduler only has longer queues and a faster one idle processors.
Here they follow from what the scheduler does (Shmueli, Feitelson, IEEE TPDS 20(10), 2009; Zakay, Feitelson, MASCOTS
2014):

think=log       A job whose user had no job left when he submitted it comes as long after the end of his last job as in
                the log. A job that he submitted earlier comes as long after his submission before it as in the log.
think=SECONDS   as think=log, but the think time is random, exponential with this mean
queue=N         jobs come in the order of the log, each one second after fewer than N are waiting

A job comes at least one second after the event that it follows. The result is a workload with other submission times,
in their order; an ordinary replay of it gives the same schedule. The loop is native (``csrc/answering.h``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.job_columns import Int64s, Jobs
from cluster_agent.scheduler.native.answering import Answering
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.power_phases import Power
from cluster_agent.workloads.job_log import Workload
from cluster_agent.workloads.job_watts import of_jobs
from cluster_agent.workloads.swf import WAIT, Finding


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """``think_s`` and ``queue`` None: the think times of the log."""

    think_s: float | None = None
    queue: int | None = None
    seed: int = 0


def closed_loop(text: str, seed: int) -> ClosedLoop:
    """``think=log``, ``think=SECONDS`` or ``queue=N``; ``WrongUseError`` otherwise."""
    key, _, value = text.partition("=")
    try:
        if text == "think=log":
            return ClosedLoop(seed=seed)
        if key == "think" and 1 <= float(value) < float("inf"):
            return ClosedLoop(think_s=float(value), seed=seed)
        if key == "queue" and int(value) >= 1:
            return ClosedLoop(queue=int(value), seed=seed)
    except ValueError:
        pass
    raise WrongUseError(f"--closed-loop {text}: give think=log, think=SECONDS (1 or more) or queue=JOBS (1 or more)")


def answering(
    workload: Workload, watts: Watts | None, power: Power | None, loop: ClosedLoop
) -> tuple[Workload, Watts | None, Answering]:
    """A workload to be filled in by a replay of the loop: the jobs as submitted, and their watts in that order.

    ``watts`` have the columns that the policy needs (``job_watts.of_jobs``).
    """
    jobs, answers = submissions(workload.jobs, workload.log.columns[WAIT, workload.row], loop)
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


def submissions(jobs: Jobs, waited_s: Int64s, loop: ClosedLoop) -> tuple[Jobs, Answering]:
    """A table of jobs to be filled in by a replay of the loop. ``waited_s``: in the log, below 0 where unknown."""
    answers = Answering(loop.queue or 0, jobs.submit_s, jobs.user, *_users(jobs, waited_s, loop))
    return Jobs(**{name: answers.table(getattr(jobs, name)) for name in Jobs.__slots__}), answers


def never_came(lines: Int64s) -> Finding:
    """That the jobs of these lines were not submitted."""
    what, fix = "jobs that never came, as those before them never started", "give more watts or joules"
    return Finding(what, "taken as submitted at the end", len(lines), int(lines.min()), fix)


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

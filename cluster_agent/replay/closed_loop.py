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

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.job_columns import Int32s, Int64s, Jobs
from cluster_agent.scheduler.native.answering import Answering
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.power_phases import Predictor
from cluster_agent.workloads.swf import NUMBER, PRECEDING, THINK, Finding

if TYPE_CHECKING:
    from cluster_agent.scheduler.world import World

PRECEDES: Final = "preceding"
NONE_PRECEDES: Final = "no job of this trace says that it waits for an earlier one; choose another loop"
Precedes: TypeAlias = tuple[Int32s, Int64s]
"""For each job the place of the one before it, -1: none; and seconds after the end of that one."""


class ClosedLoop(msgspec.Struct, frozen=True):
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


class Looped:
    """A world whose jobs come as the loop says. ``jobs``: the table that a replay fills in, in the order of submission;
    ``world``: the jobs as given, with the watts of that table."""

    def __init__(self, world: World, loop: ClosedLoop) -> None:
        trace, precedes = world.trace, None
        if loop.is_preceding and world.kind != "nodes":
            columns = world.workload.log.columns[:, world.workload.row]
            precedes, missing = _precedes(columns[NUMBER], columns[PRECEDING], columns[THINK])
            if len(missing):
                trace = replace(trace, findings=(*trace.findings, _not_before(trace.line[missing])))
        self.jobs, self.answers = submissions(trace.jobs, trace.wait_s, loop, precedes)
        self._order = self.answers.table(np.arange(len(trace.jobs)))
        self.world = msgspec.structs.replace(world, source=trace, watts=self._watts(world.watts), loop=None)

    def _watts(self, watts: Watts | None) -> Watts | None:
        if watts is None:
            return None
        given, table = watts.new_predictor, self.answers.table
        plan_uw = watts.job_plan_uw  # with a predictor the same for all, until they are submitted
        return replace(
            watts,
            job_busy_uw=None if watts.job_busy_uw is None else table(watts.job_busy_uw),
            job_plan_uw=plan_uw if plan_uw is None or given is not None else table(plan_uw),
            job_lowest=None if watts.job_lowest is None else table(watts.job_lowest),
            new_predictor=None if given is None else lambda: self.in_order(given()),
        )

    def in_order(self, predictor: Predictor) -> InOrder:
        """The predictor, which knows the jobs by their places in the trace."""
        return InOrder(predictor, self._order)

    def came(self, submitted: int) -> World:
        """After the replay: the world as its jobs were submitted."""
        trace = self.world.trace
        if len(never := self._order[submitted:]):
            trace = replace(trace, findings=(*trace.findings, never_came(trace.line[never])))
        world = msgspec.structs.replace(self.world, source=trace).only(self._order)
        return world.with_jobs(replace(world.jobs, submit_s=self.jobs.submit_s))


class InOrder(msgspec.Struct, frozen=True):
    """A predictor, for jobs in the order of submission. ``order``: their places in the trace."""

    predictor: Any  # ``Predictor``, or ``PowerSource`` where jobs can be metered
    order: Int64s

    def predict(self, job: int) -> float:
        """Watts of the whole job."""
        return float(self.predictor.predict(int(self.order[job])))

    def learn(self, job: int, watts: float) -> None:
        """The job has ended."""
        self.predictor.learn(int(self.order[job]), watts)

    def metered(self, job: int) -> float | None:
        """The running job's power."""
        found: float | None = self.predictor.metered(int(self.order[job]))
        return found


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
    return jobs.each(answers.table), answers


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

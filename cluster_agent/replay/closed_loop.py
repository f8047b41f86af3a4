"""Submissions that answer to the schedule: a user who waits for results submits the next job later.

In a log the times of submission are fixed, so that a slower scheduler makes longer queues and a faster one idle
processors. Here they follow from what the scheduler does (Shmueli, Feitelson, IEEE TPDS 20(10), 2009; Zakay, Feitelson,
MASCOTS 2014):

think=log       A job that its user submitted when all his earlier ones had ended comes as long after their last end as
                in the log, one that he submitted before that as long after his submission before it as in the log
think=SECONDS   the same, but the time to think is drawn, exponential with this mean
queue=N         jobs come in the order of the log, each one second after fewer than N are waiting

A job answers a second later at the earliest. What comes out is a workload with other times of submission; replayed as
any log it gives the schedule that it was made with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from cluster_agent.caps import Cap
from cluster_agent.errors import WrongUseError
from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.replay.swf import WAIT
from cluster_agent.replay.workload import Workload
from cluster_agent.scheduler.governor import Watts
from cluster_agent.scheduler.interfaces import Event, Kind
from cluster_agent.scheduler.jobs import Int64s, Jobs
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.native import NativeScheduler
from cluster_agent.scheduler.phases import Composition


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """``think_s`` None and ``queue`` None: the log's own times to think."""

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


def submissions(
    workload: Workload, composition: Composition, loop: ClosedLoop, watts: Watts | None, caps: Sequence[Cap]
) -> Workload:
    """The workload as it is submitted under this policy, in order of submission. Deterministic."""
    return answered(workload, composition, loop, watts, caps)[0]


def answered(
    workload: Workload, composition: Composition, loop: ClosedLoop, watts: Watts | None, caps: Sequence[Cap]
) -> tuple[Workload, dict[int, int]]:
    """The same, and when each of its jobs was started while it was made."""
    jobs = workload.jobs
    # rows are filled in as jobs are submitted; a scheduler looks at a job from its submission on
    table = Jobs(*(np.array(getattr(jobs, column)) for column in Jobs.__slots__))
    source = _Queue(jobs, loop) if loop.queue else _Users(workload, loop)
    machine = _Answering(table, jobs, source, composition, watts)
    run(
        NativeScheduler(composition, table, workload.processors, watts, caps, users=workload.users),
        JumpingClock(),
        machine,
    )
    order = np.array(machine.order, np.int64)
    return replace(workload, jobs=table, row=workload.row[order], is_cut=workload.is_cut[order]), machine.start_s


class _Answering(SimulatedMachine):
    """Submits what its source says, in the order in which it comes; row i of ``table`` is the i-th to come."""

    def __init__(
        self, table: Jobs, jobs: Jobs, source: _Queue | _Users, composition: Composition, watts: Watts | None
    ) -> None:
        more = (watts.slowdown, watts.requeues) if watts else ()
        super().__init__(table, composition.ties, *more)
        self.order: list[int] = []  # of rows of ``jobs``
        self._table = table
        self._given = jobs
        self._source = source
        self._due: list[tuple[int, int]] = []  # (time, row of ``jobs``)
        self._promise(source.first())

    def events(self, now_s: int) -> Sequence[Event]:
        """Those of any machine; ends are told to the source."""
        events = super().events(now_s)
        for event in events:
            if event.kind is Kind.ENDED:
                self._promise(self._source.ended(now_s, self.order[event.job]))
        return events

    def next_event_s(self) -> int | None:
        """The earliest end, overrun or submission."""
        times = [heap[0][0] for heap in (self._ends, self._overruns, self._due) if heap]
        return min(times, default=None)

    def start(self, now_s: int, job: int, expected_end_s: int, level: int = 0) -> None:
        """The job runs, and one fewer waits."""
        super().start(now_s, job, expected_end_s, level)
        self._promise(self._source.started(now_s))

    def kill(self, now_s: int, job: int) -> None:
        """A job that does not come back has ended for its user."""
        super().kill(now_s, job)
        if self._requeues:
            self._source.requeued()
        else:
            self._promise(self._source.ended(now_s, self.order[job]))

    def _promise(self, coming: Sequence[tuple[int, int]]) -> None:
        for due in coming:
            heappush(self._due, due)

    def _take_submission(self, now_s: int) -> Event | None:
        if not self._due or self._due[0][0] > now_s:
            return None
        row, index = heappop(self._due)[1], len(self.order)
        for column in Jobs.__slots__:
            getattr(self._table, column)[index] = getattr(self._given, column)[row]
        self._table.submit_s[index] = now_s
        self.order.append(row)
        self._promise(self._source.submitted(now_s, row))
        return Event(Kind.SUBMITTED, index)


class _Queue:
    """Keeps so many jobs waiting."""

    def __init__(self, jobs: Jobs, loop: ClosedLoop) -> None:
        assert loop.queue is not None
        self._jobs = jobs
        self._wanted = loop.queue
        self._next = 0
        self._waiting = 0  # or about to come

    def first(self) -> list[tuple[int, int]]:
        """Who comes before anything has happened: (time, row)."""
        return self._fill(int(self._jobs.submit_s[0]) if len(self._jobs) else 0)

    def submitted(self, now_s: int, row: int) -> list[tuple[int, int]]:
        return []

    def started(self, now_s: int) -> list[tuple[int, int]]:
        self._waiting -= 1
        return self._fill(now_s + 1)

    def requeued(self) -> None:
        self._waiting += 1

    def ended(self, now_s: int, row: int) -> list[tuple[int, int]]:
        return []

    def _fill(self, at_s: int) -> list[tuple[int, int]]:
        count = max(min(self._wanted - self._waiting, len(self._jobs) - self._next), 0)
        rows = range(self._next, self._next + count)
        self._next += count
        self._waiting += count
        return [(at_s, row) for row in rows]


class _Users:
    """Each user's jobs in the order of the log, in batches that were submitted without waiting for one another."""

    def __init__(self, workload: Workload, loop: ClosedLoop) -> None:
        jobs = workload.jobs
        waited_s = np.maximum(workload.log.columns[WAIT, workload.row], 0)  # unknown: as if it had not waited
        ended_s = jobs.submit_s + waited_s + jobs.run_s
        random = np.random.default_rng(loop.seed)
        self._next = np.full(len(jobs), -1, np.int64)
        self._gap_s = np.zeros(len(jobs), np.int64)
        self._think_s = np.full(len(jobs), -1, np.int64)  # -1: comes ``gap`` after the submission before
        self._user = jobs.user
        self._submit_s: Int64s = jobs.submit_s
        self._open = np.zeros(jobs.n_users, np.int64)  # submitted and not ended
        self._blocked: dict[int, int] = {}  # user: the job that comes when all have ended
        self._first: list[int] = []
        last_row, last_end_s = [-1] * jobs.n_users, [0] * jobs.n_users
        drawn_s = random.exponential(loop.think_s, len(jobs)) if loop.think_s else None
        for row in range(len(jobs)):
            user = int(jobs.user[row])
            before = last_row[user]
            if before < 0:
                self._first.append(row)
            else:
                self._next[before] = row
                self._gap_s[row] = jobs.submit_s[row] - jobs.submit_s[before]
                if jobs.submit_s[row] >= last_end_s[user]:
                    thought_s = drawn_s[row] if drawn_s is not None else jobs.submit_s[row] - last_end_s[user]
                    self._think_s[row] = max(round(float(thought_s)), 1)
            last_row[user] = row
            last_end_s[user] = max(last_end_s[user], int(ended_s[row]))

    def first(self) -> list[tuple[int, int]]:
        return [(int(self._submit_s[row]), row) for row in self._first]

    def submitted(self, now_s: int, row: int) -> list[tuple[int, int]]:
        user, following = int(self._user[row]), int(self._next[row])
        self._open[user] += 1
        if following < 0:
            return []
        if self._think_s[following] < 0:
            return [(now_s + int(self._gap_s[following]), following)]
        self._blocked[user] = following
        return []

    def started(self, now_s: int) -> list[tuple[int, int]]:
        return []

    def requeued(self) -> None:
        pass

    def ended(self, now_s: int, row: int) -> list[tuple[int, int]]:
        user = int(self._user[row])
        self._open[user] -= 1
        if self._open[user] or user not in self._blocked:
            return []
        following = self._blocked.pop(user)
        return [(now_s + int(self._think_s[following]), following)]

"""The runs of jobs on nodes: what nodes report of their parts, what is sent to them, and what follows.

    start sent ──► reported ──► ended, refused ──► forgotten, once that is on the disk
         └────────────┴───────► lost (the node does not know it any more, or is given up)

A message that is lost is sent again after the node's next report. A part that does not end well ends the others.
"""

from __future__ import annotations

import dataclasses
import signal
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from cluster_agent.jobs.job import Account, Job, PowerInterval, State
from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.times import Times
from foundation.wire.job_messages import JobForget, JobPart, JobSignal, Message, NodeJobs, Phase

if TYPE_CHECKING:
    from cluster_agent.store.job_store import JobStore

Happening: TypeAlias = Literal["start", "end"]

TAKEN_BACK: Final = 16
"""Ours: how many reports of a node may arrive between a job's end there and the report of that end."""


@dataclass(slots=True)
class Part:
    """A run's part on one node. ``start_sent_s``: when its start was last sent; ``boot_id``: the boot in which it
    runs."""

    boot_id: str
    start_sent_s: float = float("-inf")
    first_start_sent_s: float | None = None
    signalled_s: float = float("-inf")
    began_s: float | None = None  # by our clock, since when its node reports it; None: it does not, or not yet
    is_late: bool = False  # it has not ended in time
    ending_from_s: float | None = None  # when its node was first sent a signal to end it
    last: JobPart | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.last is not None and self.last.is_over


@dataclass(slots=True)
class Run:
    """A row of the engine's table that has nodes."""

    row: int
    job: Job
    parts: dict[str, Part]
    expected_end_s: int
    signal: int = 0  # the signal that its nodes are to get
    is_killed: bool = False  # by the policy, for a cap: its row is a placeholder
    waits_as: int | None = None  # the row in which it waits again after that
    knows_ends: bool = True  # False: its record is from a version that did not store which parts had ended
    seen_s: dict[str, float] = field(default_factory=dict)  # until when each node's power is accounted for
    intervals: dict[str, deque[PowerInterval]] = field(default_factory=dict)  # per node, the last ones counted

    def unseen_s(self, name: str, now_s: float) -> float | None:
        """For how long the node's power is not accounted for; None: the job does not run there."""
        part = self.parts[name]
        if part.last is None or part.is_over or not part.last.started_s:
            return None
        return max(now_s - self.seen_s.get(name, self.began_s(name, now_s)), 0.0)

    def began_s(self, name: str, now_s: float) -> float:
        """When the part began there, by our clock: when its node says so, whose clock may differ from ours, but not
        before we started it and not after we heard of it."""
        part = self.parts[name]
        heard_s = now_s if part.began_s is None else part.began_s
        begun_s = part.last.started_s if part.last is not None else heard_s
        return min(max(begun_s, self.job.started_s or 0.0), heard_s)

    def ended_s(self, name: str, now_s: float) -> float:
        """When the part that is over ended, by our clock: it lasted as long as its node says by one and the same
        clock."""
        last = self.parts[name].last
        if last is None or not last.started_s:  # given up by us, at a time of ours
            return last.ended_s if last is not None else now_s
        return min(self.began_s(name, now_s) + max(last.ended_s - last.started_s, 0.0), now_s)

    def add_power(self, name: str, now_s: float, interval: PowerInterval) -> None:
        """Count the node's power until now in the job's account."""
        self.seen_s[name] = now_s
        self.intervals.setdefault(name, deque(maxlen=TAKEN_BACK)).append(interval)
        self.job.account.add(interval)

    def take_back(self, name: str, ended_s: float) -> None:
        """Take back the power that was counted after the end, from reports that came before the report of the end."""
        beyond_s = self.seen_s.get(name, 0.0) - ended_s
        intervals = self.intervals.pop(name, None)
        while intervals and beyond_s > 0:
            latest = intervals.pop()
            self.job.account.add(dataclasses.replace(latest, seconds=-min(beyond_s, latest.seconds)))
            beyond_s -= latest.seconds

    @property
    def longest_s(self) -> float:
        """How long a part may take on its node from its start, with prolog and epilog."""
        return self.job.hooks_s + self.job.walltime_s + self.job.spec.grace_s

    def due_s(self, name: str) -> float | None:
        """When the part on this node has to have ended, by our clock; None: it has not begun."""
        part = self.parts[name]
        if part.began_s is None or part.is_over:
            return None
        ending_from_s = (
            self.job.spec.grace_s
            + self.job.hooks_s
            + (part.ending_from_s if part.ending_from_s is not None else float("inf"))
        )
        return min(part.began_s + self.longest_s, ending_from_s)

    @property
    def ended_by_itself(self) -> bool:
        """Whether no signal of ours ended it: a part failed, or had no time left, or all ended well before."""
        ends = [part.last for part in self.parts.values() if part.last is not None and part.last.phase == "ended"]
        own = [last for last in ends if last.cause != "told"]
        return len(own) == len(self.parts) or any(last.cause or last.status for last in own)

    @property
    def outcome(self) -> tuple[State, int | None, str]:
        """State, exit status and reason of the job, once all parts are over."""
        job, lasts = self.job, [part.last for part in self.parts.values() if part.last is not None]
        failed = [last for last in lasts if last.status != 0]
        status = failed[0].status if failed else 0
        if job.is_cancelled:
            return "cancelled", status, job.reason
        if lost := _first(lasts, "lost"):
            return "lost", None, lost.detail
        if refused := _first(lasts, "refused"):
            return "failed", None, refused.detail
        if any(last.cause == "walltime" for last in lasts):
            return "timeout", status, f"its walltime of {job.spec.walltime_s} s was over"
        if failed:
            return "failed", *_own_failure(failed, job.reason)
        return "done", 0, _strayed(lasts) if job.halves else ""


def _own_failure(failed: Sequence[JobPart], reason: str) -> tuple[int, str]:
    """Status and detail of the first part that failed by itself; if all were ended, of the first of these."""
    own = next((last for last in failed if last.cause == ""), failed[0])
    return own.status, own.detail or reason


def _strayed(lasts: Iterable[JobPart]) -> str:
    """What a node says of threads that have left their half."""
    return next((last.detail for last in lasts if last.detail), "")


def _first(lasts: Iterable[JobPart], phase: Phase) -> JobPart | None:
    return next((last for last in lasts if last.phase == phase), None)


class Runs:
    """All runs that have nodes. ``send`` sends a message to a node; ``over`` is called when all parts of a run are
    over."""

    def __init__(
        self, times: Times, store: JobStore, now: Callable[[], float], say: Callable[[str], None],
        send: Callable[[str, Message], None], over: Callable[[Run], None],
    ) -> None:  # fmt: skip
        self.by_row: dict[int, Run] = {}
        self.leaving: set[int] = set()
        """The rows of best-effort jobs that were preempted: other jobs have their nodes, and start there after them."""
        self.happened: set[Happening] = set()
        """What happened to jobs that calls for new caps; whoever shares watts clears it."""
        self._times, self._store, self._now, self._say, self._send, self._over = times, store, now, say, send, over
        self._unsaved: dict[int, Job] = {}
        self.stored: dict[int, Account] = {}
        """By job, its account as it was stored last. People see these: what they have seen is not gone after a kill."""

    def on(self, node: Node) -> list[Run]:
        """The runs that have the node; not those whose part there is over."""
        found = (self.by_row.get(row) for row in node.runs)
        return [one for one in found if one is not None and not one.parts[node.name].is_over]

    def of(self, job: Job) -> Run:
        """The run of this job, which has one."""
        return next(one for one in self.by_row.values() if one.job is job)

    def running(self) -> list[tuple[Job, list[str]]]:
        """The jobs that have nodes, in the order of their starts, and the nodes where each still runs."""
        runs = [
            (one.job, [name for name, part in one.parts.items() if not part.is_over]) for one in self.by_row.values()
        ]
        return sorted(runs, key=lambda one: (one[0].started_s or 0.0, one[0].id))

    def start(self, one: Run) -> None:
        """Send the start to all its nodes."""
        self.happened.add("start")
        self.stored[one.job.id] = one.job.account.copy()
        for name in one.parts:
            self._send_start(one, name, self._now())

    def heard(self, node: Node, news: NodeJobs, now_s: float) -> None:
        """Take a node's report of the parts that it knows; ``node.boot_id`` is that of the report."""
        own = {(one.job.id, one.job.attempt): one for one in self.on(node)}
        node.left_over = ""
        for part in news.parts:
            if (one := own.pop((part.job, part.attempt), None)) is not None:
                self._part_heard(one, node, part, now_s)
            elif part.phase in ("running", "ending"):
                node.left_over = f"job {part.job}, which was given up there, still runs and is being killed"
                self._send(node.name, JobSignal(part.job, part.attempt, signal.SIGKILL))
            else:
                self._send(node.name, JobForget(part.job, part.attempt))
        for one in own.values():
            self._part_missing(one, node, now_s)

    def stop(self, one: Run, reason: str) -> None:
        """End the run on all its nodes."""
        one.signal = signal.SIGTERM
        one.job.state = "ending"
        one.job.reason = one.job.reason or reason
        for name, part in one.parts.items():
            if not part.is_over:
                part.signalled_s = self._now()
                part.ending_from_s = part.signalled_s if part.ending_from_s is None else part.ending_from_s
                self._send(name, JobSignal(one.job.id, one.job.attempt, signal.SIGTERM))

    def kill(self, one: Run, node: Node) -> None:
        """End the run's part on this node without a grace; sent again until it has ended."""
        part = one.parts[node.name]
        if not part.is_late:
            part.is_late, part.signalled_s = True, self._now()
            self._send(node.name, JobSignal(one.job.id, one.job.attempt, signal.SIGKILL))

    def lose(self, one: Run, node: Node, reason: str, may_live: bool = False) -> None:
        """Give up the run's part on this node: what became of it is not known. ``may_live``: not even whether it still
        runs; then the job is not started again before that is known."""
        part = one.parts[node.name]
        if may_live:
            one.job.awaits[node.name] = self._now() + self._times.start_within_s + one.longest_s
            self._send(node.name, JobForget(one.job.id, one.job.attempt))  # it may not have begun
        part.last = JobPart(one.job.id, one.job.attempt, "lost", detail=reason, ended_s=self._now())
        self._say(f"job {one.job.id} is lost: {reason}")
        self._part_over(one, node)

    def save_ends(self) -> None:
        """Store which parts have ended, before their nodes may forget them. Once for all that was heard together, since
        the record of a job grows with its nodes."""
        with self._store.together():
            for job in self._unsaved.values():
                self._store.save(job)
        self._unsaved.clear()

    def save(self) -> None:
        """Store the present state of their jobs."""
        with self._store.together():
            for one in self.by_row.values():
                self._store.save(one.job)
        self.note_stored()

    def note_stored(self) -> None:
        """All jobs are as they are on the disk."""
        self.stored = {one.job.id: one.job.account.copy() for one in self.by_row.values()}

    # --- inside

    def _part_heard(self, one: Run, node: Node, heard: JobPart, now_s: float) -> None:
        part, job = one.parts[node.name], one.job
        was_known = part.last is not None
        if part.is_over:
            self._send(node.name, JobForget(job.id, job.attempt))
            return
        part.last, part.boot_id = heard, node.boot_id
        if heard.energy is not None:
            job.meter(node.name, heard.energy, now_s)
        if part.is_over:
            leaves = one.row in self.leaving
            self._part_over(one, node)
            self._send(node.name, JobForget(job.id, job.attempt))
            if leaves:
                self._start_next(node)
            return
        part.began_s = now_s if part.began_s is None else part.began_s
        self._signal_again(one, node, heard, now_s)
        if job.state == "starting" and all(each.last is not None for each in one.parts.values()):
            job.state = "running"
            self._store.save(job)
        elif not was_known and job.state == "running":
            one.seen_s.setdefault(node.name, now_s)  # after a restart: the power in between is not known

    def _signal_again(self, one: Run, node: Node, heard: JobPart, now_s: float) -> None:
        """The signal to end may be lost on its way."""
        part = one.parts[node.name]
        is_due = part.is_late or (one.signal and heard.phase != "ending")
        if is_due and now_s - part.signalled_s >= self._times.retry_s:
            part.signalled_s = now_s
            part.ending_from_s = now_s if part.ending_from_s is None else part.ending_from_s
            number = signal.SIGKILL if part.is_late else one.signal
            self._send(node.name, JobSignal(one.job.id, one.job.attempt, number))

    def _part_missing(self, one: Run, node: Node, now_s: float) -> None:
        part, job = one.parts[node.name], one.job
        if part.is_over:
            return
        has_begun = part.last is not None or job.state != "starting"
        was_sent = part.first_start_sent_s is not None
        if has_begun or (was_sent and part.boot_id and part.boot_id != node.boot_id):
            if one.signal and part.last is None:  # ended before it began
                part.last = JobPart(job.id, job.attempt, "ended", -signal.SIGTERM, "told", ended_s=now_s)
                self._part_over(one, node)
                return
            if not one.knows_ends:  # it ended well, else the job would be ended with a reason
                part.last = JobPart(job.id, job.attempt, "ended", ended_s=now_s)
                self._part_over(one, node)
                return
            self.lose(one, node, f"{node.name} does not know the job any more")
        elif now_s - part.start_sent_s >= self._times.retry_s:
            self._send_start(one, node.name, now_s)

    def _send_start(self, one: Run, name: str, now_s: float) -> None:
        part = one.parts[name]
        if self._has_another(one, name):
            return
        part.start_sent_s = now_s
        if part.first_start_sent_s is None:
            part.first_start_sent_s = now_s
        self._send(name, one.job.start_on(name))

    def _has_another(self, one: Run, name: str) -> bool:
        """Whether a job that was preempted for this one still runs on the node."""
        before = (self.by_row[row] for row in self.leaving if row != one.row)
        return any(name in other.parts and not other.parts[name].is_over for other in before)

    def _start_next(self, node: Node) -> None:
        """The jobs that a preempted one has kept from starting there."""
        for one in self.on(node):
            if one.parts[node.name].first_start_sent_s is None and one.job.state == "starting":
                self._send_start(one, node.name, self._now())

    def _part_over(self, one: Run, node: Node) -> None:
        """A part has ended; with the last part the job ends, and only then its nodes are free: the scheduler counts
        them until then, and else a record would have two jobs on a node at once. A part that failed ends the others."""
        job = one.job
        self.happened.add("end")
        last = one.parts[node.name].last
        assert last is not None
        job.parts[node.name] = last
        if last.slowdown is not None:
            job.account.slowdown = max(last.slowdown, job.account.slowdown or 0.0)
        began_s = last.started_s or job.started_s or last.ended_s
        ran_s = self._now() - (job.started_s or began_s)  # by our own clock: the node's may be wrong, or lie
        job.account.node_s += min(max(last.ended_s - began_s, 0.0), max(ran_s, 0.0))
        one.take_back(node.name, one.ended_s(node.name, self._now()))
        if all(part.is_over for part in one.parts.values()):
            del self.by_row[one.row]
            self._over(one)
            return
        if (last.phase != "ended" or last.status != 0) and not one.signal:
            self.stop(one, last.detail or f"{node.name} ended with {last.status}")
        elif job.state == "running":
            job.state = "ending"
        self._unsaved[job.id] = job

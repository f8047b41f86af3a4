"""Slurm runs the jobs, and the engine of a live partition decides which, when and where.

Each job has a begin time that is ahead (``job_submit.lua``), and this moves it on while the job waits. So a job starts
by a release of this schedule, or by Slurm itself when nothing moves its time on any more.

    deferred ──► waiting ──► released ──► running ──► gone
       ▲  ▲          │ a pass      │ Slurm does not start it
       │  └──────────┘             ▼
       └──────────────────────── recalled: its begin time is ahead again, and Slurm has confirmed that

What Slurm says is the truth, and nothing is stored. A job is in the engine's queue only while Slurm, read after the
last command about it, says that it is deferred; and a released job keeps its nodes in the engine's plan until Slurm
says that it runs, is gone, or is deferred again. So no node is given away twice, and a start belongs to one of both at
any time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from cluster_agent.jobs.admission import check_live
from cluster_agent.jobs.engine_side.placeholders import ENDLESS_S
from cluster_agent.jobs.job_table import CAPACITY, GrowingJobs
from cluster_agent.jobs.owned_watts.live_owner import LiveScheduler, Owner
from cluster_agent.jobs.times import EngineClock
from cluster_agent.scheduler.interfaces import Event, Kind, Scheduler
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.world import LiveJobs
from cluster_agent.slurm.queue_table import LIMITS, REFUSALS, NodeState, OwnNodes, QueueRow
from foundation.shell.names import expanded

PATIENCE_S: Final = 15.0
"""Ours: Slurm starts a released job within a second, under load within three; after this it is recalled."""

BELIEVED_S: Final = 1.0
"""Ours: a reason that Slurm gives so soon after a release may be that of an earlier look of its own."""

RETRY_S: Final = 30.0
"""Ours: a job that Slurm has refused waits so long, or until one ends that has the same limits."""

SOON_S: Final = 60
"""Ours: a node that is busy without a job of the queue is expected back after this time, and then later and later."""

MOST_MOVED: Final = 100
"""Ours: begin times that are moved on in one turn, each some 12 ms of slurmctld's."""

Phase = Literal["deferred", "waiting", "released", "recalled", "running", "given"]


class Slurm(Protocol):
    """As ``queue_table.QueueTable``."""

    def read(self) -> tuple[list[QueueRow], dict[str, NodeState]]:
        """Its queue, and the nodes of the partition."""
        ...

    def update(self, commands: Sequence[str]) -> list[str]:
        """Run these commands of ``scontrol``; what it complains of."""
        ...

    def own_nodes(self, key: str) -> OwnNodes:
        """Whether the job's user requires nodes or excludes some."""
        ...


@dataclass(slots=True)
class Tracked:
    """A job of Slurm's, and what the engine knows of it. ``place``: its row of the engine's table, -1: none;
    ``kept``: the row that it had while it waited, at which it waits again."""

    row: QueueRow
    phase: Phase = "deferred"
    place: int = -1
    kept: int = -1
    nodes: tuple[str, ...] = ()
    since_s: float = 0.0
    retry_s: float = 0.0
    refusal: str = ""
    own_nodes: OwnNodes | None = None  # not looked up yet
    was_refused: bool = False


class QueueSchedule:
    """``turn`` looks once, decides and releases. ``now`` is Unix time, the clock of slurmctld. ``logged`` may wrap the
    scheduler; ``note`` gets what happened, as words and values."""

    def __init__(
        self,
        slurm: Slurm,
        composition: Composition,
        partition: str,
        defer_s: int,
        now: Callable[[], float],
        say: Callable[[str], None],
        logged: Callable[[LiveScheduler, EngineClock], Scheduler] = lambda scheduler, clock: scheduler,
        note: Callable[..., None] = lambda *values: None,
        capacity: int = CAPACITY,
    ) -> None:
        """``WrongUseError`` for a policy that needs what Slurm's nodes do not have here, watts above all."""
        check_live(composition)
        self._owner = Owner(composition)
        self._slurm, self._partition, self._defer_s, self._now, self._say = slurm, partition, defer_s, now, say
        self._logged, self._note, self._capacity = logged, note, capacity
        self._clock = EngineClock(now)
        self.jobs: dict[str, Tracked] = {}
        self._names: tuple[str, ...] = ()
        self._idle: set[str] = set()
        self._away: dict[str, int] = {}
        self._commands: list[str] = []
        self._moved: list[Tracked] = []  # by these
        self._complaints: set[str] = set()
        self._has_room = True
        self._is_edited = False
        self._begin(())

    def turn(self) -> None:
        """``ClusterError`` if Slurm does not answer; then nothing is decided, and what was released stays released."""
        rows, nodes = self._slurm.read()
        self._commands, self._moved = [], []
        names = tuple(sorted(nodes))
        if names != self._names or not self._table.has_room(len(rows), len(names)):
            self._begin(names)
        self._idle = {name for name, state in nodes.items() if state == "idle"}
        self._follow(rows)
        if self._is_edited:  # a job keeps its place only in a table that is filled in order
            self._begin(names)
            self._follow(rows)
        self._occupy(nodes)
        self._clock.due_s = None
        run(self._scheduler, self._clock, self)
        self._move_on()
        self._carry_out()

    # --- the engine's machine (``scheduler.interfaces.Machine``)

    def events(self, now_s: int) -> Sequence[Event]:
        """Overruns and submissions; last, if there is room that was not, an event for that. Ends are reported at once,
        since another job may be on their nodes already."""
        found = []
        while self._overruns and self._overruns[0][0] <= now_s:
            end_s, place = heapq.heappop(self._overruns)
            if self._end_s.get(place) == end_s:
                found.append(Event(Kind.OVERRUN, place))
        for job in self._fresh:
            found.append(Event(Kind.SUBMITTED, job.place))
        self._fresh.clear()
        if self._has_room:
            self._has_room = False
            found.append(Event(Kind.ROOM, -1))
        return found

    def next_event_s(self) -> int | None:
        """The next expected end."""
        return self._overruns[0][0] if self._overruns else None

    def start(self, at_s: int, job: int, expected_end_s: int, level: int = 0) -> None:
        """Release the job, with nodes of ours unless it has requests by which Slurm chooses."""
        started = self._at[job]
        free = [name for name in self._names if name in self._idle]
        width = started.row.width
        started.phase, started.nodes = "released", tuple(free[:width])
        self._width[job], self._began_s[job] = width, self._clock.now_s()
        self._idle -= set(started.nodes)
        self.expect(at_s, job, expected_end_s)
        if len(free) < width:  # a job of another partition has taken its place on nodes since the last look
            self._give_up(started, "its nodes are taken", retry_s=0.0)
            return
        is_slurms = started.row.has_wants or self._own_nodes(started)
        where = "" if is_slurms else f" nodelist={','.join(started.nodes)}"
        self._commands.append(f"update jobid={started.row.key} starttime=now{where}")
        self._moved.append(started)

    def expect(self, now_s: int, job: int, expected_end_s: int) -> None:
        """Note the job's expected end, at which the scheduler is called again."""
        self._end_s[job] = expected_end_s
        if expected_end_s > now_s:
            heapq.heappush(self._overruns, (expected_end_s, job))

    def kill(self, now_s: int, job: int) -> None:
        """Only policies that own watts do."""
        raise RuntimeError("defect: a policy without watts kills a job")

    def set_level(self, now_s: int, job: int, level: int, expected_end_s: int) -> None:
        """The same."""
        raise RuntimeError("defect: a policy without watts sets a level")

    def preempt(self, job: int) -> None:
        """The same: Slurm's own jobs are never best-effort here."""
        raise RuntimeError("defect: a job of Slurm's is preempted")

    # --- inside

    def _begin(self, names: tuple[str, ...]) -> None:
        """With an empty table, of these nodes: at the start, when Slurm has other nodes, and when the table is full."""
        self._names = names
        self._note("begin", self._clock.now_s(), len(names))
        table = GrowingJobs(max(self._capacity, 4 * (len(self.jobs) + len(names)) + 64))
        live = LiveJobs(table.jobs, max(len(names), 1), table.uids, self._say)
        self._table, self._engine = table, self._owner.begin(live, names, lambda: False, self.preempt)
        self._scheduler = self._logged(self._engine, self._clock)
        self._at: dict[int, Tracked] = {}
        self._end_s: dict[int, int] = {}
        self._began_s: dict[int, int] = {}
        self._overruns: list[tuple[int, int]] = []
        self._fresh: list[Tracked] = []
        self._away, self._has_room, self._is_edited = {}, True, False
        self._width: dict[int, int] = {}
        """By row of the table that has nodes, how many."""
        for job in self.jobs.values():
            job.place = job.kept = -1
            if job.phase == "waiting":
                job.phase = "deferred"
            elif job.nodes:
                self._adopt(job)

    def _follow(self, rows: Iterable[QueueRow]) -> None:
        seen = {row.key: row for row in rows}
        for key, job in list(self.jobs.items()):
            row = seen.get(key)
            if row is None or row.run != job.row.run or (job.phase == "running" and not row.has_nodes):
                self._gone(job)
        for row in sorted(seen.values(), key=lambda one: (not one.has_nodes, one.order)):
            if not (row.has_nodes or (self._partition in row.partitions and row.state == "PD")):
                continue
            job = self.jobs.setdefault(row.key, Tracked(row))
            before, job.row = job.row, row
            if row.has_nodes:
                self._runs(job)
            else:
                self._waits(job, before)

    def _gone(self, job: Tracked) -> None:
        del self.jobs[job.row.key]
        if job.phase == "running" or job.phase == "released":
            self._note("gone", self._now(), job.row.key)
            if job.place >= 0:
                self._table.ran(job.place, max(self._clock.now_s() - self._began_s[job.place], 1))
                self._scheduler.end(job.place)
                self._has_room = True
                self._forget(job)
            for other in self.jobs.values():
                if other.refusal and other.row.group == job.row.group:
                    other.retry_s = 0.0
        else:
            self._withdraw(job)

    def _runs(self, job: Tracked) -> None:
        nodes = tuple(name for name in job.row.nodes if name in self._names)
        if job.phase == "released" and set(nodes) == set(job.nodes):
            job.phase = "running"
            self._note("running", self._now(), job.row.key)
        elif job.phase != "running" or set(nodes) != set(job.nodes):
            self._withdraw(job)
            job.phase, job.nodes, job.kept = "running", nodes, -1
            self._note("found", self._now(), job.row.key)
        if job.place < 0 and nodes:
            self._adopt(job)

    def _waits(self, job: Tracked, before: QueueRow) -> None:
        row, now_s = job.row, self._now()
        is_deferred = row.eligible_s > now_s
        if job.phase == "given" or row.is_component:
            self._give_back(job)
        elif job.phase == "released":
            self._is_started(job, is_deferred, now_s - job.since_s)
        elif job.phase == "recalled":
            if is_deferred:
                self._withdraw(job)
                job.phase = "deferred"
            elif now_s - job.since_s > PATIENCE_S:
                self._recall(job)
        elif not is_deferred:  # it is Slurm's to start at any time: not the engine's, until it is deferred again
            self._recall(job)
        elif not row.may_start or row.eligible_s - self._defer_s > now_s + 1:  # or a begin time of its user's own
            self._withdraw(job)
            job.phase = "deferred"
        elif job.phase == "waiting" and (before.width, before.limit_s) != (row.width, row.limit_s):
            self._is_edited = True
        elif job.phase == "deferred" and job.retry_s <= now_s and row.width <= len(self._names):
            self._submit(job)

    def _is_started(self, job: Tracked, is_deferred: bool, age_s: float) -> None:
        """A released job still waits: Slurm did not take the release, refuses the job, or is about to start it."""
        reason = job.row.reason
        if is_deferred:
            self._give_up(job, "Slurm did not take its release")
        elif (age_s > BELIEVED_S and reason.startswith(REFUSALS)) or age_s > PATIENCE_S:
            self._refused(job, reason)
            self._recall(job)

    def _refused(self, job: Tracked, reason: str) -> None:
        """The job waits, and so do those that have the same limit and need no less."""
        job.refusal, job.retry_s, job.was_refused = reason, self._now() + RETRY_S, True
        self._note("refused", self._now(), job.row.key, reason)
        alike = [one for one in self.jobs.values() if one.phase == "waiting" and one.row.group == job.row.group]
        for other in alike if reason.startswith(LIMITS) else ():
            if other.row.width >= job.row.width:
                self._withdraw(other)
                other.phase, other.refusal, other.retry_s = "deferred", reason, job.retry_s

    def _recall(self, job: Tracked) -> None:
        """Make its begin time be ahead again. Until Slurm says that it is, the job may start, and keeps its nodes."""
        if job.phase == "waiting":
            self._withdraw(job)
        job.phase = "recalled"
        if job.place < 0 and job.row.requires:  # somebody has released it, as a schedule before this one
            job.nodes = tuple(name for name in expanded(job.row.requires) if name in self._names)
            self._adopt(job)
        self._moved.append(job)
        nodes = "" if self._own_nodes(job) == "requires" else " nodelist="
        self._commands.append(f"update jobid={job.row.key} starttime=now+{self._defer_s}{nodes}")

    def _give_up(self, job: Tracked, why: str, retry_s: float = RETRY_S) -> None:
        self._withdraw(job)
        job.phase, job.refusal, job.retry_s = "deferred", why, self._now() + retry_s
        self._note("refused", self._now(), job.row.key, why)

    def _give_back(self, job: Tracked) -> None:
        """A heterogeneous job starts on several sets of nodes at once, which only Slurm can do."""
        if job.phase != "given":
            self._withdraw(job)
            job.phase = "given"
            leader, _, component = job.row.key.partition("+")
            if component in ("", "0"):
                self._commands.append(f"update jobid={leader} starttime=now")

    def _own_nodes(self, job: Tracked) -> OwnNodes:
        """Looked up where it matters: for jobs that require nodes, maybe those of a release, or that were refused."""
        if job.own_nodes is None and (job.row.requires or job.was_refused):
            job.own_nodes = self._slurm.own_nodes(job.row.key)
        return job.own_nodes or ""

    # --- rows of the engine's table

    def _submit(self, job: Tracked) -> None:
        row, job.phase, job.refusal = job.row, "waiting", ""
        if job.kept >= 0:
            job.place, job.kept = job.kept, -1
            self._at[job.place] = job
            self._engine.requeue(job.place)
            self._note("requeue", self._clock.now_s(), job.place)
            self._has_room = True
            return
        job.place = self._table.add(0, row.uid, min(row.submitted_s, self._clock.now_s()), row.limit_s, row.width)
        self._at[job.place] = job
        self._note("job", job.place, row.key, row.submitted_s, row.limit_s, row.width, row.uid)
        self._fresh.append(job)

    def _adopt(self, job: Tracked) -> None:
        """A job that runs, or may start, on nodes of its own, as soon as the engine has room for it."""
        nodes = [name for name in job.nodes if name in self._names]
        if not nodes or self._room < len(nodes):
            return
        row, now_s = job.row, self._clock.now_s()
        began_s = min(row.started_s if job.phase == "running" else now_s, now_s)
        submitted_s = min(row.submitted_s, began_s)
        place = self._table.add(0, row.uid, submitted_s, row.limit_s, len(nodes))
        self._at[place], job.place = job, place
        self._began_s[place] = began_s
        self._occupied(place, submitted_s, began_s, len(nodes), row.limit_s)

    def _withdraw(self, job: Tracked) -> None:
        """The engine has no row of it, and its nodes are free."""
        if job in self._fresh:
            self._fresh.remove(job)
        elif job.place >= 0:
            self._engine.withdraw(job.place)
            self._note("withdraw", self._clock.now_s(), job.place)
            job.kept, self._has_room = job.place, True
        self._forget(job)

    def _forget(self, job: Tracked) -> None:
        self._at.pop(job.place, None)
        for kept in (self._width, self._began_s, self._end_s):
            kept.pop(job.place, None)
        job.place, job.nodes = -1, ()

    @property
    def _room(self) -> int:
        return len(self._names) - sum(self._width.values())

    def _occupy(self, states: Mapping[str, NodeState]) -> None:
        """Nodes that are not idle and have no job of the queue are not the engine's to give."""
        owned = {name for job in self.jobs.values() for name in job.nodes}
        self._idle -= owned
        for name in self._away.keys() & (self._idle | owned):
            place = self._away.pop(name)
            del self._width[place]
            self._end_s.pop(place, None)
            self._engine.withdraw(place)
            self._note("withdraw", self._clock.now_s(), place)
            self._has_room = True
        for name in self._names:
            if name in self._idle or name in owned or name in self._away or self._room < 1:
                continue
            now_s, length_s = self._clock.now_s(), SOON_S if states[name] == "busy" else ENDLESS_S
            self._away[name] = place = self._table.add(0, -1, now_s, length_s, 1)
            self._occupied(place, now_s, now_s, 1, length_s, level=-1)

    def _occupied(self, place: int, submitted_s: int, began_s: int, width: int, length_s: int, level: int = 0) -> None:
        """The engine counts nodes for this row, which it has not started."""
        self._width[place] = width
        estimate_s = length_s if level < 0 else 0  # that of the policy
        end_s = self._engine.adopt(submitted_s, began_s, place, estimate_s, level)
        self._note("adopt", self._clock.now_s(), place, submitted_s, began_s, length_s, width, end_s)
        self.expect(self._clock.now_s(), place, end_s)

    # --- commands

    def _move_on(self) -> None:
        """The begin times that come next, of all jobs that wait but those that their users have set themselves."""
        now_s = self._now()
        due = [
            job.row.key
            for job in self.jobs.values()
            if job.phase in ("deferred", "waiting") and job.row.eligible_s - now_s < self._defer_s / 2
        ]
        self._commands += [f"update jobid={key} starttime=now+{self._defer_s}" for key in due[:MOST_MOVED]]

    def _carry_out(self) -> None:
        for command in self._commands:
            self._note("command", self._now(), command)
        new = set(self._slurm.update(self._commands)) if self._commands else set()
        for complaint in sorted(new - self._complaints):
            self._say(complaint)
        self._complaints = new | self._complaints if len(self._complaints) < 1000 else new
        for job in self._moved:
            job.since_s = self._now()

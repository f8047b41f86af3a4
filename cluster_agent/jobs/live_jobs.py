"""A live partition: the engine's clock and machine with real nodes.

The engine (``scheduler.loop``, ``scheduler.native``) runs unchanged. It runs until it would have to wait; then the
service that owns it waits on its sockets:

    messages from nodes and people ─► heard, submit, cancel, ... ─► turn(): the loop until nothing is due
                                                                  │ commit
    messages to nodes          ◄─ outbox ◄────────────────────────┘

Decisions are on the disk before they are sent to a node, and what became of a job is on the disk before its node may
forget it. So the agent may be killed at any instant: it finds its jobs on the disk, the nodes report what runs, and no
job is lost or run twice.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import filterfalse
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from cluster_agent.cluster import Machine
from cluster_agent.errors import ClusterError, WrongUseError, no_such_node
from cluster_agent.jobs.admission import can_run, check_job, check_live, check_runs, runners
from cluster_agent.jobs.job import ACTIVE, OVER, Job, JobSpec, PowerInterval, State, in_queue
from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.job_runs import Part, Run, Runs
from cluster_agent.jobs.job_table import CAPACITY, GrowingJobs
from cluster_agent.jobs.owned_watts.live_counts import claim_of
from cluster_agent.jobs.owned_watts.live_levels import CAPPED, PAUSE_S
from cluster_agent.jobs.owned_watts.live_owner import LiveScheduler, NodeBudget, Owner
from cluster_agent.jobs.placeholders import ENDLESS_S, Outage, Placeholders
from cluster_agent.jobs.power_switching import Power, PowerTimes, Wanted, is_coming, is_off_for_cap
from cluster_agent.jobs.timeouts import Timeouts
from cluster_agent.jobs.times import EngineClock, Times
from cluster_agent.jobs.waiting import Postponed, add_plan, why_waiting
from cluster_agent.scheduler.configurations.table import Rows
from cluster_agent.scheduler.interfaces import Event, Kind, Meter, unmetered
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.switches.live_limits import NONE, LiveSwitches
from cluster_agent.scheduler.switches.live_reservations import Busy, JobNeed, Reservation, Reservations
from cluster_agent.scheduler.switches.reservations import FOREVER_S
from cluster_agent.scheduler.world import LiveJobs
from foundation.wire.job_messages import Message, NodeJobs

if TYPE_CHECKING:
    from cluster_agent.store.job_store import JobStore

VOUCHED_S: Final = 12.0
"""Ours: a node without jobs reports that every few seconds only (``nodectl.member.cluster_cap``); for this long its
power reports count as the same."""

SHOWN_S: Final = 1.0
"""Ours: how old the accounts of running jobs may be that people see. To store them takes the disk's time."""

REQUEUE: Final = "to be queued again"
REMEMBERED: Final = 10_000
"""Ours: how many of the jobs that ended last a scheduler learns from after a restart."""


class Partition:
    """The jobs and nodes of one partition. ``now``: Unix time that does not jump (``steady_time``), since silence is
    measured by it. After a restart the engine's clock may begin earlier than it was; that only delays expected ends.

    Call ``turn`` after every message, and at the time that it returned. ``outbox``: messages for nodes; whoever sends
    them clears it. If they are lost, they are sent again later. Between ``heard`` and sending: ``runs.save_ends`` or
    ``turn``.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        composition: Composition,
        store: JobStore,
        now: Callable[[], float],
        say: Callable[[str], None] = lambda line: None,
        times: Times | None = None,
        capacity: int = CAPACITY,
        power: PowerTimes | None = None,
        machine: Machine | None = None,
        meter: Meter = unmetered,
        configurations: Mapping[str, Rows] | None = None,
        mop_mw: Mapping[str, int] = MappingProxyType({}),
        switches: LiveSwitches = NONE,
    ) -> None:
        """``machine``: what a node draws, for a policy that owns watts; ``meter``: what all of them have drawn;
        ``configurations``: by application, for a policy that chooses among them; ``mop_mw``: as of ``set_mops``;
        ``switches``: limits and queues."""
        check_live(composition, machine is not None, power is not None, configurations is not None, switches.names)
        self.watts = Owner(composition, machine, configurations, meter, switches)
        self.reservations = Reservations(store.reservations())
        try:
            for name in self.reservations.by_name:
                self.watts.check_reserves(name)
        except WrongUseError as error:  # of a policy that was chosen since
            raise ClusterError(str(error)) from None
        self.watts.reserve(self.reservations.reserved)
        self._windows = switches.windows
        self._windows.follow(int(now()))
        self._reserved_s = float("-inf")
        """Until then no reservation begins or ends, and no queue opens."""
        self.watts.set_mops(mop_mw)
        self.nodes = {name: Node(name) for name in sorted(nodes)}
        self.jobs: dict[int, Job] = {}
        self.outbox: list[tuple[str, Message]] = []
        self._store, self._now, self._say = store, now, say
        self._killed_s: dict[int, float] = {}  # by row, since when a job that is killed for a cap ends
        self._times = times or Times()
        self._capacity = capacity
        self._clock = EngineClock(now)
        self.runs = Runs(self._times, store, now, say, self._send, self._run_over)
        self._has_room, self._has_grown = True, False
        self._is_mixed = False
        """Whether any node runs one command only."""
        self._users: set[int] = set()
        """The users whose jobs some node runs exclusively."""
        self._saved_s = now()
        self._timeouts = Timeouts(self._times, self.runs, now, self.drain, say)
        self.power = Power(power or PowerTimes(), store, now, say, self._times.down_after_s)
        for name, reason in store.drained().items():
            if name in self.nodes:
                self.nodes[name].drained = reason
        for job in store.alive():
            self.jobs[job.id] = self._in_queue(job)
            for name in job.nodes if job.state in ACTIVE else ():
                # a node has the same time to report its jobs as after a restart of the agent
                self.nodes.setdefault(name, Node(name)).heard_s = now()
        self.power.load(self.nodes)
        self._queued: dict[int, Job] = {}
        self._row_of: dict[int, int] = {}
        self._ended: list[int] = []
        self._ended_nodes = 0  # that their jobs have until the scheduler hears of the ends
        self._placeholders = Placeholders(self.power.times)
        self._first_row = 0  # of the table's rows, of a job that has joined the queue since the table was begun
        self._aside: list[Job] = []
        self._overruns: list[tuple[int, int]] = []
        self._fresh: list[Job] = []
        self._postponed = Postponed(self.jobs, store.state, now)
        past = self._past()
        self._table, self._scheduler = self._new_scheduler(past)
        self._load(past)
        self._stored = store.stored_joules()
        self._counts_stored = self._stored is None or self._scheduler.restore(self._clock.now_s(), self._stored)

    # --- messages

    def take_in(self, names: Iterable[str]) -> None:
        """Add nodes that are not yet of the partition."""
        drained = self._store.drained()
        new = {name: Node(name, drained=drained.get(name)) for name in names}
        self.nodes = dict(sorted({**self.nodes, **new}.items()))
        self.power.load(new)
        self._note_resources()
        self._has_grown = True

    def submit(
        self, uid: int, user: str, spec: JobSpec, on: Sequence[str] = (), full_power: bool = False, group: str = ""
    ) -> Job:
        """Accept a job; it is on the disk when this returns. ``WrongUseError`` for one that could never run."""
        switches = self.watts.switches
        switches.check_queue(spec.queue)
        if on and switches.has_partitions:
            spec = replace(spec, queue=self._queue_of(on[0]))
        job = Job(
            id=0, uid=uid, user=user, spec=spec, submitted_s=self._now(), queued_s=self._now(), on=list(on),
            full_power=full_power, group=group,
        )  # fmt: skip
        self._in_queue(job)
        check_job(job, self.nodes, self.watts.most_nodes(job))
        check_runs(job, self.nodes.values())
        if (limits := self.watts.counts.limits) is not None:
            limits.check(claim_of(job))
        self.reservations.check_job(_need_of(job))
        self._windows.check_job(_need_of(job))
        self._postponed.check(job)
        self._store.add(job)
        self.jobs[job.id] = job
        if not self._postponed.postpone(job):
            self._fresh.append(job)
        # another user changes everybody's share
        self._has_grown |= self.watts.phases.priority is not None and not self._table.knows(uid)
        return job

    def cancel(self, job: Job) -> None:
        """End the job, wherever it is; one that is over stays as it is."""
        if job.state in OVER:
            return
        job.is_cancelled = True
        if job.state == "queued":
            self._leave_queue(job)
            self._over(job, "cancelled", None, "")
        else:
            self.runs.stop(self.runs.of(job), "cancelled by its owner or an administrator")
        self._store.save(job)

    def requeue(self, job: Job) -> None:
        """Run the job again from its start; if it runs, it is ended first. ``WrongUseError`` as in ``submit``."""
        if job.state == "queued":
            if job.awaits:  # whoever says so knows that it runs nowhere
                self._postponed.release(job)
                self._store.save(job)
            return
        job.is_cancelled = False
        if job.state in ACTIVE:
            job.reason = REQUEUE
            self.runs.stop(self.runs.of(job), REQUEUE)
        else:
            if job.attempt == 0:
                self._postponed.check(job)
            self.reservations.check_job(_need_of(job))
            self._windows.check_job(_need_of(job))
            self.jobs[job.id] = job
            self._queue_again(job, "queued again by hand")
        self._store.save(job)

    def drain(self, name: str, reason: str, uid: int = 0) -> None:
        """Start no more jobs on this node; the one that it has goes on."""
        self._store.drain(name, reason, uid)
        self.nodes[name].drained = reason

    def resume(self, name: str) -> None:
        """Let the node get jobs again."""
        self._store.resume(name)
        self.nodes[name].drained = None
        self.power.forgive(self.nodes[name])

    def reserve(self, new: Reservation) -> None:
        """Keep nodes for the jobs of some users from now on. ``WrongUseError`` for a reservation that cannot be had."""
        self.watts.check_reserves(new.name)
        if unknown := sorted(set(new.on) - set(self.nodes)):
            raise no_such_node(unknown[0], self.nodes)
        now_s = self._clock.now_s()
        new = replace(new, made_s=now_s)
        self.reservations.check_new(new, len(self.nodes), self._busy(), now_s)
        self._store.reserve(new)
        self.reservations.by_name[new.name] = new
        self._follow_reservations()

    def unreserve(self, name: str) -> None:
        """Delete the reservation. ``WrongUseError`` if there is none, or jobs are in it."""
        self.reservations.find(name)
        jobs = [job for job in self.jobs.values() if job.spec.reservation == name]
        if jobs:
            words = f"job {jobs[0].id}" + (f" and {len(jobs) - 1} more" if len(jobs) > 1 else "")
            raise WrongUseError(f"{words} wait or run in {name}: cancel them first (`clusterctl cancel`)")
        self._store.unreserve(name)
        self.reservations.remove(name, self._clock.now_s())
        self._follow_reservations()

    def why_waiting(self) -> dict[int, str]:
        """By job number, what each job of the queue waits for."""
        order = [self._queued[row] for row in self._scheduler.queue() if row in self._queued]
        why: dict[int, str] = {}
        for queue in self.watts.switches.queues if self.watts.switches.has_partitions else (None,):
            in_order, jobs = (
                [job for job in each if queue in (None, job.spec.queue)] for each in (order, self.jobs.values())
            )
            nodes = [node for node in self.nodes.values() if queue is None or node.serves(queue)]
            why |= why_waiting(in_order, jobs, nodes, self.runs.by_row, self._now(), self.watts.owns_watts)
        why |= self._may_not_start(order)
        add_plan(why, order, self.planned_s, self.watts.planner_trouble, self._now())
        for job in self._aside:
            idle = len(self._free(job))
            any_ = "that are not reserved by name" if self.reservations.name_nodes else "that run such a job"
            which = f"of {', '.join(job.on)}" if job.on else any_
            why[job.id] = f"needs {job.spec.nodes} nodes {which}, and {idle} of those are idle"
        return why | {number: self._postponed.why(job) for number, job in self._postponed.jobs.items()}

    @property
    def planned_s(self) -> dict[int, int]:
        """By job number, by when the policy plans to start it, on the clock of jobs."""
        return {self._queued[row].id: at_s for row, at_s in self.watts.planned_s.items() if row in self._queued}

    @property
    def switched(self) -> dict[str, int]:
        """How often each switch has changed anything since this agent or its table of jobs began, as a replay counts
        it."""
        return {**self.watts.switched, "failures": self._placeholders.mattered}

    @property
    def outages(self) -> list[Outage]:
        """When nodes were away, and not switched off, since this agent began."""
        return self._placeholders.outages

    @property
    def postponed(self) -> Collection[int]:
        """The jobs that wait for others to end, or for a time, of which the scheduler does not hear yet."""
        return self._postponed.jobs

    def heard(self, news: NodeJobs) -> None:
        """Take a node's report of its jobs. A node that is not of this partition is ignored."""
        node = self.nodes.get(news.node)
        if node is None:
            return
        self.spoke(news.node, news.boot_id)
        node.heard_s, node.boot_id, node.is_up = self._now(), news.boot_id, True
        node.without_jobs_s = float("-inf") if news.parts else node.heard_s
        node.runs_only, node.runs_names, node.refuses = news.runs_only, news.runs_names, news.refuses
        node.runs_uid = news.runs_uid
        self._is_mixed |= bool(news.runs_only)
        if news.runs_uid >= 0:
            self._users.add(news.runs_uid)
        self.runs.heard(node, news, node.heard_s)
        self.no_longer_runs(news.node, [part.job for part in news.parts if not part.is_over])

    def no_longer_runs(self, name: str, still: Collection[int] = ()) -> None:
        """A node runs none of the jobs that were given up on it but these: it says so, or it is known to be off."""
        for job in self._postponed.heard(name, still):
            self._store.save(job)

    @property
    def alarm(self) -> str:
        """What has not ended in time, else why a model of the site does not predict; empty: neither."""
        late = list(self._timeouts.late.values())
        if not late:
            return self.watts.counts.trouble
        more = f" (and {len(late) - 1} more)" if late[1:] else ""
        return f"{late[0]}{more}: it is killed again and again, and the node gets no other job"

    def spoke(self, name: str, boot_id: str) -> None:
        """A node has sent something, about its power or its jobs."""
        node = self.nodes.get(name)
        if node is None:
            return
        self.power.heard(node, boot_id)
        if node.is_up and boot_id == node.boot_id and self._now() - node.without_jobs_s <= VOUCHED_S:
            node.heard_s = self._now()

    def add_power(
        self, name: str, power_mw: int, quality: str, cap_mw: int = -1, bound: str = "", slowdown: float | None = None
    ) -> None:
        """For the job that has the node: mean power since the node's last report, the cap in force (-1: none), what
        bound the node if anything did, and the predicted slowdown."""
        node = self.nodes.get(name)
        one = self.runs.on(node) if node is not None else None
        now_s = self._now()
        if one is None or (seconds := one.unseen_s(name, now_s)) is None:
            return
        seconds = min(seconds, self._times.down_after_s)
        power_mw = -1 if name in one.job.metered else power_mw  # its own counters count
        one.add_power(name, now_s, PowerInterval(seconds, power_mw, quality, cap_mw, bound, slowdown))

    def store_accounts(self) -> None:
        """Before people see them: store what jobs have used so far, at most once in ``SHOWN_S``."""
        self._save_every(SHOWN_S)

    # --- what follows

    def turn(self) -> float:
        """Do all that is due, commit it, and fill the outbox. Returns the time at which it must be called again at the
        latest."""
        sent = len(self.outbox)
        try:
            with self._store.together():
                if self._has_grown or not self._table.has_room(len(self._fresh), len(self.nodes) + 1):
                    self._begin_again()
                self._has_room |= self.watts.announce(self._scheduler, self._clock.now_s())
                self._timeouts.check(self.nodes.values())
                self._switch()
                self._release()
                self._end_reservations()
                if self._has_grown:  # a job that was lost has to get its place
                    self._begin_again()
                    self._release()
                self._update_placeholders(self._clock.now_s())
                self._call_back()
                self._has_room |= self._scheduler.is_pass_due and not self._is_paused()
                self._clock.due_s, passes = None, self._scheduler.passes
                run(self._scheduler, self._clock, self)
                if self._scheduler.passes > passes and self._queued:
                    self._placeholders.had_wait()
                self._store_joules()
                self.runs.save_ends()
                self._save_every(self._times.save_every_s)
        except BaseException:
            del self.outbox[sent:]
            raise
        due_s = self._clock.due_s
        wake_s = min(self._now() + 1.0, self._postponed.next_s)
        return wake_s if due_s is None else min(float(due_s), wake_s)

    # --- the engine's machine (``scheduler.interfaces.Machine``)

    def events(self, now_s: int) -> Sequence[Event]:
        """Ends, overruns and submissions; last, if nodes became free or a job left the queue, an event for that."""
        found = [Event(Kind.ENDED, row) for row in self._ended]
        self._ended.clear()
        self._ended_nodes = 0
        while self._overruns and self._overruns[0][0] <= now_s:
            end_s, row = heappop(self._overruns)
            one = self.runs.by_row.get(row)
            if one is not None and one.expected_end_s == end_s:
                found.append(Event(Kind.OVERRUN, row))
        for job in sorted(self._fresh, key=in_queue):
            if job.state == "queued":
                found.append(Event(Kind.SUBMITTED, self._row(job, now_s)))
        self._fresh.clear()
        if self._has_room:
            self._has_room = False
            found.append(Event(Kind.ROOM, -1))
        return found

    def next_event_s(self) -> int | None:
        """The next expected end."""
        return self._overruns[0][0] if self._overruns else None

    def start(self, now_s: int, job: int, expected_end_s: int, level: int = 0) -> None:
        """Give the job its nodes."""
        started = self._queued.pop(job)
        del self._row_of[started.id]
        width = self.watts.width(job)
        if sum(node.may_start for node in self.nodes.values()) < width:
            raise RuntimeError("defect: the scheduler started a job for which there are no nodes")
        free = self.watts.counts.nodes_for(self._scheduler, job, self._free(started), width)
        if len(free) < width:
            self._set_aside(job, started)
            return
        self.watts.counts.started(job, started)
        for node in free:
            node.run = job
        started.state, started.attempt, started.reason = "starting", started.attempt + 1, ""
        started.level = level
        started.nodes, started.started_s, started.ended_s = [node.name for node in free], self._now(), None
        started.parts, started.metered = {}, {}
        started.expected_end_s = expected_end_s
        parts = {node.name: Part(node.boot_id) for node in free}
        self.runs.by_row[job] = one = Run(job, started, parts, expected_end_s)
        self.expect(now_s, job, expected_end_s)
        self._store.save(started)
        self.runs.start(one)

    def expect(self, now_s: int, job: int, expected_end_s: int) -> None:
        """Note the job's expected end, at which the scheduler is called again."""
        one = self.runs.by_row[job]
        one.expected_end_s = one.job.expected_end_s = expected_end_s
        if expected_end_s > now_s:
            heappush(self._overruns, (expected_end_s, job))

    def kill(self, now_s: int, job: int) -> None:
        """End the job for a cap. Until its nodes say that it has ended they are occupied, with the caps of idle
        ones."""
        one = self.runs.by_row.pop(job)
        row = self._occupy(one.job.nodes, now_s)
        one.is_killed, one.waits_as, one.row = True, job, row
        self.runs.by_row[row] = one
        for name in one.parts:
            self.nodes[name].run = row
        self._killed_s[row] = self._now()
        self._say(f"job {one.job.id}: {CAPPED}")
        self.runs.stop(one, CAPPED)
        self.runs.happened.add("start")  # its watts are for others
        self._store.save(one.job)

    def set_level(self, now_s: int, job: int, level: int, expected_end_s: int) -> None:
        """The caps of the job's nodes follow with the next plan, at once."""
        one = self.runs.by_row[job]
        one.job.level = level
        self.expect(now_s, job, expected_end_s)
        self.runs.happened.add("start")
        self._store.save(one.job)

    # --- watts, where they are the policy's

    def set_mops(self, mop_mw: Mapping[str, int]) -> None:
        """What nodes draw at least, as far as they have declared it: from the next turn on idle nodes count that."""
        self._has_grown |= self.watts.set_mops(mop_mw)

    def set_budget(self, budget: NodeBudget) -> bool:
        """From the next turn on the nodes may draw this; whether that is anything new."""
        return self.watts.set_budget(budget)

    def caps_mw(self) -> dict[str, int]:
        """The caps of nodes with a job, and none for those that are off by plan."""
        off_mw = {node.name: 0 for node in self.nodes.values() if is_off_for_cap(node) and not is_coming(node)}
        return off_mw | self.watts.caps_mw(self.runs.by_row.values())

    def planned_mw(self) -> dict[str, int]:
        """The same, and the caps of nodes without a job that are not those of any idle node."""
        return {**self.watts.idle_caps_mw, **self.caps_mw()}

    def wanted_mw(self) -> dict[str, int]:
        """The same, as far as the budget is enough: the policy may plan with less."""
        return self.planned_mw() | self.watts.wanted_mw(self.runs.by_row.values())

    # --- inside

    def _rows_needed(self) -> int:
        """Rows of a table that has room for the jobs alive, the nodes away, and many more to come."""
        return max(self._capacity, 4 * (len(self.jobs) + len(self.nodes)) + 64)

    def _past(self) -> list[Job]:
        """The jobs that ended last, if the policy learns from them."""
        phases = self.watts.phases
        learns = phases.estimate in ("mean2", "learned") or phases.priority is not None
        learns |= phases.power is not None and phases.power.admitted is not None
        return self._store.ended(REMEMBERED)[-self._rows_needed() // 2 :] if learns else []

    def _new_scheduler(self, past: list[Job]) -> tuple[GrowingJobs, LiveScheduler]:
        """An empty table and a scheduler over it; at the start, and when the table is full."""
        users: list[int] = []
        if (priority := self.watts.phases.priority) is not None:
            users = sorted({*priority.accounts, *(job.uid for job in (*past, *self.jobs.values()))})
        table = GrowingJobs(self._rows_needed() + len(past), known=users)
        self._note_resources()
        live = LiveJobs(table.jobs, max(len(self.nodes), 1), table.uids, self._say)
        return table, self.watts.begin(live, list(self.nodes), self._delays_pass)

    def _learn_from(self, past: list[Job]) -> None:
        """Jobs that ended before, for estimates, priorities and predictions."""
        for job in past:
            if job.started_s is not None and job.ended_s is not None and job.state in ("done", "failed", "timeout"):
                row = self._add(job, int(job.queued_s))
                self._table.ran(row, round(job.ended_s - job.started_s))
                times_s = int(job.queued_s), int(job.started_s), int(job.ended_s)
                self.watts.counts.ended(job)
                self._scheduler.past(*times_s, row, job.account.joules if self.watts.full_w else None)

    def _delays_pass(self) -> bool:
        """Whether a pass has to wait. The scheduler has heard of all ends by now, so there is room for placeholders."""
        if self._placeholders.is_short_of_room:
            self._update_placeholders(self._clock.now_s())
        return self._is_paused()

    def _is_paused(self) -> bool:
        """Whether no job is started, since jobs that were killed for a cap are about to end, or nodes are now on or off
        by plan of which the placeholders do not know."""
        if self._scheduler.nodes_off(self._clock.now_s())[1] != self._placeholders.by_plan:
            return True
        return any(self._now() - since_s < PAUSE_S for since_s in self._killed_s.values())

    def _begin_again(self) -> None:
        """With another table and scheduler; the joules that a budget has stored go over."""
        past, stored = self._past(), self._scheduler.stored
        self._table, self._scheduler = self._new_scheduler(past)
        self._load(past)
        if stored is not None:
            self._scheduler.restore(self._clock.now_s(), stored)

    def stored_by(self, at_s: int) -> float | None:
        """The joules that a budget will have stored by then, as planned; None: there is none, or it is not open."""
        return self._scheduler.stored_by(at_s)

    def _store_joules(self) -> None:
        """After a reading, and where another power is planned, with the starts that it is due to."""
        if not self._counts_stored:
            self._store.forget_joules()
            self._counts_stored, self._stored = True, None
        stored = self._scheduler.stored
        if stored is None:
            return
        stored, last = self.watts.kept(stored), self._stored
        if last is None or (stored.from_s, stored.read_s, stored.drawn_uw) != (last.from_s, last.read_s, last.drawn_uw):
            self._store.store_joules(stored)
            self._stored = stored

    def _load(self, past: list[Job]) -> None:
        """Fill a new scheduler with the jobs of the past and those that are alive."""
        now_s = self._clock.now_s()
        for emptied in (self._queued, self._row_of, self._ended, self._aside, self._overruns, self._killed_s):
            emptied.clear()
        self._has_grown, self._has_room, self._ended_nodes = False, True, 0
        kept = {one.job.id: one for one in self.runs.by_row.values()}
        self.runs.by_row.clear()
        self._learn_from(past)
        for node in self.nodes.values():
            node.run = node.away_row = node.away_until_s = None
        for job in self.jobs.values():
            if job.state in ACTIVE:
                self._adopt(job, kept.get(job.id), now_s)
        if not kept:  # after a start, jobs are as they were stored
            self.runs.note_stored()
        self._first_row = self._table.rows
        # placeholders for nodes that are away come before the queue, so that no job is started there
        self._update_placeholders(now_s)
        # a job that is wider than the partition, which has lost keys, waits until the partition has grown
        queued = [job for job in self.jobs.values() if job.state == "queued" and self._fits(job)]
        self._postponed.jobs.clear()
        self._postponed.is_due = True
        self._fresh = list(filterfalse(self._postponed.postpone, queued))

    def _free(self, job: Job) -> list[Node]:
        """The nodes that may start the job now; emulated nodes and others run different programs, and some jobs name
        their nodes, as some reservations do."""
        is_mixed = self._is_mixed or self.watts.switches.has_partitions
        is_any = not (is_mixed or job.on or job.spec.requested or self._users - {job.uid})
        nodes = self.nodes.values() if is_any else runners(job, self.nodes.values())
        free = [node for node in nodes if node.may_start]
        if not self.reservations.name_nodes:
            return free
        names = self.reservations.choose((node.name for node in free), _need_of(job), self._clock.now_s())
        return [self.nodes[name] for name in names]

    def _note_resources(self) -> None:
        switches = self.watts.switches
        queue_of = switches.queue_of_node
        for node in self.nodes.values():
            node.has = self.watts.has(node.name)
            node.queue = queue_of.get(node.name, "") if switches.has_partitions else None

    def _set_aside(self, row: int, job: Job) -> None:
        """Withdraw a job that all free nodes would refuse, since the scheduler takes all nodes as alike: to the
        scheduler it has ended, and it is queued again when other nodes are free. Partitions of emulated and real nodes
        are for trials, and few nodes are reserved by name, so it does not matter that this delays wide jobs."""
        self._table.ran(row, job.spec.walltime_s)
        self._ended.append(row)
        self._aside.append(job)

    def _call_back(self) -> None:
        """Queue the jobs again that were set aside and for which nodes are free now."""
        for job in list(self._aside):
            if len(self._free(job)) >= job.spec.nodes:
                self._aside.remove(job)
                self._fresh.append(job)

    def _release(self) -> None:
        """The jobs that no longer wait for others, or for a time, join the queue, at its end; one that is cancelled may
        be waited for, too."""
        self._postponed.is_due |= self._postponed.next_s <= self._now()
        for job in self._postponed.overdue(self._now()):
            self._store.save(job)
        for name in self._postponed.awaited & self.nodes.keys():
            switched = self.nodes[name].switched
            if switched is not None and switched.state == "off":
                self.no_longer_runs(name)
        while self._postponed.is_due:
            for job, trouble in self._postponed.over():
                if trouble:
                    self._over(job, "cancelled", None, trouble)
                elif job.attempt > 0:  # lost with a node: its place is where it was
                    self._has_grown = True
                else:
                    self._queue_again(job, job.reason)
                self._store.save(job)

    def _in_queue(self, job: Job) -> Job:
        """With the queue that it is in, by the settings of now."""
        if (queue := self.watts.switches.queue(job.spec.queue)) != job.spec.queue:
            job.spec = replace(job.spec, queue=queue)
        return job

    def _queue_of(self, name: str) -> str:
        """The queue whose node this is. ``WrongUseError``: it has none."""
        queue = self.watts.switches.queue_of_node.get(name)
        if queue is None and name in self.nodes:
            raise WrongUseError(f"{name} is a node of no queue, so it gets no job: add it to one ([jobs] queues)")
        return queue or ""

    def _fits(self, job: Job) -> bool:
        return self.watts.fits(job, self.nodes.values())

    def _adopt(self, job: Job, known: Run | None, now_s: int) -> None:
        assert job.started_s is not None
        if job.reason == CAPPED:
            row, expected_end_s = self._occupy(job.nodes, now_s), ENDLESS_S
            self._killed_s[row] = self._now()
        else:
            row = self._add(job, int(job.queued_s), len(job.nodes))
            more = self.watts.counts.adopted(row, job, now_s)
            times_s = int(job.queued_s), int(job.started_s)
            expected_end_s = self._scheduler.adopt(*times_s, row, level=job.level, **more)
        one = known or Run(
            row, job, {name: Part("", last=job.parts.get(name)) for name in job.nodes}, expected_end_s,
            signal=signal.SIGTERM if job.is_being_ended else 0,
            knows_ends=job.state != "ending" or job.is_being_ended or bool(job.parts),
        )  # fmt: skip
        one.row, one.expected_end_s = row, expected_end_s
        one.is_killed, one.waits_as = job.reason == CAPPED, None
        self.runs.by_row[row] = one
        for name in job.nodes:
            self.nodes[name].run = row
        if expected_end_s <= now_s:
            heappush(self._overruns, (expected_end_s, row))
        else:
            self.expect(now_s, row, expected_end_s)

    def _add(self, job: Job, submit_s: int, nodes: int = 0) -> int:
        """``nodes``: how many it has, which a policy before a restart may have chosen; 0: those that it requests."""
        row = self._table.add(job.id, job.uid, submit_s, job.spec.walltime_s, nodes or job.spec.nodes)
        self.watts.counts.add(row, job)
        return row

    def _occupy(self, names: Sequence[str], now_s: int, length_s: int = ENDLESS_S) -> int:
        """A row that has these nodes, which are away or have a job that is being killed, and draws what idle nodes
        do."""
        row = self._table.add(0, -1, now_s, length_s, len(names))
        self._scheduler.adopt(now_s, now_s, row, length_s, level=-1, **self.watts.counts.occupy(row, names))
        return row

    def _row(self, job: Job, now_s: int) -> int:
        row = self._add(job, min(int(job.queued_s), now_s))
        self._queued[row], self._row_of[job.id] = job, row
        return row

    def _may_not_start(self, jobs: Iterable[Job]) -> dict[int, str]:
        """Why those of the waiting jobs, by number, wait that have to, however many nodes are idle: their user, group
        or queue runs as much as it may, nodes are reserved, or the queue is closed."""
        if (limits := self.watts.counts.limits) is None:
            return {}
        jobs, running = list(jobs), [claim_of(one.job) for one in self.runs.by_row.values()]
        found = limits.over(((job.id, claim_of(job)) for job in jobs), running)
        needs = [(job.id, _need_of(job)) for job in jobs]
        now_s = self._clock.now_s()
        found |= self.reservations.why(needs, len(self.nodes), self._busy(), now_s)
        return found | self._windows.why(needs, now_s)

    def _busy(self) -> list[Busy]:
        """The nodes that are taken, and until when at the latest."""
        found = [
            Busy(
                one.job.id,
                len(one.parts),
                (one.job.started_s or 0.0) + one.job.walltime_s,
                one.job.spec.reservation,
                one.parts,
            )
            for one in self.runs.by_row.values()
        ]
        away = sum(node.run is None and not node.may_start for node in self.nodes.values())
        return [*found, *([Busy(0, away, float("inf"))] if away else [])]

    def _follow_reservations(self) -> None:
        """They are others than before."""
        self.watts.reserve_now(self.reservations.reserved, self._scheduler, self._clock.now_s())
        self._reserved_s = float("-inf")  # a pass is due

    def _end_reservations(self) -> None:
        """Where one begins or ends, or a queue opens, a pass is due. One that is over is forgotten, and jobs that still
        wait for it are cancelled, since they would wait forever."""
        now_s = self._clock.now_s()
        if now_s < self._reserved_s:
            return
        if self._windows.is_behind(now_s):
            self._windows.follow(now_s)
            self._scheduler.open(self._windows.queues)
        for name in self.reservations.over(now_s):
            self._store.unreserve(name)
            self.reservations.remove(name, FOREVER_S)
            self._follow_reservations()
        for job in [job for job in self.jobs.values() if job.state == "queued" and job.spec.reservation]:
            if job.spec.reservation not in self.reservations.by_name:
                self._leave_queue(job)
                self._over(job, "cancelled", None, f"its reservation {job.spec.reservation} is over")
                self._store.save(job)
        changes_s = self.reservations.change_after_s(now_s), self._windows.change_after_s(now_s)
        self._has_room, self._reserved_s = True, min(changes_s)

    def _leave_queue(self, job: Job) -> None:
        row = self._row_of.pop(job.id, None)
        if row is not None:  # else the engine does not have it yet
            del self._queued[row]
            self._scheduler.withdraw(row)
            self._has_room = True
        self._postponed.jobs.pop(job.id, None)
        for waiting in (self._fresh, self._aside):
            if job in waiting:
                waiting.remove(job)

    def _switch(self) -> None:
        """Update which nodes are to be switched off or on."""
        off, _ = self._scheduler.nodes_off(self._clock.now_s())
        if off or any(map(is_off_for_cap, self.nodes.values())):
            self.power.keep_off(self.nodes.values(), off)
        if self.power.times.is_used or any(node.switched for node in self.nodes.values()):
            queued = (job for job in self.jobs.values() if job.state == "queued" and job.id not in self._postponed.jobs)
            waiting = sorted(queued, key=in_queue)
            over = self._may_not_start(waiting)
            self.power.watch(
                self.nodes.values(),
                [
                    Wanted(job.spec.nodes, self.watts.most_nodes(job), partial(can_run, job))
                    for job in waiting
                    if job.id not in over
                ],
            )

    def _update_placeholders(self, now_s: int) -> None:
        """Where the engine counts watts for every node there is room for no more than its jobs leave: they have nodes
        on which their part is over, and those of jobs of whose end it has not heard, too."""
        room = float("inf")
        if self.watts.counts_every_node:
            room = len(self.nodes) - sum(len(one.parts) for one in self.runs.by_row.values()) - self._ended_nodes
        self._has_room |= self._placeholders.update(self._scheduler, self.nodes.values(), self._occupy, now_s, room)

    def _send(self, name: str, message: Message) -> None:
        self.outbox.append((name, message))

    def _run_over(self, one: Run) -> None:
        job = one.job
        job.nodes = list(one.parts)
        for name in one.parts:
            self.nodes[name].run = None
        state, status, reason = one.outcome
        is_requeue = job.reason == REQUEUE and not job.is_cancelled
        waits_again = state == "lost" and not is_requeue and self._is_to_wait_after_loss(one)
        if one.is_killed:
            self._scheduler.withdraw(one.row)
            self._killed_s.pop(one.row, None)
            self._has_room = True
        elif waits_again:
            self._wait_after_loss(one, f"queued again: {reason}")
        else:
            self._row_over(one)
        if is_requeue:
            self._queue_again(job, "queued again by hand")
        elif job.reason == CAPPED and not job.is_cancelled:
            self._wait_again(one)
        elif not waits_again:
            self._over(job, state, status, reason)
        self._store.save(job)

    def _row_over(self, one: Run) -> None:
        """The scheduler will hear that the job has ended."""
        job = one.job
        assert job.started_s is not None
        self._table.ran(one.row, round(self._now() - job.started_s))
        self._ended.append(one.row)
        self._ended_nodes += len(one.parts)
        self.watts.counts.ended(job)
        if self.watts.full_w and (joules := job.account.joules) is not None:
            self._scheduler.metered(one.row, joules)

    def _is_to_wait_after_loss(self, one: Run) -> bool:
        """Note that nodes have lost the job; whether it is to run once more."""
        job = one.job
        job.losses += 1
        waits = not one.is_killed and job.losses == 1 and job.spec.requeue
        for name, part in one.parts.items():
            if part.last is not None and part.last.phase == "lost":
                self._placeholders.lost(name, self._clock.now_s(), has_ended_job=waits)
        return waits

    def _wait_after_loss(self, one: Run, reason: str) -> None:
        """A job whose node failed: to its place in the queue, at once or when its node no longer runs it."""
        job, place_s = one.job, one.job.queued_s
        self._queue_again(job, reason)
        job.queued_s, self._has_room = place_s, True
        is_ready = bool(self._fresh) and self._fresh[-1] is job
        if is_ready and not self.watts.owns_watts and one.row >= self._first_row:
            self._fresh.pop()
            self._queued[one.row], self._row_of[job.id] = job, one.row
            self._scheduler.lose(one.row)
            return
        self._scheduler.withdraw(one.row)
        self._has_grown |= is_ready  # all that wait are put in order again

    def _wait_again(self, one: Run) -> None:
        """A job that was killed for a cap: to its place in the queue, or it has ended, as the policy and it say."""
        job = one.job
        if not (job.spec.requeue and self.watts.requeues):
            self._over(job, "failed", None, CAPPED)
            return
        place_s = job.queued_s
        self._queue_again(job, f"queued again: {CAPPED}")
        job.queued_s = place_s
        if one.waits_as is None:  # it was killed before a restart: all that wait are put in order again
            self._has_grown = True
        elif self._fits(job):
            self._fresh.remove(job)
            self._queued[one.waits_as], self._row_of[job.id] = job, one.waits_as
            self._scheduler.requeue(one.waits_as)

    def _over(self, job: Job, state: State, status: int | None, reason: str) -> None:
        job.state, job.status, job.reason, job.ended_s = state, status, reason, self._now()
        self.jobs.pop(job.id, None)
        self._postponed.is_due = True

    def _queue_again(self, job: Job, reason: str) -> None:
        """To the end of the queue, since its place was taken when it started."""
        job.state, job.reason, job.status, job.ended_s = "queued", reason, None, None
        job.nodes, job.queued_s, job.expected_end_s, job.configured = [], self._now(), None, None
        if job.spec.reservation:  # it may be over
            self._reserved_s = float("-inf")
        if not self._postponed.postpone(job) and self._fits(job):
            self._fresh.append(job)

    def _save_every(self, seconds: float) -> None:
        now_s = self._now()
        if now_s - self._saved_s >= seconds:
            self._saved_s = now_s
            self.runs.save()


def _need_of(job: Job) -> JobNeed:
    """What it wants of reservations and queues."""
    return JobNeed(job.user, job.spec.nodes, job.spec.walltime_s, job.spec.reservation, job.spec.queue)

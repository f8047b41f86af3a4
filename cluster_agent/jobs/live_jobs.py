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

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from cluster_agent.cluster import Machine
from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.admission import check_components, check_job, check_live, check_runs, check_shares, check_yields
from cluster_agent.jobs.component_nodes import distributed
from cluster_agent.jobs.engine_side.engine_rows import EngineRows
from cluster_agent.jobs.engine_side.free_nodes import FreeNodes
from cluster_agent.jobs.engine_side.placeholders import Outage, Placeholders
from cluster_agent.jobs.engine_side.run_ends import REQUEUE, RunEnds
from cluster_agent.jobs.engine_side.start_rules import StartRules, stored_reservations
from cluster_agent.jobs.job import ACTIVE, OVER, PREEMPTED, Job, JobSpec, PowerInterval, in_queue
from cluster_agent.jobs.job_nodes import SHARES, Node
from cluster_agent.jobs.job_runs import Part, Run, Runs
from cluster_agent.jobs.job_table import CAPACITY
from cluster_agent.jobs.owned_watts.live_halves import LivePairs
from cluster_agent.jobs.owned_watts.live_owner import NodeBudget, Owner
from cluster_agent.jobs.power_switching import Power, PowerTimes, is_coming, is_off_for_cap
from cluster_agent.jobs.timeouts import Timeouts
from cluster_agent.jobs.times import EngineClock, Times
from cluster_agent.jobs.waiting import Postponed, add_plan, boots_nodes, wanted_by, why_waiting
from cluster_agent.scheduler.configurations.table import Rows
from cluster_agent.scheduler.interfaces import Event, Meter, unmetered
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.switches.live_limits import NONE, LiveSwitches
from cluster_agent.scheduler.switches.live_reservations import Reservation
from foundation.wire.job_messages import Message, NodeJobs

if TYPE_CHECKING:
    from cluster_agent.store.job_store import JobStore

VOUCHED_S: Final = 12.0
"""Ours: a node without jobs reports that every few seconds only (``nodectl.member.cluster_cap``); for this long its
power reports count as the same."""

SHOWN_S: Final = 1.0
"""Ours: how old the accounts of running jobs may be that people see. To store them takes the disk's time."""


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
        pairs: LivePairs | None = None,
    ) -> None:
        """``machine``: what a node draws, for a policy that owns watts; ``meter``: what all of them have drawn;
        ``configurations``: by application, for a policy that chooses among them; ``mop_mw``: as of ``set_mops``;
        ``switches``: limits and queues; ``pairs``: how fast jobs are next to others, for a policy that shares nodes."""
        has = machine is not None, power is not None, configurations is not None
        check_live(composition, *has, switches.names, pairs is not None)
        self.watts = Owner(composition, machine, configurations, meter, switches, pairs)
        self.reservations = stored_reservations(store, self.watts)
        self.watts.reserve(self.reservations.reserved)
        switches.windows.follow(int(now()))
        self.watts.set_mops(mop_mw)
        self.nodes = {name: Node(name) for name in sorted(nodes)}
        self.jobs: dict[int, Job] = {}
        self.outbox: list[tuple[str, Message]] = []
        self._store, self._now, self._say = store, now, say
        self._times = times or Times()
        self._clock = EngineClock(now)
        self.runs = Runs(self._times, store, now, say, self._send, lambda one: self._ends.run_over(one))
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
        self.watts.check_alone(self.jobs.values())
        self.power.load(self.nodes)
        self._free = FreeNodes(self.nodes, self.watts, self.reservations, self._clock)
        self._placeholders = Placeholders(self.power.times)
        self._postponed = Postponed(self.jobs, store.state, now)
        self._rows = EngineRows(
            self.watts, self.nodes, self.jobs, self.runs, self._postponed, self._placeholders, store, self._clock, now,
            say, capacity, lambda row: self._ends.preempt(row),
        )  # fmt: skip
        self._rules = StartRules(self.reservations, self._rows, store, self._clock)
        self._ends = RunEnds(self._rows, self._rules, store, self._clock, now, say)

    # --- messages

    def take_in(self, names: Iterable[str]) -> None:
        """Add nodes that are not yet of the partition."""
        drained = self._store.drained()
        new = {name: Node(name, drained=drained.get(name)) for name in names}
        known = sorted({**self.nodes, **new}.items())
        self.nodes.clear()
        self.nodes.update(known)
        self.power.load(new)
        self._rows.note_resources()
        self._rows.has_grown = True

    def submit(
        self, uid: int, user: str, spec: JobSpec, on: Sequence[str] = (), full_power: bool = False, group: str = ""
    ) -> Job:
        """Accept a job; it is on the disk when this returns. ``WrongUseError`` for one that could never run."""
        switches = self.watts.switches
        switches.check_queue(spec.queue)
        check_yields(spec, self.watts.has_best_effort)
        if on and switches.has_partitions:
            spec = replace(spec, queue=self._queue_of(on[0]))
        if spec.components:
            check_components(spec, self.watts.configurations)
            spec = replace(
                spec, nodes=sum(one.nodes for one in spec.components), cores=0, gpus=0, mics=0, memory_gb=0.0
            )
        job = Job(
            id=0, uid=uid, user=user, spec=spec, submitted_s=self._now(), queued_s=self._now(), on=list(on),
            full_power=full_power, group=group,
        )  # fmt: skip
        self._in_queue(job)
        check_job(job, self.nodes, self.watts.most_nodes(job))
        check_shares(job, self.watts.pairs is not None)
        check_runs(job, self.nodes.values())
        self._rules.check(job)
        self._postponed.check(job)
        self._store.add(job)
        self.jobs[job.id] = job
        if not self._postponed.postpone(job):
            self._rows.fresh.append(job)
        # another user changes everybody's share
        self._rows.has_grown |= self.watts.phases.priority is not None and not self._rows.knows(uid)
        return job

    def cancel(self, job: Job) -> None:
        """End the job, wherever it is; one that is over stays as it is."""
        if job.state in OVER:
            return
        job.is_cancelled = True
        if job.state == "queued":
            self._ends.cancel(job)
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
            if job.reason != PREEMPTED:  # which is queued again anyway
                job.reason = REQUEUE
                self.runs.stop(self.runs.of(job), REQUEUE)
        else:
            if job.attempt == 0:
                self._postponed.check(job)
            self._rules.check_times(job)
            self.jobs[job.id] = job
            self._ends.queue_again(job, "queued again by hand")
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
        self._rules.reserve(new)

    def unreserve(self, name: str) -> None:
        """Delete the reservation. ``WrongUseError`` if there is none, or jobs are in it."""
        self._rules.unreserve(name)

    def why_waiting(self) -> dict[int, str]:
        """By job number, what each job of the queue waits for."""
        order = [self._rows.queued[row] for row in self._rows.scheduler.queue() if row in self._rows.queued]
        why: dict[int, str] = {}
        for queue in self.watts.switches.queues if self.watts.switches.has_partitions else (None,):
            in_order, jobs = (
                [job for job in each if queue in (None, job.spec.queue)] for each in (order, self.jobs.values())
            )
            nodes = [node for node in self.nodes.values() if queue is None or node.serves(queue)]
            why |= why_waiting(in_order, jobs, nodes, self.runs.by_row, self._now(), self.watts.owns_watts)
        why |= self._rules.why(order)
        add_plan(why, order, self.planned_s, self.watts.planner_trouble, self._now())
        for job in self._rows.aside:
            idle = len(self._free.of(job))
            any_ = "that are not reserved by name" if self.reservations.name_nodes else "that run such a job"
            which = f"of {', '.join(job.on)}" if job.on else any_
            why[job.id] = f"needs {job.spec.nodes} nodes {which}, and {idle} of those are idle"
        return why | {number: self._postponed.why(job) for number, job in self._postponed.jobs.items()}

    @property
    def planned_s(self) -> dict[int, int]:
        """By job number, by when the policy plans to start it, on the clock of jobs."""
        queued = self._rows.queued
        return {queued[row].id: at_s for row, at_s in self.watts.planned_s.items() if row in queued}

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
        node.runs_uid, node.halves = news.runs_uid, news.halves
        self._free.heard(news)
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
        """For the jobs that have the node: mean power since the node's last report, the cap in force (-1: none), what
        bound the node if anything did, and the predicted slowdown."""
        node, now_s = self.nodes.get(name), self._now()
        for one in self.runs.on(node) if node is not None else ():
            if (seconds := one.unseen_s(name, now_s)) is None:
                continue
            seconds = min(seconds, self._times.down_after_s)
            counts = name in one.job.metered or name in one.job.halves  # the node's counters for this job
            drawn_mw = -1 if counts else power_mw
            one.add_power(name, now_s, PowerInterval(seconds, drawn_mw, quality, cap_mw, bound, slowdown))

    def store_accounts(self) -> None:
        """Before people see them: store what jobs have used so far, at most once in ``SHOWN_S``."""
        self._save_every(SHOWN_S)

    # --- what follows

    def turn(self) -> float:
        """Do all that is due, commit it, and fill the outbox. Returns the time at which it must be called again at the
        latest."""
        sent, rows = len(self.outbox), self._rows
        try:
            with self._store.together():
                if rows.has_grown or rows.is_full:
                    rows.begin_again()
                rows.has_room |= self.watts.announce(rows.scheduler, self._clock.now_s())
                self._timeouts.check(self.nodes.values())
                self._switch()
                self._release()
                self._rules.follow_time(self._ends.cancel)
                if rows.has_grown:  # a job that was lost has to get its place
                    rows.begin_again()
                    self._release()
                rows.update_placeholders(self._clock.now_s())
                self._call_back()
                rows.has_room |= rows.scheduler.is_pass_due and not rows.is_paused()
                self._clock.due_s, passes = None, rows.scheduler.passes
                run(rows.scheduler, self._clock, self)
                if rows.scheduler.passes > passes and rows.queued:
                    self._placeholders.had_wait()
                rows.store_joules()
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
        return self._rows.events(now_s)

    def next_event_s(self) -> int | None:
        """The next expected end."""
        return self._rows.next_event_s()

    def start(self, now_s: int, job: int, expected_end_s: int, level: int = 0) -> None:
        """Give the job its nodes."""
        started = self._rows.queued.pop(job)
        del self._rows.row_of[started.id]
        width = self.watts.width(job)
        if sum(node.may_start for node in self.nodes.values()) < width:
            raise RuntimeError("defect: the scheduler started a job for which there are no nodes")
        free = self.watts.counts.nodes_for(self._rows.scheduler, job, self._free.of(started), width)
        if len(free) < width:
            self._rows.set_aside(job, started)
            return
        self._ends.preempt_on(free)
        self.watts.counts.started(job, started)
        counts = self.watts.counts.counts_on(self._rows.scheduler, job)
        others = list(dict.fromkeys(row for node in free for row in node.runs))
        started.halves, started.partners, started.placed_why = {}, [], ""
        for node in free:
            if counts.get(node.name, SHARES) < SHARES:
                started.halves[node.name] = node.free_half
            self._rows.has_node(job, started, node.name)
        started.state, started.attempt, started.reason = "starting", started.attempt + 1, ""
        started.level = level
        started.nodes, started.started_s, started.ended_s = [node.name for node in free], self._now(), None
        started.parts, started.metered = {}, {}
        started.expected_end_s = expected_end_s
        parts = {node.name: Part(node.boot_id) for node in free}
        self.runs.by_row[job] = one = Run(job, started, parts, expected_end_s)
        self.expect(now_s, job, expected_end_s)
        self.watts.counts.met(one, next_to := [self.runs.by_row[row] for row in others])
        for each in (one, *next_to):
            self._store.save(each.job)
        self.runs.start(one)

    def expect(self, now_s: int, job: int, expected_end_s: int) -> None:
        """Note the job's expected end, at which the scheduler is called again."""
        self._rows.expect(now_s, job, expected_end_s)

    def kill(self, now_s: int, job: int) -> None:
        """End the job for a cap."""
        self._ends.kill(now_s, job)

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
        self._rows.has_grown |= self.watts.set_mops(mop_mw)

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

    def stored_by(self, at_s: int) -> float | None:
        """The joules that a budget will have stored by then, as planned; None: there is none, or it is not open."""
        return self._rows.scheduler.stored_by(at_s)

    # --- inside

    def _call_back(self) -> None:
        """Queue the jobs again that were set aside and for which nodes are free now."""
        for job in list(self._rows.aside):
            if len(distributed(job.spec, self._free.of(job))) >= job.spec.nodes:
                self._rows.aside.remove(job)
                self._rows.fresh.append(job)

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
                    self._ends.job_over(job, "cancelled", None, trouble)
                elif job.attempt > 0:  # lost with a node: its place is where it was
                    self._rows.has_grown = True
                else:
                    self._ends.queue_again(job, job.reason)
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

    def _switch(self) -> None:
        """Update which nodes are to be switched off or on."""
        off, _ = self._rows.scheduler.nodes_off(self._clock.now_s())
        if off or any(map(is_off_for_cap, self.nodes.values())):
            self.power.keep_off(self.nodes.values(), off)
        if self.power.times.is_used or any(node.switched for node in self.nodes.values()):
            queued = (job for job in self.jobs.values() if job.state == "queued" and job.id not in self._postponed.jobs)
            waiting = sorted(filter(boots_nodes, queued), key=in_queue)
            over = self._rules.why(waiting)
            wanted = [wanted_by(job, self.watts.most_nodes(job)) for job in waiting if job.id not in over]
            self.power.watch(self.nodes.values(), wanted)

    def _send(self, name: str, message: Message) -> None:
        self.outbox.append((name, message))

    def _save_every(self, seconds: float) -> None:
        now_s = self._now()
        if now_s - self._saved_s >= seconds:
            self._saved_s = now_s
            self.runs.save()

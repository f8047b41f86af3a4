"""Node managers, task managers and their links as discrete events: what happens to jobs when messages are lost, late
or doubled, nodes crash, task managers die, clocks differ, the network is cut, and the head is gone.

The managers are the real ones; links, clocks, programs and journals are simulated. What is true is counted here, apart
from what managers believe: which programs run, on how many cores, with how many watts. Equal seeds give equal runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

import msgspec
import numpy as np

from cluster_agent.dispatch import messages as m
from cluster_agent.dispatch import node_manager, node_state, task_manager
from cluster_agent.dispatch.fitting_index import Need
from cluster_agent.dispatch.node_state import NodeState
from cluster_agent.dispatch.task_manager import Setup, TaskState

P99: Final = 2.3263478740408408
"""Standard deviations below which 99 % of a normal distribution lie."""
DRAWN: Final = 1 << 17
NOTICED_US: Final = 1_000_000
"""Ours: after so long the lead's machine reports that the program died with another node."""
STOPPED_US: Final = 3_000_000
"""Ours: so long a program takes to end after it was to."""
SPAWNED: Final = 1000
"""A task manager that takes the place of a dead one counts its attempts from so many later."""


class Job(msgspec.Struct, frozen=True, gc=False):
    """``slots``: of its window; ``length``: the requested time in slots."""

    submit_us: int
    run_us: int
    units: int
    need: Need
    length: int
    slots: int


class Links(msgspec.Struct, frozen=True):
    """One-way delays are log-normal. ``median_us`` 0: none is lost, and all arrive at once."""

    median_us: int = 0
    p99_us: int = 0
    loss: float = 0.0
    doubled: float = 0.0

    def copies(self, seed: int) -> list[tuple[int, ...]]:
        """The delays of the copies that arrive, of ``DRAWN`` messages."""
        if not self.median_us:
            return [(0,)]
        random = np.random.default_rng(seed)
        sigma = math.log(self.p99_us / self.median_us) / P99
        delays = np.exp(random.normal(math.log(self.median_us), sigma, (2, DRAWN))).astype(np.int64).tolist()
        count = np.where(random.random(DRAWN) < self.loss, 0, 1 + (random.random(DRAWN) < self.doubled))
        both = zip(zip(*delays, strict=True), count.tolist(), strict=True)
        return [pair[:copies] for pair, copies in both]


class Crash(msgspec.Struct, frozen=True):
    """A node is gone from one time to the other; its journal stays."""

    node: m.Address
    at_us: int
    back_us: int


class Cut(msgspec.Struct, frozen=True):
    """Of the network: no message passes between these nodes and the rest, nor task managers."""

    from_us: int
    to_us: int
    nodes: frozenset[m.Address]


class Faults(msgspec.Struct, frozen=True):
    """``dead``: the share of task managers that die within ``dead_within_us`` of the submission. ``clock_us``: how much
    clocks of nodes are ahead. ``head_gone_us``: when no lease is renewed, from and to. ``cancelled``: the share of jobs
    that their users cancel within ``cancelled_within_us`` of the submission."""

    crashes: tuple[Crash, ...] = ()
    cuts: tuple[Cut, ...] = ()
    dead: float = 0.0
    dead_within_us: int = 100_000
    clock_us: dict[m.Address, int] = {}
    head_gone_us: tuple[int, int] | None = None
    cancelled: float = 0.0
    cancelled_within_us: int = 1_800_000_000


class Outcome:
    """What happened to the jobs, by their number; -1: never."""

    def __init__(self, jobs: int) -> None:
        self.start_us = [-1] * jobs
        self.end_us = [-1] * jobs
        self.nodes: list[tuple[m.Address, ...]] = [()] * jobs
        self.dispatch_us = [-1] * jobs
        """From the submission until the task manager knows that a lead has the job."""
        self.attempts = [0] * jobs
        self.accepted: set[int] = set()
        self.cut: set[int] = set()
        self.cancelled: set[int] = set()
        """Jobs whose users were answered that they do not run, or not any more."""
        self.after_cancel = 0
        """Those of them that ran then, or began later."""
        self.twice = 0
        self.over_capacity = 0
        """Units that began on nodes with too few cores, or watts in force, for what ran there."""
        self.over_budget_mw = 0
        """The most that all nodes together drew above the budget."""
        self.messages: Counter[str] = Counter()
        self.events = 0
        self.faults: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()

    @property
    def lost(self) -> list[int]:
        """Jobs that a lead had accepted, and that never ran and were not cancelled."""
        return [job for job in sorted(self.accepted - self.cancelled) if self.start_us[job] < 0]


class Simulation:
    """``run`` until nothing happens any more. ``caps_mw``: what each node may draw for jobs; ``safe_mw``: without a
    lease. ``leases_us``: how long a lease lasts; 0: for ever."""

    def __init__(
        self,
        nodes: Sequence[NodeState],
        jobs: Sequence[Job],
        setup: Setup,
        rules: m.Rules,
        links: Links = Links(),  # noqa: B008  (frozen)
        faults: Faults = Faults(),  # noqa: B008
        seed: int = 0,
        lease_us: int = 0,
    ) -> None:
        self._fresh = list(nodes)
        self.nodes: list[NodeState | None] = list(nodes)
        self.tasks: dict[int, TaskState] = {}
        self.journal: list[dict[tuple[int, int], m.Reservation]] = [{} for _ in nodes]
        self.outcome = Outcome(len(jobs))
        self._jobs, self._setup, self._rules, self._links, self._faults = jobs, setup, rules, links, faults
        self._seed, self._random = seed, Random(seed)
        self._copies, self._at_copy = links.copies(seed), 0
        self._boot = [0] * len(nodes)
        self._clock_us = [faults.clock_us.get(node, 0) for node in range(len(nodes))]
        self._events: list[tuple[int, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._dead: set[int] = set()
        self._running: list[dict[int, Need]] = [{} for _ in nodes]
        self._begun: set[tuple[int, m.Address]] = set()
        self._draw_mw = [0] * len(nodes)
        self._total_mw = 0
        self.budget_mw = sum(node.grant.cap_mw for node in nodes)
        self._count = self._ended = 0
        self.now_us = 0
        self._foresee(lease_us)

    def _foresee(self, lease_us: int) -> None:
        for job, one in enumerate(self._jobs):
            self._at(one.submit_us, self._submitted, job)
        for crash in self._faults.crashes:
            self._at(crash.at_us, self._crash, crash.node)
            self._at(crash.back_us, self._back, crash.node)
        self._lease_us, self._last_us = lease_us, 0
        if lease_us:
            self._last_us = max([job.submit_us + job.run_us for job in self._jobs], default=0) * 3 + 10 * lease_us
            self._at(0, self._renew)

    def run(self, progress: Callable[[int], None] = lambda ended: None) -> Outcome:
        """All events. ``progress`` is called now and then, with how many programs have ended."""
        events, outcome = self._events, self.outcome
        while events:
            self.now_us, _, _, happens, given = heappop(events)
            outcome.events += 1
            happens(*given)
            if outcome.events % 4096 == 0:
                progress(self._ended)
        return outcome

    # --- events

    def _at(self, at_us: int, happens: Callable[..., None], *given: Any, after: int = 0) -> None:
        """``after``: of one instant, later than everything else."""
        self._count += 1
        heappush(self._events, (at_us, after, self._count, happens, given))

    def _submitted(self, job: int) -> None:
        one = self._jobs[job]
        task = TaskState(
            *(job, one.units, one.need, one.length, one.slots, len(self.nodes), self._setup, self._rules, self._seed)
        )
        if self._faults.dead and self._random.random() < self._faults.dead:
            dies_us = self.now_us + int(self._random.random() * self._faults.dead_within_us)
            self._at(dies_us, self._die, job)
        if self._faults.cancelled and self._random.random() < self._faults.cancelled:
            ends_us = self.now_us + int(self._random.random() * self._faults.cancelled_within_us)
            self._at(ends_us, self._cancel, job)
        self._carry_out_task(job, *task_manager.begin(task, self.now_us))

    def _cancel(self, job: int) -> None:
        """By the job's user. If its task manager died, the job goes on."""
        if (task := self.tasks.get(job)) is not None:
            self.outcome.faults["jobs cancelled"] += 1
            self._carry_out_task(job, *task_manager.cancel(task, self.now_us), is_cancelled=True)

    def _die(self, job: int) -> None:
        if self.tasks.pop(job, None) is not None:
            self._dead.add(job)
            self.outcome.faults["task managers died"] += 1

    def _crash(self, node: m.Address) -> None:
        if self.nodes[node] is None:
            return
        self.nodes[node] = None
        self._boot[node] += 1
        self.outcome.faults["nodes crashed"] += 1
        for job in list(self._running[node]):
            self._program_dies(job, node)

    def _back(self, node: m.Address) -> None:
        if self.nodes[node] is not None:
            return
        rows = list(self.journal[node].values())
        self._carry_out(node, *node_manager.recovered(self._fresh[node], rows, self._local_us(node)))

    def _program_dies(self, job: int, crashed: m.Address) -> None:
        """With one of its nodes; the others notice."""
        self._stop(job)
        self.outcome.cut.add(job)
        lead = self.outcome.nodes[job][0]
        if lead != crashed:
            attempt = self.outcome.attempts[job]
            lost = m.Lost(job, attempt, crashed)
            self._at(self.now_us + NOTICED_US, self._own, lead, self._boot[lead], lost)

    def _program_ends(self, job: int, attempt: int, lead: m.Address, boot: int) -> None:
        if job not in self._running[lead] or boot != self._boot[lead]:
            return
        self._stop(job)
        for node in self.outcome.nodes[job]:
            self._own(node, self._boot[node], m.ProgramEnded(job, attempt))

    def _renew(self) -> None:
        gone = self._faults.head_gone_us
        if gone is None or not gone[0] <= self.now_us < gone[1]:
            for node, fresh in enumerate(self._fresh):
                grant = m.Grant(fresh.grant.cap_mw, self._local_us(node) + self._lease_us)
                self._pass(-(1 << 60), node, grant)
        if self.now_us < self._last_us or self.tasks or any(self._running):
            self._at(self.now_us + self._lease_us // 2, self._renew)

    # --- messages

    def _local_us(self, node: m.Address) -> int:
        return self.now_us + self._clock_us[node]

    def _pass(self, sender: m.Address, to: m.Address, message: Any) -> None:
        outcome = self.outcome
        outcome.messages[type(message).__name__] += 1
        copies = self._copies[self._at_copy]
        self._at_copy = (self._at_copy + 1) % len(self._copies)
        if len(copies) != 1:
            outcome.faults["messages doubled" if copies else "messages lost"] += 1
        if self._faults.cuts and self._is_cut(sender, to):
            outcome.faults["messages into a cut network"] += 1
            return
        for delay_us in copies:
            self._at(self.now_us + delay_us, self._arrive, to, message)

    def _is_cut(self, sender: m.Address, to: m.Address) -> bool:
        return any(
            cut.from_us <= self.now_us < cut.to_us and (sender in cut.nodes) != (to in cut.nodes)
            for cut in self._faults.cuts
        )

    def _arrive(self, to: m.Address, message: Any) -> None:
        if to >= 0:
            state = self.nodes[to]
            if state is not None:
                self._carry_out(to, *node_manager.step(state, message, self._local_us(to)))
            return
        job = -1 - to
        task = self.tasks.get(job)
        if task is not None:
            self._carry_out_task(job, *task_manager.step(task, message, self.now_us))
        elif isinstance(message, m.Ended):
            self._answer_for(job, message)

    def _answer_for(self, job: int, message: m.Ended) -> None:
        """Where the task manager was: its job is over, or it died, and one is started in its place."""
        if message.result == "returned" and job in self._dead:
            self._dead.discard(job)
            one = self._jobs[job]
            task = TaskState(
                *(job, one.units, one.need, one.length, one.slots, len(self.nodes), self._setup, self._rules),
                *(self._seed, "new", message.attempt + SPAWNED),
            )
            self._carry_out_task(job, *task_manager.begin(task, self.now_us))
        self._pass(m.owner_of(job), message.node, m.Closed(job, message.attempt))

    def _own(self, node: m.Address, boot: int, message: Any) -> None:
        """From a node's own machine, of this boot."""
        state = self.nodes[node]
        if state is not None and boot == self._boot[node]:
            self._carry_out(node, *node_manager.step(state, message, self._local_us(node)))

    def _task_due(self, job: int, due: m.Due) -> None:
        task = self.tasks.get(job)
        if task is None:
            return
        if task.phase == "pause" and (why := self._never(job)):
            self.outcome.notes[why] += 1
            del self.tasks[job]
            return
        self._carry_out_task(job, *task_manager.step(task, due, self.now_us))

    def _never(self, job: int) -> str:
        """Why no grant can ever feed the job, so that its task manager would go on for ever; "": one may. A node only
        knows its grant in force, and hopes for a higher one."""
        one, gone = self._jobs[job], self._faults.head_gone_us
        is_gone = bool(self._lease_us) and gone is not None and gone[0] <= self.now_us and gone[1] > self._last_us
        can = 0
        for node in self._fresh:
            mw = min(node.grant.cap_mw, node.safe_mw) if is_gone else node.grant.cap_mw
            can += one.need.cores <= node.has.cores and one.need.mw <= mw
        if can >= one.units:
            return ""
        need = f"{one.need.cores} cores and {one.need.mw / 1000:.0f} W"
        return f"job {job} can never run: {one.units} nodes with {need} each are needed, and {can} are granted as much"

    def _carry_out_task(self, job: int, task: TaskState, orders: list[m.Order], is_cancelled: bool = False) -> None:
        before = self.tasks.get(job)
        if task.phase == "over":
            self.tasks.pop(job, None)
            if is_cancelled or (before is not None and before.phase == "cancel"):
                self.outcome.cancelled.add(job)
                self.outcome.after_cancel += any(job in running for running in self._running)
        else:
            self.tasks[job] = task
        if task.placed is not None and self.outcome.dispatch_us[job] < 0:
            self.outcome.dispatch_us[job] = self.now_us - self._jobs[job].submit_us
        for order in orders:
            if isinstance(order, m.Send):
                self._pass(m.owner_of(job), order.to, order.message)
            elif isinstance(order, m.Later):
                self._at(order.at_us, self._task_due, job, order.message)
            elif isinstance(order, m.Note):
                self.outcome.notes[order.text] += 1

    def _carry_out(self, node: m.Address, state: NodeState, orders: list[m.Order]) -> None:
        self.nodes[node] = state
        for order in orders:
            if isinstance(order, m.Send):
                self._pass(node, order.to, order.message)
            elif isinstance(order, m.Later):
                at_us, due = order.at_us - self._clock_us[node], order.message
                self._at(at_us, self._own, node, self._boot[node], due, after=int(due.what == "begin"))
            elif isinstance(order, m.Write):
                self.journal[node][order.row.job, order.row.attempt] = order.row
                self._written(node, order.row)
            elif isinstance(order, m.Erase):
                self.journal[node].pop((order.job, order.attempt), None)
            elif isinstance(order, m.Run):
                self._begun.add((order.row.job, node))
                if order.row.lead == node:  # the truth is one program on all its nodes
                    self._runs(node, order.row)
            elif isinstance(order, m.Stop):
                if order.row.lead == node:
                    given = order.row.job, order.row.attempt, node, self._boot[node]
                    self._at(self.now_us + STOPPED_US, self._program_ends, *given)
            elif isinstance(order, m.Note):
                self.outcome.notes[order.text] += 1

    # --- what is true

    def _written(self, node: m.Address, row: m.Reservation) -> None:
        if row.phase == "started":
            self.outcome.accepted.add(row.job)
        elif row.phase in node_state.RUNS and not row.why:
            others, state = self._running[node].items(), self.nodes[node]
            mw = row.need.mw + sum(need.mw for job, need in others if job != row.job)
            self.outcome.over_capacity += state is None or mw > state.cap_mw(self._local_us(node))
        elif row.phase == "left" and (row.job, node) not in self._begun:  # cancelled before this unit began
            self._running[node].pop(row.job, None)
            self._measure(node)

    def _runs(self, lead: m.Address, row: m.Reservation) -> None:
        job, outcome = row.job, self.outcome
        outcome.twice += outcome.start_us[job] >= 0
        outcome.after_cancel += job in outcome.cancelled
        outcome.start_us[job], outcome.nodes[job], outcome.attempts[job] = self.now_us, row.members, row.attempt
        for node in row.members:
            self._running[node][job] = row.need
            cores = sum(need.cores for need in self._running[node].values())
            outcome.over_capacity += cores > self._fresh[node].has.cores
            self._measure(node)
        ends_us = self.now_us + self._jobs[job].run_us
        self._at(ends_us, self._program_ends, job, row.attempt, lead, self._boot[lead])
        if gone := [node for node in row.members if not self._is_there(node, row)]:
            self._program_dies(job, gone[0])

    def _is_there(self, node: m.Address, row: m.Reservation) -> bool:
        """A node that crashed after it had joined has no part of the job any more."""
        state = self.nodes[node]
        return state is not None and state.row(row.job, row.attempt) is not None

    def _stop(self, job: int) -> None:
        self.outcome.end_us[job] = self.now_us
        self._ended += 1
        for node in self.outcome.nodes[job]:
            if self._running[node].pop(job, None) is not None:
                self._measure(node)

    def _measure(self, node: m.Address) -> None:
        """What the node draws for jobs; one whose cap has fallen is slowed down to it by its own controller."""
        state, fresh = self.nodes[node], self._fresh[node]
        mw = sum(need.mw for need in self._running[node].values())
        cap_mw = fresh.safe_mw if state is None else state.cap_mw(self._local_us(node))
        drawn_mw = mw if cap_mw == fresh.grant.cap_mw else min(mw, cap_mw)
        self._total_mw += drawn_mw - self._draw_mw[node]
        self._draw_mw[node] = drawn_mw
        self.outcome.over_budget_mw = max(self.outcome.over_budget_mw, self._total_mw - self.budget_mw)

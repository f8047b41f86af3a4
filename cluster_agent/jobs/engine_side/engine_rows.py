"""The engine's table of a live partition: a row for each job that waits or runs, and for each node that is away.

A table only grows. When it is full, or what it was begun with no longer applies (nodes, users, places in the queue), a
new table and scheduler are filled with the jobs that are alive, as after a restart. What happens between two passes is
noted here, and the engine hears of it as events at the next one.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import filterfalse
from typing import TYPE_CHECKING, Final

from cluster_agent.jobs.engine_side.placeholders import ENDLESS_S, Placeholders
from cluster_agent.jobs.job import ACTIVE, PREEMPTED, Job, in_queue
from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.job_runs import Part, Run, Runs
from cluster_agent.jobs.job_table import GrowingJobs
from cluster_agent.jobs.owned_watts.live_levels import CAPPED, PAUSE_S
from cluster_agent.jobs.owned_watts.live_owner import LiveScheduler, Owner
from cluster_agent.jobs.times import EngineClock
from cluster_agent.jobs.waiting import Postponed
from cluster_agent.scheduler.interfaces import Event, Kind
from cluster_agent.scheduler.world import LiveJobs

if TYPE_CHECKING:
    from cluster_agent.store.job_store import JobStore

REMEMBERED: Final = 10_000
"""Ours: how many of the jobs that ended last a scheduler learns from after a restart."""


class EngineRows:
    """``jobs``: those that are alive, by number; ``capacity``: the fewest rows of a table."""

    def __init__(
        self,
        watts: Owner,
        nodes: dict[str, Node],
        jobs: dict[int, Job],
        runs: Runs,
        postponed: Postponed,
        placeholders: Placeholders,
        store: JobStore,
        clock: EngineClock,
        now: Callable[[], float],
        say: Callable[[str], None],
        capacity: int,
        preempt: Callable[[int], None],
    ) -> None:
        self.watts, self.nodes, self.jobs, self.runs = watts, nodes, jobs, runs
        self.postponed, self.placeholders = postponed, placeholders
        self._store, self._clock, self._now, self._say = store, clock, now, say
        self._capacity, self._preempt = capacity, preempt
        self.has_room = True
        """Nodes became free, or a job left the queue: a pass is due."""
        self.has_grown = False
        """The table was begun with what no longer applies."""
        self.queued: dict[int, Job] = {}
        self.row_of: dict[int, int] = {}
        self.killed_s: dict[int, float] = {}
        """By row, since when a job that is killed for a cap ends."""
        self.fresh: list[Job] = []
        """The jobs of whose submission the engine has not heard."""
        self.aside: list[Job] = []
        """The jobs that were withdrawn, since all free nodes would refuse them."""
        self.first_row = 0
        """The first row of a job that has joined the queue since the table was begun."""
        self._ended: list[int] = []
        self._ended_nodes = 0  # that their jobs have until the scheduler hears of the ends
        self._overruns: list[tuple[int, int]] = []
        self._kept: set[int] = set()
        """The rows of best-effort jobs of which the engine does not know, since their nodes are away."""
        past = self._past()
        self._table, self.scheduler = self._new_scheduler(past)
        self._load(past)
        self._stored = store.stored_joules()
        self._counts_stored = self._stored is None or self.scheduler.restore(clock.now_s(), self._stored)

    # --- a table and its scheduler

    @property
    def is_full(self) -> bool:
        """Whether the table has no room for the jobs that have come and the nodes that may be away."""
        return not self._table.has_room(len(self.fresh), len(self.nodes) + 1)

    def knows(self, uid: int) -> bool:
        """Whether the table was begun with this user."""
        return self._table.knows(uid)

    def begin_again(self) -> None:
        """With another table and scheduler; the joules that a budget has stored go over."""
        past, stored = self._past(), self.scheduler.stored
        self._table, self.scheduler = self._new_scheduler(past)
        self._load(past)
        if stored is not None:
            self.scheduler.restore(self._clock.now_s(), stored)

    def note_resources(self) -> None:
        """What the nodes have, and the queues that they are of."""
        switches = self.watts.switches
        queue_of = switches.queue_of_node
        for node in self.nodes.values():
            node.has = self.watts.has(node.name)
            node.is_halved = self.watts.pairs is not None
            node.queue = queue_of.get(node.name, "") if switches.has_partitions else None

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
        has_best_effort = self.watts.has_best_effort
        table = GrowingJobs(self._rows_needed() + len(past), known=users, has_best_effort=has_best_effort)
        self.note_resources()
        live = LiveJobs(table.jobs, max(len(self.nodes), 1), table.uids, self._say)
        return table, self.watts.begin(live, list(self.nodes), self._delays_pass, self._preempt)

    def _load(self, past: list[Job]) -> None:
        """Fill a new scheduler with the jobs of the past and those that are alive."""
        now_s = self._clock.now_s()
        for emptied in (self.queued, self.row_of, self._ended, self.aside, self._overruns, self.killed_s, self._kept):
            emptied.clear()
        self.has_grown, self.has_room, self._ended_nodes = False, True, 0
        kept = {one.job.id: one for one in self.runs.by_row.values()}
        self.runs.by_row.clear()
        self.runs.leaving.clear()
        self._learn_from(past)
        for node in self.nodes.values():
            node.runs, node.yields, node.leaving = {}, set(), set()
            node.away_row = node.away_until_s = None
        for job in self.jobs.values():
            if job.state in ACTIVE:
                self._adopt(job, kept.get(job.id), now_s)
        if not kept:  # after a start, jobs are as they were stored
            self.runs.note_stored()
        self.first_row = self._table.rows
        # placeholders for nodes that are away come before the queue, so that no job is started there
        self.update_placeholders(now_s)
        # a job that is wider than the partition, which has lost keys, waits until the partition has grown
        queued = [job for job in self.jobs.values() if job.state == "queued" and self.fits(job)]
        self.postponed.jobs.clear()
        self.postponed.is_due = True
        self.fresh = list(filterfalse(self.postponed.postpone, queued))

    def _learn_from(self, past: list[Job]) -> None:
        """Jobs that ended before, for estimates, priorities and predictions."""
        for job in past:
            if job.started_s is not None and job.ended_s is not None and job.state in ("done", "failed", "timeout"):
                row = self._add(job, int(job.queued_s))
                self._table.ran(row, round(job.ended_s - job.started_s))
                times_s = int(job.queued_s), int(job.started_s), int(job.ended_s)
                self.watts.counts.ended(job)
                self.scheduler.past(*times_s, row, job.account.joules if self.watts.full_w else None)

    def _adopt(self, job: Job, known: Run | None, now_s: int) -> None:
        assert job.started_s is not None
        leaves = job.reason == PREEMPTED
        if leaves:
            row, expected_end_s = self._unseen(len(job.nodes), now_s), ENDLESS_S
        elif job.reason == CAPPED:
            row, expected_end_s = self.occupy(job.nodes, now_s), ENDLESS_S
            self.killed_s[row] = self._now()
        else:
            row = self._add(job, int(job.queued_s), len(job.nodes))
            more = self.watts.counts.adopted(row, job, now_s)
            times_s = int(job.queued_s), int(job.started_s)
            expected_end_s = self.scheduler.adopt(*times_s, row, level=job.level, **more)
        one = known or Run(
            row, job, {name: Part("", last=job.parts.get(name)) for name in job.nodes}, expected_end_s,
            signal=signal.SIGTERM if job.is_being_ended else 0,
            knows_ends=job.state != "ending" or job.is_being_ended or bool(job.parts),
        )  # fmt: skip
        one.row, one.expected_end_s = row, expected_end_s
        one.is_killed, one.waits_as = job.reason == CAPPED, None
        self.runs.by_row[row] = one
        if leaves:
            self.runs.leaving.add(row)
        for name in job.nodes:
            self.has_node(row, job, name)
        if expected_end_s <= now_s:
            heappush(self._overruns, (expected_end_s, row))
        else:
            self.expect(now_s, row, expected_end_s)

    # --- rows

    def fits(self, job: Job) -> bool:
        """Whether the partition is wide enough for the job."""
        return self.watts.fits(job, self.nodes.values())

    def _add(self, job: Job, submit_s: int, nodes: int = 0) -> int:
        """``nodes``: how many it has, which a policy before a restart may have chosen; 0: those that it requests."""
        row = self._table.add(job.id, job.uid, submit_s, self.watts.counts.request_s(job), nodes or job.spec.nodes)
        self.watts.counts.add(row, job)
        if job.spec.best_effort and self.watts.has_best_effort:
            self._table.yields(row)
        return row

    def has_node(self, row: int, job: Job, name: str) -> None:
        """The job in this row has the node, or half of it."""
        node = self.nodes[name]
        node.runs[row] = job.halves.get(name, -1)
        if row in self.runs.leaving:
            node.leaving.add(row)
        elif job.spec.best_effort and self.watts.has_best_effort:
            node.yields.add(row)

    def leave_nodes(self, one: Run) -> None:
        """To the engine the nodes of this run are free. Its job waits again in its old row, and has another until then,
        of which the engine does not know."""
        one.waits_as = before = one.row
        one.row = self._unseen(len(one.parts), self._clock.now_s())
        del self.runs.by_row[before]
        self.runs.by_row[one.row] = one
        self.runs.leaving.add(one.row)
        for name in one.parts:
            node = self.nodes[name]
            node.runs.pop(before)
            node.yields.discard(before)
            self.has_node(one.row, one.job, name)

    def _unseen(self, nodes: int, now_s: int) -> int:
        """A row that the engine never hears of."""
        return self._table.add(0, -1, now_s, ENDLESS_S, nodes)

    def occupy(self, names: Sequence[str], now_s: int, length_s: int = ENDLESS_S, shares: Sequence[int] = ()) -> int:
        """A row that has these nodes, or so many shares of each, which are away or have a job that is being killed, and
        draws what idle nodes do."""
        row = self._table.add(0, -1, now_s, length_s, len(names))
        self.scheduler.adopt(now_s, now_s, row, length_s, level=-1, **self.watts.counts.occupy(row, names, shares))
        return row

    def wait_as(self, row: int, job: Job) -> None:
        """The job waits in this row."""
        self.queued[row], self.row_of[job.id] = job, row

    def set_aside(self, row: int, job: Job) -> None:
        """Withdraw a job that all free nodes would refuse, since the scheduler takes all nodes as alike: to the
        scheduler it has ended, and it is queued again when other nodes are free. Partitions of emulated and real nodes
        are for trials, and few nodes are reserved by name, so it does not matter that this delays wide jobs."""
        self._table.ran(row, job.spec.walltime_s)
        self._ended.append(row)
        self.aside.append(job)

    def leave_queue(self, job: Job) -> None:
        """A job that waits does so no more."""
        row = self.row_of.pop(job.id, None)
        if row is not None:  # else the engine does not have it yet
            del self.queued[row]
            self.scheduler.withdraw(row)
            self.has_room = True
        self.postponed.jobs.pop(job.id, None)
        for waiting in (self.fresh, self.aside):
            if job in waiting:
                waiting.remove(job)

    def run_over(self, one: Run) -> None:
        """The scheduler will hear that the job has ended."""
        job = one.job
        assert job.started_s is not None
        self._table.ran(one.row, round(self._now() - job.started_s))
        self._ended.append(one.row)
        self._ended_nodes += len(one.parts)
        self.watts.counts.ended(job)
        if self.watts.full_w and (joules := job.account.joules) is not None:
            self.scheduler.metered(one.row, joules)

    # --- what the engine hears, and when

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
        for job in sorted(self.fresh, key=in_queue):
            if job.state == "queued":
                row = self._add(job, min(int(job.queued_s), now_s))
                self.wait_as(row, job)
                found.append(Event(Kind.SUBMITTED, row))
        self.fresh.clear()
        if self.has_room:
            self.has_room = False
            found.append(Event(Kind.ROOM, -1))
        return found

    def next_event_s(self) -> int | None:
        """The next expected end."""
        return self._overruns[0][0] if self._overruns else None

    def expect(self, now_s: int, row: int, expected_end_s: int) -> None:
        """Note the job's expected end, at which the scheduler is called again."""
        one = self.runs.by_row[row]
        one.expected_end_s = one.job.expected_end_s = expected_end_s
        if expected_end_s > now_s:
            heappush(self._overruns, (expected_end_s, row))

    def update_placeholders(self, now_s: int) -> None:
        """Where the engine counts watts for every node there is room for no more than its jobs leave: they have nodes
        on which their part is over, and those of jobs of whose end it has not heard, too."""
        room = float("inf")
        if self.watts.counts_every_node:
            room = len(self.nodes) - sum(len(one.parts) for one in self.runs.by_row.values()) - self._ended_nodes
        self._keep_away()
        self.has_room |= self.placeholders.update(self.scheduler, self.nodes.values(), self.occupy, now_s, room)

    def _keep_away(self) -> None:
        """The engine does not know best-effort jobs whose nodes are all away: they are not preempted, since no other
        job could have these nodes."""
        for row in {row for node in self.nodes.values() for row in node.yields}:
            one = self.runs.by_row[row]
            is_away = all(self.nodes[name].is_away for name in one.parts)
            if is_away and row not in self._kept:
                self._kept.add(row)
                self.scheduler.withdraw(row)
            elif not is_away and row in self._kept:
                self._kept.remove(row)
                self.scheduler.adopt(int(one.job.queued_s), int(one.job.started_s or 0), row, level=one.job.level)

    def _delays_pass(self) -> bool:
        """Whether a pass has to wait. The scheduler has heard of all ends by now, so there is room for placeholders."""
        if self.placeholders.is_short_of_room:
            self.update_placeholders(self._clock.now_s())
        return self.is_paused()

    def is_paused(self) -> bool:
        """Whether no job is started, since jobs that were killed for a cap are about to end, or nodes are now on or off
        by plan of which the placeholders do not know."""
        if self.scheduler.nodes_off(self._clock.now_s())[1] != self.placeholders.by_plan:
            return True
        return any(self._now() - since_s < PAUSE_S for since_s in self.killed_s.values())

    def store_joules(self) -> None:
        """After a reading, and where another power is planned, with the starts that it is due to."""
        if not self._counts_stored:
            self._store.forget_joules()
            self._counts_stored, self._stored = True, None
        stored = self.scheduler.stored
        if stored is None:
            return
        stored, last = self.watts.kept(stored), self._stored
        if last is None or (stored.from_s, stored.read_s, stored.drawn_uw) != (last.from_s, last.read_s, last.drawn_uw):
            self._store.store_joules(stored)
            self._stored = stored

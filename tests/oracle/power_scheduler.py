"""The scheduler on a machine with watts, in plain Python: what ``csrc/power*.c`` are tested against.

It chooses processors too, because nodes that will be switched off may be given only to jobs that end before. Nothing is
kept between passes but who runs where, since when and at which frequency.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from cluster_agent.cap_steps import Cap
from cluster_agent.scheduler.idle_off import IdleOff
from cluster_agent.scheduler.interfaces import Meter, unmetered
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.governor import NO_CAP, Governor, Row, Watts, running_of
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_phases import Ends, Reaction, Running
from tests.oracle.joules_ledger import Ledger
from tests.oracle.node_switching import Nodes
from tests.oracle.scheduler import ReferenceScheduler
from tests.oracle.stored_joules import StoredJoules


class Need(NamedTuple):
    """What a job that starts now asks for, besides its processors."""

    delay_s: int  # until its nodes have booted, at the latest
    busy_uw: int  # more than its processors draw idle, at most
    wake_uw: int  # what nodes that boot for it have saved by being off


class Present(NamedTuple):
    """Free processors, and of running jobs: when they are expected to end, their processors, their power above idle."""

    free: frozenset[int]
    runs: list[tuple[int, set[int], int]]


class Place(NamedTuple):
    """What a planned job takes, and when."""

    from_s: int
    to_s: int
    width: int
    uw: int


@dataclass(slots=True)
class Reservation:
    """When the head will start (None: not as long as the plan lasts), and what it leaves to others."""

    at_s: int | None
    narrowest: int  # processors that are on then
    free: int
    free_uw: int
    reserved_j: float = 0.0  # stored joules that it will need
    left_over_j: float = 0.0  # stored joules that it will not
    above_uw: int = 0  # what the cluster draws with it, less the budget's limit
    length_s: int = 0  # for how long the budget cares


class PowerReferenceScheduler(ReferenceScheduler):
    """See ``interfaces.Scheduler``."""

    def __init__(
        self,
        composition: Composition,
        jobs: Jobs,
        watts: Watts,
        caps: Sequence[Cap],
        meter: Meter = unmetered,
    ) -> None:
        super().__init__(composition, jobs, watts.machine.processors)
        first_s = int(jobs.submit_s[0]) if len(jobs) else 0
        self.watts = watts
        self.governor = Governor(watts, composition.power, caps, first_s)
        self.meter = meter
        next_s = self.governor.first_reading_s(first_s)
        self.ledger = Ledger(watts.budget, next_s) if watts.budget and next_s is not None else None
        self.rows = self.governor.plan(first_s)
        self.present = 0  # the row in force
        self.nodes: Nodes | None = None  # only where idle nodes go off
        if composition.idle_off_s is not None:
            self.nodes = Nodes(IdleOff.of(watts.machine, composition.idle_off_s), self.processors)
            self.nodes.follow(first_s, self._row.kept)
        self.woken: dict[int, int] = {}  # job: processors of nodes that boot for it
        self.free = set(range(self.processors))
        self.held: dict[int, set[int]] = {}
        self.handed_over: set[int] = set()  # jobs whose processors are free, although they are not known to have ended
        self.levels: dict[int, int] = {}
        self.pace: dict[int, tuple[int, float]] = {}  # job: since when, seconds of its run done by then
        self.metered_uw: dict[int, int] = {}  # of running jobs, a processor above idle
        self.planned_s: dict[int, int] = {}  # where each waiting job was placed last, with a place for every job

    # --- what happens

    def end(self, job: int) -> None:
        """The running job has ended."""
        super().end(job)
        self._give_back(job)

    def level(self, job: int) -> int:
        """The frequency of a job."""
        return self.levels[job]

    def next_change_s(self) -> int | None:
        """The next row, or the next announcement."""
        rows_s = [row.from_s for row in self.rows[self.present + 1 :]]
        reading_s = [self.ledger.next_s] if self.ledger else []
        switches_s = self.nodes.changes_s() if self.nodes else []
        return min(self.governor.announced_s[:1] + rows_s + reading_s + switches_s, default=None)

    def begins_s(self, now_s: int, job: int) -> int:
        """When a job begins to run whose start was decided now."""
        return self.pace[job][0]

    @property
    def reacts_to_ends(self) -> Ends:
        """While a cap is in force, what the policy says."""
        return "unheard" if self._row.cap_uw == NO_CAP else self.watts.reacts_to_ends

    def advance(self, now_s: int) -> bool:
        """Nodes are off or on; joules are read; the next row begins, or a cap becomes known all is planned again."""
        if self.nodes:
            self.nodes.settle(now_s)
        if self.ledger and self.ledger.next_s <= now_s and not self.ledger.read(now_s, self.meter()):
            self.ledger = None
        rows_s = [row.from_s for row in self.rows[self.present + 1 :]]
        if min(self.governor.announced_s[:1] + rows_s, default=now_s + 1) > now_s:
            return False
        if self.governor.is_plan_due(now_s):
            self.rows = self.governor.plan(now_s)
        self.present = max(i for i, row in enumerate(self.rows) if i == 0 or row.from_s <= now_s)
        if self.nodes:
            self.nodes.follow(now_s, self._row.kept)
        return True

    def react(self, now_s: int) -> Reaction:
        """Do to running jobs what the policy says."""
        reaction = self.governor.react(now_s, self._row, self._cluster_uw(now_s), self._running)
        for job in reaction.kill:
            self.uncharged.append((job, self.running.pop(job)))
            self._give_back(job)
            if self.learner:
                self.learner.kill(job)
            if self.watts.requeues:
                self.estimate_s[job] = self.first_estimate_s[job]
                later = [i for i, other in enumerate(self.queue) if other > job]
                self.queue.insert(later[0] if later else len(self.queue), job)
        if self.nodes:
            self.nodes.date(now_s)
        for job, level in reaction.level.items():
            since_s, done_s = self.pace[job]
            if now_s > since_s:
                self.pace[job] = (now_s, done_s + (now_s - since_s) / self.watts.slowdown[self.levels[job]])
            self.levels[job] = level
        return reaction

    def expected_end_s(self, job: int) -> int:
        """When a running job is expected to end."""
        return self._finish_s(job, self.estimate_s[job])

    # --- a pass

    def decide(self, now_s: int) -> list[int]:
        """Start heads while they are admitted; then whoever takes nothing from the head's reservation."""
        if self.nodes:
            for job in [job for job in self.running if not self._holds(now_s, job)]:
                self._give_back(job)
                self.handed_over.add(job)
            self.nodes.date(now_s)
        if self.watts.meters:
            self._meter(now_s)
        if ledger := self._open_ledger:
            ledger.book(now_s, self._cluster_uw(now_s))
        self._estimate_again(now_s)
        self._order(now_s)
        if self.composition.backfill == "compress":
            return self._backfill_compress(now_s)
        started = []
        self._guard_where_one_fits(now_s)
        while self.queue and (level := self._admit(now_s, self.queue[0])) is not None:
            started.append(self._start_at(now_s, self.queue[0], level))
            self._guard(now_s)
        if self.composition.backfill in ("easy", "list") and self.queue:
            started += self._backfill(now_s)
        elif self.composition.backfill == "conservative":
            started += self._backfill_conservative(now_s)
        self._switch_off(now_s)
        return started

    def _switch_off(self, now_s: int) -> None:
        """Nodes that have been idle for long enough go off, all that are due or, where a cap forbids it, none."""
        nodes, ledger = self.nodes, self._open_ledger
        if nodes is None:
            return
        if due := nodes.due(now_s):
            rise_uw = len(due) * nodes.model.cores * self._off_rise_uw
            until_s = now_s + nodes.model.switch_off_s
            is_allowed = not rise_uw or not self.watts.asks_watts or self._rows_allow(now_s, rise_uw, until_s)
            if is_allowed and rise_uw and self.watts.asks_watts and ledger is not None:
                is_allowed = self._path_j(ledger, now_s, 0, rise_uw, until_s) <= ledger.stored_j
            nodes.go(now_s, is_allowed)
            if is_allowed and self.ledger:
                self.ledger.drawn_uw += rise_uw
        nodes.settle(now_s)

    def _rows_allow(self, now_s: int, more_uw: int, until_s: int) -> bool:
        """Whether the cluster stays under its caps with so much more, all jobs running to their limits."""
        for row in self._rows(now_s, until_s):
            draws = [other for other in self.running if self._still(row, now_s, self._limit_s(other))]
            if row.cap_uw != NO_CAP and self._drawn_uw(now_s, row, draws) + more_uw > row.cap_uw:
                return False
        return True

    def _admit(self, now_s: int, job: int) -> int | None:
        levels = range(self.watts.lowest_start(job) + 1)
        return next(
            (
                level
                for level in levels
                if self._is_admissible(now_s, job, level) and self._budget_allows_head(now_s, job, level)
            ),
            None,
        )

    def _is_admissible(self, now_s: int, job: int, level: int) -> bool:
        """Under every cap, on nodes that stay on, if the job and all others run to their limits."""
        need = self._need(now_s, job, level)
        end_s = self._latest_s(now_s + need.delay_s, 0.0, self._request_s(job), job, level)
        for row in self._rows(now_s, end_s):
            if self._width(job) > self._free_in(row):
                return False
            draws = [other for other in self.running if self._still(row, now_s, self._runs_until_s(other))]
            needed_uw = need.busy_uw + need.wake_uw if row is self._row else self._later_uw(job, need.busy_uw)
            drawn_uw = self._drawn_uw(now_s, row, draws) + needed_uw
            if self.watts.asks_watts and row.cap_uw != NO_CAP and drawn_uw > row.cap_uw:
                return False
        return True

    def _need(self, now_s: int, job: int, level: int) -> Need:
        """What the job asks for if it starts now; an upper bound where nodes boot for it."""
        width, nodes = self._width(job), self.nodes
        busy_uw = width * self._extra_uw(job, level)
        limit_s = now_s + self._stretched(self._request_s(job), level)
        if nodes is None or width <= self._warm_until(now_s, limit_s):
            return Need(0, busy_uw, 0)
        delay_s, cores = nodes.ready_s(now_s) - now_s, nodes.model.cores
        woken = -(-(width - self._warm_until(now_s, limit_s + delay_s)) // cores) * cores
        return Need(delay_s, max(busy_uw, woken * self._boot_rise_uw), woken * self._saved_uw)

    def _warm_until(self, now_s: int, limit_s: int) -> int:
        """Free processors on nodes that are on, and that the plan leaves on until then."""
        assert self.nodes is not None
        kept = min(row.kept for row in self._rows(now_s, limit_s))
        return sum(one < kept and self.nodes.is_warm(one) for one in self.free)

    def _backfill(self, now_s: int) -> list[int]:
        head, *others = self.queue
        reserves = self.composition.backfill == "easy"
        reserved = self._reserve(now_s, head) if reserves else Reservation(None, 0, 0, 0)
        at_s, narrowest, left_over, left_over_uw = reserved.at_s, reserved.narrowest, reserved.free, reserved.free_uw
        if self.composition.scan == "shortest" and reserves:
            others = sorted(sorted(others), key=self.estimate_s.__getitem__)
        started = []
        for job in others:
            for level in range(self.watts.lowest_start(job) + 1):
                if not self._is_admissible(now_s, job, level):
                    continue
                need = self._need(now_s, job, level)
                length_s = self._latest_s(now_s + need.delay_s, 0.0, self.estimate_s[job], job, level) - now_s
                ends_in_time = at_s is None or now_s + length_s <= at_s
                cost_j = self._cost_j(now_s, need, length_s, reserved, ends_in_time)
                if not self._budget_allows_behind(now_s, job, level, need, reserved, cost_j):
                    continue
                if ends_in_time:
                    reserved.left_over_j -= cost_j
                    started.append(self._start_at(now_s, job, level))
                    break
                taken = sum(one < narrowest for one in self._choose(now_s, job, level))
                needed_uw = late_uw = need.busy_uw + need.wake_uw
                if at_s is not None and at_s >= self._next_row_s:
                    late_uw = self._later_uw(job, needed_uw)
                if taken <= left_over and late_uw <= left_over_uw:
                    reserved.left_over_j -= cost_j
                    reserved.above_uw += needed_uw
                    left_over -= taken
                    left_over_uw -= late_uw if left_over_uw != NO_CAP else 0
                    started.append(self._start_at(now_s, job, level))
                    break
        return started

    def _backfill_conservative(self, now_s: int) -> list[int]:
        """Every job in turn gets the earliest place, in processors and in watts, next to all before it. One that begins
        now is taken at the highest frequency that keeps the caps even if jobs outlive their estimates."""
        there = Present(
            frozenset(self.free),
            [(max(self.expected_end_s(job), now_s + 1), self.held[job], self._draws_uw(job)) for job in self._holding],
        )
        places: list[Place] = []
        ledger = self._open_ledger
        joules = StoredJoules(ledger, now_s, lambda at_s: self._planned_uw(at_s, there)) if ledger else None
        started = []
        for job in list(self.queue):
            found: list[tuple[Place, int, bool]] = []  # until its limit; whether it waits for nothing but joules
            has_room = self._free_at(now_s, there, places) >= self._width(job)
            for level in range(self.watts.lowest_start(job) + 1):
                uw = self._width(job) * self._extra_uw(job, level)
                length_s = self._stretched(self.estimate_s[job], level)
                limit_s = self._stretched(self._request_s(job), level)
                paid_s = joules.suffice_from_s(uw, limit_s) if joules else now_s
                from_s = self._earliest_s(paid_s, there, places, Place(0, length_s, self._width(job), uw))
                if from_s is None:
                    continue
                place = (
                    Place(from_s, from_s + length_s, self._width(job), uw),
                    from_s + limit_s,
                    has_room and from_s == paid_s,
                )
                is_now = from_s == now_s and self._is_admissible(now_s, job, level)
                if is_now and self._budget_allows_head(now_s, job, level):
                    started.append(self._start_at(now_s, job, level))
                    found = [place]
                    break
                found.append(place)
            for place, limit_s, waits in sorted(found, key=lambda one: one[0].from_s)[:1]:
                places.append(place)
                self.planned_s[job] = place.from_s
                if ledger and joules:
                    joules.take(place.from_s, limit_s, place.uw)
                    ledger.next_s = min(ledger.next_s, place.from_s if waits and place.from_s > now_s else NO_CAP)
        return started

    def _planned_uw(self, at_s: int, there: Present) -> int:
        """The cluster's power if jobs end as expected and none starts. Nodes that are off when idle count as idle."""
        row = next(self._rows(at_s, at_s + 1))
        return row.idle_uw + row.off_uw + row.switching_uw + sum(uw for end_s, _, uw in there.runs if end_s > at_s)

    def _earliest_s(self, not_before_s: int, there: Present, places: list[Place], wanted: Place) -> int | None:
        """When this is left for so long; None: never."""
        changes_s = {not_before_s, *(row.from_s for row in self.rows[self.present + 1 :])}
        changes_s |= {run[0] for run in there.runs} | {one.to_s for one in places} | {one.from_s for one in places}
        for from_s in sorted(at_s for at_s in changes_s if at_s >= not_before_s):
            looks_s = [from_s, *(at_s for at_s in changes_s if from_s < at_s < from_s + wanted.to_s)]
            if all(self._has_left(at_s, there, places, wanted) for at_s in looks_s):
                return from_s
        return None

    def _has_left(self, at_s: int, there: Present, places: list[Place], wanted: Place) -> bool:
        """On nodes that the plan leaves on. Those that are off when idle count as idle."""
        row = next(self._rows(at_s, at_s + 1))
        planned = [one for one in places if one.from_s <= at_s < one.to_s]
        if self._free_at(at_s, there, places) < wanted.width:
            return False
        if row.cap_uw == NO_CAP or not self.watts.asks_watts:
            return True
        return self._planned_uw(at_s, there) + sum(one.uw for one in planned) + wanted.uw <= row.cap_uw

    def _free_at(self, at_s: int, there: Present, places: list[Place]) -> int:
        row = next(self._rows(at_s, at_s + 1))
        free = there.free.union(*(held for end_s, held, _ in there.runs if end_s <= at_s))
        taken = sum(one.width for one in places if one.from_s <= at_s < one.to_s)
        return sum(one < row.kept for one in free) - taken

    def _draws_uw(self, job: int) -> int:
        """Above idle, at its frequency."""
        return self._width(job) * self._extra_uw(job, self.levels[job])

    def _start_in_place(self, now_s: int, job: int) -> int:
        return self._start_at(now_s, job, 0)

    def _reserve(self, now_s: int, head: int) -> Reservation:
        """When the head is expected to fit in processors, watts and joules, and what it leaves over of those."""
        times = {max(self.expected_end_s(job), now_s + 1) for job in self.running}
        times |= {row.from_s for row in self.rows if row.from_s > now_s}
        if ledger := self._open_ledger:
            times |= {now_s, ledger.budget.to_s}
        in_order = sorted(times)
        for at_s, next_s in zip(in_order, [*in_order[1:], None], strict=True):
            for level in range(self.watts.lowest_start(head) + 1):
                found = self._fits_at(now_s, at_s, head, level)
                if found and self._will_have_joules(now_s, next_s, head, level, found):
                    moved = self._fits_at(now_s, found.at_s or at_s, head, level)
                    if moved:
                        return replace(found, narrowest=moved.narrowest, free=moved.free, free_uw=moved.free_uw)
        return Reservation(None, 0, 0, 0)

    def _fits_at(self, now_s: int, at_s: int, head: int, level: int) -> Reservation | None:
        lowest = self.watts.lowest_start(head) if self.watts.rescales else level
        rows = list(self._rows(at_s, at_s + self._stretched(self._request_s(head), lowest)))
        narrowest = min(row.kept for row in rows)
        gone = self._gone(now_s, at_s)
        freed = set(self.free).union(*(self.held[job] for job in gone))
        left_over = sum(one < narrowest for one in freed) - self._width(head)
        left_uw = [NO_CAP]
        for row in rows if self.watts.asks_watts else ():
            if row.cap_uw != NO_CAP:
                needed_uw = self._width(head) * self._extra_uw(head, level)
                if row is self._row:
                    needed_uw += self._will_wake_uw(now_s, at_s, head)
                else:
                    needed_uw = self._later_uw(head, needed_uw)
                left_uw.append(row.cap_uw - self._expected_uw(row, at_s, now_s) - needed_uw)
        fits = left_over >= 0 and min(left_uw) >= 0
        return Reservation(at_s, narrowest, left_over, min(left_uw)) if fits else None

    def _gone(self, now_s: int, at_s: int) -> list[int]:
        """Running jobs that are expected to have ended, and whose processors are not free before."""
        return [job for job in self._holding if max(self.expected_end_s(job), now_s + 1) <= at_s]

    @property
    def _holding(self) -> list[int]:
        return [job for job in self.running if job not in self.handed_over]

    def _expected_uw(self, row: Row, at_s: int, now_s: int) -> int:
        if row.from_s >= at_s:
            draws = [job for job in self.running if self._still(row, now_s, self._runs_until_s(job, is_expected=True))]
            return self._drawn_uw(now_s, row, draws)
        left = [job for job in self.running if max(self.expected_end_s(job), now_s + 1) > at_s]
        busy_uw = 0
        for job in left:
            drawn_uw = self._width(job) * self._extra_uw(job, self.levels[job])
            busy_uw += drawn_uw if self._is_present(row, at_s) else self._later_uw(job, drawn_uw)
        return self._empty_uw(now_s, row) + busy_uw

    def _will_wake_uw(self, now_s: int, at_s: int, head: int) -> int:
        """What the head will need of what nodes save that are off now, as long as the present row lasts."""
        if self.nodes is None:
            return 0
        freed = set(self.free).union(*(self.held[job] for job in self._gone(now_s, at_s)))
        here = [one for one in freed if one < self._row.kept]
        cold = sum(one in self.free and not self.nodes.is_warm(one) for one in here)
        return max(self._width(head) - (len(here) - cold), 0) * self._saved_uw

    def _start_at(self, now_s: int, job: int, level: int) -> int:
        need = self._need(now_s, job, level)
        self.held[job] = set(self._choose(now_s, job, level))
        self.handed_over.discard(job)
        self.free -= self.held[job]
        self.levels[job] = level
        begins_s, self.woken[job] = self.nodes.take(now_s, self.held[job]) if self.nodes else (now_s, 0)
        self.pace[job] = (begins_s, 0.0)
        if self.ledger:
            self.ledger.drawn_uw += need.busy_uw + need.wake_uw
        return self._start(now_s, job)

    def _choose(self, now_s: int, job: int, level: int) -> list[int]:
        """The lowest free processors; of those that are switched off after the job has ended the highest. First those
        whose node is on."""
        begins_s = now_s + self._need(now_s, job, level).delay_s
        end_s = self._latest_s(begins_s, 0.0, self._request_s(job), job, level)
        kept = min(row.kept for row in self._rows(now_s, end_s))
        is_early = min(row.kept for row in self.rows[self.present :]) < kept
        usable = sorted((one for one in self.free if one < kept), reverse=is_early)
        if self.nodes:
            usable = sorted(usable, key=self.nodes.is_warm, reverse=True)
        return usable[: self._width(job)]

    def _give_back(self, job: int) -> None:
        self.metered_uw.pop(job, None)
        if job in self.handed_over:
            return
        self.free |= self.held[job]
        if self.nodes:
            self.nodes.give_back(sorted(self.held[job]))

    # --- a budget of joules

    @property
    def _open_ledger(self) -> Ledger | None:
        return self.ledger if self.ledger and self.ledger.is_open else None

    def _budget_allows_head(self, now_s: int, job: int, level: int) -> bool:
        ledger = self._open_ledger
        if ledger is None:
            return True
        return self._taken_j(ledger, now_s, job, level, self._need(now_s, job, level)) <= ledger.stored_j

    def _taken_j(self, ledger: Ledger, now_s: int, job: int, level: int, need: Need) -> float:
        """What the job has to find of the stored joules to start now (``budget``)."""
        budget, width = ledger.budget, self._width(job)
        needed_uw = need.busy_uw + need.wake_uw
        length_s = need.delay_s + self._stretched(self._request_s(job), level)
        above_uw = ledger.drawn_uw + needed_uw - budget.limit_uw
        if budget.test == "job":
            return _joules(above_uw, min(length_s, budget.to_s - now_s))
        if budget.test == "whole":
            return _joules(needed_uw + width * self.watts.idle_uw, length_s) if above_uw > 0 else 0.0
        return self._path_j(ledger, now_s, need.wake_uw, need.busy_uw, now_s + length_s)

    def _path_j(self, ledger: Ledger, now_s: int, wake_uw: int, needed_uw: int, until_s: int) -> float:
        """The joules above the limit until the window ends, all jobs running to their limits, with ``wake_uw`` more
        from now on and ``needed_uw`` more until ``until_s``."""
        budget = ledger.budget
        above_uw = ledger.drawn_uw + wake_uw + needed_uw - budget.limit_uw
        falls: dict[int, int] = defaultdict(int)
        falls[until_s] += needed_uw
        for other in self.running:
            falls[max(self._limit_s(other), now_s + 1)] += self._width(other) * self._extra_uw(
                other, self.levels[other]
            )
        found_j, at_s = 0.0, now_s
        for limit_s in sorted(falls):
            end_s = min(limit_s, budget.to_s)
            if above_uw <= 0 or end_s <= at_s:
                return found_j
            found_j += _joules(above_uw, end_s - at_s)
            at_s = end_s
            above_uw -= falls[limit_s]
        return found_j + _joules(above_uw, budget.to_s - at_s)

    def _will_have_joules(self, now_s: int, next_s: int | None, head: int, level: int, found: Reservation) -> bool:
        """Whether there are joules for the head before running jobs change; sets when, and what is left of them."""
        ledger = self._open_ledger
        if ledger is None or found.at_s is None or found.at_s >= ledger.budget.to_s:
            return True
        assert next_s is not None
        budget, stored_j, at_s, drawn_uw = ledger.budget, ledger.stored_j, now_s, ledger.drawn_uw
        times = {max(self.expected_end_s(job), now_s + 1) for job in self.running}
        times |= {row.from_s for row in self.rows if row.from_s > now_s}
        for time_s in sorted(time_s for time_s in times | {found.at_s} if now_s < time_s <= found.at_s):
            stored_j += float(budget.limit_uw - drawn_uw) * float(time_s - at_s) / 1e6
            at_s = time_s
            gone = self._gone(now_s, at_s)
            drawn_uw = ledger.drawn_uw - sum(self._width(job) * self._extra_uw(job, self.levels[job]) for job in gone)
        head_uw = self._width(head) * self._extra_uw(head, level) + self._will_wake_uw(now_s, at_s, head)
        found.above_uw = drawn_uw + head_uw - budget.limit_uw
        found.length_s = min(self._stretched(self._request_s(head), level), budget.to_s - at_s)
        found.reserved_j = _joules(found.above_uw, found.length_s)
        if stored_j < found.reserved_j or at_s == now_s:
            fill_uw, wait_s = float(budget.limit_uw - drawn_uw), 1.0
            if stored_j < found.reserved_j:
                if fill_uw <= 0:
                    return False
                wait_s = float(ceil((found.reserved_j - stored_j) * 1e6 / fill_uw))
            if wait_s >= float(next_s - at_s):
                return False
            found.at_s = at_s + int(wait_s)
            stored_j += fill_uw * wait_s / 1e6
        found.left_over_j = stored_j - found.reserved_j
        return True

    def _cost_j(self, now_s: int, need: Need, length_s: int, reserved: Reservation, ends_in_time: bool) -> float:
        """What a job behind the head takes of the joules that the head leaves over."""
        ledger = self._open_ledger
        if ledger is None or reserved.at_s is None or reserved.at_s >= ledger.budget.to_s:
            return 0.0
        needed_uw = need.busy_uw + need.wake_uw
        if ends_in_time:
            return _joules(needed_uw, length_s)
        more_j = _joules(reserved.above_uw + needed_uw, reserved.length_s) - _joules(
            reserved.above_uw, reserved.length_s
        )
        return _joules(needed_uw, reserved.at_s - now_s) + more_j

    def _budget_allows_behind(
        self, now_s: int, job: int, level: int, need: Need, reserved: Reservation, cost_j: float
    ) -> bool:
        ledger = self._open_ledger
        if ledger is None:
            return True
        is_reserved = reserved.at_s is not None and reserved.at_s < ledger.budget.to_s
        if is_reserved and cost_j > reserved.left_over_j:
            return False
        reserved_j = reserved.reserved_j if is_reserved else 0.0
        drawn_uw = ledger.drawn_uw + need.busy_uw + need.wake_uw
        if ledger.budget.rule == "reducepc":
            aside_uw = 0.0
            if is_reserved and reserved.at_s is not None:
                aside_uw = reserved_j * 1e6 / float(reserved.at_s - now_s)
            return ledger.stored_j >= 0 and float(drawn_uw) <= float(ledger.budget.limit_uw) - aside_uw
        if drawn_uw <= ledger.budget.limit_uw:
            return ledger.stored_j >= 0
        return self._taken_j(ledger, now_s, job, level, need) <= ledger.stored_j - reserved_j

    # --- what is known

    @property
    def _row(self) -> Row:
        return self.rows[self.present]

    def _rows(self, from_s: int, to_s: int) -> Iterator[Row]:
        """The rows in force at some time in [from_s, to_s)."""
        known = self.rows[self.present :]
        ends_s = [later.from_s for _, later in pairwise(known)] + [None]
        for i, (row, end_s) in enumerate(zip(known, ends_s, strict=True)):
            if (i == 0 or row.from_s < to_s) and (end_s is None or end_s > from_s):
                yield row

    def _still(self, row: Row, now_s: int, end_s: int) -> bool:
        """Whether a job that ends at ``end_s`` still runs when the row begins; one that is overdue runs now."""
        return row is self._row or max(end_s, now_s + 1) > row.from_s

    def _free_in(self, row: Row) -> int:
        return sum(one < row.kept for one in self.free)

    @property
    def _saved_uw(self) -> int:
        """By a processor whose node is off."""
        return self.watts.idle_uw - self.nodes.model.off_uw if self.nodes else 0

    @property
    def _boot_rise_uw(self) -> int:
        """What a processor draws more while its node boots than idle."""
        return max(self.nodes.model.boot_uw - self.watts.idle_uw, 0) if self.nodes else 0

    @property
    def _off_rise_uw(self) -> int:
        return max(self.nodes.model.switch_off_uw - self.watts.idle_uw, 0) if self.nodes else 0

    def _empty_uw(self, now_s: int, row: Row) -> int:
        """The cluster without jobs. Nodes that are off save now; in a later row they may be on again."""
        drawn_uw = row.idle_uw + row.off_uw + row.switching_uw
        if self.nodes:
            unclaimed = self.nodes.waking - sum(self.woken[job] for job in self.running if self.pace[job][0] > now_s)
            drawn_uw += self.nodes.processors("going") * self._off_rise_uw + unclaimed * self._boot_rise_uw
            drawn_uw -= self.nodes.processors("off") * self._saved_uw if row is self._row else 0
        return drawn_uw

    def _drawn_uw(self, now_s: int, row: Row, jobs: list[int]) -> int:
        """The cluster with these jobs. One on nodes that should be off keeps them on, and chassis and racks too. One
        whose nodes boot counts with its own watts, or the boot's if those are more."""
        drawn_uw, beyond = self._empty_uw(now_s, row), 0
        away = self.processors - row.kept
        away_uw = (row.off_uw + row.switching_uw) // away if away else 0
        for job in jobs:
            boot_uw = self.woken[job] * self._boot_rise_uw if self.pace[job][0] > now_s else 0
            busy_uw = self._width(job) * self._extra_uw(job, self.levels[job])
            drawn_uw += max(busy_uw if row is self._row else self._later_uw(job, busy_uw), boot_uw)
            left_on = sum(one >= row.kept for one in self.held[job])
            drawn_uw += left_on * (self.watts.idle_uw - away_uw)
            beyond += left_on
        return drawn_uw + (row.bonus_uw if beyond else 0)

    def present_uw(self, now_s: int) -> int:
        """What the cluster draws, each job as planned with once it has begun."""
        waiting = [job for job in self.running if self.pace[job][0] > now_s]
        drawn_uw = self._cluster_uw(now_s)
        for job in waiting:
            boot_uw = self.woken[job] * self._boot_rise_uw
            drawn_uw -= max(self._width(job) * self._extra_uw(job, self.levels[job]), boot_uw)
        if self.nodes:
            model, unclaimed = self.nodes.model, self.nodes.waking - sum(self.woken[job] for job in waiting)
            drawn_uw -= unclaimed * self._boot_rise_uw + self.nodes.processors("going") * self._off_rise_uw
            drawn_uw += self.nodes.processors("going") * (model.switch_off_uw - self.watts.idle_uw)
            drawn_uw += self.nodes.processors("booting") * (model.boot_uw - self.watts.idle_uw)
        return drawn_uw

    def _cluster_uw(self, now_s: int) -> int:
        return self._drawn_uw(now_s, self._row, list(self.running))

    def _running(self) -> Running:
        return running_of(
            [
                (
                    start_s,
                    job,
                    self._width(job),
                    self.levels[job],
                    self.watts.lowest_of(job),
                    self._limit_s(job),
                    self._width(job) * (self._extra_uw(job, self.levels[job]) + self.watts.idle_uw) / 1e6,
                )
                for job, start_s in self.running.items()
            ]
        )

    def _later_uw(self, job: int, busy_uw: int) -> int:
        """With how much the job counts after the present row, if it draws this in it."""
        if not self.watts.rescales:
            return busy_uw
        lowest = max(self.watts.lowest_start(job), self.levels[job] if job in self.running else 0)
        return self._width(job) * self._extra_uw(job, lowest)

    def _latest_s(self, since_s: int, done_s: float, length_s: int, job: int, level: int) -> int:
        """The end of what has so much to do, the job at its lowest frequency from the next row on."""
        slower, lowest = self.watts.slowdown, self.watts.lowest_start(job)
        if not self.watts.rescales:
            return since_s + self._stretched(length_s, level)
        end_s, next_s = since_s + ceil((length_s - done_s) * slower[level] - 1e-9), self._next_row_s
        if level >= lowest or end_s <= next_s:
            return end_s
        return next_s + ceil((length_s - (done_s + (next_s - since_s) / slower[level])) * slower[lowest] - 1e-9)

    @property
    def _next_row_s(self) -> int:
        return self.rows[self.present + 1].from_s if self.present + 1 < len(self.rows) else NO_CAP

    def _runs_until_s(self, job: int, is_expected: bool = False) -> int:
        """When the running job ends, to its limit or as expected, at the latest in later rows."""
        length_s = self.estimate_s[job] if is_expected else self._request_s(job)
        if not self.watts.rescales:
            return self._finish_s(job, length_s)
        return self._latest_s(*self.pace[job], length_s, job, self.levels[job])

    def _is_present(self, row: Row, at_s: int) -> bool:
        """Whether the plan is in its present row then."""
        return next(self._rows(at_s, at_s + 1)) is self._row

    def _meter(self, now_s: int) -> None:
        """Jobs that began before now count with what they draw: as watts of the highest frequency, rounded up."""
        watts = self.watts
        for job in (job for job, start_s in self.running.items() if job not in self.metered_uw and start_s < now_s):
            level = self.levels[job]
            full_uw = watts.busy_uw[0] if watts.job_busy_uw is None else int(watts.job_busy_uw[job])
            busy = [one - watts.idle_uw for one in watts.busy_uw]
            drawn_uw = int((full_uw - watts.idle_uw) * (busy[level] / busy[0]))
            planned = [one - watts.idle_uw for one in watts.plan_uw]
            self.metered_uw[job] = ceil(drawn_uw / (planned[level] / planned[0])) + 1

    def _extra_uw(self, job: int, level: int) -> int:
        watts = self.watts
        if watts.meters:
            share = (watts.plan_uw[level] - watts.idle_uw) / (watts.plan_uw[0] - watts.idle_uw)
            return int(self.metered_uw.get(job, watts.plan_uw[0] - watts.idle_uw) * share)
        if watts.job_plan_uw is None:
            return watts.plan_uw[level] - watts.idle_uw
        share = (watts.plan_uw[level] - watts.idle_uw) / (watts.plan_uw[0] - watts.idle_uw)
        return int((int(watts.job_plan_uw[job]) - watts.idle_uw) * share)

    def _request_s(self, job: int) -> int:
        return int(self.jobs.request_s[job])

    def _limit_s(self, job: int) -> int:
        return self._finish_s(job, self._request_s(job))

    def _finish_s(self, job: int, length_s: int) -> int:
        since_s, done_s = self.pace[job]
        return since_s + ceil((length_s - done_s) * self.watts.slowdown[self.levels[job]] - 1e-9)

    def _stretched(self, length_s: int, level: int) -> int:
        return max(ceil(length_s * self.watts.slowdown[level] - 1e-9), 1)


def _joules(uw: int, seconds: int) -> float:
    return float(uw) * float(seconds) / 1e6 if uw > 0 else 0.0

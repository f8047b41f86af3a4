"""The scheduler on a machine with watts, in plain Python: what ``csrc/power_pass.c`` is tested against.

It chooses processors too, because nodes that will be switched off may be given only to jobs that end before. Nothing is
kept between passes but who runs where, since when and at which frequency.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

from cluster_agent.caps import Cap
from cluster_agent.scheduler.budget import Ledger
from cluster_agent.scheduler.governor import NO_CAP, Governor, Row, Watts, running_of
from cluster_agent.scheduler.interfaces import Meter, unmetered
from cluster_agent.scheduler.jobs import Jobs
from cluster_agent.scheduler.phases import Composition
from cluster_agent.scheduler.power import Ends, Reaction, Running
from cluster_agent.scheduler.reference import ReferenceScheduler


@dataclass(slots=True)
class Reservation:
    """When the head will start (None: not as long as the plan holds), and what it leaves to others."""

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
        self.ledger = self.governor.ledger(first_s)
        self.announcements = list(self.governor.announced_s)
        self.rows = self.governor.plan(first_s)
        self.present = 0  # the row that holds
        self.free = set(range(self.processors))
        self.held: dict[int, set[int]] = {}
        self.levels: dict[int, int] = {}
        self.pace: dict[int, tuple[int, float]] = {}  # job: since when, seconds of its run done by then

    # --- what happens

    def end(self, job: int) -> None:
        """The running job has ended."""
        super().end(job)
        self.free |= self.held[job]

    def level(self, job: int) -> int:
        """The frequency of a job."""
        return self.levels[job]

    def next_change_s(self) -> int | None:
        """The next row, or the next announcement."""
        rows_s = [row.from_s for row in self.rows[self.present + 1 :]]
        reading_s = [self.ledger.next_s] if self.ledger else []
        return min(self.announcements[:1] + rows_s + reading_s, default=None)

    @property
    def reacts_to_ends(self) -> Ends:
        """While a cap holds, what the policy says."""
        return "unheard" if self._row.cap_uw == NO_CAP else self.watts.reacts_to_ends

    def react(self, now_s: int) -> Reaction:
        """Read the joules if they are due; plan anew if a cap has become known; then do to running jobs what the
        policy says."""
        if self.ledger and self.ledger.next_s <= now_s:
            if not self.ledger.read(now_s, self.meter()):
                self.ledger = None
            rows_s = [row.from_s for row in self.rows[self.present + 1 :]]
            is_only_reading = min(self.announcements[:1] + rows_s, default=now_s + 1) > now_s
            if is_only_reading and self.reacts_to_ends == "unheard":
                return Reaction()
        if self.announcements and self.announcements[0] <= now_s:
            self.rows = self.governor.plan(now_s)
            self.announcements = [time_s for time_s in self.announcements if time_s > now_s]
        self.present = max(i for i, row in enumerate(self.rows) if i == 0 or row.from_s <= now_s)
        reaction = self.governor.react(now_s, self._row, self._cluster_uw(), self._running)
        for job in reaction.kill:
            self.uncharged.append((job, self.running.pop(job)))
            self.free |= self.held[job]
            if self.learner:
                self.learner.kill(job)
            if self.watts.requeues:
                self.estimate_s[job] = self.first_estimate_s[job]
                later = [i for i, other in enumerate(self.queue) if other > job]
                self.queue.insert(later[0] if later else len(self.queue), job)
        for job, level in reaction.level.items():
            since_s, done_s = self.pace[job]
            self.pace[job] = (now_s, done_s + (now_s - since_s) / self.watts.slowdown[self.levels[job]])
            self.levels[job] = level
        return reaction

    def expected_end_s(self, job: int) -> int:
        """When a running job is expected to end."""
        return self._finish_s(job, self.estimate_s[job])

    # --- a pass

    def decide(self, now_s: int) -> list[int]:
        """Start heads while they are admitted; then whoever takes nothing from the head's reservation."""
        if ledger := self._open_ledger:
            ledger.book(now_s, self._cluster_uw())
        self._order(now_s)
        started = []
        while self.queue and (level := self._admit(now_s, self.queue[0])) is not None:
            started.append(self._start_at(now_s, self.queue[0], level))
        if self.composition.backfill == "easy" and self.queue:
            started += self._backfill(now_s)
        return started

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
        end_s = now_s + self._stretched(self._request_s(job), level)
        needed_uw = self._width(job) * self._extra_uw(job, level)
        for row in self._rows(now_s, end_s):
            if self._width(job) > self._free_in(row):
                return False
            draws = [other for other in self.running if self._still(row, now_s, self._limit_s(other))]
            if self.watts.asks_watts and row.cap_uw != NO_CAP and self._drawn_uw(row, draws) + needed_uw > row.cap_uw:
                return False
        return True

    def _backfill(self, now_s: int) -> list[int]:
        head, *others = self.queue
        reserved = self._reserve(now_s, head)
        at_s, narrowest, left_over, left_over_uw = reserved.at_s, reserved.narrowest, reserved.free, reserved.free_uw
        if self.composition.scan == "shortest":
            others = sorted(sorted(others), key=self.estimate_s.__getitem__)
        started = []
        for job in others:
            for level in range(self.watts.lowest_start(job) + 1):
                if not self._is_admissible(now_s, job, level):
                    continue
                ends_in_time = at_s is None or now_s + self._stretched(self.estimate_s[job], level) <= at_s
                cost_j = self._cost_j(now_s, job, level, reserved, ends_in_time)
                if not self._budget_allows_behind(now_s, job, level, reserved, cost_j):
                    continue
                if ends_in_time:
                    reserved.left_over_j -= cost_j
                    started.append(self._start_at(now_s, job, level))
                    break
                taken = sum(one < narrowest for one in self._choose(now_s, job, level))
                needed_uw = self._width(job) * self._extra_uw(job, level)
                if taken <= left_over and needed_uw <= left_over_uw:
                    reserved.left_over_j -= cost_j
                    reserved.above_uw += needed_uw
                    left_over -= taken
                    left_over_uw -= needed_uw if left_over_uw != NO_CAP else 0
                    started.append(self._start_at(now_s, job, level))
                    break
        return started

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
        rows = list(self._rows(at_s, at_s + self._stretched(self._request_s(head), level)))
        narrowest = min(row.kept for row in rows)
        gone = self._gone(now_s, at_s)
        freed = set(self.free).union(*(self.held[job] for job in gone))
        left_over = sum(one < narrowest for one in freed) - self._width(head)
        left_uw = [NO_CAP]
        for row in rows if self.watts.asks_watts else ():
            if row.cap_uw != NO_CAP:
                needed_uw = self._width(head) * self._extra_uw(head, level)
                left_uw.append(row.cap_uw - self._expected_uw(row, at_s, now_s) - needed_uw)
        fits = left_over >= 0 and min(left_uw) >= 0
        return Reservation(at_s, narrowest, left_over, min(left_uw)) if fits else None

    def _gone(self, now_s: int, at_s: int) -> list[int]:
        """Running jobs that are expected to have ended."""
        return [job for job in self.running if max(self.expected_end_s(job), now_s + 1) <= at_s]

    def _expected_uw(self, row: Row, at_s: int, now_s: int) -> int:
        if row.from_s >= at_s:
            draws = [job for job in self.running if self._still(row, now_s, self.expected_end_s(job))]
            return self._drawn_uw(row, draws)
        left = [job for job in self.running if max(self.expected_end_s(job), now_s + 1) > at_s]
        return _empty_uw(row) + sum(self._width(job) * self._extra_uw(job, self.levels[job]) for job in left)

    def _start_at(self, now_s: int, job: int, level: int) -> int:
        self.held[job] = set(self._choose(now_s, job, level))
        self.free -= self.held[job]
        self.levels[job] = level
        self.pace[job] = (now_s, 0.0)
        if self.ledger:
            self.ledger.drawn_uw += self._width(job) * self._extra_uw(job, level)
        return self._start(now_s, job)

    def _choose(self, now_s: int, job: int, level: int) -> list[int]:
        """The lowest free processors; of those that are switched off after the job has ended the highest."""
        end_s = now_s + self._stretched(self._request_s(job), level)
        kept = min(row.kept for row in self._rows(now_s, end_s))
        is_early = min(row.kept for row in self.rows[self.present :]) < kept
        usable = sorted((one for one in self.free if one < kept), reverse=is_early)
        return usable[: self._width(job)]

    # --- a budget of joules

    @property
    def _open_ledger(self) -> Ledger | None:
        return self.ledger if self.ledger and self.ledger.is_open else None

    def _budget_allows_head(self, now_s: int, job: int, level: int) -> bool:
        ledger = self._open_ledger
        return ledger is None or self._taken_j(ledger, now_s, job, level) <= ledger.stored_j

    def _taken_j(self, ledger: Ledger, now_s: int, job: int, level: int) -> float:
        """What the job has to find of the stored joules to start now (``budget``)."""
        budget, width = ledger.budget, self._width(job)
        needed_uw = width * self._extra_uw(job, level)
        length_s = self._stretched(self._request_s(job), level)
        above_uw = ledger.drawn_uw + needed_uw - budget.limit_uw
        if budget.test == "job":
            return _joules(above_uw, min(length_s, budget.to_s - now_s))
        if budget.test == "whole":
            return _joules(needed_uw + width * self.watts.idle_uw, length_s) if above_uw > 0 else 0.0
        falls: dict[int, int] = defaultdict(int)
        falls[now_s + length_s] += needed_uw
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
        found.above_uw = drawn_uw + self._width(head) * self._extra_uw(head, level) - budget.limit_uw
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

    def _cost_j(self, now_s: int, job: int, level: int, reserved: Reservation, ends_in_time: bool) -> float:
        """What a job behind the head takes of the joules that the head leaves over."""
        ledger = self._open_ledger
        if ledger is None or reserved.at_s is None or reserved.at_s >= ledger.budget.to_s:
            return 0.0
        needed_uw = self._width(job) * self._extra_uw(job, level)
        if ends_in_time:
            return _joules(needed_uw, self._stretched(self.estimate_s[job], level))
        more_j = _joules(reserved.above_uw + needed_uw, reserved.length_s) - _joules(
            reserved.above_uw, reserved.length_s
        )
        return _joules(needed_uw, reserved.at_s - now_s) + more_j

    def _budget_allows_behind(self, now_s: int, job: int, level: int, reserved: Reservation, cost_j: float) -> bool:
        ledger = self._open_ledger
        if ledger is None:
            return True
        is_reserved = reserved.at_s is not None and reserved.at_s < ledger.budget.to_s
        if is_reserved and cost_j > reserved.left_over_j:
            return False
        reserved_j = reserved.reserved_j if is_reserved else 0.0
        drawn_uw = ledger.drawn_uw + self._width(job) * self._extra_uw(job, level)
        if ledger.budget.rule == "reducepc":
            aside_uw = 0.0
            if is_reserved and reserved.at_s is not None:
                aside_uw = reserved_j * 1e6 / float(reserved.at_s - now_s)
            return ledger.stored_j >= 0 and float(drawn_uw) <= float(ledger.budget.limit_uw) - aside_uw
        if drawn_uw <= ledger.budget.limit_uw:
            return ledger.stored_j >= 0
        return self._taken_j(ledger, now_s, job, level) <= ledger.stored_j - reserved_j

    # --- what is known

    @property
    def _row(self) -> Row:
        return self.rows[self.present]

    def _rows(self, from_s: int, to_s: int) -> Iterator[Row]:
        """The rows that hold at some time in [from_s, to_s)."""
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

    def _drawn_uw(self, row: Row, jobs: list[int]) -> int:
        """The cluster with these jobs. One on nodes that should be off keeps them on, and chassis and racks too."""
        drawn_uw, beyond = _empty_uw(row), 0
        away = self.processors - row.kept
        away_uw = (row.off_uw + row.switching_uw) // away if away else 0
        for job in jobs:
            drawn_uw += self._width(job) * self._extra_uw(job, self.levels[job])
            left_on = sum(one >= row.kept for one in self.held[job])
            drawn_uw += left_on * (self.watts.idle_uw - away_uw)
            beyond += left_on
        return drawn_uw + (row.bonus_uw if beyond else 0)

    def _cluster_uw(self) -> int:
        return self._drawn_uw(self._row, list(self.running))

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

    def _extra_uw(self, job: int, level: int) -> int:
        watts = self.watts
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


def _empty_uw(row: Row) -> int:
    return row.idle_uw + row.off_uw + row.switching_uw


def _joules(uw: int, seconds: int) -> float:
    return float(uw) * float(seconds) / 1e6 if uw > 0 else 0.0

"""A machine with watts, reservations and queues with windows, in plain Python: all that takes processors or watts is a
list of spans, and a place is looked for at each time at which one of them begins or ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cluster_agent.cap_steps import Cap
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.governor import NO_CAP, Watts
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.switches.queue_windows import Span
from cluster_agent.scheduler.switches.reservations import Reserved
from tests.oracle.power_scheduler import PowerReferenceScheduler

NEVER_S = 1 << 60
AHEAD_S = 800
"""Intervals that begin later matter to no job of these traces."""


class Taken(NamedTuple):
    """From when to when, how many processors (below 0: they are there for once), and what above idle."""

    from_s: int
    to_s: int
    width: int
    uw: int


class Placed(NamedTuple):
    """A job's place, at a frequency; ``NEVER_S``: it has none."""

    from_s: int
    level: int


class ReservedWithWatts(PowerReferenceScheduler):
    """``pool``, ``windows`` and ``queue_of`` as ``ReservedMachine`` has them. No nodes go off, no joules are counted,
    and running jobs keep their frequencies."""

    def __init__(
        self,
        composition: Composition,
        jobs: Jobs,
        watts: Watts,
        caps: Sequence[Cap],
        reserved: Sequence[Reserved],
        pool: Sequence[int],
        windows: Sequence[Sequence[Span] | None],
        queue_of: Sequence[int],
    ) -> None:
        super().__init__(composition, jobs, watts, caps)
        self.reserved, self.pool, self.queue_of = reserved, pool, queue_of
        self.windows = [None if pool[at] else windows[at] for at in range(len(jobs))]
        self.closed_to: set[int] = set()  # queues of which a job keeps a place
        self.taken: list[Taken] = []
        self.left: dict[int, tuple[int, int]] = {}  # processors and watts, at times that were looked at
        self.passed_s = -1

    # --- when passes are due

    def next_change_s(self) -> int | None:
        """When anything begins, ends, becomes known or is deleted, too."""
        now_s, found = self.passed_s, [super().next_change_s()]
        for one in self.reserved:
            if one.made_s > now_s:
                found.append(one.made_s)
            elif self._is_known(one, now_s):
                found += [one.gone_s, *(at_s for each in self._intervals(one, now_s) for at_s in each)]
        found += [each.from_s for job in self.queue for each in self.windows[job] or ()]
        return min((at_s for at_s in found if at_s is not None and at_s > now_s), default=None)

    def advance(self, now_s: int) -> bool:
        """As without reservations."""
        self.passed_s = now_s
        return super().advance(now_s)

    # --- a pass

    def decide(self, now_s: int) -> list[int]:
        """Around reservations as long as there is one, or a job waits for one or for its window."""
        self.passed_s = now_s
        waits = any(self.pool[job] or self.windows[job] is not None for job in self.queue)
        if not waits and not any(self._is_known(one, now_s) for one in self.reserved):
            return super().decide(now_s)
        self._estimate_again(now_s)
        self._order(now_s)
        self.closed_to.clear()
        return [job for pool in range(len(self.reserved) + 1) for job in self._decide_in(pool, now_s)]

    def _decide_in(self, pool: int, now_s: int) -> list[int]:
        """Heads in turn; then those behind the first one that cannot start, who may not take its place."""
        self.taken = self._taken(pool, now_s)
        self.left.clear()
        backfill, head, started = self.composition.backfill, None, []
        waiting = [job for job in self.queue if self.pool[job] == pool]
        while waiting:
            job = waiting.pop(0)
            if self._waits_for_window(now_s, job):
                continue
            if self._starts(now_s, job):
                started.append(job)
                continue
            if backfill == "conservative" or (head is None and backfill != "list"):
                self._keep(now_s, job)
            if head is None and backfill == "none":
                break
            if head is None and self.composition.scan == "shortest":
                waiting.sort(key=lambda other: (self.estimate_s[other], other))
            head = job if head is None else head
        return started

    def _waits_for_window(self, now_s: int, job: int) -> bool:
        ends_s, windows, queue = now_s + self._request_s(job), self.windows[job], self.queue_of[job]
        if windows is None or any(one.from_s <= now_s and ends_s <= one.to_s for one in windows):
            return False
        backfill = self.composition.backfill
        if backfill == "conservative" or (backfill != "list" and queue not in self.closed_to):
            self.closed_to |= {queue} if self._keep(now_s, job) else set()
        return True

    def _starts(self, now_s: int, job: int) -> bool:
        """At the highest frequency that has its place now."""
        for level in range(self.watts.lowest_start(job) + 1):
            in_use = sum(map(self._width, self.running))
            if self._earliest_at(now_s, job, level) > now_s or in_use + self._width(job) > self.processors:
                continue
            if self._is_admissible(now_s, job, level):
                self._take(Placed(now_s, level), job)
                self._start_at(now_s, job, level)
                return True
        return False

    def _keep(self, now_s: int, job: int) -> bool:
        """Its earliest place, at the highest frequency that has it."""
        levels = range(self.watts.lowest_start(job) + 1)
        found = min(Placed(self._earliest_at(now_s, job, level), level) for level in levels)
        if found.from_s < NEVER_S:
            self._take(found, job)
        return found.from_s < NEVER_S

    def _take(self, placed: Placed, job: int) -> None:
        to_s = placed.from_s + self._stretched(self._request_s(job), placed.level)
        uw = self._width(job) * self._extra_uw(job, placed.level)
        self.taken.append(Taken(placed.from_s, to_s, self._width(job), uw))
        self.left.clear()

    # --- what is left

    def _earliest_at(self, now_s: int, job: int, level: int) -> int:
        """When it has processors and watts until its walltime, in one window of its queue; ``NEVER_S``: never."""
        length_s = self._stretched(self._request_s(job), level)
        uw = self._width(job) * self._extra_uw(job, level)
        changes_s = {now_s, *(row.from_s for row in self.rows), *(at_s for one in self.taken for at_s in one[:2])}
        for window in self.windows[job] or [Span(now_s, NEVER_S)]:
            for from_s in sorted({window.from_s, *changes_s}):
                if not max(window.from_s, now_s) <= from_s <= window.to_s - length_s:
                    continue
                looks_s = [from_s, *(at_s for at_s in changes_s if from_s < at_s < from_s + length_s)]
                if all(self._has(at_s, self._width(job), uw) for at_s in looks_s):
                    return from_s
        return NEVER_S

    def _has(self, at_s: int, width: int, uw: int) -> bool:
        if at_s not in self.left:
            there = [one for one in self.taken if one.from_s <= at_s < one.to_s]
            row = next(self._rows(at_s, at_s + 1))
            is_free = row.cap_uw == NO_CAP or not self.watts.asks_watts
            left_uw = NO_CAP if is_free else row.cap_uw - row.idle_uw - sum(one.uw for one in there)
            self.left[at_s] = -sum(one.width for one in there), left_uw
        return width <= self.left[at_s][0] and uw <= self.left[at_s][1]

    def _taken(self, pool: int, now_s: int) -> list[Taken]:
        """What the jobs of a pool do not have: what others have reserved, and what runs. Processors are there for once,
        or in the intervals of the pool alone."""
        found = [] if pool else [Taken(now_s, NEVER_S, -self.processors, 0)]
        for number, one in enumerate(self.reserved, 1):
            for from_s, to_s in self._intervals(one, now_s) if self._is_known(one, now_s) else ():
                if number == pool:
                    found.append(Taken(max(from_s, now_s), to_s, -one.width, 0))
                else:
                    found.append(Taken(max(from_s, now_s), to_s, 0 if pool else one.width, self._kept_uw(one.width)))
        for job in self.running:
            own, width, uw = self.pool[job], self._width(job), self._draws_uw(job)
            if own not in (0, pool) and self._is_known(self.reserved[own - 1], now_s):
                uw = max(uw - self._kept_uw(width), 0)
            found.append(Taken(now_s, max(self._limit_s(job), now_s + 1), width if own == pool else 0, uw))
        return found

    def _kept_uw(self, width: int) -> int:
        """A reservation keeps what its processors draw at the lowest frequency."""
        watts = self.watts
        return width * (watts.plan_uw[watts.lowest if watts.starts_slowed else 0] - watts.idle_uw)

    def _is_known(self, one: Reserved, now_s: int) -> bool:
        """And not over."""
        return one.made_s <= now_s < one.gone_s and bool(self._intervals(one, now_s))

    @staticmethod
    def _intervals(one: Reserved, now_s: int) -> list[tuple[int, int]]:
        """Those that are not over."""
        starts_s = range(one.from_s, max(now_s + AHEAD_S, one.from_s + 1), one.every_s or NEVER_S)
        return [(from_s, from_s + one.length_s) for from_s in starts_s if from_s + one.length_s > now_s]

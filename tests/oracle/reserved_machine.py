"""A machine with reservations and queues with windows, in plain Python: each pool of jobs has a profile of what it may
take, and a job is looked for a place at the steps of that and where its queue opens."""

from __future__ import annotations

from collections.abc import Sequence

from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.switches.queue_windows import Span
from cluster_agent.scheduler.switches.reservations import Reserved
from tests.oracle.scheduler import Profile, ReferenceScheduler

NEVER_S = 1 << 60
END_S = 1_000_000
"""No trace lasts so long."""
AHEAD_S = 500
"""Intervals that begin later matter to no job of these traces."""


class ReservedMachine(ReferenceScheduler):
    """Replays its jobs, of which ``pool`` has 1 + the reservation of each, 0: none; ``windows`` are those of each job's
    queue, None: it may run at any time, and ``queue_of`` has the number of each job's queue."""

    def __init__(
        self,
        composition: Composition,
        jobs: Jobs,
        processors: int,
        reserved: Sequence[Reserved],
        pool: Sequence[int],
        windows: Sequence[Sequence[Span] | None] = (),
        queue_of: Sequence[int] = (),
    ) -> None:
        super().__init__(composition, jobs, processors)
        self.reserved, self.pool = reserved, pool
        self.windows = [None if pool[at] or not windows else windows[at] for at in range(len(jobs))]
        self.queue_of = queue_of or [0] * len(jobs)
        self.keeps_place: set[int] = set()

    def replay(self) -> dict[int, int]:
        """When each job starts that can."""
        starts: dict[int, int] = {}
        due, now_s = {int(at_s) for at_s in self.jobs.submit_s}, 0
        for one in self.reserved:
            due |= {one.made_s, min(one.gone_s, END_S)}
            for from_s in range(one.from_s, min(one.gone_s, END_S), one.every_s or NEVER_S):
                due |= {from_s, from_s + one.length_s}
        while due or self._opens_s(now_s):
            now_s = min([*due, *self._opens_s(now_s)])
            due.discard(now_s)
            for job in [job for job, at_s in self.running.items() if at_s + self.jobs.run_s[job] <= now_s]:
                self.end(job)
            for job in range(len(self.jobs)):
                if self.jobs.submit_s[job] == now_s:
                    self.submit(now_s, job)
            for job in self.decide(now_s) if self.queue else []:
                starts[job] = now_s
                due.add(now_s + int(self.jobs.run_s[job]))
        return starts

    def _opens_s(self, now_s: int) -> list[int]:
        """When queues open in which jobs wait."""
        spans = [one for job in self.queue for one in self.windows[job] or ()]
        return [one.from_s for one in spans if one.from_s > now_s]

    def decide(self, now_s: int) -> list[int]:
        """First the common jobs."""
        self.keeps_place.clear()
        self._estimate_again(now_s)
        self._order(now_s)
        return [job for pool in range(len(self.reserved) + 1) for job in self._decide_in(pool, now_s)]

    def _decide_in(self, pool: int, now_s: int) -> list[int]:
        profile, backfill = self._profile_of(pool, now_s), self.composition.backfill
        waiting = [job for job in self.queue if self.pool[job] == pool]
        started: list[int] = []
        for at, job in enumerate(waiting):
            if self._waits_for_window(profile, now_s, job):
                continue
            if self._start_reserved(profile, now_s, job):
                started.append(job)
                continue
            if backfill == "none":
                return started
            if backfill != "list":
                self._keep(profile, job)
            behind = waiting[at + 1 :]
            if self.composition.scan == "shortest":
                behind = sorted(sorted(behind), key=self.estimate_s.__getitem__)
            for other in behind:
                if self._waits_for_window(profile, now_s, other):
                    continue
                if self._start_reserved(profile, now_s, other):
                    started.append(other)
                elif backfill == "conservative":
                    self._keep(profile, other)
            return started
        return started

    def _waits_for_window(self, profile: Profile, now_s: int, job: int) -> bool:
        ends_s, windows = now_s + int(self.jobs.request_s[job]), self.windows[job]
        if windows is None or any(one.from_s <= now_s and ends_s <= one.to_s for one in windows):
            return False
        backfill, queue = self.composition.backfill, self.queue_of[job]
        keeps = backfill == "conservative" or (backfill != "list" and queue not in self.keeps_place)
        if keeps and self._keep(profile, job):
            self.keeps_place.add(queue)
        return True

    def _earliest(self, profile: Profile, job: int) -> int:
        length_s, width, windows = int(self.jobs.request_s[job]), self._width(job), self.windows[job]
        if windows is None:
            try:
                return profile.earliest(length_s, width)
            except StopIteration:
                return NEVER_S
        now_s = profile.steps[0][0]
        for one in windows:
            steps = (at_s for at_s, _ in profile.steps)
            for at_s in sorted({max(one.from_s, now_s), *(at_s for at_s in steps if at_s > one.from_s)}):
                if at_s + length_s <= one.to_s and profile.least(at_s, at_s + length_s) >= width:
                    return at_s
        return NEVER_S

    def _keep(self, profile: Profile, job: int) -> bool:
        if (at_s := self._earliest(profile, job)) == NEVER_S:
            return False
        profile.take(at_s, int(self.jobs.request_s[job]), self._width(job))
        return True

    def _start_reserved(self, profile: Profile, now_s: int, job: int) -> bool:
        in_use = sum(map(self._width, self.running))
        if self._earliest(profile, job) > now_s or in_use + self._width(job) > self.processors:
            return False
        self._keep(profile, job)
        self._start(now_s, job)
        return True

    def _profile_of(self, pool: int, now_s: int) -> Profile:
        profile = Profile(now_s, 0 if pool else self.processors)
        for number, one in enumerate(self.reserved, 1):
            if not one.made_s <= now_s < one.gone_s or pool not in (0, number):
                continue
            for from_s in range(one.from_s, max(now_s + AHEAD_S, one.from_s + 1), one.every_s or NEVER_S):
                to_s = from_s + one.length_s
                if to_s > now_s:
                    width = one.width if pool == 0 else -one.width
                    profile.take(max(from_s, now_s), to_s - max(from_s, now_s), width)
        for job, at_s in self.running.items():
            if self.pool[job] == pool:
                profile.take(now_s, max(at_s + int(self.jobs.request_s[job]) - now_s, 1), self._width(job))
        return profile

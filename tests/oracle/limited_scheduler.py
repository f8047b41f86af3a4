"""The scheduler with partitions, memory and limits of users, in plain Python: each partition is a machine of its own,
and a job that is over a limit does not count as waiting."""

from __future__ import annotations

from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.switches.limits import Limits
from tests.oracle.scheduler import Profile, ReferenceScheduler


class LimitedScheduler(ReferenceScheduler):
    """FCFS, EASY and list scheduling; see ``ReferenceScheduler``."""

    def __init__(self, composition: Composition, jobs: Jobs, processors: int, limits: Limits) -> None:
        super().__init__(composition, jobs, processors)
        self.limits = limits

    def decide(self, now_s: int) -> list[int]:
        """Partition by partition."""
        self._estimate_again(now_s)
        self._order(now_s)
        started = []
        for part in range(len(self.limits.has)):
            started += self._decide_in(part, now_s)
        return started

    def _decide_in(self, part: int, now_s: int) -> list[int]:
        started: list[int] = []
        head = None
        for job in [job for job in self.queue if self.limits.partition[job] == part]:
            if not self._is_eligible(job):
                continue
            if not self._fits(job, self._left(part)):
                head = job
                break
            started.append(self._start(now_s, job))
        if head is None or self.composition.backfill == "none":
            return started
        return started + self._behind(part, now_s, head)

    def _behind(self, part: int, now_s: int, head: int) -> list[int]:
        profiles = self._profiles(part, now_s)
        if self.composition.backfill == "easy":
            at_s = next(
                at_s
                for at_s in sorted({at_s for profile in profiles for at_s, _ in profile.steps})
                if all(
                    _at(profile, at_s) >= amount for profile, amount in zip(profiles, self._needs(head), strict=True)
                )
            )
            self._take(profiles, at_s, head)
        others = [job for job in self.queue if self.limits.partition[job] == part and job != head]
        if self.composition.scan == "shortest":
            others = sorted(sorted(others), key=self.estimate_s.__getitem__)
        started = []
        for job in others:
            if self._is_eligible(job) and all(
                amount == 0 or profile.earliest(self.estimate_s[job], amount) == now_s
                for profile, amount in zip(profiles, self._needs(job), strict=True)
            ):
                self._take(profiles, now_s, job)
                started.append(self._start(now_s, job))
        return started

    def _is_eligible(self, job: int) -> bool:
        """Whether its limits leave room, next to the running jobs that count where it does."""
        for key, counter in enumerate(self.limits.counter[job].tolist()):
            alike = [job, *(one for one in self.running if self.limits.counter[one, key] == counter)]
            used = len(alike) if counter >= 0 and self.limits.counts_jobs[counter] else sum(map(self._width, alike))
            if counter >= 0 and used > self.limits.most[counter]:
                return False
        return True

    def _needs(self, job: int) -> tuple[int, int]:
        return self._width(job), int(self.limits.memory_kib[job])

    def _left(self, part: int) -> list[int]:
        """Of a partition: processors and memory."""
        left = self.limits.has[part].tolist()
        for job in self.running:
            if self.limits.partition[job] == part:
                left = [have - amount for have, amount in zip(left, self._needs(job), strict=True)]
        return left

    def _fits(self, job: int, left: list[int]) -> bool:
        return all(amount <= have for amount, have in zip(self._needs(job), left, strict=True))

    def _profiles(self, part: int, now_s: int) -> list[Profile]:
        profiles = [Profile(now_s, have) for have in self._left(part)]
        for job in self.running:
            if self.limits.partition[job] == part:
                for profile, amount in zip(profiles, self._needs(job), strict=True):
                    profile.add(max(self.expected_end_s(job), now_s + 1), amount)
        return profiles

    def _take(self, profiles: list[Profile], from_s: int, job: int) -> None:
        for profile, amount in zip(profiles, self._needs(job), strict=True):
            profile.take(from_s, self.estimate_s[job], amount)


def _at(profile: Profile, at_s: int) -> int:
    return [have for from_s, have in profile.steps if from_s <= at_s][-1]

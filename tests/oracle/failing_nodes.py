"""A machine whose nodes fail, in plain Python, with the scheduler's decisions as ``ReferenceScheduler`` makes them."""

from __future__ import annotations

from collections.abc import Sequence

from cluster_agent.scheduler.switches.failures import Failure
from tests.oracle.scheduler import Profile, ReferenceScheduler

NEVER_S = 1 << 60


class _Uncertain(Profile):
    """Of a machine that may be too small for a job, as nobody knows when its nodes are back."""

    def earliest(self, length_s: int, width: int) -> int:
        try:
            return super().earliest(length_s, width)
        except StopIteration:
            return NEVER_S


class FailingMachine(ReferenceScheduler):
    """Replays its jobs; estimates that are upper bounds. ``start_s``: of the last run of each; ``kills`` and ``lost``:
    runs that were killed, and their processor-seconds."""

    def replay(self, failures: Sequence[Failure]) -> None:
        jobs = self.jobs
        self.start_s: dict[int, int] = {}
        self.kills, self.lost = [0] * len(jobs), [0] * len(jobs)
        self.free_ones, on = set(range(self.processors)), dict[int, list[int]]()
        for now_s in self._times(failures):
            for job in [job for job, start_s in self.running.items() if start_s + jobs.run_s[job] <= now_s]:
                self.end(job)
                self.free_ones |= set(on.pop(job))
            for job in range(len(jobs)):
                if jobs.submit_s[job] == now_s:
                    self.submit(now_s, job)
            for one in failures:
                if one.back_s == now_s:
                    self.free_ones |= set(range(one.first, one.last + 1))
            for one in failures:
                if one.at_s == now_s:
                    gone = set(range(one.first, one.last + 1))
                    for job in sorted(job for job in self.running if gone & set(on[job])):
                        self.kills[job] += 1
                        self.lost[job] += (now_s - self.running.pop(job)) * self._width(job)
                        self.free_ones |= set(on.pop(job))
                        del self.start_s[job]
                        self.queue = sorted([*self.queue, job])
                    self.free_ones -= gone if one.back_s > now_s else set()
            for job in self.decide(now_s):
                self.start_s[job] = now_s
                on[job] = sorted(self.free_ones)[: self._width(job)]
                self.free_ones -= set(on[job])
                self._due.add(now_s + int(jobs.run_s[job]))

    def _times(self, failures: Sequence[Failure]):  # type: ignore[no-untyped-def]
        self._due = {int(at_s) for at_s in self.jobs.submit_s} | {one.at_s for one in failures}
        self._due |= {one.back_s for one in failures}
        while self._due:
            now_s = min(self._due)
            self._due.remove(now_s)
            yield now_s

    def _free(self, now_s: int) -> int:
        given = sum(self._width(job) for job, start_s in self.running.items() if start_s == now_s)
        return len(self.free_ones) - given

    def _profile(self, now_s: int) -> Profile:
        profile = _Uncertain(now_s, self._free(now_s))
        for job in self.running:
            profile.add(max(self.expected_end_s(job), now_s + 1), self._width(job))
        return profile

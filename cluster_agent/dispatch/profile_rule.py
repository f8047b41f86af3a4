"""The rule that DARDIS is compared with: one central queue that keeps within the desired profile (Bridi §1.3, §5).

At every event jobs are tried in the order of the rule: a node fits if, with the unit, it stays within the lower of its
capacity and what is desired of it *now*. So a job that has started may exceed a profile that falls later. At the first
job that does not fit, the others are backfilled: they start if they fit now and end before that job could start.
"""

from __future__ import annotations

import time
from heapq import heappop, heappush
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from cluster_agent.dispatch.log_world import DispatchWorld, Schedule
from cluster_agent.scheduler.job_columns import Int64s

Rule: TypeAlias = Literal["fcfs", "df", "wt"]
"""By submission, by the latest start, by the requested time."""

RULES: Final[tuple[Rule, ...]] = ("fcfs", "df", "wt")
NEVER: Final = 1 << 60


class _Central:
    def __init__(self, given: DispatchWorld, rule: Rule) -> None:
        jobs = given.world.jobs
        self.units, self.need = jobs.units.astype(np.int64), jobs.need[:, 0].astype(np.int64)
        self.request_s, self.run_s, self.submit_s = jobs.request_s, jobs.run_s, jobs.submit_s
        keys = {"fcfs": jobs.submit_s, "df": jobs.submit_s + given.window_s, "wt": jobs.request_s}
        self.rank = np.argsort(np.argsort(keys[rule], kind="stable"))
        self.cores = given.machine.node.cores
        mw_of_core = max(given.jobs[0].need.mw // max(given.jobs[0].need.cores, 1), 1)
        self.capacity = np.minimum(np.array(given.grant_mw) // mw_of_core, self.cores)
        self.desired = given.desired
        self.used = np.zeros(len(self.capacity), np.int64)
        self.start_s = np.full(len(jobs), -1, np.int64)
        self.nodes: list[tuple[int, ...]] = [()] * len(jobs)
        self.waiting: list[int] = []
        self.running: dict[int, int] = {}  # job: its end by the request
        self.ends: list[tuple[int, int]] = []
        self.arrived = 0
        self.steps = [from_s for from_s, _ in given.desired if from_s > 0]

    def next_s(self) -> int:
        """When something happens next; a step of the profile only counts for whoever waits."""
        arrives: list[int] = self.submit_s[self.arrived : self.arrived + 1].tolist()
        found: int = min(
            [*arrives, *(end_s for end_s, _ in self.ends[:1]), *(self.steps[:1] if self.waiting else ()), NEVER]
        )
        return found

    def follow(self, now_s: int) -> None:
        """What happens until then."""
        while self.steps and self.steps[0] <= now_s:
            self.steps.pop(0)
        while self.ends and self.ends[0][0] <= now_s:
            self.end(heappop(self.ends)[1])
        while self.arrived < len(self.submit_s) and self.submit_s[self.arrived] <= now_s:
            self.waiting.append(self.arrived)
            self.arrived += 1

    def free(self, now_s: int) -> Int64s:
        """Cores by node, within the profile."""
        nodes = next(count for from_s, count in reversed(self.desired) if from_s <= max(now_s, self.desired[0][0]))
        within = np.where(np.arange(len(self.capacity)) < nodes, self.capacity, 0)
        free: Int64s = within - self.used
        return free

    def run_pass(self, now_s: int) -> None:
        free, queue = self.free(now_s), np.array(self.waiting, np.int64)
        queue = queue[np.argsort(self.rank[queue], kind="stable")]
        blocked = next((job for job in queue.tolist() if not self._starts(job, now_s, free)), None)
        if blocked is None:
            return
        until_s = self._earliest(blocked)
        later = queue[(self.start_s[queue] < 0) & (now_s + self.request_s[queue] <= until_s) & (queue != blocked)]
        for job in later[self._may(free, later)].tolist():
            self._starts(job, now_s, free)

    def _may(self, free: Int64s, queue: Int64s) -> npt.NDArray[np.bool_]:
        """Which fit now, each alone."""
        have = np.cumsum(np.bincount(np.clip(free, 0, self.cores), minlength=self.cores + 1)[::-1])[::-1]
        found: npt.NDArray[np.bool_] = have[self.need[queue]] >= self.units[queue]
        return found

    def _starts(self, job: int, now_s: int, free: Int64s) -> bool:
        need, units = int(self.need[job]), int(self.units[job])
        nodes = np.flatnonzero(free >= need)[:units]
        if len(nodes) < units:
            return False
        free[nodes] -= need
        self.used[nodes] += need
        self.start_s[job], self.nodes[job] = now_s, tuple(nodes.tolist())
        self.running[job] = now_s + int(self.request_s[job])
        heappush(self.ends, (now_s + int(self.run_s[job]), job))
        return True

    def _earliest(self, job: int) -> int:
        """When the job could start by its capacity, if running jobs end as requested."""
        free, need, units = self.capacity - self.used, int(self.need[job]), int(self.units[job])
        have = int((free >= need).sum())
        for end_s, other in sorted((end_s, other) for other, end_s in self.running.items()):
            nodes = np.array(self.nodes[other])
            before = free[nodes] >= need
            free[nodes] += self.need[other]
            have += int(((free[nodes] >= need) & ~before).sum())
            if have >= units:
                return end_s
        return NEVER

    def end(self, job: int) -> None:
        del self.running[job]
        self.used[list(self.nodes[job])] -= self.need[job]


def by_rule(given: DispatchWorld, rule: Rule) -> tuple[Schedule, float]:
    """The schedule, and the processor time of a pass in seconds."""
    central = _Central(given, rule)
    passes, spent_s = 0, 0.0
    while (now_s := central.next_s()) < NEVER:
        central.follow(now_s)
        if central.waiting:
            begun, passes = time.process_time(), passes + 1
            central.run_pass(now_s)
            spent_s += time.process_time() - begun
            central.waiting = [job for job in central.waiting if central.start_s[job] < 0]
    return Schedule(central.start_s, central.nodes), spent_s / max(passes, 1)

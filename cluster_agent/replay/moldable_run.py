"""A replay of jobs that can run in several ways."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.scheduler.configurations import Configuration, MoldableJobs
from cluster_agent.scheduler.jobs import Int64s
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.moldable import MoldableComposition, MoldableScheduler, impossible


class TableMachine(SimulatedMachine):
    """Runs each job for the time of its configuration: the scheduler's table is right."""

    def start(self, now_s: int, job: int, expected_end_s: int, level: int = 0) -> None:
        """The job runs as long as it is expected to."""
        self._jobs.run_s[job] = expected_end_s - now_s
        super().start(now_s, job, expected_end_s, level)


@dataclass(frozen=True, slots=True)
class MoldableResult:
    """What came of it. Jobs in ``impossible`` fit in none of their configurations, and were not submitted."""

    jobs: MoldableJobs
    start_s: Int64s  # -1: impossible
    end_s: Int64s
    chosen: tuple[Configuration | None, ...]
    impossible: tuple[int, ...]

    @property
    def turnaround_s(self) -> Int64s:
        """From submission to end, of the jobs that ran."""
        ran = self.end_s >= 0
        return self.end_s[ran] - self.jobs.jobs.submit_s[ran]

    def peak_w(self) -> float:
        """The most watts that the table says of any instant."""
        ran = [job for job, row in enumerate(self.chosen) if row is not None]
        return max((self._watts(int(self.start_s[job])) for job in ran), default=0.0)

    def _watts(self, at_s: int) -> float:
        runs = (self.start_s <= at_s) & (at_s < self.end_s)
        return sum(row.watts for row, does in zip(self.chosen, runs, strict=True) if row is not None and does)


def replay_moldable(composition: MoldableComposition, jobs: MoldableJobs, nodes: int, watts: float) -> MoldableResult:
    """Replay the jobs on so many nodes under a bound of watts."""
    never = impossible(composition, jobs, nodes, watts)
    rows = np.setdiff1d(np.arange(len(jobs)), never)
    columns = {name: getattr(jobs.jobs, name)[rows].copy() for name in jobs.jobs.__slots__}
    kept = MoldableJobs(type(jobs.jobs)(**columns), tuple(jobs.rows[row] for row in rows))
    scheduler = MoldableScheduler(composition, kept, nodes, watts)
    machine = TableMachine(kept.jobs, "instant")
    run(scheduler, JumpingClock(), machine)
    start_s, end_s = np.full(len(jobs), -1, np.int64), np.full(len(jobs), -1, np.int64)
    start_s[rows] = [machine.start_s[job] for job in range(len(kept))]
    end_s[rows] = [machine.end_s[job] for job in range(len(kept))]
    chosen: list[Configuration | None] = [None] * len(jobs)
    for job, row in enumerate(rows.tolist()):
        chosen[row] = scheduler.chosen[job]
    return MoldableResult(jobs, start_s, end_s, tuple(chosen), tuple(never))

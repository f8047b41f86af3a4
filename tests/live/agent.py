"""A cluster agent and its nodes' job runners in one process, over an in-process queue: to be killed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from cluster_agent.jobs.live_jobs import Partition
from cluster_agent.jobs.times import Times
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.store.database import Database
from cluster_agent.store.job_store import JobStore
from foundation.steady_clock import steady_time
from foundation.wire.job_messages import NodeJobs
from nodectl.jobs.job_runner import deliver
from nodectl.jobs.processes import JobRunner


class Agent:
    def __init__(self, at: Path, n_nodes: int) -> None:
        names = [f"n{i}" for i in range(n_nodes)]
        self.store = JobStore(Database(at / "cluster.db"))
        self.partition = Partition(
            names, Composition(backfill="easy"), self.store, steady_time(), times=Times(retry_s=0.5)
        )
        self.runners = {name: JobRunner(at / name, name) for name in names}

    def step(self) -> None:
        for name, runner in self.runners.items():
            self.partition.heard(NodeJobs(name, "boot", runner.parts()))
        self.partition.turn()
        outbox, self.partition.outbox = self.partition.outbox, []
        for name, message in outbox:
            deliver(self.runners[name], message)

    def until_over(self, patience_s: float = 60.0) -> None:
        until_s = time.monotonic() + patience_s
        while self.partition.jobs:
            assert time.monotonic() < until_s, [(job.id, job.state) for job in self.partition.jobs.values()]
            self.step()
            time.sleep(0.01)


if __name__ == "__main__":
    agent = Agent(Path(sys.argv[1]), int(sys.argv[2]))
    while True:
        agent.step()
        time.sleep(0.005)

"""What a turn of live jobs costs the cluster agent when next to nothing happens, at 10 000 nodes and 2 000 jobs.

Turns come up to twenty times a second while nodes have news. Processor time of one process, without sockets, next to a
yardstick measured in turn: 2 000 jobs of four nodes run, or none and all nodes are idle.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.experiment import save
from cluster_agent.jobs.job import JobSpec
from cluster_agent.jobs.live_jobs import Partition
from cluster_agent.scheduler.policies import registry
from cluster_agent.store.database import Database
from cluster_agent.store.job_store import JobStore
from foundation.wire.job_messages import JobPart, JobStart, NodeJobs
from tests.yardstick import yardstick_ns

NODES, JOBS, NODES_OF_A_JOB = 10_000, 2_000, 4


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs_turn", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the nodes and jobs, 20 turns")
    is_quick = parser.parse_args(arguments).quick
    nodes, jobs, turns = (NODES // 10, JOBS // 10, 20) if is_quick else (NODES, JOBS, 200)
    with tempfile.TemporaryDirectory() as directory:
        found = [run(Path(directory), nodes, running, turns) for running in (0, jobs)]
    save("jobs_turn", {"rows": found})
    print(json.dumps(found, indent=1))
    return 0


class World:
    """A partition whose nodes answer at once, in virtual time."""

    def __init__(self, at: Path, n: int) -> None:
        self.now_s = 1_000_000.0
        self.database = Database(at)
        names = [f"n{i:05}" for i in range(n)]
        composition = registry.choose("easy").composition
        self.live = Partition(names, composition, JobStore(self.database), lambda: self.now_s)
        self.parts: dict[str, list[JobPart]] = {name: [] for name in names}

    def second(self) -> None:
        """Every node speaks, and what follows follows."""
        self.now_s += 1.0
        for name, parts in self.parts.items():
            self.live.heard(NodeJobs(name, "boot", parts))
        self.turn()

    def turn(self) -> None:
        """One turn; starts are obeyed."""
        self.live.turn()
        for name, message in self.live.outbox:
            if isinstance(message, JobStart):
                self.parts[name] = [JobPart(message.job, message.attempt, "running", started_s=self.now_s)]
        self.live.outbox.clear()

    def close(self) -> None:
        """The store."""
        self.database.close()


def run(at: Path, nodes: int, jobs: int, turns: int) -> dict[str, float]:
    """Medians over ``turns`` turns with nothing new, and as many after news of one node that starts nothing."""
    world = World(at / f"{jobs}.db", nodes)
    world.second()
    for _ in range(jobs):
        world.live.submit(0, "root", JobSpec(["true"], 86_400, "/", nodes=NODES_OF_A_JOB))
    world.turn()
    world.second()
    n_running = sum(job.state == "running" for job in world.live.jobs.values())
    turn_ms, yards = _cost(world.turn, turns)
    world.close()
    return {"nodes": nodes, "running": n_running, "turn_ms": turn_ms, "turn_yardsticks": yards}


def _cost(one: Callable[[], None], times: int) -> tuple[float, float]:
    """Of one call: ms of processor time, and yardsticks."""
    cost_ns, yards = [], []
    for _ in range(times):
        yard_ns = yardstick_ns()
        begin_ns = time.thread_time_ns()
        one()
        cost_ns.append(time.thread_time_ns() - begin_ns)
        yards.append(cost_ns[-1] / yard_ns)
    return round(statistics.median(cost_ns) / 1e6, 2), round(statistics.median(yards), 1)


if __name__ == "__main__":
    raise SystemExit(main())

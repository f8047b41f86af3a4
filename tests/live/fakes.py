"""A partition whose nodes and clock are made up: messages can be delayed, nodes can die, the agent can be killed."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.jobs.live_jobs import Partition
from cluster_agent.jobs.owned_watts.live_owner import NodeBudget
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.store.database import Database
from cluster_agent.store.job_store import JobStore
from foundation.wire.job_messages import JobForget, JobPart, JobSignal, JobStart, NodeJobs

EASY = Composition(backfill="easy")


@dataclass
class FakeNode:
    """Runs each part for the seconds that its command or RUN_S says, one number for all ranks or one for each. ``runs``
    counts every start. A deaf node ends no job when a signal says so. ``ahead_s``: of the head's clock, its own."""

    name: str
    boot: int = 1
    is_cut: bool = False
    is_deaf: bool = False
    ahead_s: float = 0.0
    parts: dict[tuple[int, int], JobPart] = field(default_factory=dict)
    ends_s: dict[tuple[int, int], tuple[float, int]] = field(default_factory=dict)
    runs: list[tuple[int, int]] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)

    def reboot(self) -> None:
        self.boot += 1
        self.parts.clear()
        self.ends_s.clear()


class Fake:
    """The whole of it. ``step`` lets a second pass; ``settle`` exchanges messages until nothing is new."""

    def __init__(
        self,
        n_nodes: int,
        composition: Composition = EASY,
        path: str = ":memory:",
        now_s: float = 1_000.0,
        **given: Any,
    ) -> None:
        self.now_s = now_s
        self.nodes = {f"n{i:02}": FakeNode(f"n{i:02}") for i in range(n_nodes)}
        self.composition, self.given = composition, {"capacity": 512} | given
        self.order = 0
        self.said: list[str] = []
        self.emulated: set[str] = set()
        self.halves = "cpuset"
        memory = Path("/dev/shm")  # the disk's own time is not what is tested here
        self._directory = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
        self.database = Database(Path(self._directory.name) / "cluster.db")
        self.partition = self._partition()
        self.report()

    @property
    def store(self) -> JobStore:
        return JobStore(self.database)

    def _partition(self) -> Partition:
        return Partition(
            list(self.nodes), self.composition, self.store, lambda: self.now_s, self.said.append,
            **self.given,
        )  # fmt: skip

    def set_budget(self, *steps: tuple[float, float], aside_w: float = 0.0) -> None:
        self.partition.set_budget(NodeBudget(steps, aside_w))

    def planned_w(self) -> float:
        """What all nodes may draw together by the caps that the policy gives."""
        caps_mw = self.partition.planned_mw()
        return sum(caps_mw.get(name, self.partition.watts.idle_mw) for name in self.nodes) / 1000

    def kill_and_restart(self) -> None:
        """kill -9: what was not committed and what was not sent is gone."""
        self.database.close()
        self.database = Database(Path(self._directory.name) / "cluster.db")
        self.partition = self._partition()

    def submit(
        self, run_s: int, nodes: int = 1, walltime_s: int = 1000, uid: int = 1000, others_s: Sequence[int] = (),
        user: str = "someone", **given: Any,
    ) -> Job:  # fmt: skip
        """``others_s``: how long the parts after the first run, if not as long as the first."""
        command = ["run", *map(str, (run_s, *others_s))]
        spec = JobSpec(command=command, walltime_s=walltime_s, workdir="/", nodes=nodes, **given)
        return self.partition.submit(uid, user, spec)

    def report(self) -> None:
        for node in self.nodes.values():
            self.report_of(node)

    def report_of(self, node: FakeNode) -> None:
        if not node.is_cut:
            runs_only = "twin-workload" if node.name in self.emulated else ""
            parts = list(node.parts.values())
            self.partition.heard(NodeJobs(node.name, f"boot{node.boot}", parts, runs_only, halves=self.halves))

    def settle(self) -> None:
        """Turns and messages until there is nothing more to say at this instant."""
        while True:
            self.partition.turn()
            if not self.deliver():
                return
            self.report()

    def deliver(self) -> bool:
        outbox, self.partition.outbox = self.partition.outbox, []
        for name, message in outbox:
            node = self.nodes[name]
            if node.is_cut:
                continue
            key = message.job, message.attempt
            if isinstance(message, JobStart):
                if key not in node.parts:
                    node.runs.append(key)
                    node.parts[key] = JobPart(*key, "running", started_s=self.now_s + node.ahead_s)
                    self.order += 1
                    words = [*message.command, message.env.get("RUN_S", "")]
                    times_s = [int(word) for word in words if word.isdigit()]
                    node.ends_s[key] = self.now_s + times_s[message.rank % len(times_s)], self.order
            elif isinstance(message, JobForget):
                node.parts.pop(key, None)
            elif isinstance(message, JobSignal) and key in node.parts and node.parts[key].phase == "running":
                node.signals.append(message.signal)
                if node.is_deaf:
                    continue
                self.end(node, key, -signal.SIGTERM, "told")
        return any(not self.nodes[name].is_deaf for name, _ in outbox)

    def end(self, node: FakeNode, key: tuple[int, int], status: int = 0, cause: Any = "") -> None:
        node.ends_s.pop(key, None)
        started_s = node.parts[key].started_s
        node.parts[key] = JobPart(
            *key, "ended", status=status, cause=cause, started_s=started_s, ended_s=self.now_s + node.ahead_s
        )  # fmt: skip

    def end_due(self) -> None:
        """Parts whose time has come, in the order in which they began; each node says so at once."""
        due = sorted(
            (order, node.name, key)
            for node in self.nodes.values()
            for key, (end_s, order) in node.ends_s.items()
            if end_s <= self.now_s
        )
        for _, name, key in due:
            self.end(self.nodes[name], key)
            self.report_of(self.nodes[name])

    def step(self, seconds: float = 1.0) -> None:
        self.now_s += seconds
        self.end_due()
        self.report()
        self.settle()

    def until(self, holds: Callable[[], object], most_s: int = 2000) -> None:
        for _ in range(most_s):
            if holds():
                return
            self.step()
        raise AssertionError(f"in vain; said: {self.said}")

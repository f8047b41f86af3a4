"""What a node has measured of a program serves the next node that runs it: real agents, links, head and commands.

The two nodes are EMULATED, with A100s, and run in virtual time while they have a job; head and links run in real time.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cluster_agent.cli import main
from cluster_agent.serve.config import BudgetSettings, JobSettings, NodeSettings, Settings
from cluster_agent.serve.server import Server
from foundation.phase_files import PhaseFiles
from foundation.wire.job_messages import JobPart
from lab.cluster_demo.emulated_partition import free_port
from lab.emulated import emulated_jobs
from lab.emulated.emulated_jobs import TwinJobs
from lab.emulated.emulated_node import NodePlan, node_config
from lab.emulated.watts import node_watts
from nodectl.jobs.job_runner import JobThread
from nodectl.loop.agent import Agent
from nodectl.member.cluster_cap import open_cluster_cap
from tests.waiting import PATIENCE_S
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin

MACHINE = load_machine("xh2415")
WORK_S = 40
LOOK_S, IDLE_TICK_S = 0.5, 0.05
MOST_LOST = 0.02
"""Of the energy of the GPUs, against a run that has no table. A program of one phase gains next to nothing by it, since
that is measured at the highest clock all the same (``benchmarks.phases_elsewhere`` has programs that gain)."""


class Head:
    """A cluster agent in a thread, and the commands."""

    def __init__(self, at: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.at, self.url, self.socket, self._capsys = at, f"tcp://127.0.0.1:{free_port()}", at / "ctl", capsys
        watts = node_watts(MACHINE)
        settings = Settings(
            listen=self.url, keys=str(at / "keys"), store=str(at / "a.db"), socket=str(self.socket), mode="cap",
            budget=BudgetSettings(w=2.5 * watts.tdp_w), nodes=NodeSettings(tdp_w=watts.tdp_w, failing_together=0),
            jobs=JobSettings("easy", share_phases=True),
        )  # fmt: skip
        self._over, self.said = threading.Event(), list[str]()
        self._thread = threading.Thread(target=self._run, args=(settings,), daemon=True)

    def _run(self, settings: Settings) -> None:
        with closing(Server(settings, self.said.append)) as server:
            while not self._over.is_set():
                server.step(0.1)

    def __enter__(self) -> Head:
        self._thread.start()
        end_s = time.monotonic() + PATIENCE_S
        while not self.socket.exists():
            assert time.monotonic() < end_s, self.said
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)

    def ctl(self, *words: str) -> str:
        self._capsys.readouterr()
        at = words.index("--") if "--" in words else len(words)
        status = main([*words[:at], "--socket", str(self.socket), *words[at:]])
        found = self._capsys.readouterr()
        assert status == 0, found.err
        return found.out

    def ask(self, *words: str) -> Any:
        at = words.index("--") if "--" in words else len(words)
        return json.loads(self.ctl(*words[:at], "--json", *words[at:]))


class FastJobs(TwinJobs):
    """Jobs that have ended when the node says so: it is ahead of the clock, and joules would wait for that."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._ended_s: dict[tuple[int, int], float] = {}

    def parts(self) -> list[JobPart]:
        found, now_s = super().parts(), self._unix_s()
        for part in found:
            if part.is_over:
                self._ended_s.setdefault((part.job, part.attempt), now_s)
        return [replace(part, ended_s=self._ended_s.get((part.job, part.attempt), 0.0)) for part in found]


class Node:
    """An emulated node as a member of the cluster. ``said``: what its agent has logged of phases."""

    def __init__(self, head: Head, name: str) -> None:
        self.head, self.state, self.said, self.job_j = head, head.at / name, list[str](), 0.0
        plan = NodePlan(name, MACHINE, node_watts(MACHINE), head.url, head.at / "keys", head.at / "node.toml")
        config, self._open = node_config(plan, str(self.state)), ExitStack()
        self.twin = Twin(MACHINE, seed=5)
        inside = self._open.enter_context(InProcess(self.twin))
        self._jobs = JobThread(FastJobs(self.twin, name), name, f"boot-{name}")
        cluster = self._open.enter_context(open_cluster_cap(config.cluster, f"boot-{name}", self._hear, self._jobs))
        self._agent = self._open.enter_context(Agent.open(inside.ports, config, self._hear, cluster=cluster))

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _hear(self, line: str) -> None:
        if "phases" in line:
            self.said.append(line)

    def until(self, is_so: Callable[[], bool]) -> None:
        """Tick until it is so, in the pace of a real node while there is no job; each look is a command."""
        end_s, look_s = time.monotonic() + PATIENCE_S, 0.0
        while True:
            if time.monotonic() >= look_s:
                if is_so():
                    return
                look_s = time.monotonic() + LOOK_S
            assert time.monotonic() < end_s, (self.said, self.head.said)
            before_j, has_job = self._gpus_j(), self._jobs.job() is not None
            self._agent.tick()
            if has_job:
                self.job_j += self._gpus_j() - before_j
            else:
                time.sleep(IDLE_TICK_S)

    def run_job(self) -> float:
        """Joules that its GPUs draw for a job."""
        self.job_j = 0.0
        job = self.head.ask(
            "submit", "--time", "10min", "-D", str(self.head.at), "--", "twin-workload", "easywave", f"{WORK_S}s"
        )["job"]
        self.until(lambda: self.head.ask("jobs", str(job))["row"]["state"] == "done")
        return self.job_j

    def _gpus_j(self) -> float:
        return sum(joules for part, joules in self.twin.parts_j().items() if part.startswith("gpu-"))

    @property
    def files(self) -> PhaseFiles:
        return PhaseFiles.below(str(self.state))


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Head]:
    keys = str(tmp_path / "keys")
    assert main(["keys", "new", "cluster", "--dir", keys]) == 0
    assert main(["keys", "new", "n1", "n2", "--role", "node", "--dir", keys]) == 0
    (tmp_path / "node.toml").write_text('[cpu_policy]\nname = "none"\n')
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # counters of one program err in one way, on whichever node
    alike = emulated_jobs.load_workload
    monkeypatch.setattr(emulated_jobs, "load_workload", lambda *given, **named: alike(*given, **{**named, "seed": 3}))
    with Head(tmp_path, capsys) as made:
        yield made


def test_a_job_finds_on_another_node_what_was_measured_on_the_first_and_all_forget_it(head: Head) -> None:
    with Node(head, "n1") as first:
        measuring_j = first.run_job()
        assert first.said == []
        first.until(lambda: bool(head.ask("history", "phases")))
    (row,) = head.ask("history", "phases")
    assert (row["node"], row["runs"], row["program"]) == ("n1", 1, "twin-workload") and row["phases"] > 0
    head.ctl("drain", "n1")
    with Node(head, "n2") as second:
        knowing_j = second.run_job()
        (line,) = second.said
        assert "begins with" in line and "of twin-workload" in line and "measured on n1" in line
        assert knowing_j < (1.0 + MOST_LOST) * measuring_j
        (here,) = second.files.all()[0]
        assert here.tables[0].runs == 2, "what came from elsewhere has fitted"
        user = row["user"]
        lines = head.ctl("history", "forget", user).splitlines()
        assert lines[1].startswith(f"1 tables of phases of {user}'s programs are deleted here; 2 nodes delete theirs")
        second.until(lambda: not second.files.paths())
    assert head.ask("history", "phases") == []
    assert len(PhaseFiles.below(str(head.at / "n1")).paths()) == 1, "it is away"
    with Node(head, "n1") as first:
        first.until(lambda: not first.files.paths())

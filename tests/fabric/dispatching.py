"""Nodes that dispatch jobs among themselves: real node managers, links, keys and job steps. Of an agent's loop there is
one assignment, the lease."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from cluster_agent.cli import main
from cluster_agent.dispatch.live.dispatch_frames import Program
from cluster_agent.dispatch.live.submission import submitted
from foundation.wire.dispatch_messages import ManagerSettings
from lab.cluster_demo.emulated_partition import free_port
from nodectl.jobs.job_runner import JobThread
from nodectl.jobs.processes import JobRunner
from nodectl.member.dispatch_thread import DispatchThread
from tests.waiting import PATIENCE_S, within

TDP_MW, SAFE_MW = 500_000, 200_000
FAST = {"slot_s": 0.2, "reply_s": 0.4, "pause_s": 1.0, "grace_s": 60.0}


def program(text: str, at: Path, walltime_s: int = 60) -> Program:
    return Program(["/bin/sh", "-c", text], "", str(at), "/dev/null", "", {}, walltime_s, 1)


class Dispatching:
    """``with Dispatching(tmp_path, 2) as nodes``: all listen. ``commands``: of the node managers, by name, where they
    are not the usual ones. ``urls``: where others connect to a node, by name."""

    def __init__(
        self,
        at: Path,
        count: int,
        commands: dict[str, Sequence[str]] | None = None,
        urls: dict[str, Callable[[int], str]] | None = None,
        user: str = "",
        **file: float,
    ) -> None:
        self.at, self.keys, self.files = at, at / "dispatch", at / "files"
        self.names = [f"n{number}" for number in range(count)]
        self.said: list[str] = []
        self.log: list[str] = []
        self._commands, self._user = commands or {}, user
        main(["keys", "new", *self.names, "--role", "node", "--dir", str(self.keys)])
        main(["keys", "new", "alice", "bob", "--role", "submitter", "--dir", str(self.keys)])
        ports = {name: free_port() for name in self.names}
        self._listen = {name: f"tcp://127.0.0.1:{port}" for name, port in ports.items()}
        lines = [f"{key} = {value}" for key, value in (FAST | file).items()]
        for name in self.names:
            url = urls[name](ports[name]) if urls and name in urls else self._listen[name]
            lines += ["[[nodes]]", f"name = {json.dumps(name)}", f"url = {json.dumps(url)}"]
        (self.keys / "nodes.toml").write_text("\n".join(lines) + "\n")
        self.threads: dict[str, DispatchThread] = {}
        self.jobs: dict[str, JobThread] = {}

    def begin(self, name: str) -> None:
        """The agent of a node."""
        folder = self.at / name
        self.jobs[name] = JobThread(JobRunner(folder / "jobs", name), name, "boot", self.log.append)
        settings = ManagerSettings(
            name, self._listen[name], str(self.keys), str(self.keys / f"{name}.key"), str(folder / "journal"), TDP_MW,
            SAFE_MW, self._user,
        )  # fmt: skip
        more: dict[str, Any] = {"command": self._commands[name]} if name in self._commands else {}
        self.threads[name] = DispatchThread(settings, self.jobs[name], self.log.append, **more)
        self.grant(name)

    def grant(self, name: str, cap_mw: int = TDP_MW, seconds: float = 3600.0) -> None:
        end_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + round(1e9 * seconds) if seconds else 0
        self.threads[name].lease = cap_mw, end_ns

    def end(self, name: str) -> None:
        self.threads.pop(name).close()
        self.jobs.pop(name).close()

    def journal(self, name: str) -> list[str]:
        return [path.read_text() for path in (self.at / name / "journal").glob("*.json")]

    def running(self, name: str) -> bool:
        return any('"phase":"running"' in text for text in self.journal(name))

    def submit(self, text: str, units: int = 1, watts: float = 0.0, user: str = "alice") -> int:
        """In this process, until the job is over; its exit status."""
        key = self.keys / f"{user}.key"
        return submitted(program(text, self.at), units, watts, self.keys, key, self.files, self.said.append)

    def command(self, *arguments: str, user: str = "alice") -> subprocess.Popen[str]:
        """``clusterctl submit --dispatch dardis``."""
        words = [sys.executable, "-m", "cluster_agent.cli", "submit", "--dispatch", "dardis"]
        words += ["--keys", str(self.keys), "--key", str(self.keys / f"{user}.key"), "--time", "1min", *arguments]
        environment = {**os.environ, "XDG_STATE_HOME": str(self.files)}
        pipe = subprocess.PIPE
        return subprocess.Popen(words, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment, cwd=self.at)

    def __enter__(self) -> Self:
        for name in self.names:
            self.begin(name)
        ports = [int(url.rpartition(":")[2]) for url in self._listen.values()]
        assert within(PATIENCE_S, lambda: all(map(_listens, ports)))
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.threads):
            self.end(name)


def _listens(port: int) -> bool:
    """Without a connection, which a node manager would have to answer."""
    return f":{port:04X} 00000000:0000 0A" in Path("/proc/net/tcp").read_text()

"""A whole partition of real processes on loopback: ``clusterctl serve`` and node agents, with keys of their own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from cluster_agent.cli import main

ROOT = Path(__file__).parents[2]
PATIENCE_S = 40.0


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Cluster:
    """``with Cluster(tmp_path, budget_w=1000) as cluster: cluster.serve(); cluster.node("n0")``."""

    def __init__(self, at: Path, budget_w: float, jobs: dict[str, Any] | None = None, **settings: Any) -> None:
        self.at, self.keys = at, at / "keys"
        self.budget_w = budget_w
        self.url = f"tcp://127.0.0.1:{free_port()}"
        self.socket = at / "ctl.sock"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.names: list[str] = []
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.worst_w = 0.0
        self.run("keys", "new", "cluster", "--dir", str(self.keys))
        top = {"listen": self.url, "keys": str(self.keys), "store": str(at / "cluster.db"), "mode": "cap"}
        top |= {"socket": str(self.socket)} | settings
        lines = [f"{key} = {json.dumps(value)}" for key, value in top.items()]
        lines += [
            "[budget]",
            f"w = {budget_w:.1f}",
            "[nodes]",
            "tdp_w = 500.0",
            "failing_together = 0",
            "lease_s = 2.0",
        ]
        if jobs is not None:
            lines += ["[jobs]", *(f"{key} = {json.dumps(value)}" for key, value in jobs.items())]
        self.config = at / "cluster.toml"
        self.config.write_text("\n".join(lines) + "\n")

    def run(self, *arguments: str) -> None:
        assert main(list(arguments)) == 0

    def start(self, *command: str, log: str, within: list[str] | None = None) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with open(self.at / log, "ab") as file:
            made = subprocess.Popen(
                [*(within or []), sys.executable, *command], env=environment, cwd=ROOT, stdout=file, stderr=file
            )
        self._processes.append(made)
        return made

    def serve(self) -> subprocess.Popen[bytes]:
        return self.start("-m", "cluster_agent.cli", "serve", "--config", str(self.config), log="serve.log")

    def said(self) -> str:
        return (self.at / "serve.log").read_text()

    def allow(self, name: str) -> None:
        if not (self.keys / f"{name}.key").exists():
            self.run("keys", "new", name, "--role", "node", "--dir", str(self.keys))

    def node(self, name: str, boot_id: str = "boot-1", cap_w: float = 500.0) -> subprocess.Popen[bytes]:
        self.allow(name)
        hardware = self.at / f"{name}.cap"
        if name not in self.names:
            self.names.append(name)
            hardware.write_text(str(round(cap_w * 1000)))
            hardware.with_suffix(".history").write_text(f"0 0 {round(cap_w * 1000)}\n")
        script = str(ROOT / "tests" / "fabric" / "scripted_node.py")
        made = self.start(script, name, self.url, str(self.keys), str(hardware), boot_id, log=f"{name}.log")
        self.started[name] = made
        return made

    def cap_w(self, name: str) -> float:
        """What the node's hardware holds."""
        return int((self.at / f"{name}.cap").read_text()) / 1000

    def caps_w(self) -> float:
        """At one instant. Files are read one after the other, which may take long on a loaded machine; what two
        readings in a row agree on was there all at once, between them."""
        before: list[float] = []
        while (caps_w := [self.cap_w(name) for name in self.names]) != before:
            before = caps_w
        return sum(caps_w)

    def ctl(self, *arguments: str) -> Done:
        """A command of ``clusterctl`` at this cluster agent."""
        out, error = io.StringIO(), io.StringIO()
        at = arguments.index("--") if "--" in arguments else len(arguments)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            status = main([*arguments[:at], "--socket", str(self.socket), *arguments[at:]])
        return Done(status, out.getvalue(), error.getvalue())

    def ask(self, *arguments: str) -> Any:
        """What it prints as JSON; None if it fails."""
        at = arguments.index("--") if "--" in arguments else len(arguments)
        done = self.ctl(*arguments[:at], "--json", *arguments[at:])
        return json.loads(done.stdout) if done.returncode == 0 else None

    def until(self, holds: Callable[[], object], is_kept: bool = True) -> None:
        """Wait until something holds; with ``is_kept`` the budget must hold at every look in between."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"in vain: {self.said()}"
            if is_kept:
                self.check()
            time.sleep(0.01)

    def check(self) -> None:
        caps_w = self.caps_w()
        self.worst_w = max(self.worst_w, caps_w)
        assert caps_w <= self.budget_w, f"{caps_w} W of {self.budget_w} W"

    def highest_w(self, begin_s: float, end_s: float) -> float:
        """The most that all nodes together could draw at any instant of this time (CLOCK_BOOTTIME), by their histories:
        a raise counts from before it was written, a decrease from after."""
        changes: list[tuple[int, int, str]] = []
        for name in self.names:
            cap_mw = 0
            for line in (self.at / f"{name}.history").read_text().splitlines():
                before_ns, after_ns, written_mw = map(int, line.split())
                changes.append((before_ns if written_mw > cap_mw else after_ns, written_mw, name))
                cap_mw = written_mw
        caps: dict[str, int] = {}
        highest_mw = held_mw = 0
        for at_ns, cap_mw, name in sorted(changes):
            if at_ns > end_s * 1e9:
                break
            if at_ns >= begin_s * 1e9:
                highest_mw = max(highest_mw, held_mw)
            caps[name] = cap_mw
            held_mw = sum(caps.values())
        return max(highest_mw, held_mw) / 1000

    def watch(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end)

    def end(self, process: subprocess.Popen[bytes]) -> int:
        process.terminate()
        return process.wait(10)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

"""A whole partition of real processes on loopback: ``clusterctl serve`` and node agents, with keys of their own."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

from cluster_agent.cli import main
from foundation.boot import boottime_s
from lab.cluster_demo.emulated_partition import free_port
from tests.fabric.scripted_node import note, put
from tests.waiting import PATIENCE_S, within

ROOT = Path(__file__).parents[2]
KILLED_WITH_US = ["setpriv", "--pdeathsig", "KILL"]


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Cluster:
    """``with Cluster(tmp_path, budget_w=1000) as cluster: cluster.serve(); cluster.node("n0")``."""

    def __init__(
        self, at: Path, budget_w: float, jobs: dict[str, Any] | None = None, gap_s: float = 0.3, **settings: Any
    ) -> None:
        self.at, self.keys = at, at / "keys"
        self.budget_w = budget_w
        self.url = f"tcp://127.0.0.1:{free_port()}"
        self.socket = at / "ctl.sock"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.names: list[str] = []
        self.started: dict[str, subprocess.Popen[bytes]] = {}
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
            f"gap_s = {gap_s}",
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
                [*KILLED_WITH_US, *([*within, *KILLED_WITH_US] if within else []), sys.executable, *command],
                env=environment,
                cwd=ROOT,
                stdout=file,
                stderr=file,
            )
        self._processes.append(made)
        return made

    def serve(self, within: list[str] | None = None) -> subprocess.Popen[bytes]:
        words = ["-m", "cluster_agent.cli", "serve", "--config", str(self.config)]
        return self.start(*words, log="serve.log", within=within)

    def said(self) -> str:
        return (self.at / "serve.log").read_text()

    def allow(self, name: str) -> None:
        if not (self.keys / f"{name}.key").exists():
            self.run("keys", "new", name, "--role", "node", "--dir", str(self.keys))

    def node(self, name: str, boot_id: str = "boot-1", cap_w: float = 500.0, *more: str) -> subprocess.Popen[bytes]:
        """``more``: as ``scripted_node`` takes it."""
        self.allow(name)
        hardware = self.at / f"{name}.cap"
        if name not in self.names:
            self.names.append(name)
            hardware.write_text(str(round(cap_w * 1000)))
        note(hardware, "done", int(hardware.read_text()))  # also what an agent that was killed had not noted yet
        script = str(ROOT / "tests" / "fabric" / "scripted_node.py")
        made = self.start(script, name, self.url, str(self.keys), str(hardware), boot_id, *more, log=f"{name}.log")
        self.started[name] = made
        return made

    def cap_w(self, name: str) -> float:
        """The cap in force on the node's hardware."""
        return int((self.at / f"{name}.cap").read_text()) / 1000

    def fall(self, name: str, cap_w: float) -> None:
        """What the ``ExecStopPost`` of a node's agent does: the lesser of the present and the safe cap."""
        put(self.at / f"{name}.cap", round(cap_w * 1000))

    def ctl(self, *arguments: str) -> Done:
        """A command of ``clusterctl`` at this cluster agent."""
        at = arguments.index("--") if "--" in arguments else len(arguments)
        return self.plain(*arguments[:at], "--socket", str(self.socket), *arguments[at:])

    def plain(self, *arguments: str) -> Done:
        """A command of ``clusterctl`` that asks no cluster agent."""
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            status = main(list(arguments))
        return Done(status, out.getvalue(), error.getvalue())

    def ask(self, *arguments: str) -> Any:
        """What it prints as JSON; None if it fails."""
        at = arguments.index("--") if "--" in arguments else len(arguments)
        done = self.ctl(*arguments[:at], "--json", *arguments[at:])
        return json.loads(done.stdout) if done.returncode == 0 else None

    def until(self, holds: Callable[[], object], is_kept: bool = True, patience_s: float = PATIENCE_S) -> None:
        """Wait until something is true; with ``is_kept`` the budget must be kept at every instant in between."""
        begin_s = boottime_s()
        deadline = time.monotonic() + patience_s
        while not holds():
            assert time.monotonic() < deadline, f"in vain: {self.said()}"
            time.sleep(0.01)
        if is_kept:
            self.check(begin_s)

    def check(self, begin_s: float, patience_s: float = PATIENCE_S) -> None:
        """From this time (CLOCK_BOOTTIME) until now the caps were within the budget at every instant."""
        end_s = boottime_s()
        found: list[float] = []

        def is_within() -> bool:
            found.append(self.highest_w(begin_s, end_s, is_excused=True))
            return found[-1] <= self.budget_w

        # a node may have done what its history does not tell yet
        assert within(patience_s, is_within), f"{found[-1]} W of {self.budget_w} W"

    def highest_w(self, begin_s: float = 0.0, end_s: float = math.inf, is_excused: bool = False) -> float:
        """The most that all nodes together could draw at any instant of this time (CLOCK_BOOTTIME), by their histories:
        a raise counts from when it was begun, a decrease from when it was done. With ``is_excused`` a node that was
        not scheduled in time to end its lease counts as if it had done so by the time that it declares, which the
        budget rests on."""
        changes: list[tuple[int, int, str]] = []
        for name in self.names:
            held_mw = 0
            for at_ns, what, cap_mw, due_ns in self.history(name):
                if cap_mw > held_mw or (cap_mw < held_mw and what == "done"):
                    changes.append((min(at_ns, due_ns) if is_excused and due_ns else at_ns, cap_mw, name))
                    held_mw = cap_mw
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

    def latest_s(self) -> float:
        """By how much the latest node was late to end its lease."""
        late_ns = [at_ns - due_ns for name in self.names for at_ns, what, _, due_ns in self.history(name)
                   if due_ns and what == "done"]  # fmt: skip
        return max([*late_ns, 0]) / 1e9

    def history(self, name: str) -> list[tuple[int, str, int, int]]:
        """As ``scripted_node.note`` wrote it."""
        lines = map(str.split, (self.at / f"{name}.history").read_text().splitlines())
        return [(int(at_ns), what, int(cap_mw), int(due_ns)) for at_ns, what, cap_mw, due_ns in lines]

    def watch(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end)

    def end(self, process: subprocess.Popen[bytes]) -> int:
        process.terminate()
        return process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

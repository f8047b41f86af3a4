"""A partition of emulated nodes from scratch: keys, settings, ``clusterctl serve``, ``nodectl twin node``.

Every process is one of the product's own. They only share a folder, which is removed with them. The commands are those
that docs/cluster.md types by hand.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from cluster_agent.commands.keys import new
from cluster_agent.errors import ClusterError
from cluster_agent.fabric.ask import RefusedError, ask
from cluster_agent.fabric.people import R, Request
from cluster_agent.serve.config import read_settings
from cluster_agent.serve.people_protocol import ListNodes, ShowBudget
from foundation.shell.settings import ConfigError
from lab.cluster_demo.folder import note_process

PATIENCE_S: Final = 300.0
"""Ours: how long until all nodes must be capped; on a quiet machine it takes a few seconds."""

END_S: Final = 20.0
"""Ours: how long processes may take to end. A node waits for leave for three seconds."""

LEASE_S: Final = 5.0


class EmulatedPartition:
    """``with EmulatedPartition(folder, ...) as partition``: all nodes are capped at the start, nothing is left at the
    end.

    ``tdp_w`` is that of one node, ``budget_w`` of all. ``trace``: where nodes write the truth. ``policy`` and the caps
    of its levels, ``levels_w``: in place of a sharer, the scheduler owns the watts. ``dispatch``: the directory by
    which the nodes dispatch jobs among themselves (docs/dardis.md); the cluster agent then starts none.
    """

    def __init__(
        self, at: Path, names: list[str], machine: str, tdp_w: float, budget_w: float, sharer: str,
        policy: str = "easy", levels_w: Sequence[float] = (), dispatch: Path | None = None,
    ) -> None:  # fmt: skip
        self.names = names
        self.socket = at / "ctl.sock"
        self.trace = at / "trace"
        self.workdir = at / "jobs"
        self._at, self._machine, self._tdp_w, self._budget_w, self._sharer = at, machine, tdp_w, budget_w, sharer
        self._policy, self._levels_w, self._dispatch = policy, levels_w, dispatch
        self._url = f"tcp://127.0.0.1:{free_port()}"
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []

    def __enter__(self) -> EmulatedPartition:
        self.workdir.mkdir(parents=True)
        (self._at / "tmp").mkdir()
        with contextlib.redirect_stdout(io.StringIO()):
            new.main(["cluster", "--dir", str(self._at / "keys")], standalone_mode=False)
            new.main([*self.names, "--role", "node", "--dir", str(self._at / "keys")], standalone_mode=False)
        self._write_settings()
        (self._at / "node.toml").write_text('[cpu_policy]\nname = "none"\n[gpu_policy]\nname = "none"\n')
        try:
            self.start_head()
            self._start(
                "nodes", "nodectl.cli", "twin", "node", "--machine", self._machine, "--cluster", self._url,
                "--keys", str(self._at / "keys"), "--config", str(self._at / "node.toml"),
                "--trace", str(self.trace),
                *(("--dispatch", str(self._dispatch)) if self._dispatch else ()), *self.names,
            )  # fmt: skip
            self._until("all nodes are capped", self._is_capped)
        except BaseException:
            self.close()
            raise
        return self

    def start_head(self) -> None:
        """Begin the cluster agent, and wait until it listens."""
        self.socket.unlink(missing_ok=True)
        self._start("serve", "cluster_agent.cli", "serve", "--config", str(self._at / "cluster.toml"))
        self._until("the cluster agent listens", self.socket.exists)

    def kill_head(self) -> None:
        """As if its machine had lost its power."""
        name, process = next(one for one in self._processes if one[0] == "serve")
        self._processes.remove((name, process))
        process.kill()
        process.wait()

    def refusal(self) -> str:
        """Why the cluster agent would not start with these settings; empty if it would. Nothing runs for that."""
        self._at.mkdir(parents=True)
        try:
            read_settings(self._write_settings())
        except ConfigError as error:
            return str(error).removeprefix(str(self._at)).partition(": ")[2]
        return ""

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: Request[R]) -> R:
        """A request as from the command line. If the cluster agent does not answer, the error has its last log line."""
        try:
            return ask(self.socket, request)
        except RefusedError:
            raise
        except ClusterError:
            self.check()
            raise

    def check(self) -> None:
        """``ClusterError`` if a process has ended, with its last log line."""
        for name, process in self._processes:
            if process.poll() is not None:
                log = (self._at / f"{name}.log").read_text(errors="replace").strip().splitlines()
                raise ClusterError(
                    f"{name} ended with status {process.returncode}: {(log or ['it logged nothing'])[-1]}"
                )

    def log(self, name: str) -> list[str]:
        """The log lines of ``serve`` or ``nodes``."""
        return (self._at / f"{name}.log").read_text(errors="replace").splitlines()

    def close(self) -> None:
        """End everything; the nodes first, since the cluster agent must grant their leave."""
        for _, process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._processes.clear()

    def _write_settings(self) -> Path:
        path = self._at / "cluster.toml"
        path.write_text(self._settings())
        return path

    def _settings(self) -> str:
        top = {
            "listen": self._url, "keys": str(self._at / "keys"), "store": str(self._at / "cluster.db"),
            "socket": str(self.socket), "mode": "cap", "sharer": self._sharer,
        }  # fmt: skip
        lines = [f"{key} = {json.dumps(value)}" for key, value in top.items()]
        lines += ["[budget]", f"w = {self._budget_w:.3f}", "[nodes]", f"tdp_w = {self._tdp_w:.1f}"]
        lines += ["failing_together = 0", f"lease_s = {LEASE_S}"]
        if self._dispatch is None:
            lines += ["[jobs]", f"policy = {json.dumps(self._policy)}"]
        if self._levels_w:
            (self._at / "site.toml").write_text(self._machine_file())
            lines.append('machine = "site.toml"')
        return "\n".join(lines) + "\n"

    def _machine_file(self) -> str:
        """An idle node has the lowest cap."""
        watts = list(self._levels_w)
        return (
            f'name = "site"\nsummary = "caps"\n[[nodes]]\ncount = {len(self.names)}\ncores = 1\nidle_w = {watts[-1]}\n'
            f"frequency_mhz = {list(range(len(watts), 0, -1))}\nbusy_w = {watts}\n"
        )

    def _start(self, name: str, module: str, *arguments: str) -> None:
        # a session of its own: Ctrl-C is for the demo, which then ends everything in order
        with open(self._at / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [*_dies_with_us(), sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(self._at / "tmp")},
                cwd=self._at,
            )
        self._processes.append((name, process))
        note_process(self._at, process.pid)

    def _until(self, what: str, is_done: Callable[[], bool]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not is_done():
            self.check()
            if time.monotonic() > end_s:
                raise ClusterError(f"waited {PATIENCE_S:g} s until {what}; this machine is too slow for so many nodes")
            time.sleep(0.1)

    def _is_capped(self) -> bool:
        rows = self.ask(ListNodes())
        budget = self.ask(ShowBudget())
        are_free = self._dispatch is not None or all(row.jobs == "idle" for row in rows)
        return bool(rows) and are_free and all(row.state == "capped" for row in rows) and budget.over_w <= 0


def _dies_with_us() -> list[str]:
    """Goes in front of a command: the kernel stops the command when this process ends, however it ends."""
    return ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []


def free_port() -> int:
    """A port of this machine on which nobody listens now."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])

"""A real Slurm or OAR with its own nodes, users and network (scripts/slurm.sh, oar.sh), for as long as a ``with``
lasts."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from foundation.shell.errors import NodectlError

ROOT = Path(__file__).parents[2]

MOST_NAMED: Final = 100
"""Ours: characters of a command that a message has."""

PATIENCE_S: Final = 180.0
"""Ours: what takes longer is taken for hung, also on a machine on which many others run."""


class SiteError(NodectlError):
    """The manager did not come up, or a command there has failed."""


def why_none(manager: str) -> str:
    """Empty if this manager can be brought up here, else the reason, and what to do."""
    if not (ROOT / "scripts" / f"{manager}.sh").exists():
        return f"scripts/{manager}.sh is in a checkout of nodectl alone"
    if os.geteuid() != 0:
        return f"{manager} in namespaces of its own needs root"
    if not (ROOT / "build" / manager / "complete").exists():
        return f"the Debian packages of {manager} could not be had: scripts/{manager}.sh unpack"
    return ""


class Site:
    """``with Site(nodes=4) as site: site.run("sinfo")``. It is ready when the ``with`` begins, and gone when it ends,
    or when this process does, even by SIGKILL."""

    def __init__(self, nodes: int = 4, accounting: bool = True, manager: str = "slurm") -> None:
        self.at = Path(tempfile.mkdtemp(prefix=f"{manager}-"))  # where its users can reach it
        self._script = ROOT / "scripts" / f"{manager}.sh"
        self._nodes, self._accounting = nodes, accounting

    def __enter__(self) -> Self:
        # the end of its input, which is the end of this process at the latest, takes the site down
        down = f'cat >/dev/null; exec "{self._script}" down "{self.at}"'
        self._guard = subprocess.Popen(["sh", "-c", down], stdin=subprocess.PIPE, start_new_session=True)
        try:
            environment = {**os.environ, "SLURM_ACCOUNTING": "yes" if self._accounting else "no"}
            # it ends with this process, so that it brings nothing up once the guard has taken all down
            up = ["setpriv", "--pdeathsig", "KILL", str(self._script), "up", str(self.at), str(self._nodes)]
            if subprocess.run(up, env=environment, check=False).returncode:
                raise SiteError(f"{self._script.stem} did not come up")
            self.pid = int((self.at / "pid").read_text())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()

    @property
    def within(self) -> list[str]:
        """Words before a command that make it run there."""
        return ["nsenter", "-t", str(self.pid), "-m", "-n", "-p", "-u", "-i", "--"]

    def run(self, *command: str, user: str = "", timeout_s: float = PATIENCE_S) -> str:
        """Standard output of a command there that must succeed; as root, or as ``user``. ``SiteError`` if it fails."""
        prefix = [*self.within, "runuser", "-u", user, "--"] if user else self.within
        try:
            done = subprocess.run(
                [*prefix, *command], cwd="/tmp", capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            what = " ".join(command).partition("\n")[0][:MOST_NAMED]
            raise SiteError(f"{what}: no answer within {timeout_s:g} s") from None
        if done.returncode:
            raise SiteError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def shell(self, script: str, user: str = "") -> str:
        """The same for a shell script."""
        return self.run("sh", "-euc", script, user=user)

    def programs(self, *names: str) -> str:
        """A folder with these programs as they run there, with a slash."""
        folder = self.at / "programs"
        folder.mkdir(exist_ok=True)
        for name in names:
            program = folder / name
            program.write_text(f'#!/bin/sh\nexec {" ".join(self.within)} {name} "$@"\n')
            program.chmod(0o755)
        return f"{folder}/"

    def restart_controller(self) -> None:
        """PrologSlurmctld and EpilogSlurmctld are read when slurmctld starts, and never again."""
        self.shell(
            "file=/run/slurm/slurmctld.pid; pid=$(cat $file); kill $pid; while kill -0 $pid 2>/dev/null; do sleep 0.1;"
            " done; setpriv --reuid slurm --regid slurm --clear-groups slurmctld"
        )
        self.until(lambda: " idle" in self.run("sinfo", "-h", "-o", "%D %T"))

    def until(self, is_true: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
        """Wait until something is true there."""
        until_s = time.monotonic() + patience_s
        while not is_true():
            if time.monotonic() > until_s:
                raise SiteError(f"{self._script.stem}: what was waited for has not come within {patience_s:g} s")
            time.sleep(0.1)

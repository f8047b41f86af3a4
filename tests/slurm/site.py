"""A real Slurm or OAR with its own nodes, users and network (scripts/slurm.sh, oar.sh), for as long as a ``with``
lasts."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]


def why_none(manager: str) -> str:
    """Empty if this manager can be brought up here, else the reason to skip."""
    if os.geteuid() != 0:
        return f"{manager} in namespaces of its own needs root"
    if not (ROOT / "build" / manager / "complete").exists():
        return f"the Debian packages of {manager} could not be had: scripts/{manager}.sh unpack"
    return ""


def why_no_slurm() -> str:
    """The same for a Slurm."""
    return why_none("slurm")


class Site:
    """``with Site(nodes=4) as site: site.run("sinfo")``. It is ready when the ``with`` begins."""

    def __init__(self, nodes: int = 4, accounting: bool = True, manager: str = "slurm") -> None:
        self.at = Path(tempfile.mkdtemp(prefix=f"{manager}-"))  # not pytest's: its users must reach it
        self._script = ROOT / "scripts" / f"{manager}.sh"
        self._nodes, self._accounting = nodes, accounting

    def __enter__(self) -> Self:
        environment = {**os.environ, "SLURM_ACCOUNTING": "yes" if self._accounting else "no"}
        subprocess.run([self._script, "up", self.at, str(self._nodes)], check=True, env=environment)
        self.pid = int((self.at / "pid").read_text())
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run([self._script, "down", self.at], check=True)

    @property
    def within(self) -> list[str]:
        """Words before a command that make it run there."""
        return ["nsenter", "-t", str(self.pid), "-m", "-n", "-p", "-u", "-i", "--"]

    def run(self, *command: str, user: str = "", timeout_s: float = PATIENCE_S) -> str:
        """Standard output of a command there that must succeed; as root, or as ``user``."""
        prefix = [*self.within, "runuser", "-u", user, "--"] if user else self.within
        done = subprocess.run(
            [*prefix, *command], cwd="/tmp", capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def shell(self, script: str, user: str = "") -> str:
        """The same for a shell script."""
        return self.run("sh", "-euc", script, user=user)

    def restart_controller(self) -> None:
        """PrologSlurmctld and EpilogSlurmctld are read when slurmctld starts, and never again."""
        self.shell(
            "file=/run/slurm/slurmctld.pid; pid=$(cat $file); kill $pid; while kill -0 $pid 2>/dev/null; do sleep 0.1;"
            " done; setpriv --reuid slurm --regid slurm --clear-groups slurmctld"
        )
        self.until(lambda: " idle" in self.run("sinfo", "-h", "-o", "%D %T"))

    def until(self, holds: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
        """Wait until something is true there."""
        until_s = time.monotonic() + patience_s
        while not holds():
            assert time.monotonic() < until_s, "waited in vain"
            time.sleep(0.1)


def page_blocks(page: str, heading: str) -> list[str]:
    """What is typed in the sections of a page whose headings begin so, a block of lines each."""
    text = (ROOT / "docs" / page).read_text()
    (section,) = re.findall(rf"^## {heading}.*?$(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"^```console$(.*?)^```$", section, re.MULTILINE | re.DOTALL)

"""A cgroup per run of a job, by which the kernel itself knows which processes are left of it.

A process enters the cgroup before it becomes the job; all that it ever starts is in it too, whatever session, parent or
environment that gives itself. Only who may write ``cgroup.procs`` of another cgroup leaves, and these files are root's.

Version 2 kills all at once by ``cgroup.kill`` (Linux 5.14). That sends SIGKILL to the first thread of each process,
which does nothing where that thread has ended before the others: what is left then is killed one by one. On an older
kernel, with version 1, whose ``freezer`` hierarchy is used, and where processes are still left, all are frozen first,
so that none can start another meanwhile.

Sources: Linux Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/freezer-subsystem.rst.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from nodectl.jobs.proc import send_all

FREEZE_S: Final = 0.5
"""Ours: how long all processes may take to freeze. Those that do not, since they wait for a disk, are killed too."""

FREEZE_EACH: Final = 8
"""Ours: each so many-th kill of one cgroup freezes it first, which catches those that start others all the time."""

PREFIX: Final = "nodectl-jobs-"

_OCTAL: Final = re.compile(r"\\([0-7]{3})")
"""How the kernel writes blanks and backslashes of a path in a line of mountinfo."""


class Cgroup:
    """One cgroup, at a path below /sys/fs/cgroup. ``version`` is 1 or 2."""

    def __init__(self, path: Path, version: int) -> None:
        self.path, self.version = path, version
        self._kills = 0

    def make(self) -> None:
        """Make it, empty."""
        self.path.mkdir(exist_ok=True)

    def enter(self) -> None:
        """Move this process into it."""
        (self.path / "cgroup.procs").write_text("0")

    def pids(self) -> list[int]:
        """Its processes, and those of cgroups below it."""
        found: list[int] = []
        for folder, _, _ in os.walk(self.path):
            with contextlib.suppress(OSError):  # it ended meanwhile
                found += [int(word) for word in Path(folder, "cgroup.procs").read_text().split()]
        return found

    def is_empty(self) -> bool:
        """Whether no process lives in it or below it; True if it is not there."""
        if self.version == 1:
            return not self.pids()
        try:
            return "populated 0" in (self.path / "cgroup.events").read_text()
        except (FileNotFoundError, OSError) as error:
            if not self.path.exists():
                return True
            raise error

    def kill(self) -> None:
        """Kill all that is in it. It may take the kernel a moment to end them; call it until it is empty."""
        self._kills += 1
        with contextlib.suppress(FileNotFoundError):  # gone, and so are its processes
            if self.version == 2 and self._has_kill and self._kills % FREEZE_EACH:
                (self.path / "cgroup.kill").write_text("1")
                send_all(signal.SIGKILL, self.pids)
                return
            with self._frozen():
                send_all(signal.SIGKILL, self.pids)

    def remove(self) -> None:
        """Remove it, with those that a job made below it. Does nothing while a process is left."""
        for folder, _, _ in os.walk(self.path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def remove_if_unused(self) -> None:
        """Remove it, unless a process or a cgroup is in it."""
        with contextlib.suppress(OSError):
            self.path.rmdir()

    @property
    def _has_kill(self) -> bool:
        return (self.path / "cgroup.kill").exists()

    @contextlib.contextmanager
    def _frozen(self) -> Iterator[None]:
        if self.version == 1:
            file, on, off, shown, word = "freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN"
        else:
            file, on, off, shown, word = "cgroup.freeze", "1", "0", "cgroup.events", "frozen 1"
        (self.path / file).write_text(on)
        try:
            until_s = time.monotonic() + FREEZE_S
            while word not in (self.path / shown).read_text() and time.monotonic() < until_s:
                time.sleep(0.005)
            yield
        finally:
            (self.path / file).write_text(off)


class Mount(NamedTuple):
    """Where this process is in a hierarchy, as a directory."""

    here: Path
    version: int


def home(name: str) -> Cgroup | None:
    """The cgroup below this process's own in which a node's jobs can have theirs; None where none can be made, since
    there is no hierarchy, or it is not ours to write."""
    for here, version in mounts():
        found = Cgroup(here / f"{PREFIX}{name}", version)
        try:
            found.make()
        except OSError:
            continue
        if os.access(here / "cgroup.procs", os.W_OK) and os.access(found.path / "cgroup.procs", os.W_OK):
            return found
        found.remove()
    return None


def usable() -> int:
    """The version of the cgroups that a service's jobs can have here; 0: there are none."""
    return next((version for here, version in mounts() if here.is_dir()), 0)


def mounts(of: str = "freezer") -> list[Mount]:
    """The hierarchies that can be used, the best first; of version 1 the one with the controller ``of``. Source:
    proc(5), mountinfo and cgroup."""
    own = {}
    for line in os.fsdecode(Path("/proc/self/cgroup").read_bytes()).split("\n")[:-1]:
        _, names, path = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), path))
    found = []
    for line in os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).split("\n")[:-1]:
        before, _, after = line.partition(" - ")
        root, place = (_OCTAL.sub(lambda found: chr(int(found[1], 8)), word) for word in before.split(" ")[3:5])
        kind, _, options = after.split(" ")[:3]  # one blank each: a mount may have an empty source
        controller = "" if kind == "cgroup2" else of
        if kind not in ("cgroup", "cgroup2") or (controller and controller not in options.split(",")):
            continue
        if controller not in own:
            continue
        path = own[controller]
        if ".." in path.split("/") or ".." in root.split("/"):
            continue
        below = os.path.relpath(path, root)
        if not below.startswith(".."):
            found.append(Mount(Path(place, below), 1 if controller else 2))
    return sorted(found, key=lambda mount: -mount.version)

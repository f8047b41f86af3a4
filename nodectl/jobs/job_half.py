"""One half of a node's cores (``pmu.core_halves``), to which a run of a job is kept while another has the other half.

A cpuset makes it impossible to leave: the kernel cuts every affinity to it. It is the run's own cgroup where version 2
has the controller ``cpuset`` there, else a folder of version 1. Where neither can be had, the run begins with its half
as affinity, and its threads are looked at once a second: one that has taken other CPUs is put back, and that is said.
The same look finds what a job of root does, which may leave a cpuset, too.
Sources: Linux Documentation/admin-guide/cgroup-v2.rst (cpuset), cgroup-v1/cpusets.rst; sched_setaffinity(2).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from nodectl.jobs.cgroups import PREFIX, Cgroup, mounts
from nodectl.jobs.proc import DESCRIPTORS, threads
from pmu.cpulist import format_list


@dataclass(frozen=True, slots=True)
class Half:
    """``cpuset``: the run's folder; None: it is kept by affinity alone."""

    cpus: frozenset[int]
    cpuset: Path | None = None

    def make(self) -> None:
        """Make the cpuset. ``OSError``: the kernel does not let it."""
        if self.cpuset is None:
            return
        self.cpuset.mkdir(exist_ok=True)
        if not (mems := self.cpuset / "cpuset.mems").read_text().strip() and self._is_version_1:
            mems.write_text((self.cpuset.parent / "cpuset.mems").read_text())
        (self.cpuset / "cpuset.cpus").write_text(format_list(self.cpus))

    def keep_to(self) -> None:
        """Keep this process, the job step, to it by affinity: its children have that from their first instruction, so
        that none of them is taken for one that has left before it has entered."""
        os.sched_setaffinity(0, self.cpus)

    def enter(self) -> None:
        """Move this process, a child of the job step, into the cpuset."""
        if self.cpuset is not None:
            (self.cpuset / "cgroup.procs").write_text("0")

    def put_back(self, meant: Callable[[], list[int]]) -> str:
        """Put threads of the processes that ``meant`` lists back if they may run on other CPUs: what was found, in
        words; empty: none may. It is called twice, as by ``send_all``: a number may be another process's by now."""
        found, strayed = "", self._strayed(meant())
        for at in range(0, len(strayed), DESCRIPTORS):
            with contextlib.ExitStack() as opened:
                places = {}
                for pid, thread in strayed[at : at + DESCRIPTORS]:
                    with contextlib.suppress(OSError):  # it ended meanwhile
                        places[pid, thread] = os.open(f"/proc/{pid}/task/{thread}", os.O_RDONLY | os.O_DIRECTORY)
                        opened.callback(os.close, places[pid, thread])
                still = set(meant())
                for (pid, thread), place in places.items():
                    if pid not in still or not (taken := self._taken(thread)) or not _lives(place):
                        continue
                    found = f"process {pid} took CPUs {format_list(taken)}"
                    try:
                        self._take_back(thread)
                    except ProcessLookupError:
                        continue
                    except OSError as error:
                        return f"{found} and cannot be put back: {error.strerror}"
        return f"{found} and was put back on {format_list(self.cpus)}" if found else ""

    def remove(self) -> None:
        """Remove the cpuset, unless a process is in it."""
        if self.cpuset is not None:
            with contextlib.suppress(OSError):
                self.cpuset.rmdir()

    @property
    def _is_version_1(self) -> bool:
        return not (self.cpuset is not None and (self.cpuset / "cgroup.controllers").exists())

    def _strayed(self, pids: Iterable[int]) -> list[tuple[int, int]]:
        """The processes and their threads that may run outside of it."""
        return [(pid, thread) for pid in pids for thread in threads(pid) if self._taken(thread)]

    def _taken(self, thread: int) -> set[int]:
        """Where it may run, if that is outside."""
        with contextlib.suppress(OSError):
            if not (taken := os.sched_getaffinity(thread)) <= self.cpus:
                return taken
        return set()

    def _take_back(self, thread: int) -> None:
        if self.cpuset is not None:
            with contextlib.suppress(OSError):
                (self.cpuset / "cgroup.threads" if not self._is_version_1 else self.cpuset / "tasks").write_text(
                    str(thread)
                )
        os.sched_setaffinity(thread, self.cpus)


class CpusetHome:
    """Where the runs of a node have their cpusets. ``cgroups``: where they have their cgroups, None: nowhere."""

    def __init__(self, name: str, cgroups: Cgroup | None) -> None:
        self._cgroups = cgroups
        self._folder: Path | None = None
        if cgroups is not None and cgroups.version == 2 and _has_controller(cgroups):
            return
        for here, version in mounts("cpuset"):
            folder = here / f"{PREFIX}{name}"
            with contextlib.suppress(OSError):
                if version == 1 and _made(folder, here):
                    self._folder = folder
                    folder.rmdir()  # as long as no run needs it
                    return
        self._cgroups = None

    @property
    def is_there(self) -> bool:
        """Whether runs can have cpusets here."""
        return self._folder is not None or self._cgroups is not None

    def half(self, run: str, cpus: frozenset[int]) -> Half:
        """Of a run, with its cpuset if the kernel lets it have one."""
        with contextlib.suppress(OSError):
            if self._folder is not None:
                _made(self._folder, self._folder.parent)
                found = Half(cpus, self._folder / run)
            elif self._cgroups is not None:
                self._cgroups.make()
                _has_controller(self._cgroups)
                found = Half(cpus, self._cgroups.path / run)
            else:
                return Half(cpus)
            found.make()
            return found
        return Half(cpus)

    def remove_unused(self, runs: Collection[str]) -> None:
        """All cpusets but those of these runs, as a killed agent leaves them; with the last one the folder of all."""
        if self._folder is not None and self._folder.is_dir():
            unused = [path for path in self._folder.iterdir() if path.is_dir() and path.name not in runs]
            for path in (*unused, self._folder):
                with contextlib.suppress(OSError):
                    path.rmdir()


def _lives(place: int) -> bool:
    """Whether the thread of this folder of /proc lives: it is never another one's that got its number."""
    try:
        file = os.open("stat", os.O_RDONLY, dir_fd=place)
    except OSError:
        return False
    with contextlib.suppress(OSError), open(file, "rb") as opened:
        return bool(opened.read())
    return False


def _has_controller(home: Cgroup) -> bool:
    """Whether cgroups below it have the controller cpuset; it is given to them if that can be."""
    for folder in (home.path.parent, home.path):
        with contextlib.suppress(OSError):
            if "cpuset" not in (folder / "cgroup.subtree_control").read_text().split():
                (folder / "cgroup.subtree_control").write_text("+cpuset")
    try:
        return "cpuset" in (home.path / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False


def _made(folder: Path, parent: Path) -> bool:
    """A folder of version 1 with all CPUs and memory nodes of the one above it."""
    folder.mkdir(exist_ok=True)
    for name in ("cpuset.mems", "cpuset.cpus"):
        if not (folder / name).read_text().strip():
            (folder / name).write_text((parent / name).read_text())
    return os.access(folder / "cgroup.procs", os.W_OK)

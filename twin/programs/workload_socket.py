"""A socket by which a program outside puts a workload on an emulated node, for as long as it stays connected, or
changes the air that the node takes in.

A job of another manager, of Slurm for example, knows its node only by name. It connects to ``FOLDER/NAME`` (a Unix
socket), sends a line with the name of a twin workload, and reads ``ok`` or why not. The node runs that workload until
the connection is closed: when the job ends, however it ends, the kernel does that. One connection at a time has the
node; the others get a line that says so.

Jobs that share the node say which CPUs they have: ``hpl cpus=0-7``. Two with CPUs of their own run side by side; when
one comes or goes, the phases of the others begin again. With ``job=17`` the node shows a cgroup of that job, whose
processor time moves while it is here.

A line such as ``inlet 31.5`` makes the air so warm, in degrees Celsius, until the next one; whoever sends it does not
have the node.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pmu.cpulist import parse_list
from twin.errors import TwinError
from twin.physics.model import Twin
from twin.programs.side_by_side import on_cpus, together
from twin.programs.workload import Workload, load_workload

LONGEST_S: Final = 86_400.0
"""Ours: of a workload that nobody ends."""

INLET: Final = "inlet"

_LINE: Final = 200

_NAME: Final = re.compile(r"[a-z0-9-]+(:[a-z0-9.-]*)?", re.ASCII)
"""No paths: whoever may come here may have fewer rights than the node."""

MOST_WAITING: Final = 64
"""Ours: of those who have said nothing yet the first ones have to leave."""


class Cgroups(Protocol):
    """Where the node shows the jobs that say who they are."""

    def begin(self, job: str, cpus: Sequence[int]) -> None:
        """A job with these CPUs has come."""

    def end(self, job: str) -> None:
        """It has gone."""


@dataclass(frozen=True, slots=True)
class _Inside:
    """Who has the node, or some of its CPUs."""

    workload: Workload
    has_all: bool
    job: str


class WorkloadSocket:
    """Listens at ``folder/name``. ``look`` at every tick; it never waits. ``cgroups``: where the node shows jobs."""

    def __init__(self, folder: Path, name: str, twin: Twin, cgroups: Cgroups | None = None) -> None:
        self._path, self._twin, self._cgroups = folder / name, twin, cgroups
        self._inside: dict[socket.socket, _Inside] = {}
        self._waiting: list[socket.socket] = []
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)  # of a node that was killed
            self._listening.bind(str(self._path))
            self._path.chmod(0o666)  # any user's job may come
            self._listening.listen()
        except OSError as error:
            self._listening.close()
            raise TwinError(f"{self._path}: cannot listen there: {error.strerror or error}") from None

    def look(self) -> None:
        """Let in who comes, and end the workload of who has left."""
        left = [one for one in self._inside if _has_left(one)]
        for one in left:
            one.close()
            gone = self._inside.pop(one)
            if self._cgroups and gone.job:
                self._cgroups.end(gone.job)
        if left:
            self._run([one.workload for one in self._inside.values()])
        with contextlib.suppress(OSError):  # BlockingIOError: nobody comes any more
            while True:
                self._waiting.append(self._listening.accept()[0])
                if len(self._waiting) > MOST_WAITING:
                    self._waiting.pop(0).close()
        for one in list(self._waiting):
            self._hear(one)

    def close(self) -> None:
        """The node ends."""
        for one in (self._listening, *self._waiting, *self._inside):
            one.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _hear(self, one: socket.socket) -> None:
        """A line that has come whole is answered."""
        one.setblocking(False)
        try:
            line = one.recv(_LINE, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            line = b""
        if line and not line.endswith(b"\n") and len(line) < _LINE:
            return
        self._waiting.remove(one)
        words = line.decode(errors="replace").split()
        is_air = words[:1] == [INLET]
        why = self._warm(" ".join(words[1:])) if is_air else self._begin(one, words)
        with contextlib.suppress(OSError):
            one.recv(_LINE)
            one.send(f"{why or 'ok'}\n".encode())
        if why or is_air:
            one.close()

    def _warm(self, degrees: str) -> str:
        """Why the air cannot be so warm; empty: it is."""
        try:
            self._twin.set_inlet(float(degrees))
        except ValueError:
            return f"{INLET} {degrees}: no number of degrees"
        except TwinError as error:
            return str(error)
        return ""

    def _begin(self, one: socket.socket, words: list[str]) -> str:
        """Why the workload cannot run here; empty: it runs now."""
        options = dict(word.split("=", 1) for word in words if word.startswith(("cpus=", "job=")))
        name = " ".join(word for word in words if not word.startswith(("cpus=", "job=")))
        machine, others = self._twin.machine, list(self._inside.values())
        if why := self._why_full("cpus" in options):
            return why
        if not _NAME.fullmatch(name) or name.startswith("trace:"):
            return f'"{name[:80]}": give the name of a workload, no file'
        try:
            workload = load_workload(name, machine, duration_s=LONGEST_S)
            cpus = _cpus(options["cpus"]) if "cpus" in options else range(machine.cpus)
            if "cpus" in options:
                workload = on_cpus(workload, machine, cpus)
            self._run([*(other.workload for other in others), workload])
        except TwinError as error:
            return str(error)
        self._inside[one] = _Inside(workload, "cpus" not in options, options.get("job", ""))
        if self._cgroups and "job" in options:
            self._cgroups.begin(options["job"], cpus)
        return ""

    def _why_full(self, has_cpus: bool) -> str:
        """Why nobody else can come, with CPUs of his own or without; empty: he can."""
        others = self._inside.values()
        if any(other.has_all for other in others) or (not others and self._twin.workload is not None):
            return "the node has a workload already"
        return "the node is shared: say which CPUs, for example cpus=0-7" if others and not has_cpus else ""

    def _run(self, workloads: list[Workload]) -> None:
        if workloads:
            self._twin.start_workload(together(workloads) if len(workloads) > 1 else workloads[0])
        else:
            self._twin.stop_workload()


def _cpus(text: str) -> tuple[int, ...]:
    try:
        return parse_list(text)
    except ValueError as error:
        raise TwinError(str(error) if "range" in str(error) else f"cpus={text}: no list of CPUs") from None


def _has_left(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True

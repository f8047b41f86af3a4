"""A socket by which a program outside puts a workload on an emulated node, for as long as it stays connected, or
changes the air that the node takes in.

A job of another manager, of Slurm for example, knows its node only by name. It connects to ``FOLDER/NAME`` (a Unix
socket), sends a line with the name of a twin workload, and reads ``ok`` or why not. The node runs that workload until
the connection is closed: when the job ends, however it ends, the kernel does that. One connection at a time has the
node; the others get a line that says so. A line such as ``inlet 31.5`` makes the air so warm, in degrees Celsius, until
the next one; whoever sends it does not have the node.
"""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Final

from foundation.shell.errors import UsageError
from twin.errors import TwinError
from twin.physics.model import Twin
from twin.programs.workload import load_workload

LONGEST_S: Final = 86_400.0
"""Ours: of a workload that nobody ends."""

INLET: Final = "inlet"

_LINE: Final = 200


class WorkloadSocket:
    """Listens at ``folder/name``. ``look`` at every tick; it never waits."""

    def __init__(self, folder: Path, name: str, twin: Twin) -> None:
        self._path, self._twin = folder / name, twin
        self._inside: socket.socket | None = None
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
            raise UsageError(f"{self._path}: cannot listen there: {error.strerror or error}") from None

    def look(self) -> None:
        """Let in who comes, and end the workload of who has left."""
        if self._inside and _has_left(self._inside):
            self._inside.close()
            self._inside = None
            self._twin.stop_workload()
        with contextlib.suppress(OSError):  # BlockingIOError: nobody comes any more
            while True:
                self._waiting.append(self._listening.accept()[0])
        for one in list(self._waiting):
            self._hear(one)

    def close(self) -> None:
        """The node ends."""
        for one in (self._listening, *self._waiting, *([self._inside] if self._inside else [])):
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
        what, _, degrees = line.decode(errors="replace").strip().partition(" ")
        why = self._warm(degrees) if what == INLET else self._begin(f"{what} {degrees}".strip())
        with contextlib.suppress(OSError):
            one.recv(_LINE)
            one.send(f"{why or 'ok'}\n".encode())
        if why or what == INLET:
            one.close()
        else:
            self._inside = one

    def _warm(self, degrees: str) -> str:
        """Why the air cannot be so warm; empty: it is."""
        try:
            self._twin.set_inlet(float(degrees))
        except ValueError:
            return f"{INLET} {degrees}: no number of degrees"
        except TwinError as error:
            return str(error)
        return ""

    def _begin(self, name: str) -> str:
        """Why the workload cannot run here; empty: it runs now."""
        if self._inside or self._twin.workload is not None:
            return "the node has a workload already"
        try:
            self._twin.start_workload(load_workload(name, self._twin.machine, duration_s=LONGEST_S))
        except TwinError as error:
            return str(error)
        return ""


def _has_left(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True

"""A connection to a writer process: one that this agent starts below a restorer, or one that runs as a service."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import nodectl
from foundation.shell.errors import NodectlError
from nodectl.write.lock import passed_on
from nodectl.writer_process.channel import Channel, pair
from nodectl.writer_process.writer_protocol import LEASE_S

END_S: Final = 5.0
"""Ours: how long the end of a run waits for the writer's process to end."""

RESTORER: Final = Path(nodectl.__file__).with_name("nodectl-restorer")
"""Made with the package (``nodectl.build_restorer``)."""

MOST_REFUSAL: Final = 4096
"""Bytes; a line of the restorer's."""


class WriterLostError(NodectlError):
    """There is no writer process any more, and none can be started."""


@dataclass(slots=True)
class Link:
    """A connection to a writer process. ``process``: our child, if we started it: the restorer, or the writer where
    there is none. ``refusal``: where the restorer writes why it did not start the writer."""

    channel: Channel
    process: subprocess.Popen[bytes] | None = None
    refusal: int = -1
    pidfd: int = -1

    def close(self) -> None:
        """Hang up, and wait for the process to put the knobs back and to end. One that needs longer goes on."""
        self.channel.close()
        if self.process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        self.accepted()

    def kill(self) -> None:
        """Kill the writer, let its restorer put back what it leaves, and hang up. A restorer that cannot do so in time
        (it is stopped) is killed too, since it has the node's lock: whoever takes the node next reads the save."""
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.close()
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def why_refused(self) -> str:
        """Why the restorer has not started the writer; "" if it has, or has not said so."""
        try:
            return os.read(self.refusal, MOST_REFUSAL).decode(errors="replace") if self.refusal >= 0 else ""
        except BlockingIOError:
            return ""

    def accepted(self) -> None:
        """The writer was started."""
        if self.refusal >= 0:
            os.close(self.refusal)
            self.refusal = -1


def writer_command(state_dir: str, descriptor: int, settings: Path | None = None) -> list[str]:
    """What starts a writer."""
    program = [sys.executable, "-P", "-m", "nodectl.cli", "writer"]
    given = ["--config", str(settings)] if settings else []
    return [*program, *given, "--descriptor", str(descriptor), "--state-dir", state_dir]


def below_restorer(writer: Sequence[str], refusal: int, options: Sequence[str] = ()) -> list[str]:
    """What starts this writer as the restorer's child. ``refusal``: the descriptor for ``Link.why_refused``."""
    own = ["--lease", f"{LEASE_S:g}", "--kill-stopped", "--refusal-fd", str(refusal)]
    return [str(RESTORER), "run", *own, *options, "--", *writer]


def restorer_there() -> None:
    """``WriterLostError`` if the restorer is not installed."""
    if not os.access(RESTORER, os.X_OK):
        raise WriterLostError(f"{RESTORER}: not there, or no program; install nodectl again")


def start_writer(state_dir: str, settings: Path | None = None) -> Link:
    """A writer process of our own code, connected by a socket that no other process has, below a restorer; this process
    may be below one already, which then has the lock. ``settings``: the file that it reads ``may_raise`` and
    ``foreign`` from, if not the default one."""
    if passed_on():
        return _start(lambda descriptor, _: writer_command(state_dir, descriptor, settings))
    restorer_there()
    return _start(lambda descriptor, refusal: below_restorer(writer_command(state_dir, descriptor, settings), refusal))


def _start(command: Callable[[int, int], list[str]]) -> Link:
    """Start what ``command`` makes of the descriptors of the writer's socket and of the restorer's refusal."""
    ours, theirs = pair()
    refusal, said = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    code = str(Path(nodectl.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([code, *_given_path()])}
    try:
        process = subprocess.Popen(
            command(theirs.fileno(), said),
            pass_fds=[theirs.fileno(), *(passed_on() or [said])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
    except OSError as error:
        ours.close()
        os.close(refusal)
        raise WriterLostError(f"cannot start the writer process: {error.strerror}") from error
    finally:
        theirs.close()
        os.close(said)
    return Link(Channel(ours), process, refusal)


def connect_writer(path: str) -> Link:
    """A writer that runs as a service of its own, at this socket."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(path)
        channel = Channel(connection)
        if channel.peer_uid() not in (0, os.geteuid()):
            raise WriterLostError(f"{path}: who listens there is neither root nor this user")
    except OSError as error:
        connection.close()
        raise WriterLostError(f"{path}: no writer listens there: {error.strerror}") from error
    except WriterLostError:
        connection.close()
        raise
    return Link(channel)


def _given_path() -> list[str]:
    given = os.environ.get("PYTHONPATH")
    return [given] if given else []

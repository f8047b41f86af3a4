"""A real Linux kernel as SCMI client, whose only SCMI platform is a vhost-user socket.

The guest's only program (``init.c``) gets commands over a pipe: it reads files, writes files and passes SCMI messages
through the kernel's raw mode. So a scenario is written in one place, here, and sees both ends. The commands that start
such guests are in ``machines.py``.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from firmware_bridge.errors import LinkError, MessageError
from firmware_bridge.scmi.clock import Clock, RealClock
from firmware_bridge.scmi.messages.codec import decode
from firmware_bridge.scmi.messages.header import Sender
from firmware_bridge.scmi.protocols.power_capping import FLAG_ASYNCHRONOUS, CapSet
from firmware_bridge.scmi.protocols.sensor import READ_ASYNCHRONOUSLY, ReadingGet

POWERCAP: Final = "/sys/class/powercap"
RAW: Final = "/sys/kernel/debug/scmi/0/raw"
REPLY_TIMEOUT_S: Final = 0.5
"""Twice that of a serial line: a whole kernel is between the two ends, on a machine that may be loaded."""
ANSWER_TIMEOUT_S: Final = 60.0
"""Timeout of a command of ``init.c``; the machine may be loaded."""
BOOT_TIMEOUT_S: Final = 300.0
"""An emulated processor on a loaded machine."""


class GuestRefusal(Exception):  # noqa: N818 - the result of a system call of the guest
    """The guest's kernel refused a file operation; ``errno`` is its number."""

    def __init__(self, command: str, errno: int, text: str) -> None:
        super().__init__(f"{command}: {text}")
        self.errno = errno


def is_answered_twice(message: bytes) -> bool:
    """Whether a delayed response follows the response of this command."""
    try:
        body = decode(message, Sender.AGENT).body
    except MessageError:
        return False
    if isinstance(body, CapSet):
        return body.flags == FLAG_ASYNCHRONOUS
    return isinstance(body, ReadingGet) and body.flags == READ_ASYNCHRONOUSLY


class Guest:
    """A guest that has booted."""

    def __init__(self, command: Sequence[str | Path], log: Path) -> None:
        """``log`` is the kernel's; the command may append to it."""
        self.log_path = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                start_new_session=True,  # user-mode Linux and its helper processes are one group
            )
        assert self._process.stdin and self._process.stdout
        self._in: IO[bytes] = self._process.stdin
        self._out: IO[bytes] = self._process.stdout
        self._read = bytearray()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ)
        try:
            self._answer("boot", BOOT_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise

    def log(self) -> str:
        """The kernel's log."""
        return self.log_path.read_text(errors="replace")

    def has_ended_within(self, seconds: float) -> bool:
        """Whether the guest switches itself off in time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    # ---- files ----

    def names(self, directory: str) -> list[str]:
        """The names in a directory."""
        return self.execute(f"list {directory}").split()

    def read(self, path: str) -> str:
        """A file's text."""
        return self.execute(f"read {path}")

    def write(self, path: str, value: object) -> None:
        """Write to a file; ``GuestRefusal`` with the errno that the guest's program got."""
        self.execute(f"write {path} {value}")

    # ---- messages ----

    def send(self, message: bytes) -> None:
        """Send an SCMI command through the kernel, which keeps its token. Also waits for a delayed response, if one
        follows."""
        self.execute(f"send {'message_async' if is_answered_twice(message) else 'message'} {message.hex()}")

    def receive(self, timeout_s: float) -> tuple[str, bytes] | None:
        """``response`` or ``event``, and the message."""
        answer = self.execute(f"receive {round(timeout_s * 1e3)}", ANSWER_TIMEOUT_S + timeout_s)
        kind, _, digits = answer.partition(" ")
        return None if kind == "nothing" else (kind, bytes.fromhex(digits))

    def load(self, cpu: int, seconds: float, busy_ms: int) -> None:
        """Load a CPU of the guest for so long, for so many of every 10 ms, while other commands go on."""
        self.execute(f"load {cpu} {round(seconds * 1e3)} {busy_ms}")

    # ---- life ----

    def execute(self, command: str, timeout_s: float = ANSWER_TIMEOUT_S) -> str:
        """One command of ``init.c`` and its answer."""
        self._in.write(command.encode() + b"\n")
        return self._answer(command, timeout_s)

    def _answer(self, command: str, timeout_s: float) -> str:
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._read:
            if not self._selector.select(max(deadline_s - time.monotonic(), 0.0)):
                raise TimeoutError(f"{command}: the guest has not answered for {timeout_s:g} s:\n{self.log()[-2000:]}")
            content = self._out.read(4096)
            if not content:
                raise EOFError(f"{command}: the guest has ended:\n{self.log()[-2000:]}")
            self._read += content
        line, _, rest = bytes(self._read).partition(b"\n")
        self._read = bytearray(rest)
        word, _, text = line.decode().strip().partition(" ")
        if word != "ok":
            errno, _, reason = text.partition(" ")
            raise GuestRefusal(command, int(errno), reason)
        return text

    def stop(self) -> None:
        """Shut it down, or end it."""
        with contextlib.suppress(BrokenPipeError):
            self._in.write(b"off\n")
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._selector.close()
        self._in.close()
        self._out.close()


class RawMode:
    """A ``Transport``: the guest's user space, through the raw mode of its kernel."""

    def __init__(self, guest: Guest) -> None:
        self.name = "linux"
        self.clock: Clock = RealClock()
        self.reply_timeout_s = REPLY_TIMEOUT_S
        self._guest = guest
        guest.write(f"{RAW}/reset", 1)  # drop messages that an earlier link has not read

    def send(self, message: bytes) -> None:
        """Send through the kernel."""
        try:
            self._guest.send(message)
        except GuestRefusal as error:
            raise LinkError(f"{self.name}: {error}") from None

    def receive(self, timeout_s: float) -> bytes | None:
        """A response or event from the kernel."""
        received = self._guest.receive(timeout_s)
        return received[1] if received else None

    def diagnosis(self) -> str:
        """Why there was no response."""
        return "the guest's kernel has passed no response on"

    def close(self) -> None:
        """Does nothing: the guest goes on."""

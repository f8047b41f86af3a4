"""The cluster agent's end of the pipe to its front process, and the next front process when that one ends.

A spare waits with everything imported, so the next one listens a few milliseconds after the last one has ended.
Messages that were on their way are lost, as any message may be. Nodes connect again by themselves.
"""

from __future__ import annotations

import collections
import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec

from cluster_agent.errors import ClusterError
from cluster_agent.fabric.front_pipe import CannotListen, Listen, Listening, Pipe, PipeError, Turn, Up

MEMORY: Final = 2 << 30
"""Ours: bytes of data that a front process may allocate. A connection takes some 80 KB, ten
thousand 0.8 GB. libzmq keeps a message in parts until it is whole, however many there are."""

SILENT_S: Final = 10.0
"""Ours: a front process that has said nothing for so long is taken for hung. It says something every second."""

START_S: Final = 60.0
AGAIN_S: Final = 5.0
"""Ours: how long to start, the first time, and how long a next one may wait for the address."""

RECENT_S: Final = 60.0
RECENT_KEYS: Final = 5


class _Process:
    """One front process."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-P", "-m", "cluster_agent.fabric.front", str(number)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[number])
        self.pid = self._process.pid
        self.pipe: Pipe[Up] = Pipe(ours, Up)

    def end(self) -> str:
        """Kill it, if it has not ended yet; how it ended, in words."""
        self.pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it may still be at its end; its pipe is closed first
            self._process.wait(0.05)
        self._process.kill()
        status = self._process.wait()
        return signal.Signals(-status).name if status < 0 else f"status {status}"


class FrontSupervisor:
    """Has a front process listen at ``url``; when that ends, the next one. ``say`` logs a line.

    ``generation`` counts them: connections of an older one are gone.
    """

    def __init__(
        self, url: str, public: str, secret: str, options: list[tuple[int, int]], say: Callable[[str], None]
    ) -> None:
        """``ClusterError`` if nobody can listen at ``url``."""
        self._wanted, self._say = Listen(url, public, secret, options, 0.0, MEMORY), say
        self.generation = 0
        self.gap_s = 0.0
        """Seconds without one that listened, when the last one was replaced."""
        self._ended_s: collections.deque[float] = collections.deque(maxlen=1000)
        self._recent: collections.deque[str] = collections.deque(maxlen=RECENT_KEYS)
        self._before: collections.Counter[str] = collections.Counter()
        self._why = ""
        self._spare: _Process | None = None
        self._process = _Process()
        try:
            self.url = self._first_url()
        except BaseException:
            self._process.end()
            raise
        self._wanted = msgspec.structs.replace(self._wanted, url=self.url, patience_s=AGAIN_S)
        self._is_listening, self._heard_s = True, time.monotonic()
        self._spare = _Process()

    @property
    def pid(self) -> int:
        """Of the front process."""
        return self._process.pid

    @property
    def trouble(self) -> str:
        """Words for an alarm if front processes have ended lately; else empty."""
        ended = sum(time.monotonic() - one_s < RECENT_S for one_s in self._ended_s)
        if not ended:
            return ""
        keys = ", ".join(f"{name} ({count})" for name, count in self._before.most_common(RECENT_KEYS))
        times = "once" if ended == 1 else f"{ended} times"
        return f"the process that has the links ended {times} within {RECENT_S:g} s ({self._why})" + (
            f"; who connected last before, and how often: {keys}" if keys else ""
        )

    def interests(self) -> dict[int, bool]:
        """Descriptors to poll: True where something is to be written, else for reading."""
        return {self._process.pipe.fileno(): bool(self._process.pipe.waiting)}

    def receive(self) -> list[Turn]:
        """What has come. A front process that has ended, or is taken for hung, is replaced here."""
        turns: list[Turn] = []
        try:
            self._process.pipe.flush()
            for message in self._process.pipe.receive():
                self._heard_s = time.monotonic()
                if isinstance(message, Turn):
                    turns.append(message)
                elif isinstance(message, Listening):
                    self._listens()
                elif isinstance(message, CannotListen):
                    raise PipeError(f"it cannot listen: {message.why}")
            if time.monotonic() - self._heard_s > SILENT_S:
                raise PipeError(f"silent for {SILENT_S:g} s")
        except PipeError as error:
            self._replace(str(error))
            return []
        return turns

    def send(self, message: msgspec.Struct) -> bool:
        """Queue it for the front process; False if that is impossible, which is the same as lost on the way."""
        try:
            return self._process.pipe.send(message)
        except PipeError:  # ``receive`` finds it, too
            return False

    def flush(self) -> None:
        """Write what was queued, as far as the front process takes it."""
        with contextlib.suppress(PipeError):  # ``receive`` finds it, too
            self._process.pipe.flush()

    def connected(self, name: str) -> None:
        """A key of this name was let in: it is named if the front process ends soon."""
        if name not in self._recent:
            self._recent.append(name)

    def close(self) -> None:
        """End both."""
        for one in (self._process, self._spare):
            if one is not None:
                one.end()

    def _first_url(self) -> str:
        self._process.pipe.send(self._wanted)
        self._process.pipe.flush()
        until_s = time.monotonic() + START_S
        where = self._wanted.url
        while time.monotonic() < until_s:
            try:
                for message in self._process.pipe.receive():
                    if isinstance(message, Listening):
                        return message.url
                    if isinstance(message, CannotListen):
                        raise ClusterError(
                            f"{where}: cannot listen: {message.why}; `listen` must be tcp://ADDRESS:PORT, free on this"
                            " machine"
                        )
            except PipeError:
                break
            time.sleep(0.005)
        raise ClusterError(f"{where}: the process that was to listen there did not start; its own message is above")

    def _listens(self) -> None:
        if not self._is_listening:
            self._is_listening, self.gap_s = True, time.monotonic() - self._ended_s[-1]
            self._spare = self._spare or _Process()

    def _replace(self, why: str) -> None:
        """Let the spare take over, under the same address."""
        now_s = time.monotonic()
        ended = self._process.end()
        self._why = ended if why.startswith("closed") else f"{why}; {ended}"
        if not self._ended_s or now_s - self._ended_s[-1] > RECENT_S:
            self._say(f"the process that has the links ended ({self._why}): the next takes over, nodes connect again")
            self._before.clear()
        self._before.update(self._recent)
        self._recent.clear()
        self._ended_s.append(now_s)
        self._process, self._spare = self._spare or _Process(), None
        self.generation += 1
        self._is_listening, self._heard_s = False, now_s
        self.send(self._wanted)
        self.flush()

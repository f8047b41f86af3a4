"""People on this machine: requests and answers over a Unix socket, and the kernel's word on who asks (SO_PEERCRED).

Each connection carries one request and one answer, each four bytes of length and an envelope as on the links to nodes.
Nobody can keep the loop waiting: a connection that is not done within ``PATIENCE_S`` is closed. One whose answer is due
later (``Later``) has that time in addition; only notifiers and administrators can have such connections, they are no
part of a user's share, and who makes the answers bounds their number.

However much the answers cost, a turn of the loop has the same share for them (``serve_all``).

Nobody can keep others out either. One more connection than a user's share closes that user's oldest one. One more than
the room of all viewers closes the oldest one of whoever has most. Administrators and notifiers have room of their own.
"""

from __future__ import annotations

import contextlib
import math
import os
import pwd
import socket
import struct
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from cluster_agent.errors import ClusterError
from cluster_agent.fabric.people import (
    MAX_REQUEST,
    PATIENCE_S,
    PROTOCOL,
    AnswerEnvelope,
    Caller,
    Handlers,
    Later,
    answer,
)
from foundation.directories import make_shared_directory

SHARE: Final = 32
"""Ours: connections of one user at a time. Each may take up 256 KiB, and most are done after one turn of the loop."""

MANAGERS: Final = 1024
"""Ours: the same of a notifier. A job manager may start a thousand jobs at once, each with a hook of its own."""

VIEWERS: Final = 128
"""Ours: connections of all users together who are not administrators. One person may have thousands of subordinate user
ids (subuid(5))."""

ACCEPTED: Final = 64
"""Ours: connections accepted in one turn of the loop; others wait in the kernel's queue."""

RANKS: Final = {"admin": 0, "notifier": 1, "viewer": 2}
"""Whose requests are answered first."""

_LENGTH: Final = struct.Struct("!I")
_PEER: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid (unix(7))


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    caller: Caller
    until_s: float
    got: bytearray
    to_send: bytes = b""
    later: Later | None = None

    def put(self, envelope: AnswerEnvelope) -> None:
        """Have this answer sent."""
        encoded = msgspec.msgpack.encode(envelope)
        self.to_send = _LENGTH.pack(len(encoded)) + encoded


class AdminSocket:
    """Listens at ``path``; the loop polls ``interests`` and calls ``serve`` for a descriptor that is ready."""

    def __init__(
        self,
        path: Path,
        handlers: Handlers,
        admins: frozenset[str] = frozenset(),
        notifiers: frozenset[str] = frozenset(),
    ) -> None:
        """``admins``: users in addition to root and the one that this process runs as; ``notifiers``: users who may
        say what another job manager runs."""
        self.path, self._handlers, self._admins, self._notifiers = path, handlers, admins, notifiers
        self._connections: dict[int, _Connection] = {}
        self._answered: dict[int, int] = {}  # by uid of who is connected, the last answer's number
        self._n_answers = 0
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            make_shared_directory(path.parent)
            clear_stale(path, "another cluster agent is; stop it first (SIGTERM)")
            before = os.umask(0o111)  # everybody may look; who may change is decided by who asks
            try:
                self._listening.bind(str(path))
            finally:
                os.umask(before)
            self._listening.listen(VIEWERS)
        except OSError as error:
            self._listening.close()
            raise ClusterError(f"{path}: cannot listen there: {error.strerror or error}") from None

    def interests(self) -> dict[int, bool]:
        """Descriptors to poll: True where an answer is to be written, else for reading."""
        return {self._listening.fileno(): False} | {fd: bool(one.to_send) for fd, one in self._connections.items()}

    def serve(self, now_s: float, descriptor: int) -> None:
        """Go on with what is ready."""
        if descriptor == self._listening.fileno():
            self._accept(now_s)
            return
        connection = self._connections.get(descriptor)
        if connection is None:
            return
        try:
            is_done = self._write(connection) if connection.to_send else self._read(connection, now_s)
        except BlockingIOError:
            return
        except OSError:
            is_done = True
        if is_done:
            self._drop(descriptor)

    def serve_all(self, now_s: float, ready: Collection[int], until_s: float) -> None:
        """Go on with these, but with no further request once the time is over (``time.monotonic``): it is ready the
        next time, too. At least one is answered. Administrators come first, then notifiers; of users of one role
        whoever was answered the longest ago."""
        asking: dict[int, tuple[int, int, int]] = {}
        n_of: Counter[int] = Counter()
        for descriptor, one in self._connections.items():
            if descriptor in ready and not one.to_send:
                uid = one.caller.uid
                n_of[uid] += 1
                asking[descriptor] = RANKS[one.caller.role], n_of[uid], self._answered.get(uid, 0)
        self._answered = {one.caller.uid: self._answered.get(one.caller.uid, 0) for one in self._connections.values()}
        for descriptor in ready:
            if descriptor not in asking:
                self.serve(now_s, descriptor)
        for descriptor in sorted(asking, key=lambda one: asking[one]):
            if descriptor in self._connections:
                self._n_answers += 1
                self._answered[self._connections[descriptor].caller.uid] = self._n_answers
                self.serve(now_s, descriptor)
            if time.monotonic() >= until_s:
                break

    def tidy(self, now_s: float) -> None:
        """Give answers that were due later, and close connections whose time is over."""
        for descriptor, one in list(self._connections.items()):
            if one.later and (envelope := one.later.answer(now_s)):
                one.later = None
                one.put(envelope)
                self.serve(now_s, descriptor)
        for descriptor in [fd for fd, one in self._connections.items() if now_s >= one.until_s]:
            self._drop(descriptor)

    @property
    def due_s(self) -> float:
        """When the next answer must be given; infinite: nobody waits for one."""
        return min((one.later.until_s for one in self._connections.values() if one.later), default=math.inf)

    def close(self) -> None:
        """Stop listening."""
        for descriptor in list(self._connections):
            self._drop(descriptor)
        self._listening.close()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _accept(self, now_s: float) -> None:
        """Accept who waits, and close whose share this exceeds."""
        with contextlib.suppress(OSError):  # BlockingIOError: nobody waits any more
            for _ in range(ACCEPTED):
                peer, _ = self._listening.accept()
                peer.setblocking(False)
                _, uid, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
                caller = next((one.caller for one in self._connections.values() if one.caller.uid == uid), None)
                made = _Connection(peer, caller or self._caller(uid), now_s + PATIENCE_S, bytearray())
                self._connections[peer.fileno()] = made
                self._keep_shares(made.caller)

    def _keep_shares(self, caller: Caller) -> None:
        """Close the oldest connection of ``caller``, or of the viewer with the most, if that is one too many."""
        theirs = [fd for fd, one in self._connections.items() if one.caller.uid == caller.uid and not one.later]
        if len(theirs) > (MANAGERS if caller.role == "notifier" else SHARE):
            self._turn_away(theirs[0])
        elif caller.role == "viewer":
            viewers = {fd: one.caller.uid for fd, one in self._connections.items() if one.caller.role == "viewer"}
            if len(viewers) > VIEWERS:
                (greediest, _), *_ = Counter(viewers.values()).most_common(1)
                self._turn_away(next(fd for fd, uid in viewers.items() if uid == greediest))

    def _turn_away(self, descriptor: int) -> None:
        one = self._connections[descriptor]
        if not one.to_send:
            why = f"too many connections at once, {SHARE} of one user and {VIEWERS} of all viewers: try again"
            one.put(AnswerEnvelope(PROTOCOL, why, 1))
            with contextlib.suppress(OSError):
                one.socket.send(one.to_send)
        self._drop(descriptor)

    def _caller(self, uid: int) -> Caller:
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = str(uid)
        is_admin = uid in (0, os.geteuid()) or name in self._admins
        return Caller(uid, name, "admin" if is_admin else "notifier" if name in self._notifiers else "viewer")

    def _read(self, connection: _Connection, now_s: float) -> bool:
        """True when the connection is to be closed; who waits for an answer has nothing more to say."""
        if connection.later:
            connection.socket.recv(1)
            return True
        got = connection.got
        part = connection.socket.recv(MAX_REQUEST + _LENGTH.size - len(got))
        got += part
        if not part:
            return True
        if len(got) < _LENGTH.size:
            return False
        (size,) = _LENGTH.unpack_from(got)
        if size > MAX_REQUEST:
            return True
        if len(got) < _LENGTH.size + size:
            return False
        frame = bytes(got[_LENGTH.size : _LENGTH.size + size])
        found = answer(self._handlers, connection.caller, frame)
        if isinstance(found, Later):
            connection.later, connection.until_s = found, found.until_s + PATIENCE_S
            return False
        connection.put(found)
        return self._write(connection)

    def _write(self, connection: _Connection) -> bool:
        try:
            sent = connection.socket.send(connection.to_send)
        except BlockingIOError:
            return False
        connection.to_send = connection.to_send[sent:]
        return not connection.to_send

    def _drop(self, descriptor: int) -> None:
        self._connections.pop(descriptor).socket.close()


def clear_stale(path: Path, in_use: str) -> None:
    """Remove the socket that a killed process left; not one that somebody serves: ``OSError`` with these words."""
    if not path.exists():
        return
    if not path.is_socket():  # connecting to a file is refused as well, and it may be somebody's
        raise OSError(0, "something else has this name; move it away, or choose another `socket` in the settings")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(0, in_use)

"""People on this machine: requests and answers over a Unix socket, and the kernel's word on who asks (SO_PEERCRED).

Each connection carries one request and one answer, each four bytes of length and an envelope as on the links to nodes.
Nobody can keep the loop waiting: a connection that is not done within ``PATIENCE_S`` is closed.

Nobody can keep others out either. One more connection than a user's share closes that user's oldest one. One more than
the room of all viewers closes the oldest one of whoever has most. Administrators have room of their own.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from cluster_agent.errors import ClusterError
from cluster_agent.fabric.people import MAX_REQUEST, PATIENCE_S, PROTOCOL, AnswerEnvelope, Caller, Handlers, answer

SHARE: Final = 32
"""Ours: connections of one user at a time. Each may take up 256 KiB, and most are done after one turn of the loop."""

VIEWERS: Final = 128
"""Ours: connections of all users together who are not administrators. One person may have thousands of subordinate user
ids (subuid(5))."""

ACCEPTED: Final = 64
"""Ours: connections accepted in one turn of the loop; others wait in the kernel's queue."""

_LENGTH: Final = struct.Struct("!I")
_PEER: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid (unix(7))


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    caller: Caller
    until_s: float
    got: bytearray
    to_send: bytes = b""


class AdminSocket:
    """Listens at ``path``; the loop polls ``interests`` and calls ``serve`` for a descriptor that is ready."""

    def __init__(self, path: Path, handlers: Handlers, admins: frozenset[str] = frozenset()) -> None:
        """``admins``: users in addition to root and the one that this process runs as."""
        self.path, self._handlers, self._admins = path, handlers, admins
        self._connections: dict[int, _Connection] = {}
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            _clear(path)
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
            is_done = self._write(connection) if connection.to_send else self._read(connection)
        except BlockingIOError:
            return
        except OSError:
            is_done = True
        if is_done:
            self._drop(descriptor)

    def tidy(self, now_s: float) -> None:
        """Close connections whose time is over."""
        for descriptor in [fd for fd, one in self._connections.items() if now_s >= one.until_s]:
            self._drop(descriptor)

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
        theirs = [fd for fd, one in self._connections.items() if one.caller.uid == caller.uid]
        if len(theirs) > SHARE:
            self._turn_away(theirs[0])
        elif caller.role != "admin":
            viewers = {fd: one.caller.uid for fd, one in self._connections.items() if one.caller.role != "admin"}
            if len(viewers) > VIEWERS:
                (greediest, _), *_ = Counter(viewers.values()).most_common(1)
                self._turn_away(next(fd for fd, uid in viewers.items() if uid == greediest))

    def _turn_away(self, descriptor: int) -> None:
        one = self._connections[descriptor]
        if not one.to_send:
            why = f"too many connections at once, {SHARE} of one user and {VIEWERS} of all viewers: try again"
            encoded = msgspec.msgpack.encode(AnswerEnvelope(PROTOCOL, why, 1))
            with contextlib.suppress(OSError):
                one.socket.send(_LENGTH.pack(len(encoded)) + encoded)
        self._drop(descriptor)

    def _caller(self, uid: int) -> Caller:
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = str(uid)
        is_admin = uid in (0, os.geteuid()) or name in self._admins
        return Caller(uid, name, "admin" if is_admin else "viewer")

    def _read(self, connection: _Connection) -> bool:
        """True when the connection is to be closed."""
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
        encoded = msgspec.msgpack.encode(answer(self._handlers, connection.caller, frame))
        connection.to_send = _LENGTH.pack(len(encoded)) + encoded
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


def _clear(path: Path) -> None:
    """Remove the socket that a killed agent left; not one that somebody serves."""
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
    raise OSError(0, "another cluster agent is; stop it first (SIGTERM)")

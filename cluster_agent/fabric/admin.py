"""People on this machine: requests and answers over a Unix socket, and the kernel's word on who asks (SO_PEERCRED).

Each connection carries one request and one answer, each four bytes of length and an envelope as on the links to nodes.
Nobody can keep the loop waiting: a connection that is not done within ``PATIENCE_S`` is closed.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from cluster_agent.errors import ClusterError
from nodectl.errors import NodectlError, nearest

PROTOCOL: Final = 1
MAX_REQUEST: Final = 1 << 18
"""Ours: what a job's start may have on its way to a node."""

MAX_CONNECTIONS: Final = 32
PATIENCE_S: Final = 5.0
_LENGTH: Final = struct.Struct("!I")
_PEER: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid (unix(7))


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. ``role``: admin or viewer."""

    uid: int
    name: str
    role: str


class Request(msgspec.Struct, frozen=True, array_like=True):
    """What is asked."""

    version: int
    kind: str
    body: msgspec.Raw


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """``error`` is empty, or one line with its exit status."""

    version: int
    error: str
    status: int
    body: Any = None


@dataclass(frozen=True, slots=True)
class Command:
    """Who may ask it, the type of what is asked, and what answers."""

    role: str
    body: type[Any]
    answer: Callable[[Caller, Any], Any]


@dataclass(slots=True)
class _Connection:
    door: socket.socket
    caller: Caller
    until_s: float
    got: bytearray
    to_send: bytes = b""


class AdminSocket:
    """Listens at ``path``; the loop polls ``interests`` and calls ``serve`` for a descriptor that is ready."""

    def __init__(self, path: Path, commands: Mapping[str, Command], admins: frozenset[str] = frozenset()) -> None:
        """``admins``: users beside root and the one that this process runs as."""
        self.path, self._commands, self._admins = path, commands, admins
        self._connections: dict[int, _Connection] = {}
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            _clear(path)
            self._listening.bind(str(path))
            os.chmod(path, 0o666)  # everybody may look; who may change is decided by who asks
            self._listening.listen(MAX_CONNECTIONS)
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
        try:
            door, _ = self._listening.accept()
        except OSError:
            return
        door.setblocking(False)
        if len(self._connections) >= MAX_CONNECTIONS:
            door.close()
            return
        _, uid, _ = _PEER.unpack(door.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        self._connections[door.fileno()] = _Connection(door, self._caller(uid), now_s + PATIENCE_S, bytearray())

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
        part = connection.door.recv(MAX_REQUEST + _LENGTH.size - len(got))
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
        answer = msgspec.msgpack.encode(self._answer(connection.caller, bytes(got[_LENGTH.size : _LENGTH.size + size])))
        connection.to_send = _LENGTH.pack(len(answer)) + answer
        return self._write(connection)

    def _write(self, connection: _Connection) -> bool:
        try:
            sent = connection.door.send(connection.to_send)
        except BlockingIOError:
            return False
        connection.to_send = connection.to_send[sent:]
        return not connection.to_send

    def _answer(self, caller: Caller, frame: bytes) -> Answer:
        try:
            request = msgspec.msgpack.decode(frame, type=Request)
            if request.version != PROTOCOL:
                return Answer(PROTOCOL, f"clusterctl speaks version {request.version}, the agent {PROTOCOL}", 1)
            command = self._commands.get(request.kind)
            if command is None:
                return Answer(
                    PROTOCOL, f"no command {request.kind[:40]!r} here{nearest(request.kind, self._commands)}", 1
                )
            if command.role == "admin" and caller.role != "admin":
                return Answer(
                    PROTOCOL, f"{caller.name} may look, but not change anything (`admins` in the settings)", 1
                )
            body = msgspec.msgpack.decode(request.body, type=command.body)
            return Answer(PROTOCOL, "", 0, command.answer(caller, body))
        except NodectlError as error:
            return Answer(PROTOCOL, str(error), error.exit_status)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return Answer(PROTOCOL, f"not understood: {error}", 2)

    def _drop(self, descriptor: int) -> None:
        self._connections.pop(descriptor).door.close()


def ask(path: Path, kind: str, body: Any, answer: type[Any]) -> Any:
    """Ask the cluster agent at ``path``; its error is raised here as if it were ours."""
    request = msgspec.msgpack.encode(Request(PROTOCOL, kind, msgspec.Raw(msgspec.msgpack.encode(body))))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.settimeout(PATIENCE_S)
        try:
            door.connect(str(path))
            door.sendall(_LENGTH.pack(len(request)) + request)
            (size,) = _LENGTH.unpack(_exactly(door, _LENGTH.size))
            got = msgspec.msgpack.decode(_exactly(door, size), type=Answer)
        except OSError as error:
            why = error.strerror or "no answer"
            raise ClusterError(f"{path}: no cluster agent: {why}; is `clusterctl serve` running? (--socket)") from None
        except (struct.error, msgspec.MsgspecError):
            raise ClusterError(f"{path}: what answers is no cluster agent of this version") from None
    if got.error:
        raise RefusedError(got.error, got.status)
    return msgspec.convert(got.body, answer)


class RefusedError(ClusterError):
    """What the agent answered."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.exit_status = status


def _exactly(door: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = door.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise OSError(0, "it closed the connection")
        parts += part
    return bytes(parts)


def _clear(path: Path) -> None:
    """Remove the socket that a killed agent left; not one that somebody serves."""
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        try:
            door.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(0, "another cluster agent is")

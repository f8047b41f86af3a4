"""The control socket of a served twin: one JSON line is the request, one the response.

A Unix socket at /run/nodectl-twin/control, for root only. From outside the namespace it is reached through
/proc/PID/root of the run's server, so it needs no file on the host.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from foundation.shell.errors import nearest
from twin.errors import TwinError
from twin.serve.namespace import CONTROL

type_command = Callable[[Mapping[str, Any]], Any]


class Conversation(Protocol):
    """What one connection has of its own: further commands, and its end."""

    commands: Mapping[str, type_command]

    def close(self) -> None:
        """Called once, when the connection has ended."""


class Joined:
    """Several conversations as one."""

    def __init__(self, *parts: Conversation) -> None:
        self._parts = parts
        self.commands: Mapping[str, type_command] = {
            name: command for part in parts for name, command in part.commands.items()
        }

    def close(self) -> None:
        """The connection has ended."""
        for part in self._parts:
            part.close()


_LONGEST_LINE = 1 << 20


class Request(msgspec.Struct):
    """``do`` names a command; the other fields are its arguments."""

    do: str
    with_: dict[str, Any] = msgspec.field(name="with", default_factory=dict)


class Answer(msgspec.Struct):
    """Either a result or one line with the error."""

    result: Any = None
    error: str = ""


class ControlSocket:
    """Answers requests, each connection in a thread of its own, until the process ends."""

    def __init__(
        self, commands: Mapping[str, type_command], each: Callable[[], Conversation], path: str = CONTROL
    ) -> None:
        self._commands, self._each = commands, each
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(path)
        os.chmod(path, 0o600)
        self._socket.listen()
        threading.Thread(target=self._accept, name="control", daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        own = self._each()
        commands = {**self._commands, **own.commands}
        with contextlib.closing(own), connection, connection.makefile("rb") as lines:
            try:
                while line := lines.readline(_LONGEST_LINE):
                    connection.sendall(msgspec.json.encode(_answer(commands, line)) + b"\n")
            except OSError:
                return  # the client did not wait for the response


def _answer(commands: Mapping[str, type_command], line: bytes) -> Answer:
    try:
        request = msgspec.json.decode(line, type=Request)
        command = commands.get(request.do)
        if command is None:
            raise TwinError(f'unknown command "{request.do}"{nearest(request.do, commands)}')
        return Answer(command(request.with_))
    except (TwinError, msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        return Answer(error=str(error))


def send_request(path: str, do: str, **arguments: Any) -> Any:
    """Send one request to the control socket at ``path``; TwinError with its reason if it is refused."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(path)
        except OSError as error:
            raise TwinError(f"no twin answers at {path}: {error.strerror}") from None
        connection.sendall(msgspec.json.encode(Request(do, arguments)) + b"\n")
        with connection.makefile("rb") as lines:
            answer = msgspec.json.decode(lines.readline() or b'{"error": "the twin has ended"}', type=Answer)
    if answer.error:
        raise TwinError(answer.error)
    return answer.result

"""What people may ask of the cluster agent: who asks, what, and the answer, whichever way it comes.

Two ways lead here: the Unix socket on the agent's machine (``admin``), where the kernel names the user who asks, and a
link from elsewhere (``router``) under a key of role admin or viewer, who is no user of this machine: such a key looks,
and if it is an admin's changes what administrators may, but owns no jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from nodectl.shell.errors import NodectlError, nearest

PROTOCOL: Final = 1
MAX_REQUEST: Final = 1 << 18
"""Ours: what a job's start may have on its way to a node. Over a link: ``LINK_REQUEST``."""

LINK_REQUEST: Final = 1 << 15
PATIENCE_S: Final = 5.0
NOBODY: Final = -1
"""The uid of a caller who comes with a key."""

ASK: Final = "ask"
ANSWER: Final = "answer"
"""The kinds of message on a link."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. ``role``: admin or viewer; ``uid`` is ``NOBODY`` where it is a key that asks."""

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


def answer(commands: Mapping[str, Command], caller: Caller, frame: bytes) -> Answer:
    """What ``frame``, an encoded ``Request``, gets; whatever is wrong with it is an answer, too."""
    try:
        request = msgspec.msgpack.decode(frame, type=Request)
        if request.version != PROTOCOL:
            return Answer(PROTOCOL, f"clusterctl speaks version {request.version}, the agent {PROTOCOL}", 1)
        command = commands.get(request.kind)
        if command is None:
            return Answer(PROTOCOL, f"no command {request.kind[:40]!r} here{nearest(request.kind, commands)}", 1)
        if command.role == "admin" and caller.role != "admin":
            return Answer(PROTOCOL, f"{caller.name} may look, but not change anything (`admins` in the settings)", 1)
        body = msgspec.msgpack.decode(request.body, type=command.body)
        return Answer(PROTOCOL, "", 0, command.answer(caller, body))
    except NodectlError as error:
        return Answer(PROTOCOL, str(error), error.exit_status)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return Answer(PROTOCOL, f"not understood: {error}", 2)

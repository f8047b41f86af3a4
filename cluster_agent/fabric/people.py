"""How people and the cluster agent talk: a typed request, its typed answer, and who is asking.

Two ways lead here: the Unix socket on the agent's machine (``admin``), where the kernel names the user, and a link from
another machine (``router``) with a key of role admin, notifier or viewer. A key is no user of this machine: a viewer's
may look, an admin's may change what administrators may, and a notifier's may say what another job manager runs, and
nothing else. None owns jobs.

On the wire a request is MessagePack ``[version, kind, body]`` and an answer ``[version, error, status, body]``. Each
kind is one class, a ``Request`` that names the type of its answer; ``serve.people_protocol`` has them all. Both ends
check types, bounds and unknown names while decoding, so no handler checks them again.
"""

from __future__ import annotations

import re
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from cluster_agent.errors import without_types
from foundation.shell.errors import NodectlError, nearest

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

Finite: TypeAlias = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""Any number but NaN and the infinities: those fail while decoding."""

Role: TypeAlias = Literal["admin", "notifier", "viewer"]

Needed: TypeAlias = Role | Literal["any"]

MAY: Final[Mapping[str, frozenset[Needed]]] = {
    "admin": frozenset({"admin", "notifier", "viewer", "any"}),
    "notifier": frozenset({"notifier", "any"}),
    "viewer": frozenset({"viewer", "any"}),
}
"""The requests that each role may send, by the ``role`` of these; ``any``: all three. On the agent's machine everybody
may look."""

R = TypeVar("R", covariant=True)


class Request(msgspec.Struct, Generic[R], frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What people may request; the answer is an ``R``. ``kind`` is its name on the wire, ``role`` who may send it.

    A field that has its default is not sent. So a cluster agent that does not know the field yet refuses a request only
    where it could not do what is wanted. A default is part of the protocol: if it changed, an agent and a command of
    different versions would mean different things."""

    kind: ClassVar[str]
    role: ClassVar[Needed] = "viewer"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. ``uid`` is ``NOBODY`` for a key."""

    uid: int
    name: str
    role: str

    def refusal(self, needed: Needed) -> str:
        """Why the caller may not send a request that needs this role; empty if it may."""
        if needed in MAY.get(self.role, ()) or (needed == "viewer" and self.uid != NOBODY):
            return ""
        if self.role == "notifier":
            return f"{self.name} may say what another job manager runs, but not do anything else"
        return f"{self.name} may look, but not change anything (`admins` in the settings)"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Later:
    """An answer that is not known yet. The caller waits; ``look`` is called with the time again and again, and gives
    the answer or None. At ``until_s`` (the server's clock) it must give one."""

    look: Callable[[float], Any]
    until_s: float

    def answer(self, now_s: float) -> AnswerEnvelope | None:
        """The answer, if it is known by now."""
        try:
            body = self.look(now_s)
        except NodectlError as error:
            return AnswerEnvelope(PROTOCOL, str(error), error.exit_status)
        return None if body is None else AnswerEnvelope(PROTOCOL, "", 0, body)


Handlers: TypeAlias = Mapping[type[Request[Any]], Callable[[Caller, Any], Any]]
"""What answers each kind of request: a function of the caller and the request."""


class RequestEnvelope(msgspec.Struct, frozen=True, array_like=True):
    """A request on the wire."""

    version: int
    kind: str
    body: msgspec.Raw


class AnswerEnvelope(msgspec.Struct, frozen=True, array_like=True):
    """An answer on the wire. ``error`` is empty, or one line; ``status`` is the exit status that goes with it."""

    version: int
    error: str
    status: int
    body: Any = None


class ReceivedAnswer(msgspec.Struct, frozen=True, array_like=True):
    """An ``AnswerEnvelope`` whose body is still to be decoded: at once as the type that was requested."""

    version: int
    error: str
    status: int
    body: msgspec.Raw = msgspec.Raw(b"\xc0")  # nil


def pack_request(request: Request[Any]) -> RequestEnvelope:
    """Ready to send; ``ValueError`` in one line if the other end would not take it."""
    try:
        msgspec.convert(msgspec.to_builtins(request), type(request))
    except msgspec.ValidationError as error:
        raise ValueError(_in_words(error, type(request))) from None
    return RequestEnvelope(PROTOCOL, request.kind, msgspec.Raw(msgspec.msgpack.encode(request)))


def unpack_answer(request: Request[R], envelope: ReceivedAnswer) -> R:
    """What was requested; ``msgspec.ValidationError`` if it is something else."""
    answer: R = msgspec.msgpack.decode(envelope.body, type=answer_type(type(request)))
    return answer


def answer_type(request: type[Request[Any]]) -> Any:
    """The ``R`` of a request's class."""
    bases = request.__dict__["__orig_bases__"]
    return next(typing.get_args(base)[0] for base in bases if typing.get_origin(base) is Request)


def answer(handlers: Handlers, caller: Caller, frame: bytes) -> AnswerEnvelope | Later:
    """The answer to ``frame``, an encoded ``RequestEnvelope``. Whatever is wrong with it is an answer, too."""
    try:
        envelope = msgspec.msgpack.decode(frame, type=RequestEnvelope)
        if envelope.version != PROTOCOL:
            return AnswerEnvelope(PROTOCOL, f"clusterctl speaks version {envelope.version}, the agent {PROTOCOL}", 1)
        kinds = {request.kind: request for request in handlers}
        kind = kinds.get(envelope.kind)
        if kind is None:
            return AnswerEnvelope(PROTOCOL, f"no request {envelope.kind[:40]!r} here{nearest(envelope.kind, kinds)}", 1)
        if why := caller.refusal(kind.role):
            return AnswerEnvelope(PROTOCOL, why, 1)
        try:
            request = msgspec.msgpack.decode(envelope.body, type=kind)
        except msgspec.ValidationError as error:
            return AnswerEnvelope(PROTOCOL, f"{kind.kind}: {_in_words(error, kind)}", 2)
        body = handlers[kind](caller, request)
        return body if isinstance(body, Later) else AnswerEnvelope(PROTOCOL, "", 0, body)
    except NodectlError as error:
        return AnswerEnvelope(PROTOCOL, str(error), error.exit_status)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return AnswerEnvelope(PROTOCOL, f"not understood: {error}", 2)


def _in_words(error: msgspec.ValidationError, kind: type[Request[Any]]) -> str:
    """One line: the place, and what is wrong there. No names of Python's types."""
    reason, _, place = str(error).partition(" - at `$")
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", reason, re.DOTALL):
        return f"unknown key {unknown[1][:40]!r}{nearest(unknown[1], kind.__struct_fields__)}"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", reason):
        return f"{missing[1]} is missing"
    plain = without_types(reason).replace("`", "")
    where = place.rstrip("`").lstrip(".")
    return (f"{where}: " if where else "") + plain[:1].lower() + plain[1:]

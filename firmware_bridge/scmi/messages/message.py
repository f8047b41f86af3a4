"""Message classes: frozen values, each declared with its message number and layout.

One of four decorators declares which message a class is; ``since`` and ``until`` limit it to the protocol versions with
this layout. ``protocol=None`` is for the messages that all protocols have; their first field is the protocol. Vendor
protocols (0x80 to 0xFF) declare their messages in the same way, see ``vendor``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

import msgspec

from firmware_bridge.errors import MessageError
from firmware_bridge.scmi.messages.header import HEADER_BYTES, Kind, address
from firmware_bridge.scmi.messages.value_layout import Fixed

NEWEST = 0xFFFFFFFF


class Body(msgspec.Struct, frozen=True):
    """The values of one message, without header, token and status."""

    def pack_payload(self) -> bytes:
        """The payload of a message of variable length; the others are packed by their ``Fixed`` layout."""
        raise NotImplementedError

    @classmethod
    def unpack_payload(cls, payload: bytes) -> Self:
        """The inverse of ``pack_payload``; ``MessageError`` for any other bytes."""
        raise NotImplementedError


R = TypeVar("R", bound=Body, covariant=True)


class Command(Body, Generic[R], frozen=True):
    """A command; ``R`` is the class of its response."""


class Message(msgspec.Struct, frozen=True):
    """A body with the token that pairs a response with its command."""

    token: int
    body: Body


class Failed(Body, frozen=True):
    """A response or delayed response with an error status. Values after the status are dropped."""

    protocol: int
    message: int
    status: int
    is_delayed: bool = False


class Wire(msgspec.Struct, frozen=True):
    """Number, protocol, versions and layout of a message class."""

    body: type[Body]
    name: str
    kind: Kind
    protocol: int | None
    message: int
    since: int
    until: int
    address: int
    layout: Fixed | None
    """``None`` for a payload of variable length."""
    has_status: bool
    """Responses begin with a status word; commands and notifications do not."""
    payload_offset: int
    """Offset of the payload in the message."""

    def is_in(self, version: int) -> bool:
        """Whether a protocol version has the message in this layout."""
        return self.since <= version <= self.until


WIRES: dict[type[Body], Wire] = {}
"""Every declared message class."""

B = TypeVar("B", bound=type[Body])


def command(protocol: int | None, message: int, name: str, since: int = 0, until: int = NEWEST) -> Callable[[B], B]:
    """Declare a command."""
    return _declare(Kind.COMMAND, protocol, message, name, since, until)


def response(protocol: int | None, message: int, name: str, since: int = 0, until: int = NEWEST) -> Callable[[B], B]:
    """Declare the values that follow SUCCESS in a response."""
    return _declare(Kind.RESPONSE, protocol, message, name, since, until)


def delayed(protocol: int, message: int, name: str, since: int = 0, until: int = NEWEST) -> Callable[[B], B]:
    """Declare the values that follow SUCCESS in a delayed response."""
    return _declare(Kind.DELAYED, protocol, message, name, since, until)


def notification(protocol: int, message: int, name: str, since: int = 0, until: int = NEWEST) -> Callable[[B], B]:
    """Declare a notification."""
    return _declare(Kind.NOTIFICATION, protocol, message, name, since, until)


def _declare(kind: Kind, protocol: int | None, message: int, name: str, since: int, until: int) -> Callable[[B], B]:
    def declare(body: B) -> B:
        is_fixed = body.pack_payload is Body.pack_payload
        has_status = kind in (Kind.RESPONSE, Kind.DELAYED)
        prefix = "Ii" if has_status else "I"
        layout = Fixed(body, prefix, skip=("protocol",) if protocol is None else ()) if is_fixed else None
        place = address(kind, protocol or 0, message)
        offset = HEADER_BYTES + 4 * has_status
        WIRES[body] = Wire(body, name, kind, protocol, message, since, until, place, layout, has_status, offset)
        return body

    return declare


def wire_of(body: Body) -> Wire:
    """The declaration of a message class; ``MessageError`` for an undeclared class."""
    try:
        return WIRES[type(body)]
    except KeyError:
        raise MessageError(f"{type(body).__name__} is not a declared SCMI message") from None


def values_of(body: Body) -> tuple[Any, ...]:
    """The field values in order."""
    return msgspec.structs.astuple(body)

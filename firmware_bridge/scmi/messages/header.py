"""The first word of every SCMI message (DEN0056 4.1.2).

bits 7:0 message id, 9:8 message type, 17:10 protocol id, 27:18 token, 31:28 zero. A response repeats its command's
header bit for bit, so only the sender distinguishes command and response.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final, NamedTuple

from firmware_bridge.errors import MessageError

TOKENS = 1024
TYPE_SHIFT = 8
PROTOCOL_SHIFT = 10
TOKEN_SHIFT = 18
ADDRESS_MASK = (1 << TOKEN_SHIFT) - 1
"""Message id, type and protocol: the identity of a message, without its token."""

HEADER_BYTES = 4


class Sender(Enum):
    """The sender of a message."""

    AGENT = "agent"
    PLATFORM = "platform"


class Kind(Enum):
    """The four kinds of message."""

    COMMAND = "command"
    RESPONSE = "response"
    DELAYED = "delayed response"
    NOTIFICATION = "notification"


class MessageType(IntEnum):
    """Bits 9:8."""

    SYNCHRONOUS = 0
    DELAYED = 2
    NOTIFICATION = 3


UNUSED_TYPE = 1

TYPES = {
    Kind.COMMAND: MessageType.SYNCHRONOUS,
    Kind.RESPONSE: MessageType.SYNCHRONOUS,
    Kind.DELAYED: MessageType.DELAYED,
    Kind.NOTIFICATION: MessageType.NOTIFICATION,
}


class Protocol(IntEnum):
    """The supported protocols of the standard."""

    BASE = 0x10
    PERFORMANCE = 0x13
    SENSOR = 0x15
    POWERCAP = 0x18


UNSUPPORTED: Final = {0x11: "power domain", 0x12: "system power", 0x14: "clock", 0x16: "reset", 0x17: "voltage"}
"""Other protocols of the standard, which are only named."""


def protocol_name(protocol: int) -> str:
    """A protocol in words."""
    if protocol in list(Protocol):
        return Protocol(protocol).name.lower()
    return UNSUPPORTED.get(protocol, "vendor" if protocol >= 0x80 else "unknown")


class Header(NamedTuple):
    """The fields of a header word."""

    message: int
    type: int
    protocol: int
    token: int


def address(kind: Kind, protocol: int, message: int) -> int:
    """The header word with token 0."""
    return message | TYPES[kind] << TYPE_SHIFT | protocol << PROTOCOL_SHIFT


def unpack_header(data: bytes) -> Header:
    """The fields of a message's first word; ``MessageError`` when the word is missing or its top bits are set."""
    if len(data) < HEADER_BYTES:
        raise MessageError(f"{len(data)} bytes are too few for the 4-byte SCMI header")
    word = int.from_bytes(data[:HEADER_BYTES], "little")
    if word >> 28:
        raise MessageError(f"header {word:#010x}: bits 31:28 are not zero")
    return Header(word & 0xFF, word >> TYPE_SHIFT & 3, word >> PROTOCOL_SHIFT & 0xFF, word >> TOKEN_SHIFT)

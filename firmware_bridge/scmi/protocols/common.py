"""Messages that all protocols have (DEN0056 4.1), and the description of a FastChannel (chapter 5)."""

from __future__ import annotations

from firmware_bridge.scmi.messages.message import Body, Command, command, response
from firmware_bridge.scmi.messages.value_layout import U32, U64, Bits

VERSION, ATTRIBUTES, MESSAGE_ATTRIBUTES, NEGOTIATE = 0x0, 0x1, 0x2, 0x10


@response(None, VERSION, "PROTOCOL_VERSION")
class ProtocolVersionResponse(Body, frozen=True):
    """Major version in the upper half, minor in the lower."""

    protocol: int
    version: U32


@command(None, VERSION, "PROTOCOL_VERSION")
class ProtocolVersion(Command[ProtocolVersionResponse], frozen=True):
    """Request the newest version that the platform speaks."""

    protocol: int


@response(None, MESSAGE_ATTRIBUTES, "PROTOCOL_MESSAGE_ATTRIBUTES")
class MessageAttributesResponse(Body, frozen=True):
    """Bit 0: the message has a FastChannel."""

    protocol: int
    attributes: U32


@command(None, MESSAGE_ATTRIBUTES, "PROTOCOL_MESSAGE_ATTRIBUTES")
class MessageAttributes(Command[MessageAttributesResponse], frozen=True):
    """Request the attributes of a message (NOT_FOUND if there is none)."""

    protocol: int
    message: U32


@response(None, NEGOTIATE, "NEGOTIATE_PROTOCOL_VERSION")
class NegotiateVersionResponse(Body, frozen=True):
    """The platform serves the requested version from now on."""

    protocol: int


@command(None, NEGOTIATE, "NEGOTIATE_PROTOCOL_VERSION")
class NegotiateVersion(Command[NegotiateVersionResponse], frozen=True):
    """Request an older version (SCMI v3.2 and later)."""

    protocol: int
    version: U32


FASTCHANNEL_BITS = (
    Bits("doorbell", 0),
    Bits("doorbell width", 1, 2, ("8 bit", "16 bit", "32 bit", "64 bit")),
)


class FastChannelDescription(Body, frozen=True):
    """Address of a FastChannel; its doorbell is rung by new = (old AND preserve) OR set."""

    attributes: U32
    rate_limit_us: U32
    address: U64
    size: U32
    doorbell_address: U64
    doorbell_set: U64
    doorbell_preserve: U64

    @property
    def has_doorbell(self) -> bool:
        """Whether a write must ring a doorbell."""
        return bool(self.attributes & 1)

    @property
    def doorbell_bytes(self) -> int:
        """Width of the doorbell: 1, 2, 4 or 8."""
        return 1 << (self.attributes >> 1 & 3)

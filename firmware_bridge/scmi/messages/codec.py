"""Messages to bytes and back.

Layouts depend on the version of each protocol that agent and platform agreed on; a ``Dialect`` is one set of versions.
``decode(encode(body, token), sender, dialect) == Message(token, body)`` for every message of the dialect, and
``decode`` raises ``MessageError`` and nothing else, whatever the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from firmware_bridge.errors import MessageError, UnknownMessageError
from firmware_bridge.scmi.messages.header import (
    ADDRESS_MASK,
    HEADER_BYTES,
    PROTOCOL_SHIFT,
    TOKEN_SHIFT,
    TOKENS,
    TYPE_SHIFT,
    UNUSED_TYPE,
    Kind,
    MessageType,
    Protocol,
    Sender,
    address,
    unpack_header,
)
from firmware_bridge.scmi.messages.message import WIRES, Body, Failed, Message, Wire, values_of, wire_of
from firmware_bridge.scmi.protocols import (  # noqa: F401  (importing declares the messages)
    base,
    common,
    performance,
    power_capping,
    sensor,
    telemetry,
    vendor,
)

SPOKEN: Final[dict[int, tuple[int, ...]]] = {
    Protocol.BASE: (0x20000, 0x20001),
    Protocol.PERFORMANCE: (0x30000, 0x40000),
    Protocol.SENSOR: (0x30000, 0x30001),
    Protocol.POWERCAP: (0x10000, 0x20000),
}
"""The supported versions, oldest first; the newest are those of Linux 6.12."""

_SYNCHRONOUS, _NOTIFICATION = int(MessageType.SYNCHRONOUS), int(MessageType.NOTIFICATION)
_FROM_PLATFORM = 1 << TOKEN_SHIFT
_PROTOCOL_MASK = 0xFF << PROTOCOL_SHIFT


class Dialect:
    """The messages of one version of each protocol."""

    def __init__(self, versions: Mapping[int, int]) -> None:
        self.versions = dict(versions)
        self._wires: dict[int, Wire] = {}
        self._common: dict[int, Wire] = {}
        for wire in WIRES.values():
            key = wire.address | (0 if wire.kind is Kind.COMMAND else _FROM_PLATFORM)
            if wire.protocol is None:
                self._common[key] = wire
            elif wire.protocol in versions and wire.is_in(versions[wire.protocol]):
                if key in self._wires:
                    raise ValueError(f"{wire.body.__name__} and {self._wires[key].body.__name__} have the same place")
                self._wires[key] = wire

    def with_version(self, protocol: int, version: int) -> Dialect:
        """The same dialect with another version of one protocol."""
        return Dialect({**self.versions, protocol: version})

    def wire_at(self, word: int, sender: Sender) -> Wire | None:
        """The message that a header word names; the token is ignored."""
        key = word & ADDRESS_MASK | (0 if sender is Sender.AGENT else _FROM_PLATFORM)
        return self._wires.get(key) or self._common.get(key & ~_PROTOCOL_MASK)


LATEST: Final = Dialect({protocol: versions[-1] for protocol, versions in SPOKEN.items()} | vendor.VERSIONS)
"""The newest version of each protocol: what a client assumes before negotiation."""


def encode(body: Body, token: int = 0) -> bytes:
    """Header and payload; ``MessageError`` names a value that does not fit."""
    if not 0 <= token < TOKENS:
        raise MessageError(f"token {token} is not in 0..{TOKENS - 1}")
    if isinstance(body, Failed):
        return _encode_failed(body, token)
    wire = wire_of(body)
    word = wire.address | token << TOKEN_SHIFT
    values = values_of(body)
    if wire.protocol is None:
        if not 0 <= values[0] <= 0xFF:
            raise MessageError(f"protocol {values[0]} is not in 0..255")
        word |= values[0] << PROTOCOL_SHIFT
        values = values[1:]
    if wire.layout is None:
        head = word.to_bytes(HEADER_BYTES, "little")
        return (head + bytes(4) if wire.has_status else head) + body.pack_payload()
    return wire.layout.pack(word, 0, *values) if wire.has_status else wire.layout.pack(word, *values)


def _encode_failed(body: Failed, token: int) -> bytes:
    if not (0 <= body.protocol <= 0xFF and 0 <= body.message <= 0xFF and -(2**31) <= body.status < 0):
        raise MessageError(f"{body} does not fit an error response")
    place = address(Kind.DELAYED if body.is_delayed else Kind.RESPONSE, body.protocol, body.message)
    word = place | token << TOKEN_SHIFT
    return word.to_bytes(4, "little") + body.status.to_bytes(4, "little", signed=True)


def decode(data: bytes, sender: Sender, dialect: Dialect = LATEST) -> Message:
    """The message in ``data`` (header and payload), sent by ``sender``.

    Raises ``UnknownMessageError`` for a message that the dialect lacks, ``MessageError`` for anything that is not
    exactly one message. A response or delayed response with an error status becomes ``Failed``, whatever its protocol.
    """
    if len(data) < HEADER_BYTES or data[3] >> 4:
        unpack_header(data)  # raises the reason
    word = int.from_bytes(data[:HEADER_BYTES], "little")
    kind = word >> TYPE_SHIFT & 3
    if kind == UNUSED_TYPE:
        raise UnknownMessageError(f"header {word:#010x}: message type {UNUSED_TYPE} is not used by SCMI")
    wire = dialect.wire_at(word, sender)
    if sender is Sender.AGENT:
        if kind != _SYNCHRONOUS:
            raise MessageError(f"header {word:#010x}: an agent sends no message of type {kind}")
    elif kind != _NOTIFICATION:
        failed = _failed(data, word, wire)
        if failed is not None:
            return Message(word >> TOKEN_SHIFT, failed)
    if wire is None:
        raise UnknownMessageError(_unknown(word, dialect))
    return Message(word >> TOKEN_SHIFT, _unpacked(data, wire, word >> PROTOCOL_SHIFT & 0xFF))


def _unpacked(data: bytes, wire: Wire, protocol: int) -> Body:
    layout = wire.layout
    if layout is None:
        return wire.body.unpack_payload(data[wire.payload_offset :])
    if len(data) != layout.size:
        expected = layout.size - wire.payload_offset
        raise MessageError(
            f"{wire.name} {wire.kind.value}: payload of {len(data) - wire.payload_offset} bytes instead of {expected}"
        )
    values = layout.unpack(data)[1 + wire.has_status :]
    return wire.body(*values) if wire.protocol is not None else wire.body(protocol, *values)


def _failed(data: bytes, word: int, wire: Wire | None) -> Failed | None:
    """The error that a response carries; ``None`` for SUCCESS."""
    if data[4:8] == b"\0\0\0\0":
        return None
    name = wire.name if wire else f"message {word & 0xFF:#x} of protocol {word >> PROTOCOL_SHIFT & 0xFF:#x}"
    if len(data) < HEADER_BYTES + 4:
        raise MessageError(f"{name} response: no status word")
    status = int.from_bytes(data[4:8], "little", signed=True)
    if status > 0:
        raise MessageError(f"{name} response: status {status} is positive")
    return Failed(word >> PROTOCOL_SHIFT & 0xFF, word & 0xFF, status, word >> 8 & 3 == MessageType.DELAYED)


def _unknown(word: int, dialect: Dialect) -> str:
    message, kind, protocol = word & 0xFF, word >> TYPE_SHIFT & 3, word >> PROTOCOL_SHIFT & 0xFF
    if protocol not in dialect.versions:
        return f"protocol {protocol:#x} is not spoken here"
    return f"protocol {protocol:#x} version {dialect.versions[protocol]:#x} has no message {message:#x} of type {kind}"

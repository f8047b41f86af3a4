"""Frames for SCMI messages on a serial line: sync, kind, sequence, length, payload, CRC.

    A5 5A | kind | sequence | length (2, little-endian) | payload | CRC-16 (2, little-endian)

The CRC is CRC-16/CCITT-FALSE (polynomial 0x1021, start 0xFFFF; "123456789" gives 0x29B1) over kind to payload. The
decoder keeps incomplete input. When a frame is broken, it searches again from the byte after that frame's sync. So it
finds a frame that follows garbage, or that is inside a frame whose length was damaged, as soon as all its bytes are
there, and only damaged frames are lost. The rules of the exchange are in docs/scmi.md.
"""

from __future__ import annotations

import binascii
import struct
from enum import IntEnum
from typing import Final, NamedTuple

SYNC: Final = b"\xa5\x5a"
LARGEST_PAYLOAD: Final = 256
"""Ours: more than the 132 payload bytes of the published mailbox, and short enough for a slow line."""

_HEAD = struct.Struct("<BBH")
_HEAD_BYTES: Final = len(SYNC) + _HEAD.size
_CRC_BYTES: Final = 2


class FrameKind(IntEnum):
    """The content of a frame."""

    HELLO = 1
    """Host: reset the exchange; payload as ``greeting``."""
    WELCOME = 2
    """Controller: has reset the exchange; payload as ``greeting``."""
    COMMAND = 3
    RESPONSE = 4
    """With the sequence number of its command."""
    EVENT = 5
    """Notification or delayed response, with sequence numbers of their own."""
    NAK = 6
    """The last frame arrived damaged: send it again."""
    SENSORS = 7
    """Rig: one control slot with these readings (``lock_step.py``)."""
    ACTUATORS = 8
    """Controller on a rig: its actuators after that slot."""
    RESET = 9
    """Rig: reset, as after power-on."""


_KINDS: Final = frozenset(FrameKind)


class Frame(NamedTuple):
    """One whole frame."""

    kind: FrameKind
    sequence: int
    payload: bytes


class Broken(NamedTuple):
    """A frame with an impossible head or a wrong CRC, or one that stopped in the middle."""

    sequence: int


FRAMING_VERSION: Final = 1
_GREETING = struct.Struct("<4sBH")


def greeting() -> bytes:
    """The payload of HELLO and WELCOME: "SCMI", version of the framing, largest payload."""
    return _GREETING.pack(b"SCMI", FRAMING_VERSION, LARGEST_PAYLOAD)


def greeted_version(payload: bytes) -> int | None:
    """The framing version in a greeting; ``None`` if the payload is not a greeting."""
    if len(payload) != _GREETING.size or payload[:4] != b"SCMI":
        return None
    return payload[4]


def pack_frame(kind: FrameKind, sequence: int, payload: bytes = b"") -> bytes:
    """The bytes of a frame; the payload is at most ``LARGEST_PAYLOAD`` long."""
    assert len(payload) <= LARGEST_PAYLOAD
    body = _HEAD.pack(kind, sequence & 0xFF, len(payload)) + payload
    return SYNC + body + crc16(body).to_bytes(_CRC_BYTES, "little")


def crc16(data: bytes) -> int:
    """CRC-16/CCITT-FALSE."""
    return binascii.crc_hqx(data, 0xFFFF)


class FrameDecoder:
    """Finds frames in a stream of bytes that may contain garbage."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self.garbage_bytes = 0
        """Bytes that belonged to no frame."""

    @property
    def is_within_frame(self) -> bool:
        """Whether the stream ends inside what may be a frame."""
        return bool(self._kept)

    def feed(self, data: bytes) -> list[Frame | Broken]:
        """The frames that are complete with these bytes."""
        self._kept += data
        found: list[Frame | Broken] = []
        while (frame := self._next()) is not None:
            found.append(frame)
        return found

    def end_of_burst(self) -> list[Frame | Broken]:
        """Handle silence on the line: the frame that has begun will not be completed, but one after it may be
        complete."""
        found: list[Frame | Broken] = []
        while self._kept:
            if len(self._kept) >= _HEAD_BYTES:
                found.append(Broken(self._kept[3]))
            self._drop(1)
            found += self.feed(b"")
        return found

    def _next(self) -> Frame | Broken | None:
        """One frame, or ``None`` when more bytes are needed."""
        while True:
            self._skip_to_sync()
            if len(self._kept) < _HEAD_BYTES:
                return None
            kind, sequence, length = _HEAD.unpack_from(self._kept, len(SYNC))
            if length > LARGEST_PAYLOAD or kind not in _KINDS:
                self._drop(1)
                return Broken(sequence)
            end = _HEAD_BYTES + length
            if len(self._kept) < end + _CRC_BYTES:
                return None
            if crc16(bytes(self._kept[len(SYNC) : end])) != int.from_bytes(
                self._kept[end : end + _CRC_BYTES], "little"
            ):
                self._drop(1)
                return Broken(sequence)
            payload = bytes(self._kept[_HEAD_BYTES:end])
            del self._kept[: end + _CRC_BYTES]
            return Frame(FrameKind(kind), sequence, payload)

    def _skip_to_sync(self) -> None:
        at = self._kept.find(SYNC)
        if at < 0:
            at = len(self._kept) - self._kept.endswith(SYNC[:1])
        self._drop(at)

    def _drop(self, count: int) -> None:
        del self._kept[:count]
        self.garbage_bytes += count

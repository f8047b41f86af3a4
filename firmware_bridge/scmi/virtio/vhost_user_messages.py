"""The vhost-user messages that a virtio-scmi back end needs, on a stream socket.

    request (4) | flags (4) | payload size (4) | payload         little-endian, descriptors as ancillary data

The front end (the virtual machine monitor) sends requests. The back end replies to some with a payload and, if the
front end requests replies, to every other one with 0 or an error number.
Source: QEMU ``docs/interop/vhost-user.rst``.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from enum import IntEnum
from typing import Final

import msgspec

from firmware_bridge.scmi.virtio.guest_memory import MAX_REGIONS, GuestError

QUEUES: Final = 2
COMMANDS, EVENTS = 0, 1
"""The queues of virtio-scmi (virtio 1.2 §5.17.2)."""

P2A_CHANNELS: Final = 1 << 0
"""The device sends notifications and delayed responses (virtio-scmi)."""
PROTOCOL_FEATURES: Final = 1 << 30
VERSION_1: Final = 1 << 32
FEATURES: Final = P2A_CHANNELS | PROTOCOL_FEATURES | VERSION_1

MULTIQUEUE, REPLY_ACK, BACKEND_REQUESTS, RESET_DEVICE = 1 << 0, 1 << 3, 1 << 5, 1 << 13
OFFERED_PROTOCOL_FEATURES: Final = MULTIQUEUE | REPLY_ACK | BACKEND_REQUESTS | RESET_DEVICE
"""This device sends no requests to a front end, but user-mode Linux (6.12) needs BACKEND_REQUESTS to set its interrupt
up."""

NO_DESCRIPTOR: Final = 1 << 8
"""In the payload of SET_VRING_KICK, CALL and ERR; bits 7:0 are the queue."""


class Request(IntEnum):
    """The requests of a front end."""

    GET_FEATURES = 1
    SET_FEATURES = 2
    SET_OWNER = 3
    RESET_OWNER = 4
    SET_MEM_TABLE = 5
    SET_VRING_NUM = 8
    SET_VRING_ADDR = 9
    SET_VRING_BASE = 10
    GET_VRING_BASE = 11
    SET_VRING_KICK = 12
    SET_VRING_CALL = 13
    SET_VRING_ERR = 14
    GET_PROTOCOL_FEATURES = 15
    SET_PROTOCOL_FEATURES = 16
    GET_QUEUE_NUM = 17
    SET_VRING_ENABLE = 18
    SET_BACKEND_REQ_FD = 21
    RESET_DEVICE = 34


NUMBER = struct.Struct("<Q")
STATE = struct.Struct("<II")
ADDRESSES = struct.Struct("<IIQQQQ")
"""Queue, flags; descriptors, used, available, log."""
TABLE = struct.Struct("<II")
REGION = struct.Struct("<QQQQ")
"""Guest address, size, user address, offset in the file."""

_HEADER = struct.Struct("<III")
_VERSION, _VERSION_MASK, _REPLY, _NEED_REPLY = 1, 3, 4, 8
_MAX_PAYLOAD: Final = TABLE.size + MAX_REGIONS * REGION.size


class Message(msgspec.Struct, frozen=True):
    """A whole message. Whoever removes a descriptor from ``descriptors`` owns it."""

    request: int
    wants_reply: bool
    payload: bytes
    descriptors: list[int]

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        """The payload, which must have exactly this layout."""
        if len(self.payload) != layout.size:
            raise GuestError(f"{name_of(self.request)} with {len(self.payload)} bytes instead of {layout.size}")
        return layout.unpack(self.payload)

    def close(self) -> None:
        """Close the descriptors that are still there."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()


class MessageStream:
    """Splits a connection's bytes into messages. A front end that stops in the middle of one does not block the
    others."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._bytes = bytearray()
        self._descriptors: list[int] = []

    def read(self) -> Message | None:
        """The next message, if it is complete; ``GuestError`` for invalid bytes, or when the front end has gone."""
        while True:
            missing = self._missing()
            if missing == 0:
                return self._cut()
            try:
                content, descriptors, flags, _ = socket.recv_fds(
                    self._connection, missing, MAX_REGIONS, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return None
            except OSError as error:
                raise GuestError(f"the front end has gone: {error.strerror}") from None
            self._descriptors += descriptors
            if not content:
                raise GuestError("the front end has gone")
            if flags & socket.MSG_CTRUNC or len(self._descriptors) > MAX_REGIONS:
                raise GuestError(f"more than {MAX_REGIONS} descriptors with one message")
            self._bytes += content

    def _missing(self) -> int:
        """How many bytes of this message are missing. Not more are read, since descriptors come with their message."""
        if len(self._bytes) < _HEADER.size:
            return _HEADER.size - len(self._bytes)
        request, flags, size = _HEADER.unpack_from(self._bytes)
        if flags & ~_NEED_REPLY != _VERSION or size > _MAX_PAYLOAD:
            raise GuestError(f"an invalid header: request {request}, flags {flags:#x}, {size} bytes")
        return int(_HEADER.size + size - len(self._bytes))

    def _cut(self) -> Message:
        request, flags, _ = _HEADER.unpack_from(self._bytes)
        message = Message(request, bool(flags & _NEED_REPLY), bytes(self._bytes[_HEADER.size :]), self._descriptors)
        self._bytes = bytearray()
        self._descriptors = []
        return message

    def reply(self, request: int, payload: bytes) -> None:
        """Reply. A front end that does not read its replies is disconnected."""
        packet = _HEADER.pack(request, _VERSION | _REPLY, len(payload)) + payload
        try:
            if self._connection.send(packet) == len(packet):
                return
        except OSError:
            pass
        raise GuestError("the front end does not read its replies")

    def close(self) -> None:
        """Disconnect."""
        for descriptor in self._descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._connection.close()


def name_of(request: int) -> str:
    """A request's name, or its number."""
    return Request(request).name if request in Request.__members__.values() else f"request {request}"

"""A small front end and driver, to attach to a vhost-user device rightly and wrongly."""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
from collections.abc import Sequence

from firmware_bridge.scmi.virtio.vhost_user_messages import (
    ADDRESSES,
    COMMANDS,
    EVENTS,
    FEATURES,
    NUMBER,
    REGION,
    STATE,
    TABLE,
    Request,
)

MEMORY = 1 << 16
GUEST, USER = 0x4000_0000, 0x7F00_0000_0000
SIZE = 8
"""Descriptors of a queue."""
DESCRIPTORS, AVAILABLE, USED, BUFFERS = 0x000, 0x200, 0x400, 0x1000
QUEUE_BYTES = 0x800
NEXT, WRITE, INDIRECT = 1, 2, 4
TIMEOUT_S = 60.0
SET_UP_MESSAGES = 3 + 2 * 7
"""What ``set_up`` sends: of the device, and of each queue."""


class VirtualMachine:
    """Memory, a connection, and two queues whose rings the test writes."""

    def __init__(self, path: str) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.settimeout(TIMEOUT_S)
        self.connection.connect(path)
        self.file = os.memfd_create("guest")
        os.ftruncate(self.file, MEMORY)
        self.memory = mmap.mmap(self.file, MEMORY)
        self.kicks = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2)]
        self.calls = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2)]
        self.errors = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2)]
        self._available = [0, 0]
        self._used = [0, 0]

    # ---- vhost-user ----

    def send(self, request: int, payload: bytes = b"", descriptors: Sequence[int] = (), flags: int = 1) -> None:
        head = struct.pack("<III", request, flags, len(payload))
        socket.send_fds(self.connection, [head + payload], list(descriptors))

    def reply(self) -> tuple[int, bytes]:
        request, flags, size = struct.unpack("<III", self.connection.recv(12, socket.MSG_WAITALL))
        assert flags == 5
        return request, self.connection.recv(size, socket.MSG_WAITALL)

    def is_disconnected(self) -> bool:
        try:
            return self.connection.recv(1) == b""
        except ConnectionResetError:
            return True

    def share_memory(self) -> None:
        region = REGION.pack(GUEST, MEMORY, USER, 0)
        self.send(Request.SET_MEM_TABLE, TABLE.pack(1, 0) + region, [self.file])

    def set_up(self, features: int = FEATURES) -> None:
        """Everything up to a running device."""
        self.send(Request.SET_OWNER)
        self.send(Request.SET_FEATURES, NUMBER.pack(features))
        self.share_memory()
        for queue in (COMMANDS, EVENTS):
            self.set_up_queue(queue)

    def set_up_queue(self, queue: int) -> None:
        at = USER + queue * QUEUE_BYTES
        self.send(Request.SET_VRING_NUM, STATE.pack(queue, SIZE))
        self.send(Request.SET_VRING_BASE, STATE.pack(queue, self._available[queue]))
        rings = ADDRESSES.pack(queue, 0, at + DESCRIPTORS, at + USED, at + AVAILABLE, 0)
        self.send(Request.SET_VRING_ADDR, rings)
        self.send(Request.SET_VRING_CALL, NUMBER.pack(queue), [self.calls[queue]])
        self.send(Request.SET_VRING_ERR, NUMBER.pack(queue), [self.errors[queue]])
        self.send(Request.SET_VRING_KICK, NUMBER.pack(queue), [self.kicks[queue]])
        self.send(Request.SET_VRING_ENABLE, STATE.pack(queue, 1))

    # ---- virtqueues ----

    def put(self, offset: int, content: bytes) -> None:
        self.memory[offset : offset + len(content)] = content

    def describe(self, queue: int, index: int, address: int, length: int, flags: int, following: int = 0) -> None:
        descriptor = struct.pack("<QIHH", address, length, flags, following)
        self.put(queue * QUEUE_BYTES + DESCRIPTORS + 16 * index, descriptor)

    def offer(self, queue: int, *heads: int) -> None:
        """Make chains available and kick."""
        at = queue * QUEUE_BYTES + AVAILABLE
        for head in heads:
            self.put(at + 4 + 2 * (self._available[queue] % SIZE), struct.pack("<H", head))
            self._available[queue] = (self._available[queue] + 1) & 0xFFFF
        self.put(at + 2, struct.pack("<H", self._available[queue]))
        self.kick(queue)

    def kick(self, queue: int) -> None:
        os.eventfd_write(self.kicks[queue], 1)

    def command(self, message: bytes, room: int = 136, head: int = 0) -> None:
        """A command as Linux sends it: a descriptor to read and one to write."""
        at = BUFFERS + head * 0x400
        self.put(at, message)
        self.describe(COMMANDS, head, GUEST + at, len(message), NEXT, head + 1)
        self.describe(COMMANDS, head + 1, GUEST + at + 0x200, room, WRITE)
        self.offer(COMMANDS, head)

    def used(self, queue: int) -> tuple[int, int] | None:
        """Head and length of the next chain that has come back."""
        at = queue * QUEUE_BYTES + USED
        (index,) = struct.unpack_from("<H", self.memory, at + 2)
        if index == self._used[queue]:
            return None
        head, length = struct.unpack_from("<II", self.memory, at + 4 + 8 * (self._used[queue] % SIZE))
        self._used[queue] = (self._used[queue] + 1) & 0xFFFF
        return head, length

    def response(self) -> bytes:
        """What came back for the last command."""
        entry = self.used(COMMANDS)
        assert entry, "nothing came back"
        head, length = entry
        at = BUFFERS + head * 0x400 + 0x200
        return bytes(self.memory[at : at + length])

    def is_signalled(self, descriptor: int) -> bool:
        return bool(select.select([descriptor], [], [], 0)[0])

    def close(self) -> None:
        self.connection.close()
        self.memory.close()
        for descriptor in (self.file, *self.kicks, *self.calls, *self.errors):
            os.close(descriptor)

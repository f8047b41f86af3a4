"""The device's side of a split virtqueue (virtio 1.2 §2.7), for short messages.

    descriptors  16 bytes each: address (8), length (4), flags (2), next (2)
    available    flags (2), index (2), heads (2 each): the driver writes
    used         flags (2), index (2), {head (4), length (4)} each: the device writes

Both indices count modulo 2^16. A chain has a part that the device reads, then a part that it writes. The device copies
first and checks afterwards, since the driver may write at any time. A chain that breaks a rule is a ``GuestError``,
after which the queue must not be used. Indirect descriptors and event indices are not offered.

Order: an index is read before, and written after, the entries that it covers. On x86-64 the processor keeps that order,
and these are single 16-bit accesses, so the device is offered only there (``IS_ORDERED``).
"""

from __future__ import annotations

import platform
import struct
from typing import Final

import msgspec

from firmware_bridge.scmi.virtio.guest_memory import GuestError, GuestMemory

MAX_SIZE: Final = 1024
"""Descriptors of a queue. Virtio allows 32768; Linux requests at most 256 here."""

IS_ORDERED: Final = platform.machine() in ("x86_64", "AMD64")

_DESCRIPTOR = struct.Struct("<QIHH")
_NEXT, _WRITE, _INDIRECT = 1, 2, 4
_NO_INTERRUPT: Final = 1


class Rings(msgspec.Struct, frozen=True):
    """Addresses of the three parts in the driver's process."""

    descriptors: int
    available: int
    used: int


class Chain(msgspec.Struct, frozen=True):
    """One buffer of the driver."""

    head: int
    content: bytes
    """What the device reads; at most one byte more than requested."""
    room: tuple[tuple[int, int], ...]
    """Guest addresses and lengths of the parts that the device may write."""

    @property
    def capacity(self) -> int:
        """Bytes that fit into it."""
        return sum(length for _, length in self.room)


class Virtqueue:
    """A queue in use. Its memory must not be closed before ``release``."""

    def __init__(self, memory: GuestMemory, size: int, rings: Rings, next_index: int = 0) -> None:
        if not 1 <= size <= MAX_SIZE or size & (size - 1):
            raise GuestError(f"a queue of {size} descriptors: a power of two up to {MAX_SIZE} is needed")
        if rings.descriptors % 16 or rings.available % 2 or rings.used % 4:
            raise GuestError("a ring is not aligned")
        self._memory = memory
        self._size = size
        self._descriptors = memory.at_user(rings.descriptors, _DESCRIPTOR.size * size)
        self._available = memory.at_user(rings.available, 4 + 2 * size).cast("H")
        used = memory.at_user(rings.used, 4 + 8 * size)
        self._used_index = used[2:4].cast("H")
        self._used = used[4:].cast("I")
        used.release()
        self._next = next_index & 0xFFFF

    @property
    def next_index(self) -> int:
        """The available index up to which chains were taken."""
        return self._next

    def take(self, most: int) -> Chain | None:
        """The next chain, with at most ``most`` + 1 bytes of its data; ``None`` when there is none."""
        waiting = (self._available[1] - self._next) & 0xFFFF
        if waiting == 0:
            return None
        if waiting > self._size:
            raise GuestError(f"{waiting} chains waiting in a queue of {self._size}")
        head = self._available[2 + self._next % self._size]
        chain = self._walk(head, most)
        self._next = (self._next + 1) & 0xFFFF
        return chain

    def _walk(self, head: int, most: int) -> Chain:
        content = bytearray()
        room: list[tuple[int, int]] = []
        at = head
        for _ in range(self._size):  # a longer chain is a loop
            if at >= self._size:
                raise GuestError(f"descriptor {at} in a queue of {self._size}")
            copied = bytes(self._descriptors[_DESCRIPTOR.size * at : _DESCRIPTOR.size * (at + 1)])
            address, length, flags, following = _DESCRIPTOR.unpack(copied)
            if flags & _INDIRECT:
                raise GuestError("an indirect descriptor, which was not offered")
            if length == 0:
                raise GuestError(f"descriptor {at} is empty")
            with self._memory.at_guest(address, length) as view:
                if flags & _WRITE:
                    room.append((address, length))
                elif room:
                    raise GuestError(f"descriptor {at} is readable but follows a writable one")
                else:
                    content += view[: most + 1 - len(content)]
            if not flags & _NEXT:
                return Chain(head, bytes(content), tuple(room))
            at = following
        raise GuestError("a chain of descriptors is a loop")

    def give_back(self, chain: Chain, content: bytes) -> bool:
        """Write into a chain and hand it back; returns whether the driver wants an interrupt."""
        left = memoryview(content)
        for address, length in chain.room:
            with self._memory.at_guest(address, min(length, len(left))) as view:
                view[:] = left[: len(view)]
                left = left[len(view) :]
        index = self._used_index[0]
        slot = 2 * (index % self._size)
        self._used[slot] = chain.head
        self._used[slot + 1] = len(content) - len(left)
        self._used_index[0] = (index + 1) & 0xFFFF
        return not self._available[0] & _NO_INTERRUPT

    def put_off(self) -> None:
        """Makes the next ``take`` return the last chain again."""
        self._next = (self._next - 1) & 0xFFFF

    def release(self) -> None:
        """Release the memory."""
        for view in (self._descriptors, self._available, self._used_index, self._used):
            view.release()

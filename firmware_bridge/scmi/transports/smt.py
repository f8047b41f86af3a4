"""One channel of the shared-memory transport (DEN0056 5.1), with doorbell and completion registers behind it.

    0x00 reserved | 0x04 channel status | 0x08 reserved | 0x10 flags | 0x14 length | 0x18 header | 0x1C payload

Status bit 0 (FREE) says who owns the area: the caller if it is set, the callee if it is clear. So setting FREE is
always the last write. ``length`` counts header and payload. Both sides copy first and check afterwards, since the other
side may write at any time. The offsets of doorbell and completion differ between builds of the mailbox, so they are
parameters.

Order of writes: both sides read an area only after an eventfd has woken them. Its lock in the kernel orders the writes
before it and the reads after it on every architecture.
"""

from __future__ import annotations

from typing import Final

import msgspec

STATUS, FLAGS, LENGTH, HEADER, PAYLOAD = 0x04, 0x10, 0x14, 0x18, 0x1C
FREE, ERROR = 1, 2
INTERRUPT: Final = 1
"""Channel flags bit 0: the caller requests a completion interrupt."""


class Geometry(msgspec.Struct, frozen=True):
    """Offsets of an agent's two areas and their registers; register offsets are relative to their area."""

    a2p_offset: int = 0x000
    p2a_offset: int = 0x100
    payload_bytes: int = 132  # 33 words, the published SCMI-MU
    doorbell_offset: int = 0xA0
    completion_offset: int = 0xA4

    def problem(self, memory_bytes: int) -> str | None:
        """Why this geometry is invalid in a memory of this size; ``None`` when it is valid."""
        numbers = (self.a2p_offset, self.p2a_offset, self.payload_bytes, self.doorbell_offset, self.completion_offset)
        if any(number < 0 or number % 4 for number in numbers):
            return "an offset or size is not a multiple of 4"
        if self.payload_bytes < 4:
            return "a payload of less than one word has no room for a status"
        registers = (self.doorbell_offset, self.completion_offset)
        if min(registers) < PAYLOAD + self.payload_bytes or registers[0] == registers[1]:
            return "doorbell, completion and payload overlap"
        extent = max(registers) + 4
        first, second = sorted((self.a2p_offset, self.p2a_offset))
        if first + extent > second:
            return "the two areas overlap"
        if second + extent > memory_bytes:
            return f"the areas end at {second + extent:#x}, the memory at {memory_bytes:#x}"
        return None


class Area:
    """One area, as seen by either side."""

    def __init__(self, memory: memoryview, offset: int, geometry: Geometry) -> None:
        extent = max(geometry.doorbell_offset, geometry.completion_offset) + 4
        self._bytes = memory[offset : offset + extent]
        self._words = self._bytes.cast("I")  # aligned words are written atomically
        self._capacity = geometry.payload_bytes
        self._doorbell = geometry.doorbell_offset // 4
        self._completion = geometry.completion_offset // 4

    def reset(self) -> None:
        """The initial state: owned by the caller, everything else 0."""
        self._bytes[:] = bytes(len(self._bytes))
        self._words[STATUS // 4] = FREE

    @property
    def is_free(self) -> bool:
        """The caller owns the area."""
        return bool(self._words[STATUS // 4] & FREE)

    @property
    def has_error(self) -> bool:
        """The last message was damaged on its way."""
        return bool(self._words[STATUS // 4] & ERROR)

    @property
    def wants_interrupt(self) -> bool:
        """The caller requested a completion interrupt."""
        return bool(self._words[FLAGS // 4] & INTERRUPT)

    def fits(self, message: bytes) -> bool:
        """Whether header and payload fit."""
        return 4 <= len(message) <= 4 + self._capacity

    def call(self, message: bytes, ring: int) -> None:
        """Caller: take the area, write a message that fits, and set the doorbell register to ``ring``."""
        self._words[STATUS // 4] = 0
        self._words[FLAGS // 4] = INTERRUPT
        self._write(message)
        self._words[self._doorbell] = ring

    def fetch(self) -> bytes | None:
        """Either side: a copy of the message; ``None`` when its length is impossible."""
        length = self._words[LENGTH // 4]
        if not 4 <= length <= 4 + self._capacity:
            return None
        return bytes(self._bytes[HEADER : HEADER + length])

    def clear_doorbell(self) -> None:
        """Callee: the message has been fetched."""
        self._words[self._doorbell] = 0

    def answer(self, message: bytes, ring: int) -> None:
        """Callee: write a response that fits, then hand the area back, then set the completion register."""
        self._write(message)
        self.hand_back(ring)

    def hand_back(self, ring: int, *, damaged: bool = False) -> None:
        """Callee: hand the area back unchanged; ``damaged`` marks a transport error."""
        self._words[STATUS // 4] = FREE | (ERROR if damaged else 0)
        if self.wants_interrupt:
            self._words[self._completion] = ring

    def clear_completion(self) -> None:
        """Caller: the response has been read."""
        self._words[self._completion] = 0

    def release(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._bytes.release()

    def _write(self, message: bytes) -> None:
        self._bytes[HEADER : HEADER + len(message)] = message
        self._words[LENGTH // 4] = len(message)

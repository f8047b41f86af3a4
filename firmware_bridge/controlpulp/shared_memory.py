"""The memory that the rv32 image shares with its host: wires, mailboxes, FastChannel windows, and a rig's control of
time.

The layout is struct shared in ``boards/rv32/board.c``, at ``SHARED`` in the image's memory.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from firmware_bridge.controlpulp.host import AGENTS, SMT_CAPACITY, ChannelBusy, ChannelError

SHARED = 0x8008_0000
MAGIC = 0x504C4350
REFUSED = 0x44414544
"""In place of ``MAGIC``: the image is damaged and does not run."""

RIG = 0x52494700
"""A rig writes this with one of the modes below to ``rig`` before the image starts: the source of its time."""
TIME_BY_TIMER, TIME_BY_WORD, TIME_BY_LINE = range(3)

_CORES, _POWER_DOMAINS, _DOMAINS, _FAST_WORDS, _AREA_BYTES = 36, 5, 4, 64, 160
_STATUS, _FLAGS, _LENGTH, _HEADER = 0x04, 0x10, 0x14, 0x18
_WIRES = ("temperature_mk", "capacitance_ff", "power_uw", "freq_khz", "volt_mv")


def _layout() -> dict[str, tuple[int, int]]:
    """Offset and size in bytes of each field of struct shared."""
    sizes = {
        "magic": 4,
        "build": 4,
        "temperature_mk": 4 * _CORES,
        "capacitance_ff": 4 * _CORES,
        "power_uw": 4 * _POWER_DOMAINS,
        "freq_khz": 4 * _CORES,
        "volt_mv": 4 * _DOMAINS,
        "actuations": 4,
        "kicks": 4,
        "events": 4,
        "doorbell": 4 * AGENTS,
        "completion": 4 * AGENTS,
        "areas": 2 * _AREA_BYTES * AGENTS,
        "fast": 4 * _FAST_WORDS * AGENTS,
        "rig": 4,
        "ticks_given": 4,
        "ticks_done": 4,
        "line_bytes": 4,
        "line_is_idle": 4,
        "restarts": 4,
    }
    layout, at = {}, 0
    for name, size in sizes.items():
        layout[name] = (at, size)
        at += size
    return layout


LAYOUT = _layout()


class SharedMemory:
    """The memory that begins at ``SHARED``, seen from the host. The mailbox methods are those of ``HostController``."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._shared = memory
        self._awaited = [False] * AGENTS

    def words(self, name: str) -> NDArray[np.int32]:
        """A field of struct shared; the view is live."""
        offset, size = LAYOUT[name]
        return self._shared[offset : offset + size].view(np.int32)

    @property
    def has_refused(self) -> bool:
        """Whether the image found itself damaged at its start: it stays at the lowest clocks and does nothing else."""
        return bool(self.words("magic")[0] == REFUSED)

    def wires(self) -> dict[str, NDArray[np.int32]]:
        """Sensors and actuators, to be connected to a plant."""
        return {name: self.words(name) for name in _WIRES}

    def send(self, channel: int, message: bytes) -> object:
        """Writes a message and the doorbell's word."""
        if not 4 <= len(message) <= 4 + SMT_CAPACITY:
            raise ValueError(f"message of {len(message)} bytes: an area takes 4 to {4 + SMT_CAPACITY}")
        area = self._area(channel, 0)
        if not _word(area, _STATUS) & 1:
            raise ChannelBusy(f"channel {channel}: the controller has not answered the last message")
        struct.pack_into("<I", area, _STATUS, 0)
        struct.pack_into("<II", area, _FLAGS, 1, len(message))
        area[_HEADER : _HEADER + len(message)] = message
        self._awaited[channel] = True
        self.words("doorbell")[channel] = channel + 1
        return None

    def is_answered(self, channel: int) -> bool:
        """Whether the controller has handed the area back."""
        return bool(_word(self._area(channel, 0), _STATUS) & 1)

    def poll(self, channel: int) -> bytes | None:
        """The response; returned once."""
        area = self._area(channel, 0)
        status = _word(area, _STATUS)
        if not self._awaited[channel] or not status & 1:
            return None
        self._awaited[channel] = False
        if status & 2:
            raise ChannelError(f"channel {channel}: the controller found no message in the area")
        return bytes(area[_HEADER : _HEADER + _word(area, _LENGTH)])

    def notifications(self, channel: int) -> list[bytes]:
        """Reads the message in the events area, if any, and hands the area back."""
        area = self._area(channel, 1)
        if _word(area, _STATUS) & 1:
            return []
        message = bytes(area[_HEADER : _HEADER + _word(area, _LENGTH)])
        struct.pack_into("<I", area, _STATUS, 1)
        return [message]

    def _area(self, channel: int, direction: int) -> memoryview:
        start = LAYOUT["areas"][0] + (2 * channel + direction) * _AREA_BYTES
        return self._shared[start : start + _AREA_BYTES].data


def _word(area: memoryview, offset: int) -> int:
    return int(struct.unpack_from("<I", area, offset)[0])

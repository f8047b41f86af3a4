"""The controller in this process, in virtual time: the firmware's ``host`` board.

Messages pass through the same shared-memory areas and doorbells as on any board (DEN0056 chapter 5): ``send`` writes
the commands area and rings the doorbell, ``poll`` reads the response once the controller has set FREE. Nothing happens
unless time is advanced, and equal calls give equal bits. A plant is connected by wires; without one the sensors keep
the values that are written to them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firmware_bridge._controlpulp import ffi, lib

AGENTS: int = lib.HOST_AGENTS
FAST_WORDS: int = lib.HOST_FAST_WORDS
SLOT_S = 500e-6
"""One control slot."""
TICK_S = 125e-6
"""One period of the fast job."""
SMT_CAPACITY = 132
"""Largest payload of an area, in bytes."""

_STATUS, _FLAGS, _LENGTH, _HEADER = 0x04, 0x10, 0x14, 0x18
_FREE, _ERROR = 1, 2
_JOBS = ("fast", "control", "messages")


class ChannelBusy(RuntimeError):  # noqa: N818 - a state of the channel, not an error of the caller
    """The controller still owns the commands area: it has not answered an earlier message."""


class ChannelError(RuntimeError):
    """The controller set the channel's ERROR bit: the last message had an impossible length."""


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Build options of the firmware, and how long its jobs take."""

    published_law: bool = False
    polled_messages: bool = False
    bypass: bool = False
    """A lower level takes effect at once, and not with the next control slot."""
    own_step_after_s: float | None = None
    """So long after the last step of power the guard makes its own; None: as on other boards (65.5), 0: never."""
    job_us: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Fast, control, one message."""
    interrupt_us: float = 0.0
    """From doorbell to the message job being ready."""
    message_only: frozenset[int] = frozenset()
    """Channels without FastChannels (until ``map_fast_channel``), since their agents cannot reach the controller's
    memory (virtual machines)."""

    @classmethod
    def published(cls, *, bypass: bool = False) -> HostOptions:
        """The published firmware: its control law, and messages polled after control. `bypass` selects its `optimised`
        build."""
        return cls(published_law=True, polled_messages=True, bypass=bypass)


@dataclass(frozen=True, slots=True)
class View:
    """Internal state of the controller, for tests and benchmarks. Agents use the telemetry protocol."""

    slots: int
    overruns_fast: int
    overruns_control: int
    bypasses: int
    commands: int
    fast_writes: tuple[int, ...]
    """Per channel: FastChannel words that were seen to change."""
    kicks: int
    margin_w: float | None
    kept_slots: int
    gain: tuple[float, ...]
    reasons: tuple[int, ...]
    guard_faults: int
    guard_ever: int
    guard_alarms: int
    guard_safe_slots: int
    heat_mk: tuple[int, ...]
    """The thermal model: silicon, copper, sink, ambient."""
    last_change_s: tuple[float, ...]


class HostController:
    """The firmware on the host board. One agent per channel; a channel's number is the agent's id less one."""

    def __init__(self, options: HostOptions | None = None) -> None:
        chosen = options or HostOptions()
        given = ffi.new("host_options_t *")
        given.published_law, given.polled_messages = chosen.published_law, chosen.polled_messages
        given.bypass = chosen.bypass
        given.step_after = -1 if chosen.own_step_after_s is None else round(chosen.own_step_after_s / SLOT_S)
        given.job_ns[0:3] = [round(us * 1000) for us in chosen.job_us]
        given.message_only = sum(1 << channel for channel in chosen.message_only)
        given.interrupt_ns = round(chosen.interrupt_us * 1000)
        self._memory = np.zeros(lib.host_size(), dtype=np.uint8)
        self._host: Any = lib.host_open(ffi.from_buffer(self._memory), given)
        wires = lib.host_wires(self._host)
        self.wires: dict[str, NDArray[np.int32]] = {
            name: self._words(getattr(wires, name), ffi.sizeof(getattr(wires, name))).view(np.int32)
            for name in ("temperature_mk", "capacitance_ff", "power_uw", "freq_khz", "volt_mv")
        }
        self._areas = [
            [self._words(lib.host_area(self._host, c, d), lib.HOST_SMT_BYTES).data for d in (0, 1)]
            for c in range(AGENTS)
        ]
        self._awaited = [False] * AGENTS
        self._plant: Any = None
        self._mapped: dict[int, Any] = {}

    def _words(self, pointer: Any, size: int) -> NDArray[np.uint8]:
        """Part of the controller's memory. The view keeps the whole memory alive."""
        start = int(ffi.cast("uintptr_t", pointer)) - int(ffi.cast("uintptr_t", self._host))
        return self._memory[start : start + size]

    # ---- plant and time ----

    def attach(self, plant: Any) -> None:
        """Connects a plant: an object whose ``wire(wires)`` returns the addresses of its advance function and
        argument."""
        function, argument = plant.wire(self.wires)
        self._plant = plant
        lib.host_attach(self._host, ffi.cast("host_plant_t", function), ffi.cast("void *", argument))

    @property
    def now_ns(self) -> int:
        """Virtual time."""
        return int(lib.host_now_ns(self._host))

    def advance(self, seconds: float) -> None:
        """Advances virtual time; events that are due exactly at its end have happened."""
        self.advance_to(self.now_ns + round(seconds * 1e9))

    def advance_slots(self, slots: int) -> None:
        """Advances virtual time by this many control slots of 500 us."""
        self.advance_to(self.now_ns + slots * 500_000)

    def advance_to(self, until_ns: int) -> None:
        """Advances virtual time to ``until_ns``."""
        lib.host_advance(self._host, until_ns)

    # ---- mailbox ----

    def send(self, channel: int, message: bytes) -> None:
        """Writes a message (header and payload) into a channel's commands area and rings its doorbell.

        Raises ``ChannelBusy`` while the controller owns the area, ``ValueError`` when the message does not fit into it.
        """
        if not 4 <= len(message) <= 4 + SMT_CAPACITY:
            raise ValueError(f"message of {len(message)} bytes: an area takes 4 to {4 + SMT_CAPACITY}")
        area = self.area(channel)
        if not _word(area, _STATUS) & _FREE:
            raise ChannelBusy(f"channel {channel}: the controller has not answered the last message")
        struct.pack_into("<I", area, _STATUS, 0)
        struct.pack_into("<II", area, _FLAGS, 1, len(message))
        area[_HEADER : _HEADER + len(message)] = message
        self._awaited[channel] = True
        self.ring(channel, channel + 1)

    def poll(self, channel: int) -> bytes | None:
        """The response (header, status and values), if the controller has sent it. Returns each response once."""
        area = self.area(channel)
        status = _word(area, _STATUS)
        if not self._awaited[channel] or not status & _FREE:
            return None
        self._awaited[channel] = False
        lib.host_take_completion(self._host, channel)
        if status & _ERROR:
            raise ChannelError(f"channel {channel}: the controller found no message in the area")
        return bytes(area[_HEADER : _HEADER + _word(area, _LENGTH)])

    def notifications(self, channel: int) -> list[bytes]:
        """Reads the message in the events area, if any, and hands the area back. The next one follows in the next
        control slot."""
        area = self._area(channel, 1)
        if _word(area, _STATUS) & _FREE:
            return []
        message = bytes(area[_HEADER : _HEADER + _word(area, _LENGTH)])
        struct.pack_into("<I", area, _STATUS, _FREE)
        return [message]

    def area(self, channel: int) -> Any:
        """The raw commands area, for tests that write invalid messages."""
        return self._area(channel, 0)

    def ring(self, channel: int, value: int) -> None:
        """Writes the doorbell register."""
        self._check(channel)
        lib.host_ring(self._host, channel, value)

    def fast_channel(self, channel: int) -> NDArray[np.uint32]:
        """The agent's FastChannel window, as words. Descriptions give ``fast_channel_address`` as its address."""
        self._check(channel)
        return self._words(lib.host_fast_window(self._host, channel), 4 * lib.HOST_FAST_WORDS).view(np.uint32)

    @staticmethod
    def fast_channel_address(channel: int) -> int:
        """The address that the agent gets for its window."""
        return 0x1000 * (channel + 1)

    def map_fast_channel(self, channel: int, words: Any, address: int) -> None:
        """Moves the agent's FastChannel window into memory that it can reach: ``words`` (a writable buffer), which it
        knows by ``address``. ``None``: it has no FastChannels; only then may the buffer go."""
        self._check(channel)
        if words is not None and len(words) < 4 * FAST_WORDS:
            raise ValueError(f"{len(words)} bytes: a window of FastChannels takes {4 * FAST_WORDS}")
        old = self._mapped.pop(channel, None)
        pointer = ffi.NULL
        if words is not None:
            pointer = self._mapped[channel] = ffi.from_buffer("uint32_t[]", words, require_writable=True)
        lib.host_fast_map(self._host, channel, pointer, address)
        if old is not None:
            ffi.release(old)

    def exchange(self, channel: int, message: bytes) -> bytes:
        """Sends one message to the platform and returns its response, without mailbox, doorbell or time."""
        self._check(channel)
        reply = ffi.new("uint8_t[]", lib.HOST_SMT_BYTES)
        size = lib.host_message(self._host, channel, message, len(message), reply)
        if size == 0:
            raise ValueError(f"message of {len(message)} bytes: the platform takes 4 to {4 + SMT_CAPACITY}")
        return bytes(ffi.buffer(reply, size))

    def open_line(self, channel: int) -> HostLine:
        """Opens a serial line for the agent of a channel. From then on the line uses that agent's mailbox."""
        self._check(channel)
        lib.host_line_open(self._host, channel)
        return HostLine(self._host, self._memory)

    def _area(self, channel: int, direction: int) -> Any:
        self._check(channel)
        return self._areas[channel][direction]

    @staticmethod
    def _check(channel: int) -> None:
        if not 0 <= channel < AGENTS:
            raise ValueError(f"channel {channel}: there are {AGENTS}, counted from 0")

    # ---- state ----

    def view(self) -> View:
        """The controller's counters and state."""
        v = ffi.new("host_view_t *")
        lib.host_view(self._host, v)
        return View(
            slots=v.slots,
            overruns_fast=v.overruns_fast,
            overruns_control=v.overruns_control,
            bypasses=v.bypasses,
            commands=v.commands,
            fast_writes=tuple(v.fast_writes),
            kicks=v.kicks,
            margin_w=None if v.margin_uw == 2**31 - 1 else v.margin_uw * 1e-6,
            kept_slots=v.kept_slots,
            gain=tuple(g / 65536 for g in v.gain_q16),
            reasons=tuple(v.reasons),
            guard_faults=v.guard_faults,
            guard_ever=v.guard_ever,
            guard_alarms=v.guard_alarms,
            guard_safe_slots=v.guard_safe_slots,
            heat_mk=tuple(v.heat_mk),
            last_change_s=tuple(ns * 1e-9 for ns in v.last_change_ns),
        )

    def fingerprint(self) -> int:
        """A hash of every actuation so far; equal runs have equal hashes."""
        return int(lib.host_fingerprint(self._host))

    def stall(self, ticks: int) -> None:
        """Fault: the controller's processor runs nothing for this many periods of 125 us."""
        lib.host_stall(self._host, ticks)


class HostLine:
    """The agent's end of the controller's serial line. Bytes pass at once; silence takes virtual time."""

    def __init__(self, host: Any, memory: NDArray[np.uint8]) -> None:
        self._host, self._memory = host, memory

    def write(self, data: bytes) -> None:
        """Bytes to the controller."""
        lib.host_line_write(self._host, data, len(data))

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes from the controller."""
        room = ffi.new("uint8_t[]", max(size, 1))
        return bytes(ffi.buffer(room, lib.host_line_read(self._host, room, size)))


def _word(area: Any, offset: int) -> int:
    return int(struct.unpack_from("<I", area, offset)[0])

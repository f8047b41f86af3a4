"""Lock step over a serial line: a SENSORS frame runs one control slot; the ACTUATORS frame with its number is the
result.

For rigs whose controller shares no memory with the emulated chip (an FPGA). 921600 baud carry some 250 slots per second
instead of 2000, so the line sets the pace and the controller's time stops between slots. SCMI uses the same line: a
``LockStepLine`` is the port of a ``SerialLine`` and filters out the frames of slots.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from firmware_bridge.errors import NoAnswerError
from firmware_bridge.scmi.clock import Clock, RealClock
from firmware_bridge.scmi.transports.frames import SYNC, Broken, Frame, FrameDecoder, FrameKind, pack_frame
from firmware_bridge.scmi.transports.serial_line import BURST_GAP_S, REPEATS, REPLY_TIMEOUT_S, Port

CORES: Final = 36
DOMAINS: Final = 4
FAULT: Final = -(2**31)
_FAULT_24: Final = -(2**23)


def pack_sensors(wires: Mapping[str, NDArray[np.int32]]) -> bytes:
    """``temperature_mk`` and ``capacitance_ff`` (36 each) in 24 bits, ``power_uw`` (5) in 32; a fault is the lowest."""
    return (
        b"".join(_pack_24(wires[name]) for name in ("temperature_mk", "capacitance_ff"))
        + wires["power_uw"].astype("<i4").tobytes()
    )


def unpack_actuators(payload: bytes) -> dict[str, NDArray[np.int32]]:
    """``freq_khz`` (36, in 24 bits) and ``volt_mv`` (4, in 16)."""
    if len(payload) != 3 * CORES + 2 * DOMAINS:
        raise ValueError(f"{len(payload)} bytes of actuators")
    freq = np.zeros((CORES, 4), dtype=np.uint8)
    freq[:, :3] = np.frombuffer(payload, np.uint8, 3 * CORES).reshape(CORES, 3)
    volt = struct.unpack_from(f"<{DOMAINS}H", payload, 3 * CORES)
    return {"freq_khz": freq.view("<i4")[:, 0].astype(np.int32), "volt_mv": np.array(volt, dtype=np.int32)}


def _pack_24(values: NDArray[np.int32]) -> bytes:
    bounded = np.where(values == FAULT, _FAULT_24, np.clip(values, _FAULT_24 + 1, 2**23 - 1)).astype("<i4")
    return bounded.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()


class LockStepLine:
    """The rig's end of the line. Takes the frames of slots out and passes all other bytes to the client."""

    def __init__(
        self, port: Port, name: str, reply_timeout_s: float = REPLY_TIMEOUT_S, clock: Clock | None = None
    ) -> None:
        self.reply_timeout_s = reply_timeout_s
        self.clock: Clock = clock or RealClock()
        self._port, self._name = port, name
        self._decoder = FrameDecoder()
        self._for_client = bytearray()
        self._sequence = 0
        self._actuators: Frame | None = None
        self._was_refused = False
        self._received_at_s = self.clock.now_s()

    def slot(self, wires: Mapping[str, NDArray[np.int32]]) -> dict[str, NDArray[np.int32]]:
        """Runs one slot on the controller with these readings, and returns its actuators.

        If a frame is lost or damaged, it is sent again under the same number; the slot runs once.
        """
        self._sequence = (self._sequence + 1) & 0xFF
        frame = pack_frame(FrameKind.SENSORS, self._sequence, pack_sensors(wires))
        self._actuators = None
        for _ in range(1 + REPEATS):
            self._was_refused = False
            self._port.write(frame)
            deadline_s = self.clock.now_s() + self.reply_timeout_s
            while self.clock.now_s() < deadline_s and not self._was_refused:
                self._pump()
                if self._actuators and self._actuators.sequence == self._sequence:
                    return unpack_actuators(self._actuators.payload)
        raise NoAnswerError(
            f"{self._name}: no response to a control slot, {1 + REPEATS} tries (is the image built for lock step?)"
        )

    def reset(self) -> None:
        """Reset the controller as after power-on. It sends no response; greet it afterwards."""
        self._port.write(pack_frame(FrameKind.RESET, 0))
        self._sequence = 0

    def _pump(self) -> None:
        """Read the available bytes; waits up to the port's timeout."""
        data = self._port.read(1)
        if data and (waiting := self._port.in_waiting):
            data += self._port.read(waiting)
        found: list[Frame | Broken] = []
        if data:
            self._received_at_s = self.clock.now_s()
            found = self._decoder.feed(data)
        elif self._decoder.is_within_frame and self.clock.now_s() - self._received_at_s >= BURST_GAP_S:
            found = self._decoder.end_of_burst()
        for one in found:
            if isinstance(one, Frame) and one.kind is FrameKind.ACTUATORS:
                self._actuators = one
                continue
            is_nak = isinstance(one, Frame) and one.kind is FrameKind.NAK
            self._was_refused |= is_nak and one.sequence == self._sequence
            self._for_client += _again(one)

    # ---- the client's port ----

    @property
    def in_waiting(self) -> int:
        """Bytes for the client."""
        return len(self._for_client)

    def read(self, size: int, /) -> bytes:
        """Bytes for the client, waiting for the port's timeout if there are none."""
        if not self._for_client:
            self._pump()
        data = bytes(self._for_client[:size])
        del self._for_client[:size]
        return data

    def write(self, data: bytes, /) -> Any:
        """Bytes from the client."""
        return self._port.write(data)

    def close(self) -> None:
        """Close the port."""
        self._port.close()


def _again(found: Frame | Broken) -> bytes:
    """The frame's bytes; for a broken frame a head that the client's decoder finds broken too."""
    if isinstance(found, Frame):
        return pack_frame(*found)
    return SYNC + bytes((0, found.sequence, 0, 0))

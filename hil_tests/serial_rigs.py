"""Rigs with a serial line, in lock step: the rv32 image in QEMU, and on an FPGA.

The controller's time passes only when the rig advances it, and the rig does so only while no byte is in flight on the
line. So a busy machine, or a line of 921600 baud, makes a run slower and changes nothing else. A client's timeouts use
the same time: silence on the line takes slots.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import parse_qs

import numpy as np
import serial
from numpy.typing import NDArray

from firmware_bridge.controlpulp import qemu
from firmware_bridge.controlpulp.host import ChannelBusy
from firmware_bridge.controlpulp.shared_memory import TIME_BY_WORD
from firmware_bridge.errors import NoAnswerError
from firmware_bridge.scmi.transports.in_process import InProcess
from firmware_bridge.scmi.transports.lock_step import LockStepLine
from firmware_bridge.scmi.transports.serial_line import Port, SerialLine
from firmware_bridge.scmi.transports.transport import Transport
from hil_tests.rig import Ability, Rig
from tests.firmware.images import image

TICK_NS: Final = 125_000
SLOT_NS: Final = 500_000
BAUD: Final = 921600
PORT_TIMEOUT_S: Final = 0.0005
"""Real time for which one poll of the line waits."""
SETTLE_S: Final = 0.05
"""Real time after which bytes written to an FPGA's line have arrived and been answered."""
RESET_S: Final = 0.002
"""What arrives while the image starts again is lost; a greeting would be."""
PATIENCE_S: Final = 10.0
"""Real time for an answer in lock step: the machine may be an emulator on a busy host."""
FPGA_VARIABLE: Final = "NODECTL_FPGA"


class _RigPort:
    """The client's end of the line. It outlives the controller, as a cable does, and uses the rig's time."""

    def __init__(self, rig: SerialRig) -> None:
        self._rig = rig

    @property
    def in_waiting(self) -> int:
        """Bytes that can be read without waiting."""
        return self._rig.port.in_waiting if self._rig.port else 0

    def read(self, size: int, /) -> bytes:
        """The received bytes. If there are none and no byte is in flight, a slot passes."""
        if self._rig.is_quiet() and not self.in_waiting:
            self._rig.pass_slots(1)
            return b""
        return self._rig.port.read(size) if self._rig.port else b""

    def write(self, data: bytes, /) -> int:
        """Write to the line; bytes are lost while the controller is dead."""
        self._rig.put(data)
        return len(data)

    def close(self) -> None:
        """Does nothing: the line belongs to the rig."""


class _RigClock:
    """A clock that shows the rig's time."""

    def __init__(self, rig: SerialRig) -> None:
        self._rig = rig

    def now_s(self) -> float:
        """Seconds since the first power-on."""
        return self._rig.now_s()

    def sleep(self, duration_s: float) -> None:
        """Advance by whole slots."""
        self._rig.pass_time(duration_s)


class SerialRig(Rig):
    """Common to both rigs: agent 1 uses the line, and time is a count of ticks."""

    is_real_time = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port: Port | None = None
        self._now_ns = 0
        self._written = 0
        self._wires: dict[str, NDArray[np.int32]] = {}

    # ---- to be implemented for each target ----

    def power_on(self) -> None:
        """Start a controller and set ``port`` and ``_wires``."""
        raise NotImplementedError

    def power_off(self) -> None:
        """Kill the controller."""
        raise NotImplementedError

    def give_ticks(self, ticks: int) -> None:
        """Run the controller's jobs of this many ticks of 125 us, with the present wires."""
        raise NotImplementedError

    def is_quiet(self) -> bool:
        """Whether no byte is in flight on the line, in either direction."""
        raise NotImplementedError

    # ---- life ----

    def start(self) -> None:
        """Start a new controller on the chip in its present state. Its time begins with a slot's first tick."""
        self._now_ns += -self._now_ns % SLOT_NS
        self._written = 0
        self.power_on()
        self.plant.wire(self._wires)
        self.plant.advance_to(self._now_ns)
        self.give_ticks(1)

    def kill(self) -> None:
        """Kill the controller. The chip keeps its last clocks."""
        self.port = None
        self.power_off()

    def stop(self) -> None:
        """Power off."""
        super().stop()
        if self.port:
            self.kill()

    # ---- agents ----

    def connect(self, agent: int) -> Transport:
        """The line."""
        line = SerialLine(_RigPort(self), f"{self.name}'s line", clock=_RigClock(self))
        line.greet()
        return line

    def put(self, content: bytes) -> None:
        """Write bytes to the controller, if it runs."""
        if self.port:
            self._written += len(content)
            self.port.write(content)

    def send_noise(self, content: bytes) -> None:
        """Write stray bytes."""
        self.put(content)

    # ---- time and truth ----

    def now_s(self) -> float:
        """Since power was switched on first; goes on while the controller is dead."""
        return self._now_ns * 1e-9

    def pass_time(self, seconds: float) -> None:
        """Advance by whole slots where possible, tick by tick before and after them.

        The ticks of a whole slot run together, at its end, so the sensors are read once every half millisecond.
        """
        until_ns = self._now_ns + round(seconds * 1e9)
        while self._now_ns < until_ns:
            is_whole = self._now_ns % SLOT_NS == 0 and self._now_ns + SLOT_NS <= until_ns
            step_ns = SLOT_NS if is_whole else TICK_NS - self._now_ns % TICK_NS
            self._now_ns = min(self._now_ns + step_ns, until_ns)
            self.plant.advance_to(self._now_ns)
            if self.port and self._now_ns % TICK_NS == 0:
                self.give_ticks(SLOT_NS // TICK_NS if is_whole else 1)

    def freq_khz(self) -> NDArray[np.int32]:
        """The wires."""
        return self._wires["freq_khz"].copy()


class QemuRig(SerialRig):
    """The image in QEMU's `virt`: SCMI on a pty, sensors, actuators and ticks in shared memory."""

    name = "qemu-rv32"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._controller: qemu.QemuController | None = None

    @classmethod
    def missing(cls) -> str | None:
        """Compiler and emulator."""
        return qemu.missing()

    def power_on(self) -> None:
        """Start a new process."""
        self._controller = qemu.QemuController(image(f"-DBYPASS={self.has_bypass:d}"), TIME_BY_WORD)
        self._wires = self._controller.wires()
        self.port = serial.Serial(self._controller.pty, BAUD, timeout=PORT_TIMEOUT_S)

    def power_off(self) -> None:
        """SIGKILL."""
        if self._controller:
            self._controller.kill()
            self._controller = None

    def give_ticks(self, ticks: int) -> None:
        """Advance by the word in shared memory."""
        assert self._controller is not None
        self._controller.give_ticks(ticks)

    def is_quiet(self) -> bool:
        """The image counts the bytes that it has received, and reports when it is idle and has sent everything."""
        return self._controller is None or self._controller.has_settled(self._written)

    def connect(self, agent: int) -> Transport:
        """The line for agent 1; the others have mailboxes in shared memory."""
        if agent == 1:
            return super().connect(agent)
        transport = InProcess(_Mailbox(self), agent - 1)
        transport.clock = _RigClock(self)
        return transport

    # ---- for _Mailbox ----

    @property
    def memory(self) -> qemu.QemuController | None:
        """The running image's shared memory."""
        return self._controller


class _Mailbox:
    """The memory that agents 2 and 3 share with the image. The image polls doorbells in its own time."""

    def __init__(self, rig: QemuRig) -> None:
        self._rig = rig

    def send(self, channel: int, message: bytes) -> None:
        """Write to the mailbox and wait for the response. A dead controller never hands the mailbox back."""
        memory = self._rig.memory
        if memory is None:
            raise ChannelBusy(f"channel {channel}: the controller has not answered the last message")
        memory.send(channel, message)
        deadline_s = time.monotonic() + 1.0
        while not memory.is_answered(channel) and time.monotonic() < deadline_s:
            time.sleep(50e-6)

    def poll(self, channel: int) -> bytes | None:
        """The controller's answer."""
        memory = self._rig.memory
        return memory.poll(channel) if memory else None

    def notifications(self, channel: int) -> list[bytes]:
        """The controller's events."""
        memory = self._rig.memory
        return memory.notifications(channel) if memory else []

    def advance(self, duration_s: float) -> None:
        """The same as ``pass_time``."""
        self._rig.pass_time(duration_s)


class FpgaRig(SerialRig):
    """The image on an FPGA, or any machine without shared memory: SCMI and slots are frames on one line.

    ``NODECTL_FPGA`` names the line: ``/dev/ttyUSB0?baud=921600``, or any URL of pyserial. The image must be built for
    lock step (docs/firmware.md).
    """

    name = "fpga"
    cannot: ClassVar[Mapping[Ability, str]] = {
        Ability.SEVERAL_AGENTS: "one line, one agent",
        Ability.BYPASS: "without shared memory the actuators come once a slot",
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._line = self.open_line()
        self._quiet_from_s = 0.0
        names = {"temperature_mk": 36, "capacitance_ff": 36, "power_uw": 5, "freq_khz": 36, "volt_mv": 4}
        self._wires = {name: np.zeros(size, dtype=np.int32) for name, size in names.items()}

    @classmethod
    def missing(cls) -> str | None:
        """The device."""
        if FPGA_VARIABLE in os.environ:
            return None
        return f"no FPGA: set {FPGA_VARIABLE}=/dev/ttyUSB0?baud=921600"

    def open_line(self) -> LockStepLine:
        """The rig's end of the line."""
        device, _, query = os.environ[FPGA_VARIABLE].partition("?")
        baud = int(parse_qs(query).get("baud", [str(BAUD)])[0])
        return LockStepLine(serial.serial_for_url(device, baud, timeout=PORT_TIMEOUT_S), device, PATIENCE_S)

    def power_on(self) -> None:
        """Reset the image, then greet it."""
        self._line.reset()
        self._line.clock.sleep(RESET_S)
        self.port = self._line
        SerialLine(self._line, self.name, self._line.clock, self._line.reply_timeout_s).greet()

    def power_off(self) -> None:
        """Cut it off until its next reset: a rig with only a line cannot kill the controller."""

    def stop(self) -> None:
        """Close the device."""
        super().stop()
        self._line.close()

    def put(self, content: bytes) -> None:
        """Write bytes to the controller, and note when they will have arrived."""
        super().put(content)
        self._quiet_from_s = time.monotonic() + SETTLE_S

    def give_ticks(self, ticks: int) -> None:
        """Send a frame for each slot when its first tick is due."""
        if self._now_ns % SLOT_NS:
            return
        try:
            set_now = self._line.slot(self._wires)
        except NoAnswerError as silence:
            raise AssertionError(str(silence)) from None
        for name, values in set_now.items():
            self._wires[name][:] = values

    def is_quiet(self) -> bool:
        """Whether enough time has passed since the last byte was written."""
        return self.port is None or time.monotonic() >= self._quiet_from_s

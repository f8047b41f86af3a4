"""Rigs in virtual time: the host board in this process, and the rv32 image in Unicorn. Timing is judged here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firmware_bridge.controlpulp import rv32
from firmware_bridge.controlpulp.host import ChannelBusy, HostController, HostOptions
from firmware_bridge.scmi.clock import Clock
from firmware_bridge.scmi.transports.in_process import InProcess
from firmware_bridge.scmi.transports.transport import Transport
from hil_tests.rig import Ability, Rig
from tests.firmware.images import image

TICK_NS = 125_000
_NO_LINE = {Ability.LINE_NOISE: "a mailbox has no line: it carries words of memory"}


class _RigClock:
    """A rig's virtual time, as its clients see it."""

    def __init__(self, rig: VirtualRig) -> None:
        self._rig = rig

    def now_s(self) -> float:
        """Virtual seconds."""
        return self._rig.now_s()

    def sleep(self, duration_s: float) -> None:
        """Advance the rig's time."""
        self._rig.pass_time(duration_s)


class VirtualRig(Rig):
    """Common to these rigs: one clock; while the controller is dead, its mailbox stays and gets no response."""

    is_real_time = False
    cannot = _NO_LINE

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._now_ns = 0
        self._began_ns = 0
        self._controller: Any = None
        self._wires: dict[str, NDArray[np.int32]] = {}

    # ---- life ----

    def start(self) -> None:
        """Start a new controller on the chip in its present state. Its time begins at a tick."""
        self._now_ns += -self._now_ns % TICK_NS
        self._began_ns = self._now_ns
        self._controller, self._wires = self.make_controller()
        self.plant.wire(self._wires)
        self.plant.advance_to(self._now_ns)
        self.tick()

    def kill(self) -> None:
        """Kill the controller. The chip keeps its last clocks."""
        self._controller = None

    def make_controller(self) -> tuple[Any, dict[str, NDArray[np.int32]]]:
        """A controller after reset, and its wires."""
        raise NotImplementedError

    def tick(self) -> None:
        """Run the controller up to now; the plant has been advanced already."""
        raise NotImplementedError

    # ---- agents and time ----

    def connect(self, agent: int) -> Transport:
        """The agent's channel."""
        transport = InProcess(self, agent - 1)
        clock: Clock = _RigClock(self)
        transport.clock = clock
        return transport

    def now_s(self) -> float:
        """Time since the first power-on; it goes on while the controller is dead."""
        return self._now_ns * 1e-9

    def pass_time(self, seconds: float) -> None:
        """Advance tick by tick; plant and controller exchange values at each tick."""
        until_ns = self._now_ns + round(seconds * 1e9)
        while self._now_ns < until_ns:
            self._now_ns = min((self._now_ns // TICK_NS + 1) * TICK_NS, until_ns)
            self.plant.advance_to(self._now_ns)
            if self._controller:
                self.tick()

    def freq_khz(self) -> NDArray[np.int32]:
        """The wires."""
        return self._wires["freq_khz"].copy()

    # ---- the interface of a platform for InProcess ----

    def send(self, channel: int, message: bytes) -> None:
        """Write to the mailbox. A dead controller never hands it back."""
        if self._controller is None:
            raise ChannelBusy(f"channel {channel}: the controller has not answered the last message")
        self._controller.send(channel, message)

    def poll(self, channel: int) -> bytes | None:
        """The controller's answer."""
        answer: bytes | None = self._controller.poll(channel) if self._controller else None
        return answer

    def notifications(self, channel: int) -> list[bytes]:
        """The controller's events."""
        events: list[bytes] = self._controller.notifications(channel) if self._controller else []
        return events

    def advance(self, duration_s: float) -> None:
        """The same as ``pass_time``."""
        self.pass_time(duration_s)


class InProcessRig(VirtualRig):
    """The firmware as a library."""

    name = "inproc"

    def make_controller(self) -> tuple[Any, dict[str, NDArray[np.int32]]]:
        """The host board. The rig advances the plant, since the board's time starts at 0 with each start."""
        host = HostController(HostOptions(bypass=self.has_bypass))
        return host, host.wires

    def tick(self) -> None:
        """Advance the host board to now."""
        self._controller.advance_to(self._now_ns - self._began_ns)


class UnicornRig(VirtualRig):
    """The rv32 image, emulated."""

    name = "unicorn-rv32"

    @classmethod
    def missing(cls) -> str | None:
        """Compiler and emulator."""
        return rv32.missing()

    def make_controller(self) -> tuple[Any, dict[str, NDArray[np.int32]]]:
        """The image after reset."""
        controller = rv32.Rv32Controller(image(f"-DBYPASS={self.has_bypass:d}"))
        names = ("temperature_mk", "capacitance_ff", "power_uw", "freq_khz", "volt_mv")
        return controller, {name: controller.words(name) for name in names}

    def tick(self) -> None:
        """Trigger a tick's trap when it is due; between ticks the core waits."""
        if self._now_ns % TICK_NS == 0:
            self._controller.tick()

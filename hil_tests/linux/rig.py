"""The linux rigs: firmware and plant of the `inproc` rig in real time, behind a virtio device, with Linux as agent 1.

``LinuxRig`` has user-mode Linux, ``ArmLinuxRig`` an arm64 kernel in QEMU, whose FastChannels lie in guest memory.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from firmware_bridge.controlpulp.host import FAST_WORDS, HostController, HostOptions
from firmware_bridge.scmi.clock import RealClock
from firmware_bridge.scmi.messages.header import Sender
from firmware_bridge.scmi.messages.status import Status
from firmware_bridge.scmi.transports.in_process import InProcess
from firmware_bridge.scmi.transports.transport import Transport
from firmware_bridge.scmi.virtio.guest_memory import GuestMemory
from firmware_bridge.scmi.virtio.vhost_user import VhostUserServer
from hil_tests.linux.guest import Guest, RawMode
from hil_tests.linux.machines import FAST_WINDOW, missing_for_qemu, missing_for_user_mode, qemu, user_mode
from hil_tests.rig import Ability
from hil_tests.virtual_rigs import InProcessRig

GUEST: Final = 1
"""The guest's agent, `ospm`."""
BMC: Final = 3
"""The management controller."""

_KEPT: Final = 256
_TURN_S: Final = 1e-3
_MOST_S: Final = 50e-3
"""When this machine pauses for longer, the controller's time pauses too."""


class LinuxRig(InProcessRig):
    """Agent 1 is the user space of a real Linux kernel, through its raw mode; the others are in this process."""

    name = "linux"
    is_real_time = True
    cannot: ClassVar[dict[Ability, str]] = {
        Ability.LINE_NOISE: "a virtio device has no line: it carries messages",
        Ability.EXACT_TIME: "real time on a shared machine: single slots may be late",
    }

    @classmethod
    def missing(cls) -> str | None:
        """Names what is missing: the kernel, or the request for it."""
        if os.environ.get("NODECTL_HIL_LINUX") != "1":
            return "a real kernel is started by `make hil-linux` only (NODECTL_HIL_LINUX=1)"
        return missing_for_user_mode()

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._lock = threading.Lock()
        self.server = VhostUserServer({GUEST: str(folder / "scmi.sock")}, self.memory_changed)
        self._pending: bytes | None = None
        self._is_sent = self._is_lost = False
        self._is_stopping = False
        self._turns = 0
        self._thread = threading.Thread(target=self._follow, name="linux-rig", daemon=True)
        self._guest: Guest | None = None
        self.passed: deque[tuple[Sender, bytes]] = deque(maxlen=_KEPT)
        """The latest messages between the guest's kernel and the controller."""

    @property
    def guest(self) -> Guest:
        """The guest that has booted."""
        assert self._guest, "not started"
        return self._guest

    # ---- life ----

    def start(self) -> None:
        """Start the controller, and at first start the kernel."""
        with self._lock:
            super().start()
            self._is_lost = self._pending is not None  # the killed controller will never answer it
        if self._guest is None:
            self._thread.start()
            self._guest = self.boot()

    def boot(self) -> Guest:
        """Start the kernel."""
        log = self.folder / "kernel.log"
        return Guest(user_mode(self.folder / "scmi.sock", log), log)

    def memory_changed(self, agent: int, memory: GuestMemory | None) -> None:
        """Called when the guest's memory is there, and before it goes."""

    def kill(self) -> None:
        """Kill the controller only: the device stays and answers nothing. What the guest has sent has arrived."""
        turn = self._turns
        while self._thread.is_alive() and self._turns < turn + 2:
            time.sleep(_TURN_S)
        with self._lock:
            super().kill()

    def stop(self) -> None:
        """Stop kernel and controller, remove the socket."""
        super().stop()
        if self._guest:
            self._guest.stop()
        self._is_stopping = True
        if self._thread.is_alive():
            self._thread.join()
        self.server.close()

    def make_controller(self) -> tuple[Any, dict[str, NDArray[np.int32]]]:
        """A controller configured for a guest that cannot reach its memory."""
        host = HostController(HostOptions(bypass=self.has_bypass, message_only=frozenset({GUEST - 1})))
        return host, host.wires

    # ---- agents ----

    def ask_for_an_orderly_end(self) -> None:
        """As the management controller: a graceful shutdown (protocol 0x12, which our client has not)."""
        message = struct.pack("<3I", 0x3 | 0x12 << 10, 1, 0)
        with self._lock:
            assert self._controller.exchange(BMC - 1, message) == message[:4] + bytes(4)

    def connect(self, agent: int) -> Transport:
        """The guest's kernel, or the mailbox of another agent."""
        if agent == GUEST:
            return RawMode(self.guest)
        transport = InProcess(self, agent - 1)
        transport.clock = RealClock()
        transport.reply_timeout_s = 2.0  # real time, next to an emulator that takes every processor
        return transport

    def send(self, channel: int, message: bytes) -> None:
        """Send another agent's command."""
        with self._lock:
            super().send(channel, message)

    def poll(self, channel: int) -> bytes | None:
        """That agent's response."""
        with self._lock:
            return super().poll(channel)

    def notifications(self, channel: int) -> list[bytes]:
        """That agent's events."""
        with self._lock:
            return super().notifications(channel)

    # ---- time and truth ----

    def pass_time(self, seconds: float) -> None:
        """Wait until this time has passed for the controller."""
        until_s = self.now_s() + seconds
        while (left_s := until_s - self.now_s()) > 0.0:
            if not self._thread.is_alive():
                raise RuntimeError("the thread that advances the controller has ended")
            time.sleep(max(left_s, 1e-4))

    def powers_w(self, slots: int) -> NDArray[np.float64]:
        """Wait until these slots have passed for the controller."""
        with self._lock:
            written = self.plant.trace(slots)
        if not self.wait_for(lambda: self.plant.traced >= slots, 20.0 + slots * 5e-4):
            raise TimeoutError(f"{self.plant.traced} of {slots} slots have passed: this machine is too slow")
        return written.astype(np.float64)

    def _follow(self) -> None:
        """Advance the controller with the machine's time, and serve the device in between."""
        before_s = time.monotonic()
        while not self._is_stopping:
            for _, message in self.server.wait(_TURN_S):
                self._pending, self._is_sent = message, False
                self.passed.append((Sender.AGENT, message))
            self._turns += 1
            now_s = time.monotonic()
            with self._lock:
                super().pass_time(min(now_s - before_s, _MOST_S))
                self._serve()
            before_s = now_s

    def _serve(self) -> None:
        if self._controller is None:
            return
        if self._pending is not None and self._is_lost:
            self.server.answer(GUEST, self._pending[:4] + struct.pack("<i", Status.COMMS_ERROR))
            self._pending = None
        self._is_lost = False
        if self._pending is not None and not self._is_sent:
            super().send(GUEST - 1, self._pending)
            self._is_sent = True
        answer = super().poll(GUEST - 1) if self._pending is not None else None
        if answer is not None:
            self.passed.append((Sender.PLATFORM, answer))
            self.server.answer(GUEST, answer)
            self._pending = None
        for event in super().notifications(GUEST - 1):
            self.passed.append((Sender.PLATFORM, event))
            self.server.notify(GUEST, event)


class ArmLinuxRig(LinuxRig):
    """An arm64 kernel with cpufreq, in QEMU. Its FastChannels are a page of its memory, reserved by the device tree."""

    name = "linux-arm64"

    def __init__(self, folder: Path) -> None:
        self._window: memoryview | None = None
        super().__init__(folder)

    @classmethod
    def missing(cls) -> str | None:
        """Names what is missing."""
        return super().missing() if os.environ.get("NODECTL_HIL_LINUX") != "1" else missing_for_qemu()

    def boot(self) -> Guest:
        """Start QEMU."""
        log = self.folder / "kernel.log"
        return Guest(qemu(self.folder / "scmi.sock", log), log)

    def memory_changed(self, agent: int, memory: GuestMemory | None) -> None:
        """Let the controller see the guest's page while it is there."""
        with self._lock:
            if self._controller is not None:
                self._controller.map_fast_channel(GUEST - 1, None, 0)
            if self._window is not None:
                self._window.release()
            self._window = memory.at_guest(FAST_WINDOW, 4 * FAST_WORDS) if memory else None
            self._show_window()

    def make_controller(self) -> tuple[Any, dict[str, NDArray[np.int32]]]:
        """A controller that sees the page at once, if the guest is there."""
        made = super().make_controller()
        self._controller = made[0]
        self._show_window()
        return made

    def fast_writes(self) -> int:
        """How often the firmware has seen a FastChannel word of the guest change."""
        with self._lock:
            return int(self._controller.view().fast_writes[GUEST - 1])

    def _show_window(self) -> None:
        if self._controller is not None and self._window is not None:
            self._controller.map_fast_channel(GUEST - 1, self._window, FAST_WINDOW)

"""The controller as a process, in real time, over shared memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from firmware_bridge.controlpulp.posix import PosixController
from firmware_bridge.scmi.transports.transport import Transport
from firmware_bridge.scmi.transports.url import open_transport
from hil_tests.rig import Ability, Rig
from twin.pulp.shared_plant import LIBRARY, SharedPlant

AWAY_S = 0.002
"""A controller that did not run for this long has missed four slots."""
WINDOWS = 100


class PosixRig(Rig):
    """``controlpulp-posix`` with the plant loaded into it; the plant's state is in a file of the rig."""

    name = "posix"
    is_real_time = True
    cannot: ClassVar[Mapping[Ability, str]] = {
        Ability.LINE_NOISE: "a mailbox has no line: it carries words of memory",
        Ability.EXACT_TIME: "real time on a shared machine: single slots may be late",
    }

    def __init__(self, folder: Path) -> None:
        self._plant = SharedPlant(folder / "plant")
        super().__init__(folder)

    def make_plant(self) -> SharedPlant:
        """A plant whose state the controller's process also maps."""
        return self._plant

    def start(self) -> None:
        """Start the process and wait for its sockets. It runs as SCHED_FIFO if permitted."""
        options = ("--fifo", "try", *(["--bypass"] if self.has_bypass else []))
        self._process = PosixController(self.folder / "scmi", *options, plant=(LIBRARY, self._plant.path))

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def stop(self) -> None:
        """SIGTERM."""
        super().stop()
        self._process.stop()

    def connect(self, agent: int) -> Transport:
        """The agent's socket."""
        return open_transport(self.url(agent))

    def url(self, agent: int) -> str:
        """Where an agent connects."""
        return self._process.url(agent)

    def now_s(self) -> float:
        """The machine's monotonic time."""
        return time.monotonic()

    def pass_time(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def powers_w(self, slots: int) -> NDArray[np.float64]:
        """Means over slots in which the controller ran: a busy machine may stop it for some."""
        windows = []
        for _ in range(WINDOWS):
            powers = super().powers_w(slots)
            windows.append((self.plant.longest_advance_s, powers))
            if len(powers) == slots and self.plant.longest_advance_s < AWAY_S:
                return powers
        return min(windows, key=lambda window: window[0])[1]

    def freq_khz(self) -> NDArray[np.int32]:
        """The wires."""
        return self._plant.wires["freq_khz"].astype(np.int32)

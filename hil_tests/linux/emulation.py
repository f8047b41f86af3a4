"""The other end of the guest's socket: firmware and plant in real time, behind a virtio device."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

import numpy as np

from firmware_bridge.controlpulp.host import AGENTS, HostController, HostOptions
from firmware_bridge.scmi.vhost_user import VhostUserServer
from twin.pulp.plant import CLASSES, CORES, Plant

GUEST: Final = 1
"""The guest's agent: `ospm`."""

_TURN_S: Final = 1e-3
_MOST_S: Final = 20e-3
"""When this machine stands still for longer, the emulation's time does, too."""


class Emulation:
    """A controller and its chip, followed by a thread of their own. ``exchange`` speaks as another agent."""

    def __init__(self, socket: Path) -> None:
        self.plant = Plant()
        self.plant.capacitance[:] = CLASSES[2]
        self.plant.settle(np.full(CORES, 4.0))
        self._controller = HostController(HostOptions(message_only=frozenset({GUEST - 1})))
        self._controller.attach(self.plant)
        self.server = VhostUserServer({GUEST: str(socket)})
        self._lock = threading.Lock()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="emulation", daemon=True)
        self._thread.start()

    def exchange(self, agent: int, message: bytes) -> bytes:
        """A command of another agent, answered at once."""
        if agent == GUEST or not 1 <= agent <= AGENTS:
            raise ValueError(f"agent {agent} is the guest or none")
        with self._lock:
            return self._controller.exchange(agent - 1, message)

    @property
    def commands(self) -> int:
        """Messages that the firmware has answered."""
        with self._lock:
            return self._controller.view().commands

    def mean_power_w(self, seconds: float) -> float:
        """The package's true mean power over the next seconds of the emulation's time."""
        begin_ns, begin_j = self._energy()
        time.sleep(seconds)
        end_ns, end_j = self._energy()
        return (end_j - begin_j) / ((end_ns - begin_ns) * 1e-9)

    def _energy(self) -> tuple[int, float]:
        with self._lock:
            return self._controller.now_ns, self.plant.energy_j

    def _run(self) -> None:
        is_asked = False
        before_s = time.monotonic()
        while not self._is_stopping:
            for agent, message in self.server.wait(_TURN_S):
                self._controller.send(agent - 1, message)
                is_asked = True
            now_s = time.monotonic()
            with self._lock:
                self._controller.advance(min(now_s - before_s, _MOST_S))
            before_s = now_s
            if is_asked and (answer := self._controller.poll(GUEST - 1)) is not None:
                self.server.answer(GUEST, answer)
                is_asked = False
            for event in self._controller.notifications(GUEST - 1):
                self.server.notify(GUEST, event)

    def stop(self) -> None:
        """Power off."""
        self._is_stopping = True
        self._thread.join()
        self.server.close()

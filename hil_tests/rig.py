"""What a scenario may do with a rig: a controller that manages the emulated chip, on whatever target it runs.

A rig joins a board of ``firmware_bridge/controlpulp`` with the plant of ``twin/pulp``. The plant is the truth:
scenarios judge by its watts, temperatures and clocks, and break its sensors; what agents see goes through SCMI. The
plant survives the controller's death, as a chip does.

To add a rig: derive from ``Rig``, fill in what raises here, list the class in ``rigs.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.transports.transport import Transport
from hil_tests.link import DisturbedLink
from twin.pulp.plant import CLASSES, CORES, SLOT_S, Plant


class Ability(StrEnum):
    """What not every rig can do. A rig that cannot says why in ``cannot``; the scenario then skips with that."""

    SEVERAL_AGENTS = "several agents"
    EXACT_TIME = "exact time"
    """Slots can be counted: nothing but the rig delays the controller."""
    LINE_NOISE = "line noise"
    """``send_noise`` puts bytes on a line."""
    KILL = "kill"
    BYPASS = "bypass"
    """The fast task runs, so that lower levels take effect ahead of the control slot."""


class Rig:
    """A controller and its chip. Made, started, used by one scenario, stopped."""

    name: ClassVar[str]
    is_real_time: ClassVar[bool]
    """Time passes by itself; medians and percentiles can be judged, single slots cannot."""
    cannot: ClassVar[Mapping[Ability, str]] = {}

    @classmethod
    def missing(cls) -> str | None:
        """What this rig needs and this machine lacks, with the package to install; ``None`` when it can run."""
        return None

    def __init__(self, folder: Path) -> None:
        """``folder`` is the rig's own, for sockets and images."""
        self.folder = folder
        self.plant = self.make_plant()
        self.plant.capacitance[:] = CLASSES[2]
        self.plant.settle(np.full(CORES, 4.0))
        self._links: list[DisturbedLink] = []

    def make_plant(self) -> Plant:
        """A plant that this rig's controller can reach."""
        return Plant()

    # ---- life ----

    def start(self) -> None:
        """Power on: returns when the controller answers."""
        raise NotImplementedError

    def kill(self) -> None:
        """The controller dies at once, whatever it is doing; its mailbox or line goes silent, the chip stays."""
        raise NotImplementedError

    def restart(self) -> None:
        """A killed controller comes back, with nothing remembered."""
        self.start()

    def stop(self) -> None:
        """Power off and clean up; may follow ``kill``."""
        for link in self._links:
            link.close()
        self._links.clear()

    # ---- agents ----

    def connect(self, agent: int) -> Transport:
        """A fresh link to the controller as agent 1, 2 or 3."""
        raise NotImplementedError

    def link(self, agent: int = 1) -> DisturbedLink:
        """The same, to be disturbed; closed by ``stop``."""
        link = DisturbedLink(self.connect(agent))
        self._links.append(link)
        return link

    def last_link(self) -> DisturbedLink:
        """Of the client or controller that was made last."""
        return self._links[-1]

    def client(self, agent: int = 1) -> Client:
        """Asks single commands as an agent."""
        return Client(self.link(agent))

    def controller(self, agent: int = 1) -> Controller:
        """The controller as an agent's program sees it."""
        return Controller(self.client(agent))

    def send_noise(self, content: bytes) -> None:
        """Bytes that are no frame, on the line towards the controller."""
        raise NotImplementedError

    # ---- time ----

    def now_s(self) -> float:
        """The controller's time."""
        raise NotImplementedError

    def pass_time(self, seconds: float) -> None:
        """Advance virtual time, or wait."""
        raise NotImplementedError

    def pass_slots(self, slots: int) -> None:
        """Let control slots of 500 us pass."""
        self.pass_time(slots * SLOT_S)

    def wait_for(self, holds: Callable[[], bool], within_s: float) -> bool:
        """Whether it comes true in time; looks every 2 ms."""
        deadline_s = self.now_s() + within_s
        while not holds():
            if self.now_s() >= deadline_s:
                return False
            self.pass_time(0.002)
        return True

    # ---- truth ----

    def freq_khz(self) -> NDArray[np.int32]:
        """The clocks that the cores run at, 36 of them."""
        raise NotImplementedError

    def powers_w(self, slots: int) -> NDArray[np.float64]:
        """The package's true power over the next slots, as means of 500 us; time passes."""
        written = self.plant.trace(slots)
        self.pass_slots(slots)
        return written[: self.plant.traced].astype(np.float64)

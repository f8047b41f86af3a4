"""The interface of all rigs: a controller that manages the emulated chip, on any target.

A rig joins a board of ``firmware_bridge/controlpulp`` with the plant of ``twin/pulp``. The plant is the truth:
scenarios judge by its watts, temperatures and clocks, and break its sensors. Agents see only what SCMI shows. The plant
survives the controller's death, as a chip does.

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
    """Abilities that some rigs lack. Such a rig gives the reason in ``cannot``, with which the scenario is skipped."""

    SEVERAL_AGENTS = "several agents"
    EXACT_TIME = "exact time"
    """Slots can be counted: only the rig delays the controller."""
    LINE_NOISE = "line noise"
    """``send_noise`` puts bytes on a serial line."""
    KILL = "kill"
    BYPASS = "bypass"
    """The firmware can be started with its bypass, by which lower levels take effect ahead of the control slot."""


class Rig:
    """A controller and its chip. One scenario creates, starts, uses and stops it."""

    name: ClassVar[str]
    is_real_time: ClassVar[bool]
    """Whether time is real: then medians and percentiles can be judged, single slots cannot."""
    cannot: ClassVar[Mapping[Ability, str]] = {}
    most_slots: ClassVar[int | None] = None
    """Scenarios that take more slots (``slots.py``) do not run on this rig; ``None``: all do."""

    @classmethod
    def missing(cls) -> str | None:
        """A tool that this rig needs and this machine lacks, with the package to install; ``None`` when the rig can
        run."""
        return None

    def __init__(self, folder: Path) -> None:
        """``folder`` is for the rig's sockets and images."""
        self.folder = folder
        self.has_bypass = False
        """To be set before ``start``."""
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
        """Kill the controller at once. Its mailbox or line goes silent; the chip stays."""
        raise NotImplementedError

    def restart(self) -> None:
        """Start a killed controller again, without any state."""
        self.start()

    def stop(self) -> None:
        """Power off and clean up; may follow ``kill``."""
        for link in self._links:
            link.close()
        self._links.clear()

    # ---- agents ----

    def connect(self, agent: int) -> Transport:
        """A new link to the controller as agent 1, 2 or 3."""
        raise NotImplementedError

    def link(self, agent: int = 1) -> DisturbedLink:
        """A new link that can be disturbed; ``stop`` closes it."""
        link = DisturbedLink(self.connect(agent))
        self._links.append(link)
        return link

    def last_link(self) -> DisturbedLink:
        """The link of the client or controller that was made last."""
        return self._links[-1]

    def client(self, agent: int = 1) -> Client:
        """A client that sends single commands as an agent."""
        return Client(self.link(agent))

    def controller(self, agent: int = 1) -> Controller:
        """The controller as an agent's program sees it."""
        return Controller(self.client(agent))

    def send_noise(self, content: bytes) -> None:
        """Send bytes that are not a frame to the controller."""
        raise NotImplementedError

    # ---- time ----

    def now_s(self) -> float:
        """The controller's time."""
        raise NotImplementedError

    def pass_time(self, seconds: float) -> None:
        """Advance virtual time, or wait."""
        raise NotImplementedError

    def pass_slots(self, slots: int) -> None:
        """Advance by control slots of 500 us."""
        self.pass_time(slots * SLOT_S)

    def wait_for(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Whether the condition becomes true in time; checks every 2 ms."""
        deadline_s = self.now_s() + within_s
        while not condition():
            if self.now_s() >= deadline_s:
                return False
            self.pass_time(0.002)
        return True

    # ---- truth ----

    def freq_khz(self) -> NDArray[np.int32]:
        """The clocks of the 36 cores."""
        raise NotImplementedError

    def powers_w(self, slots: int) -> NDArray[np.float64]:
        """The package's true power over the next slots, as means of 500 us. Time passes meanwhile."""
        written = self.plant.trace(slots)
        self.pass_slots(slots)
        return written[: self.plant.traced].astype(np.float64)

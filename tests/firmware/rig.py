"""Host board and plant, joined."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firmware_bridge.controlpulp.host import HostController, HostOptions
from tests.firmware.scmi_words import POWERCAP, must
from twin.pulp.plant import CLASSES, CORES, Plant


def joined(
    capacitance: float | NDArray[np.float64] = CLASSES[2], options: HostOptions | None = None, *, seed: int = 1
) -> tuple[HostController, Plant]:
    host, plant = HostController(options), Plant(seed=seed)
    plant.capacitance[:] = capacitance
    plant.settle(np.full(CORES, 4.0))
    host.attach(plant)
    return host, plant


def cap(host: HostController, watts: float, domain: int = 0, channel: int = 0) -> None:
    must(host, POWERCAP, 0x5, domain, 0, round(watts * 1000), channel=channel)


def trace(host: HostController, plant: Plant, slots: int) -> NDArray[np.float64]:
    written = plant.trace(slots)
    host.advance_slots(slots)
    return written[: plant.traced].astype(np.float64)

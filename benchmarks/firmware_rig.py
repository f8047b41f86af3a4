"""The firmware's host board and the plant, joined for the measurements, and what the plant could do at best."""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firmware_bridge.controlpulp.host import HostController, HostOptions
from twin.pulp import heat_network
from twin.pulp.plant import CLASSES, CORES, DOMAIN_CORES, DOMAINS, Plant, core_power_w

PERFORMANCE, POWERCAP = 0x13, 0x18
LEVEL_GHZ = np.array([1.35, 1.60, 1.80, 2.00, 2.20, 2.40, 2.60, 2.75, 2.90, 3.05, 3.20, 3.35, 3.45, 3.55, 3.66])
LEVEL_VOLT = np.arange(0.50, 1.21, 0.05)
LISTED_KHZ = [400_000, 800_000, *(round(ghz * 1e6) for ghz in LEVEL_GHZ)]


def command(protocol: int, message: int, *words: int, token: int = 0) -> bytes:
    """An SCMI command."""
    return struct.pack(f"<{1 + len(words)}I", message | protocol << 10 | token << 18, *words)


def status(reply: bytes) -> int:
    """The status of a reply."""
    return int(struct.unpack_from("<i", reply, 4)[0])


@dataclass
class Rig:
    """A controller and its plant; requests are given to the platform at once, without the mailbox."""

    host: HostController
    plant: Plant

    @classmethod
    def start(
        cls, options: HostOptions, capacitance: NDArray[np.float64], *, seed: int = 1, noisy: bool = False
    ) -> Rig:
        """Both, wired, with a load; ``noisy``: sensors with noise and cores that differ."""
        plant = Plant(seed=seed)
        plant.capacitance[:] = capacitance
        if noisy:
            plant.noise(temperature_k=0.3, power=0.01, capacitance=0.01)
            plant.vary_silicon(seed)
        host = HostController(options)
        host.attach(plant)
        return cls(host, plant)

    def request(self, protocol: int, message: int, *words: int, channel: int = 0) -> None:
        """A command that must succeed."""
        code = status(self.host.exchange(channel, command(protocol, message, *words)))
        if code != 0:
            raise AssertionError(f"protocol {protocol:#x} message {message:#x} {words}: status {code}")

    def cap(self, watts: float, domain: int = 0) -> float:
        """Sets a cap; returns what is in force after rounding."""
        milliwatts = int(watts * 1000) // 100 * 100
        self.request(POWERCAP, 0x5, domain, 0, milliwatts)
        return milliwatts / 1000

    def level(self, khz: int) -> None:
        """Asks for a level in all domains."""
        for domain in range(DOMAINS):
            self.request(PERFORMANCE, 0x7, domain, khz)

    def demand_w(self, ghz: float) -> float:
        """What the package would draw with all cores at a clock and its lowest voltage, at the present temperatures."""
        plant = self.plant
        hot = plant.temperature_c[:CORES]
        volt = float(LEVEL_VOLT[int(np.searchsorted(LEVEL_GHZ, ghz - 1e-9))])
        idle = np.array([core_power_w(c, 0.0, volt, t) for c, t in zip(plant.capacitance, hot, strict=True)])
        at_clock = core_powers(plant.capacitance, ghz, hot)
        leak = np.where(plant.capacitance > 0, plant.leak_factor, 1.0)
        return float((idle * leak + (at_clock - idle) * plant.dynamic_factor).sum())

    def trace(self, slots: int) -> NDArray[np.float64]:
        """Lets slots pass and returns the mean package power of each, W."""
        written = self.plant.trace(slots)
        self.host.advance_slots(slots)
        return written[: self.plant.traced].astype(np.float64)


def core_powers(
    capacitance: NDArray[np.float64], ghz: float, temperature_c: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Power of each core at a clock and the lowest voltage that carries it."""
    volt = float(LEVEL_VOLT[int(np.searchsorted(LEVEL_GHZ, ghz - 1e-9))])
    return np.array([core_power_w(c, ghz, volt, t) for c, t in zip(capacitance, temperature_c, strict=True)])


def settled(capacitance: NDArray[np.float64], ghz: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Core powers and temperatures that a constant clock leads to."""
    temperature = np.full(CORES, 50.0)
    for _ in range(60):
        power = np.minimum(core_powers(capacitance, ghz, temperature), 9.0)
        temperature = np.minimum(heat_network.steady(power, 25.0)[:CORES], 150.0)
    return power, temperature


def highest_cool_level(capacitance: NDArray[np.float64], limit_c: float = 77.0) -> float:
    """The highest listed clock that heat does not limit and no core's ceiling of 9 W cuts."""
    for ghz in LEVEL_GHZ[::-1]:
        power, temperature = settled(capacitance, float(ghz))
        if temperature.max() <= limit_c and power.max() < 8.5:
            return float(ghz)
    return float(LEVEL_GHZ[0])


_COMBINATIONS = np.array(list(itertools.product(range(len(LEVEL_GHZ)), repeat=DOMAINS)))


def best_work_ghz(plant: Plant, cap_w: float, target_ghz: float, temperature_c: NDArray[np.float64]) -> float:
    """The most that any static voltage and clock per domain gives under the cap: sum of clocks of cores with work, GHz.

    All 15^4 combinations of voltages; with those fixed, power is linear in the clocks: the cheapest are raised first.
    """
    c = plant.capacitance.reshape(DOMAINS, DOMAIN_CORES)
    busy = (c > 0).sum(axis=1)
    growth = np.exp(0.029903 * np.minimum(temperature_c, 125.0)) * plant.leak_factor * (plant.capacitance > 0)
    at_0c = (0.32429 * LEVEL_VOLT + 0.52804) * np.exp(4.507748 * LEVEL_VOLT - 6.033035)
    leak = at_0c[:, None] * growth.reshape(DOMAINS, DOMAIN_CORES).sum(axis=1) + 0.3 * (DOMAIN_CORES - busy)
    dynamic = (c * plant.dynamic_factor.reshape(DOMAINS, DOMAIN_CORES)).sum(axis=1) / 0.81
    slope = LEVEL_VOLT[:, None] ** 2 * dynamic  # W per GHz
    domain = np.arange(DOMAINS)
    slopes, top = slope[_COMBINATIONS, domain], np.minimum(LEVEL_GHZ[_COMBINATIONS], target_ghz)
    left = cap_w - (leak[_COMBINATIONS, domain] + 0.4 * slopes).sum(axis=1)
    work = np.full(len(_COMBINATIONS), 0.4 * busy.sum())
    order = np.argsort(slopes / np.maximum(busy, 1e-9), axis=1)
    rows = np.arange(len(_COMBINATIONS))
    possible = left >= 0
    for k in range(DOMAINS):
        d = order[:, k]
        room = np.clip(left / np.maximum(slopes[rows, d], 1e-12), 0, top[rows, d] - 0.4)
        work += room * busy[d]
        left = left - room * slopes[rows, d]
    return float(work[possible].max())


def mixed_load(seed: int) -> NDArray[np.float64]:
    """Cores of random classes, one in ten finished."""
    random = np.random.default_rng(seed)
    load = random.choice(CLASSES, CORES)
    load[random.random(CORES) < 0.1] = 0.0
    return np.asarray(load)

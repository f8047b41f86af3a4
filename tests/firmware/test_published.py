"""The published law for comparison: it decides as its description in floating point does, in mixtures too."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from firmware_bridge.controlpulp.host import HostController, HostOptions
from tests.firmware.rig import cap, joined
from tests.firmware.scmi_words import PERFORMANCE, must
from twin.pulp.plant import CLASSES, CORES

Floats = NDArray[np.float64]

VOLT = np.arange(0.50, 1.21, 0.05)
FMAX = np.array([1.35, 1.60, 1.80, 2.00, 2.20, 2.40, 2.60, 2.75, 2.90, 3.05, 3.20, 3.35, 3.45, 3.55, 3.66])
IDLE_W = (0.4 * 0.5 / 0.81 * 0.4667 + 0.3243) * 0.5 + 0.52804 - 0.12


def level_for(ghz: float) -> int:
    return int(np.searchsorted(FMAX, ghz - 1e-9))


class Published:
    """The law in GHz, V and W, as the papers and the public description have it. Below 80 C, so without its PID."""

    def __init__(self) -> None:
        self.load = np.zeros(CORES)
        self.budget, self.slots, self.correction = 100.0, 36, 0.0
        self.expected = [72.0, 72.0]

    def model(self, ghz: Floats, volt: Floats | float) -> Floats:
        return np.asarray((0.3243 + self.load / 0.81 * ghz * volt) * volt + 0.52804)

    def bounded(self, ghz: Floats, volt: Floats) -> Floats:
        return np.clip(self.model(ghz, volt), IDLE_W, 9.0)

    def step(self, load: Floats, measured: float, kelvin: Floats, target: Floats, budget: float) -> Floats:
        """The next clocks; `target` per core, alike in a domain."""
        self.load = 0.6 * self.load + 0.4 * load
        if budget != self.budget:
            self.budget, self.slots = budget, 36
        error = measured - self.expected.pop(0)
        rest = 0.08 if error > 0 else 0.04
        weight = rest + (0.8 - rest) * self.slots / 36
        self.correction += weight * (error - self.correction)
        self.slots = max(self.slots - 1, 0)
        power = self.bounded(target, VOLT[[level_for(ghz) for ghz in target]])
        self._cap(power, kelvin)
        ghz, volt = np.empty(CORES), np.empty(CORES)
        for first in range(0, CORES, 9):
            own = slice(first, first + 9)
            ghz[own] = self._bisect(own, target[own], power[own])
            volt[own] = VOLT[level_for(float(ghz[own].max()))]
        self.expected.append(float(self.bounded(ghz, volt).sum()))
        return ghz

    def _cap(self, power: Floats, kelvin: Floats) -> None:
        is_least = np.zeros(CORES, bool)
        for _ in range(3):
            excess = power.sum() + self.correction - self.budget
            if excess <= 1e-3 or is_least.all():
                return
            margin = 358.0 - kelvin
            weight = np.where(is_least, 0.0, 1 / np.where(margin < 10, 5.0, margin))
            power -= excess * weight / weight.sum()
            is_least |= power <= IDLE_W
            power[is_least] = IDLE_W

    def _bisect(self, own: slice, target: Floats, power: Floats) -> Floats:
        def over(ghz: Floats) -> Floats:
            return np.asarray(self.model_of(own, ghz, 0.3095 * max(float(ghz.max()), 0.5) + 0.07) - power)

        low, high = np.full(9, 0.4), target.copy()
        at_low, at_high = over(low) > 0, over(high) > 0
        high[at_low & at_high] = 0.4
        low[~at_low & ~at_high] = target[~at_low & ~at_high]
        is_open = low != high
        for _ in range(16):
            ghz = (low + high) / 2
            more = over(ghz)
            if np.abs(more).sum() <= 0.05 or (high - ghz).sum() <= 0.05:
                break
            high = np.where(is_open & (more > 0), ghz, high)
            low = np.where(is_open & (more <= 0), ghz, low)
        return ghz

    def model_of(self, own: slice, ghz: Floats, volt: float) -> Floats:
        return np.asarray((0.3243 + self.load[own] / 0.81 * ghz * volt) * volt + 0.52804)


@pytest.mark.parametrize("seed", range(8))
def test_the_published_firmware_decides_as_its_law_in_floating_point(seed: int) -> None:
    """Not all clocks: where a guess of a bisection is nearly right, it goes either way, and its domain follows."""
    pick = random.Random(seed)
    host, law = HostController(HostOptions.published()), Published()
    levels = [pick.choice([1_350_000, 2_400_000, 3_660_000]) for _ in range(4)]
    for domain, khz in enumerate(levels):
        must(host, PERFORMANCE, 0x7, domain, khz)
    target = np.repeat(levels, 9) / 1e6
    budget, power = pick.randrange(60, 160), 100.0
    mixture = np.array([pick.choice((0.0, *CLASSES)) for _ in range(CORES)])
    kelvin = np.array([pick.choice([310.0, 330.0, 346.0, 349.5, 351.0]) for _ in range(CORES)])
    host.wires["temperature_mk"][:] = np.round(kelvin * 1000)
    before: Floats | None = None
    is_alike = []
    for slot in range(60):
        if slot in (0, 30):
            budget = budget * 4 // 5
            cap(host, budget)
        load = mixture if slot < 45 else np.roll(mixture, 5)
        host.wires["capacitance_ff"][:] = np.round(load / 0.81 * 1e6)
        host.wires["power_uw"][:] = round(power * 1e6)
        host.advance_slots(min(slot, 1))  # the first slot begins at once
        if before is not None:
            is_alike.append(np.abs(host.wires["freq_khz"] / 1e6 - before) < 0.03)
        before = law.step(load, power, kelvin, target, budget)
        power = law.expected[-1] * pick.uniform(0.97, 1.1)
    assert np.mean(is_alike) > 0.92


def test_in_a_mixture_the_published_law_gives_cores_clocks_of_their_own_and_less_work_than_ours() -> None:
    """The published sources, run on their own, gave 0.69 of the work of one clock per domain."""
    mixture = np.tile(np.repeat([CLASSES[3], CLASSES[0], CLASSES[2]], 3), 4)
    work_s = {}
    for options in (HostOptions.published(), HostOptions()):
        host, plant = joined(mixture, options)
        cap(host, 110.0)
        host.advance_slots(400)
        before_s = plant.work_s.sum()
        host.advance_slots(400)
        work_s[options.published_law] = plant.work_s.sum() - before_s
        clocks = np.array(host.wires["freq_khz"]).reshape(4, 9)
        assert (np.ptp(clocks, axis=1) > 400_000).all() == options.published_law
    assert work_s[True] < 0.85 * work_s[False]

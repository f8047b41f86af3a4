"""The firmware decides as the plain law in Python does, on readings that a chip shows and on some that none does."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from firmware_bridge.controlpulp.host import HostController, HostOptions
from tests.firmware.plain_chip import CORE_IDLE, CORES, DOMAINS, FREQ, VOLT_MV, dynamic, leak, leak_factor
from tests.firmware.plain_law import PlainLaw, Readings, of_domain
from tests.firmware.rig import cap
from tests.firmware.scmi_words import PERFORMANCE, must

FAULT = -(2**31)
SPEEDS = (400_000, 800_000, *FREQ)
ABSURD_MK = (FAULT, 0, 223_149, 223_150, 423_150, 423_151)
BOUNDS_MK = [bound + side for bound in (350_650, 352_150, 353_150, 354_150, 368_150) for side in (-1, 0, 1)]
"""Where the PID softens, the set-point, and the two ends of an emergency."""


class World:
    """Readings and requests that wander; each seed another mixture. In a sound one, sensors confirm each other."""

    def __init__(self, seed: int, *, sound: bool = False) -> None:
        self.sound = sound
        self._rng = random.Random(seed)
        rng = self._rng
        self._heat_mk = rng.choice([320_000, 351_000, 353_000, 355_000, 368_000])
        self._spread_mk = rng.choice([0, 300, 3000, 15_000])
        self._idle_share = [rng.choice([0.0, 0.0, 0.2, 0.9, 1.0]) for _ in range(DOMAINS)]
        self._least_cap, self._most_cap = rng.choice([(20_000, 324_000), (20_000, 60_000), (60_000, 150_000)])
        self._factor = rng.choice([0.9, 1.0, 1.1] if sound else [0.3, 0.8, 1.0, 1.0, 1.1, 3.0])
        self._work = [rng.choice([600_000, 1_200_000, 2_000_000, 4_000_000]) for _ in range(DOMAINS)]
        self.targets = [FREQ[-1]] * DOMAINS
        self.caps = [0] * (1 + DOMAINS)
        self._temperature = [self._some_mk() for _ in range(CORES)]
        self._capacitance = [self._some_work(i) for i in range(CORES)]

    def _some_mk(self) -> int:
        return round(self._rng.gauss(self._heat_mk, self._spread_mk))

    def _some_work(self, core: int) -> int:
        if self._rng.random() < self._idle_share[core // 9]:
            return 0
        return min(round(self._work[core // 9] * self._rng.choice([1.0, 1.0, 0.5, 1.07])), 4_000_000)

    def readings(self, law: PlainLaw) -> Readings:
        """Of the next slot."""
        rng = self._rng
        for i in range(CORES):
            if rng.random() < 0.04:
                self._temperature[i] = rng.choice([self._some_mk(), rng.choice(BOUNDS_MK), rng.choice(ABSURD_MK)])
            elif rng.random() < 0.5 and self._temperature[i] not in ABSURD_MK:
                self._temperature[i] += rng.choice([-40, -1, 1, 40])
            if rng.random() < 0.03:
                self._capacitance[i] = self._some_work(i)
            elif rng.random() < 0.3 and self._capacitance[i]:
                self._capacitance[i] = min(self._capacitance[i] + rng.choice([-15, 15, 16, -16, 40_000]), 4_000_000)
        if self.sound:
            return self._sound_readings(law)
        rails = [max(round(self._factor * rng.uniform(0.9, 1.1) * self._drawn(law, d)), 1) for d in range(DOMAINS)]
        power = [sum(rails), *rails]
        if rng.random() < 0.2:
            power[rng.randrange(5)] = rng.choice([FAULT, 0, 1])
        if rng.random() < 0.1:
            power[0] = rng.choice([FAULT, 0, 1, power[0]])
            power[rng.randrange(1, 5)] = FAULT
        return Readings(list(self._temperature), list(self._capacitance), power)

    def _sound_readings(self, law: PlainLaw) -> Readings:
        """Temperatures near those of the thermal model, powers near those of the chip's; four sensors may be absurd."""
        rng = self._rng
        mean = sum(law.guard.heat[:3]) // 256 if law.guard.heat else self._heat_mk
        temperature = [mean + rng.randrange(-3000, 3000) for _ in range(CORES)]
        rails = []
        for d in range(DOMAINS):
            level = law.in_force.level[d]
            cores = [
                dynamic(self._capacitance[i], law.in_force.freq[i], level) + leak(leak_factor(temperature[i]), level)
                if self._capacitance[i]
                else CORE_IDLE
                for i in of_domain(d)
            ]
            rails.append(round(sum(cores) * self._factor * rng.uniform(0.98, 1.02)))
        power = [sum(rails), *rails]
        for core in rng.sample(range(CORES), 4):
            if rng.random() < 0.1:
                temperature[core] = rng.choice(ABSURD_MK)
        if rng.random() < 0.05:
            power[rng.randrange(5)] = rng.choice([FAULT, 0, 1])
        return Readings(temperature, list(self._capacitance), power)

    def _drawn(self, law: PlainLaw, domain: int) -> float:
        """About what the domain draws: C f V^2 and a little."""
        volt = VOLT_MV[law.in_force.level[domain]] * 1e-3
        return sum(
            self._capacitance[i] * 1e-9 * law.in_force.freq[i] * volt**2 * 1e3 + 300_000 for i in of_domain(domain)
        )

    def requests(self) -> None:
        """Those of the next slot."""
        rng = self._rng
        if rng.random() < 0.15:
            self.targets[rng.randrange(DOMAINS)] = rng.choice(SPEEDS)
        if rng.random() < 0.3:
            self.caps[0] = rng.randrange(self._least_cap, self._most_cap, 100) * 1000
        if rng.random() < 0.1:
            self.caps[rng.randrange(1, 5)] = rng.randrange(5_000, self._most_cap // 4, 100) * 1000


def check_slot(
    slot: int, host: HostController, law: PlainLaw, readings: Readings, targets: Sequence[int], caps: Sequence[int]
) -> None:
    """Both take one slot, and what can be seen of them is equal."""
    host.wires["temperature_mk"][:] = readings.temperature
    host.wires["capacitance_ff"][:] = readings.capacitance
    host.wires["power_uw"][:] = readings.power
    host.advance_slots(min(slot, 1))  # the first slot begins at once
    law.step(readings, targets, caps)
    view = host.view()
    seen = {
        "clocks": host.wires["freq_khz"].tolist(),
        "voltages": host.wires["volt_mv"].tolist(),
        "gain": [round(gain * 65536) for gain in view.gain],
        "reasons": list(view.reasons),
        "margin": None if view.margin_w is None else round(view.margin_w * 1e6),
        "kept": view.kept_slots,
        "faults": (view.guard_faults, view.guard_safe_slots, view.guard_alarms),
        "heat": view.heat_mk,
    }
    expected = {
        "clocks": law.in_force.freq,
        "voltages": [VOLT_MV[level] for level in law.in_force.level],
        "gain": law.gain,
        "reasons": law.reasons,
        "margin": law.margin,
        "kept": law.kept_slots,
        "faults": (law.guard.faults, law.guard.hold, law.guard.alarms),
        "heat": tuple(part // 256 for part in law.guard.heat or [0] * 4),
    }
    assert seen == expected, f"slot {slot}"


@pytest.mark.parametrize("sound", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_the_firmware_decides_as_the_plain_law(seed: int, sound: bool) -> None:
    has_bypass = seed % 2 == 0
    host, law, world = HostController(HostOptions(bypass=has_bypass)), PlainLaw(), World(seed, sound=sound)
    targets, caps = list(world.targets), list(world.caps)
    for slot in range(50):
        check_slot(slot, host, law, world.readings(law), targets, caps)
        world.requests()
        for d in range(DOMAINS):
            if targets[d] != world.targets[d]:
                must(host, PERFORMANCE, 0x7, d, world.targets[d])
                if has_bypass and world.targets[d] < targets[d]:
                    law.lower(d, world.targets[d])
        for p in range(1 + DOMAINS):
            if caps[p] != world.caps[p]:
                cap(host, world.caps[p] / 1e6, domain=p)
        targets, caps = list(world.targets), list(world.caps)
    assert not (sound and law.guard.alarms)


@pytest.mark.parametrize("answer", [1.0, 1.5])
def test_the_guard_makes_its_own_step_and_judges_the_answer_in_the_same_slots(answer: float) -> None:
    """Under a steady load; the die answers as the thermal model does, or half as much again."""
    wait, work = 450, 1_500_000
    host, law, rng = HostController(HostOptions(own_step_after_s=wait * 0.0005)), PlainLaw(wait), random.Random(3)
    steps = 0
    for slot in range(620):
        silicon, copper = law.guard.heat[:2] if law.guard.heat else (0, 0)
        mean = 315_000 + round(answer * (silicon + copper)) // 256
        rails = []
        for d in range(DOMAINS):
            power = dynamic(work, law.in_force.freq[9 * d], law.in_force.level[d])
            rails.append(9 * (power + leak(leak_factor(330_000), law.in_force.level[d])))
        temperature = [mean + rng.randrange(-300, 300) for _ in range(CORES)]
        readings = Readings(temperature, [work] * CORES, [sum(rails), *rails])
        check_slot(slot, host, law, readings, [FREQ[-1]] * DOMAINS, [0] * (1 + DOMAINS))
        steps += law.guard.own_step == 128
    assert steps
    assert bool(law.guard.alarms) == (answer > 1)


@pytest.mark.parametrize(("factor", "is_told"), [(1.06, False), (1.075, True), (1.10, True)])
def test_the_guard_finds_leakage_of_a_hotter_die_in_the_same_slot(factor: float, is_told: bool) -> None:
    """Power a little above what clocks, activity and temperatures explain, under an unchanging load."""
    host, law, rng = HostController(), PlainLaw(), random.Random(3)
    work = 1_500_000
    for slot in range(110):
        temperature = [345_000 + rng.randrange(300) for _ in range(CORES)]
        rails = []
        for d in range(DOMAINS):
            level = law.in_force.level[d]
            cores = [
                dynamic(work, law.in_force.freq[i], level) + leak(leak_factor(temperature[i]), level)
                for i in of_domain(d)
            ]
            rails.append(round(factor * sum(cores)))
        readings = Readings(temperature, [work] * CORES, [sum(rails), *rails])
        check_slot(slot, host, law, readings, [FREQ[-1]] * DOMAINS, [0] * (1 + DOMAINS))
    assert bool(law.guard.alarms) == is_told


@pytest.mark.parametrize("seed", range(10))
def test_few_watts_are_shared_as_the_plain_law_shares_them(seed: int) -> None:
    """Under a steady load of some cores, cool, with caps that leave little to share and targets near the lowest clocks:
    where single rungs, their parts and swaps decide."""
    rng = random.Random(seed)
    for _ in range(40):
        host, law, targets, caps = HostController(), PlainLaw(), [FREQ[-1]] * DOMAINS, [0] * (1 + DOMAINS)
        busy = [rng.choice([0, 1, 2, 3, 5, 7, 9]) for _ in range(DOMAINS)]
        work = [rng.choice([600_000, 900_000, 2_000_000, 4_000_000]) for _ in range(DOMAINS)]
        capacitance = [work[i // 9] if i % 9 < busy[i // 9] else 0 for i in range(CORES)]
        readings = Readings([rng.choice([300_000, 340_000])] * CORES, capacitance, [FAULT] * (1 + DOMAINS))
        check_slot(0, host, law, readings, targets, caps)
        for d in range(DOMAINS):
            targets[d] = rng.choice([FREQ[-1], *SPEEDS[:2], rng.choice(FREQ)])
            must(host, PERFORMANCE, 0x7, d, targets[d])
        for domain in {0, rng.randrange(1 + DOMAINS)}:
            caps[domain] = rng.randrange(20_000, 60_000, 100) * 1000
            cap(host, caps[domain] / 1e6, domain)
        for slot in range(1, 4):
            check_slot(slot, host, law, readings, targets, caps)


@pytest.mark.parametrize("seed", range(12))
def test_caps_that_fall_steeply_are_met_as_the_plain_law_meets_them(seed: int) -> None:
    """A steady load, often hot, few cores in some domains; then caps fall to where the levels of the slot before cannot
    be kept: by leakage alone, or since the excess is more than the new budget."""
    rng = random.Random(100 + seed)
    for _ in range(40):
        host, law, targets, caps = HostController(), PlainLaw(), [FREQ[-1]] * DOMAINS, [0] * (1 + DOMAINS)
        busy = [rng.choice([1, 1, 2, 9, 9]) for _ in range(DOMAINS)]
        work = [rng.choice([600_000, 2_000_000, 4_000_000]) for _ in range(DOMAINS)]
        capacitance = [work[i // 9] if i % 9 < busy[i // 9] else 0 for i in range(CORES)]
        readings = Readings([rng.choice([300_000, 340_000, 350_000])] * CORES, capacitance, [FAULT] * (1 + DOMAINS))
        check_slot(0, host, law, readings, targets, caps)
        has_package_cap = rng.random() < 0.6
        for most in (rng.choice([324_000, 160_000]), rng.choice([90_000, 60_000]), 40_000):
            if has_package_cap:
                caps[0] = rng.randrange(20_000, most, 100) * 1000
                cap(host, caps[0] / 1e6, 0)
            for domain in range(1, 1 + DOMAINS):
                if rng.random() < 0.3:
                    caps[domain] = rng.randrange(5_000, most // 4 if busy[domain - 1] > 2 else 9_000, 100) * 1000
                    cap(host, caps[domain] / 1e6, domain)
            for slot in (1, 2):
                check_slot(slot, host, law, readings, targets, caps)


def clock_at(capacitance_ff: int, domain: int, cap_mw: int) -> int:
    """Of core 0 under a cap, in kHz. This core switches so much, the others 1 nF each, and all are cool."""
    host, law, targets, caps = HostController(), PlainLaw(), [FREQ[-1]] * DOMAINS, [0] * (1 + DOMAINS)
    readings = Readings([300_000] * CORES, [capacitance_ff] + [1_000_000] * (CORES - 1), [FAULT] * (1 + DOMAINS))
    check_slot(0, host, law, readings, targets, caps)
    cap(host, cap_mw / 1000, domain)
    caps[domain] = cap_mw * 1000
    for slot in range(1, 4):
        check_slot(slot, host, law, readings, targets, caps)
    return law.in_force.freq[0]


@pytest.mark.parametrize(("capacitance_ff", "more_khz"), [(600_597, 5001), (600_600, 0), (600_603, 0)])
def test_a_part_of_a_rung_is_taken_when_it_brings_more_than_5_mhz(capacitance_ff: int, more_khz: int) -> None:
    """The power that is left is worth 5001, 5000 and 4999 kHz."""
    assert clock_at(capacitance_ff, domain=1, cap_mw=30_000) == FREQ[9] + more_khz


def test_a_rung_that_draws_exactly_the_domains_cap_is_taken() -> None:
    assert clock_at(1_372_878, domain=1, cap_mw=24_300) == FREQ[8]


def test_levels_that_draw_exactly_the_budget_keep_their_highest_clocks() -> None:
    assert clock_at(861_473, domain=0, cap_mw=229_400) == FREQ[-1]

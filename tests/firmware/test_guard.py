"""Sensors that lie: the cap holds, the chip stays cool, and agents hear of it. The law's side: ``plain_guard.py``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from firmware_bridge.controlpulp.host import HostController, HostOptions
from firmware_bridge.scmi.protocols.telemetry import FAULTS, REASONS
from tests.firmware.rig import cap, joined, trace
from tests.firmware.scmi_words import PERFORMANCE, TELEMETRY, events, must
from twin.pulp.plant import CLASSES, CORES, SENSORS, Fault, Plant

TEMPERATURES, ACTIVITIES, POWERS = slice(0, CORES), slice(CORES, 2 * CORES), slice(2 * CORES, SENSORS)
PACKAGE, RAILS = slice(2 * CORES, 2 * CORES + 1), slice(2 * CORES + 1, SENSORS)
DISTRUSTED, OWN_STEP = (1 << REASONS.index(name) for name in ("sensors contradict", "own step"))
SUM, MODEL, ABOVE_CAP, HEAT, FAILED = (1 << bit for bit in range(len(FAULTS)))


def break_sensors(plant: Plant, sensors: slice, fault: Fault, amount: float = 0.0) -> None:
    plant.fault_amount[sensors] = amount
    plant.fault[sensors] = fault


def watched(sensors: slice, fault: Fault, amount: float) -> tuple[HostController, Plant]:
    """A chip under 120 W whose sensors break; faults are reported."""
    host, plant = joined(CLASSES[2])
    cap(host, 120.0)
    host.advance_slots(100)
    must(host, TELEMETRY, 0xA, 1)
    break_sensors(plant, sensors, fault, amount)
    return host, plant


@pytest.mark.parametrize(
    ("sensors", "fault", "amount", "expected"),
    [
        (ACTIVITIES, Fault.FIXED, 0, MODEL),
        (ACTIVITIES, Fault.SCALED, 4.0, MODEL),
        (POWERS, Fault.SCALED, 0.25, MODEL),
        (POWERS, Fault.SCALED, 3.0, MODEL),
        (PACKAGE, Fault.SCALED, 0.8, SUM),
        (PACKAGE, Fault.SCALED, 0.95, SUM),  # too little for noise, and steady
        (RAILS, Fault.SCALED, 0.9, SUM),
        (slice(73, 74), Fault.SCALED, 0.5, SUM),
    ],
)
def test_a_lie_about_power_or_activity_leads_to_the_safe_level_within_twenty_slots(
    sensors: slice, fault: Fault, amount: float, expected: int
) -> None:
    host, plant = watched(sensors, fault, amount)
    cap(host, 60.0)
    power = trace(host, plant, 300)
    assert (power > 1.05 * 60).sum() <= 20
    now, ever, alarms, left = must(host, TELEMETRY, 0x9)
    assert now & expected and ever & expected and alarms == 1 and left > 0
    assert all(reason & DISTRUSTED for reason in host.view().reasons)
    seen = events(host, 0)
    assert seen and seen[0][1][0] == 0 and seen[-1][1][1] & expected and seen[-1][1][2] == 1


def test_activity_that_was_frozen_under_a_light_load_does_not_hide_a_heavy_one() -> None:
    host, plant = joined(CLASSES[0])
    cap(host, 120.0)
    host.advance_slots(100)
    break_sensors(plant, ACTIVITIES, Fault.STUCK)
    plant.capacitance[:] = CLASSES[3]
    power = trace(host, plant, 300)
    assert (power > 1.05 * 120).sum() <= 20
    assert power[40:].max() <= 120.0


@pytest.mark.parametrize(("fault", "amount"), [(Fault.FIXED, 300_150), (Fault.STUCK, 0), (Fault.BIASED, -25_000)])
def test_temperatures_that_lie_together_do_not_let_the_die_overheat(fault: Fault, amount: float) -> None:
    host, plant = joined(CLASSES[1])
    plant.settle(np.full(CORES, 4.0))
    host.advance_slots(500)
    break_sensors(plant, TEMPERATURES, fault, amount)
    plant.capacitance[:] = CLASSES[3]
    hottest = []
    for _ in range(100):
        host.advance_slots(20)
        hottest.append(plant.temperature_c[:CORES].max())
    assert max(hottest) < 85.0
    assert must(host, TELEMETRY, 0x9)[1] & (HEAT | FAILED)


@pytest.mark.parametrize(("fault", "amount"), [(Fault.BIASED, -12_000), (Fault.SCALED, 0.95)])
def test_temperatures_that_were_too_low_since_the_start_are_found_by_the_leakage(fault: Fault, amount: float) -> None:
    host, plant = joined(CLASSES[3])
    plant.noise(temperature_k=0.3, power=0.01, capacitance=0.01)
    plant.vary_silicon(3)
    break_sensors(plant, TEMPERATURES, fault, amount)
    host.advance_slots(400)
    assert plant.temperature_c[:CORES].max() < 80.0
    assert must(host, TELEMETRY, 0x9)[1:3] == [HEAT, 1]
    assert host.view().guard_safe_slots > 0


def test_power_sensors_that_are_noisy_together_are_a_fault_before_the_law_learns_from_them() -> None:
    host, plant = watched(POWERS, Fault.NOISY, 20e6)
    cap(host, 200.0)
    power = trace(host, plant, 30)
    assert must(host, TELEMETRY, 0x9)[1] & SUM
    assert power.max() <= 1.05 * 200


def test_temperatures_that_freeze_while_the_sink_warms_under_an_unchanging_load_are_missed() -> None:
    host, plant = joined(CLASSES[0])
    plant.settle(np.full(CORES, 2.0))
    host.advance_slots(1000)
    plant.capacitance[:] = CLASSES[3]
    host.advance_slots(500)
    assert must(host, TELEMETRY, 0x9) == [0, 0, 0, 0]
    break_sensors(plant, TEMPERATURES, Fault.STUCK)
    host.advance_slots(2500)
    assert must(host, TELEMETRY, 0x9)[1] == FAILED
    assert plant.temperature_c[:CORES].max() < 70.0


def test_power_and_activity_that_read_too_low_together_are_found_by_the_heat_of_the_next_step() -> None:
    host, plant = joined(CLASSES[2])
    cap(host, 60.0)
    host.advance_slots(1000)
    for sensors in (POWERS, ACTIVITIES):
        break_sensors(plant, sensors, Fault.SCALED, 0.75)
    host.advance_slots(1000)
    assert must(host, TELEMETRY, 0x9) == [0, 0, 0, 0], "nothing moves"
    assert plant.power_w[0] > 1.3 * 60
    cap(host, 150.0)
    host.advance_slots(100)
    assert must(host, TELEMETRY, 0x9)[1] == HEAT
    host.advance_slots(10)
    assert plant.power_w[0] <= 100.0


def test_where_nothing_moves_the_guard_makes_a_step_of_its_own() -> None:
    """A minute and more of the controller's time, since so long it waits."""
    host, plant = joined(CLASSES[2])
    cap(host, 120.0)
    host.advance_slots(1000)
    for sensors in (POWERS, ACTIVITIES):
        break_sensors(plant, sensors, Fault.SCALED, 0.75)
    host.advance_slots(130_000)
    assert must(host, TELEMETRY, 0x9) == [0, 0, 0, 0]
    clocks = []
    for _ in range(400):
        host.advance_slots(128)
        clocks.append(int(host.wires["freq_khz"].max()))
        if must(host, TELEMETRY, 0x9)[1]:
            break
    assert must(host, TELEMETRY, 0x9)[1] == HEAT
    assert min(clocks) == 400_000


OFTEN = HostOptions(own_step_after_s=0.4)
"""In place of 65 s; what the guard has seen must fade first all the same."""


def next_own_step(host: HostController, most: int) -> bool:
    """Whether one begins within so many slots."""
    for _ in range(most):
        host.advance_slots(1)
        if host.view().reasons[0] & OWN_STEP:
            return True
    return False


def test_the_own_steps_of_a_sound_chip_raise_no_alarm_and_end_under_the_cap() -> None:
    """Noise, uneven silicon; while the clocks are low or just after, the air, the load and the cap change."""
    rng = np.random.default_rng(11)
    host, plant = joined(CLASSES[2], OFTEN, seed=11)
    plant.noise(temperature_k=0.3, power=0.01, capacitance=0.01)
    plant.vary_silicon(11, 0.08)
    watts = 70.0
    cap(host, watts)
    host.advance_slots(500)
    for change in ("nothing", "air", "load", "cap", "load and cap"):
        assert next_own_step(host, 60_000), change
        host.advance_slots(int(rng.integers(20, 110)))
        assert host.wires["freq_khz"].max() == 400_000
        assert must(host, TELEMETRY, 0x9)[0] == 0
        if change == "air":
            plant.blow(15.0, 0.8)
        if "load" in change:
            plant.capacitance[:] = CLASSES[0] if change == "load" else CLASSES[3]
        if "cap" in change:
            watts += 20.0
            cap(host, watts)
        power = trace(host, plant, 300)
        assert power[-50:].mean() > 0.9 * min(watts, 70.0)
        assert power.max() <= 1.05 * watts, change
    assert must(host, TELEMETRY, 0x9) == [0, 0, 0, 0]


def test_a_temperature_that_fails_again_and_again_does_not_hide_power_and_activity_that_read_too_low() -> None:
    """Each time it is another mean of the sound ones, but the same die."""
    host, plant = joined(CLASSES[2], OFTEN)
    cap(host, 120.0)
    host.advance_slots(1000)
    for sensors in (POWERS, ACTIVITIES):
        break_sensors(plant, sensors, Fault.SCALED, 0.7)
    for number in range(400):
        break_sensors(plant, slice(5, 6), Fault.UNREADABLE if number % 2 else Fault.SOUND)
        host.advance_slots(40)
        if must(host, TELEMETRY, 0x9)[1]:
            break
    assert must(host, TELEMETRY, 0x9)[1] == HEAT


def test_an_own_step_says_so_and_leaves_requests_and_floors_as_they_are() -> None:
    host, _ = joined(CLASSES[2], OFTEN)
    must(host, PERFORMANCE, 0x5, 0, 3_660_000, 2_000_000)
    must(host, PERFORMANCE, 0x9, 0, 1)
    must(host, PERFORMANCE, 0xA, 0, 1)
    must(host, TELEMETRY, 0xA, 1)
    events(host, 0)
    assert next_own_step(host, 2_000)
    assert {reason & OWN_STEP for reason in host.view().reasons} == {OWN_STEP}
    assert not any(reason & DISTRUSTED for reason in host.view().reasons)
    host.advance_slots(1)
    assert set(host.wires["freq_khz"].tolist()) == {400_000}
    must(host, PERFORMANCE, 0x7, 1, 800_000)
    assert must(host, PERFORMANCE, 0x6, 0) == [3_660_000, 2_000_000]
    assert must(host, PERFORMANCE, 0x8, 0) == [3_660_000]
    host.advance_slots(130)
    clocks = host.wires["freq_khz"].reshape(4, 9).max(axis=1).tolist()
    assert min(clocks[0], clocks[2], clocks[3]) > 2_000_000
    assert clocks[1] == 800_000, "requested meanwhile"
    assert not any(reason & OWN_STEP for reason in host.view().reasons)
    assert events(host, 0) == []


@pytest.mark.parametrize(("load", "after_s"), [(0.0, 0.4), (CLASSES[2], 0.0)], ids=["idle", "switched off"])
def test_there_are_no_own_steps_of_an_idle_chip_nor_where_they_are_switched_off(load: float, after_s: float) -> None:
    host, plant = joined(load, HostOptions(own_step_after_s=after_s))
    cap(host, 100.0)
    host.advance_slots(500)
    assert (plant.power_w[0] < 30) == (load == 0.0)
    assert not next_own_step(host, 3_000)


def test_temperatures_that_are_steady_to_the_millikelvin_are_no_fault() -> None:
    host, plant = joined(0.0)
    plant.settle(np.full(CORES, 0.3))
    host.advance_slots(3000)
    before = host.wires["temperature_mk"].copy()
    host.advance_slots(100)
    assert (host.wires["temperature_mk"] == before).all()
    assert must(host, TELEMETRY, 0x9) == [0, 0, 0, 0]


def test_a_single_temperature_far_below_its_neighbours_is_replaced() -> None:
    host, plant = joined(CLASSES[2])
    host.advance_slots(50)
    break_sensors(plant, slice(5, 6), Fault.BIASED, -15_000)
    host.advance_slots(20)
    substituted = 1 << REASONS.index("sensor substituted")
    assert [bool(reason & substituted) for reason in host.view().reasons] == [core == 5 for core in range(CORES)]
    assert must(host, TELEMETRY, 0x9)[:2] == [0, 0], "one sensor is no reason for the safe level"


def test_the_safe_level_ends_after_a_second_of_agreement_and_lasts_longer_the_next_time() -> None:
    host, plant = watched(POWERS, Fault.SCALED, 0.25)
    lasted: list[int] = []
    for _ in range(2):
        break_sensors(plant, POWERS, Fault.SCALED, 0.25)
        host.advance_slots(50)
        assert host.view().guard_safe_slots
        break_sensors(plant, POWERS, Fault.SOUND)
        host.advance_slots(10)
        lasted.append(host.view().guard_safe_slots)
        host.advance_slots(lasted[-1] + 5)
        assert not host.view().guard_safe_slots
        assert trace(host, plant, 50).mean() > 0.95 * 120
    assert 1900 < lasted[0] <= 2000 and 3900 < lasted[1] <= 4000
    seen = events(host, 0)
    assert [event[1][1:] for event in seen] == [[MODEL, 1], [0, 1], [0, 0], [MODEL, 1], [0, 1], [0, 0]]


SOUND_LOADS: list[Callable[[np.random.Generator], np.ndarray]] = [
    lambda rng: np.full(CORES, rng.choice(CLASSES)),
    lambda rng: rng.choice([*CLASSES, 0.0], CORES),
    lambda rng: np.repeat(rng.choice([*CLASSES, 0.0], 4), 9),
]


@pytest.mark.parametrize("is_air_moving", [False, True])
def test_sound_sensors_with_noise_on_uneven_silicon_never_alarm(is_air_moving: bool) -> None:
    """Loads, caps and levels change at random, and the air by up to 10 K and a fifth of its flow; a million slots:
    ``python -m benchmarks firmware_faults``, ``python -m benchmarks.firmware_faults_together --air``."""
    rng = np.random.default_rng(5)
    host, plant = joined(CLASSES[2])
    plant.noise(temperature_k=0.3, power=0.01, capacitance=0.01)
    plant.vary_silicon(5)
    for number in range(40):
        if is_air_moving and number % 8 == 0:
            plant.blow(float(rng.uniform(15, 35)), float(rng.uniform(0.8, 1.2)))
        plant.capacitance[:] = SOUND_LOADS[rng.integers(3)](rng)
        cap(host, float(rng.uniform(20, 320)))
        cap(host, float(rng.uniform(5, 80)), domain=int(rng.integers(1, 5)))
        host.advance_slots(int(rng.integers(1, 100)))
    assert must(host, TELEMETRY, 0x9) == [0, 0, 0, 0]


@pytest.mark.parametrize("load", [CLASSES[1], CLASSES[2], CLASSES[3]])
def test_domains_at_their_lowest_level_next_to_busy_ones_are_no_fault(load: float) -> None:
    """As a governor leaves them: cool for long, then busy while others become idle. Their copper takes its time."""
    host, plant = joined(load)
    plant.noise(temperature_k=0.3, power=0.01, capacitance=0.01)
    plant.vary_silicon(5)
    for busy in (0b1110, 0b0001, 0b1101, 0b0010, 0b0011, 0b1100, 0b1000, 0b0111, 0b1111, 0b0100):
        for domain in range(4):
            must(host, PERFORMANCE, 0x7, domain, 3_660_000 if busy >> domain & 1 else 400_000)
        host.advance(0.4)
    assert must(host, TELEMETRY, 0x9) == [0, 0, 0, 0]


def test_a_domain_with_many_idle_cores_teaches_the_gain_of_its_busy_ones() -> None:
    """Idle cores draw what they draw; a tenth more of one busy core is a tenth, however many are idle."""
    host, plant = joined(np.array(([CLASSES[3]] + [0.0] * 8) * 4))
    plant.dynamic_factor[:] = plant.leak_factor[:] = 1.1
    host.advance_slots(200)
    assert host.view().gain == pytest.approx((1.1,) * 4, abs=0.01)

"""Sensors that cannot be read, and stuck sensors."""

from __future__ import annotations

import numpy as np
import pytest

from firmware_bridge.scmi.protocols.telemetry import REASONS, TelemetryReasons
from hil_tests.rig import Rig

SUBSTITUTED = 1 << REASONS.index("sensor substituted")
UNREADABLE, STUCK = 1, 2


def _substituted(reasons: tuple[int, ...]) -> set[int]:
    return {core for core, reason in enumerate(reasons) if reason & SUBSTITUTED}


def test_an_unreadable_temperature_is_replaced_and_reported(rig: Rig) -> None:
    client = rig.client()
    assert rig.wait_for(lambda: not _substituted(client.request(TelemetryReasons(0)).reasons), 0.2)
    rig.plant.temperature_fault[13] = UNREADABLE
    assert rig.wait_for(lambda: _substituted(client.request(TelemetryReasons(0)).reasons) == {13}, 0.2)
    rig.plant.temperature_fault[13] = 0
    assert rig.wait_for(lambda: not _substituted(client.request(TelemetryReasons(0)).reasons), 0.2)


def test_a_cap_is_kept_without_any_power_sensor(rig: Rig) -> None:
    controller = rig.controller()
    rig.pass_slots(40)
    rig.plant.power_fault[:] = UNREADABLE
    rig.pass_slots(4)
    controller.set_cap(controller.cap_domains[0], 120_000)
    rig.pass_slots(10)
    power_w = rig.powers_w(100)
    assert 0.9 * 120 <= np.median(power_w) <= 120.0
    assert np.percentile(power_w, 95) <= 1.05 * 120


def test_a_temperature_that_stands_still_is_noticed_when_its_neighbours_leave_it(rig: Rig) -> None:
    controller = rig.controller()
    package = controller.cap_domains[0]
    controller.set_cap(package, 40_000)
    rig.pass_time(0.1)
    rig.plant.temperature_fault[4] = STUCK
    controller.set_cap(package, 250_000)
    assert rig.wait_for(lambda: 4 in _substituted(controller.client.request(TelemetryReasons(0)).reasons), 4.0)
    hottest = rig.plant.temperature_c[:36].max()
    assert hottest < 85.0
    assert controller.cap(package) == 250_000


@pytest.mark.parametrize("fault", [UNREADABLE, STUCK])
def test_without_any_temperature_the_chip_stays_cool(rig: Rig, fault: int) -> None:
    """All sensors are stuck and none can be compared: the firmware has only its model and the agents' cap."""
    controller = rig.controller()
    controller.set_cap(controller.cap_domains[0], 150_000)
    rig.plant.temperature_fault[:] = fault
    rig.pass_slots(200)
    assert rig.plant.temperature_c[:36].max() < 85.0
    assert np.median(rig.powers_w(40)) <= 150.0

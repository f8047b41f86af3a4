"""Whole classes of sensors lie: a subset of ``python -m benchmarks firmware_faults``, on every rig."""

from __future__ import annotations

import numpy as np
import pytest

from firmware_bridge.scmi.protocols.telemetry import FAULTS, Faults
from hil_tests.rig import Rig
from twin.pulp.plant import CORES, SENSORS, Fault

TEMPERATURES, ACTIVITIES, POWERS = slice(0, CORES), slice(CORES, 2 * CORES), slice(2 * CORES, SENSORS)


@pytest.mark.parametrize(
    ("sensors", "fault", "amount", "expected"),
    [
        (ACTIVITIES, Fault.FIXED, 0.0, "power contradicts activity"),
        (POWERS, Fault.SCALED, 0.25, "power contradicts activity"),
        (slice(2 * CORES, 2 * CORES + 1), Fault.SCALED, 0.5, "package and domain power differ"),
        (TEMPERATURES, Fault.UNREADABLE, 0.0, "temperature sensors failed"),
    ],
)
def test_sensors_that_lie_are_reported_and_the_cap_is_kept(
    rig: Rig, sensors: slice, fault: Fault, amount: float, expected: str
) -> None:
    controller = rig.controller()
    package = controller.cap_domains[0]
    controller.set_cap(package, 120_000)
    rig.pass_slots(40)
    assert controller.client.request(Faults()).ever == 0
    rig.plant.fault_amount[sensors] = amount
    rig.plant.fault[sensors] = fault
    controller.set_cap(package, 60_000)
    rig.pass_slots(40)
    power_w = rig.powers_w(60)
    assert np.percentile(power_w, 95) <= 1.05 * 60
    faults = controller.client.request(Faults())
    assert faults.now >> FAULTS.index(expected) & 1 and faults.alarms == 1 and faults.slots_left > 0

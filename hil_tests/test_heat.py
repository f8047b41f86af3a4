"""The chip gets hotter than its cooling allows."""

from __future__ import annotations

import numpy as np

from firmware_bridge.scmi.protocols.telemetry import REASONS, TelemetryReasons
from hil_tests.rig import Rig
from twin.pulp.heat_network import SINK

THERMAL, EMERGENCY = 1 << REASONS.index("thermal"), 1 << REASONS.index("emergency")


def test_a_hot_heat_sink_costs_clocks_and_the_die_stays_at_its_set_point(rig: Rig) -> None:
    controller = rig.controller()
    controller.set_cap(controller.cap_domains[0], 250_000)
    rig.pass_time(0.1)
    free_w = np.median(rig.powers_w(50))
    rig.plant.temperature_c[:] = np.maximum(rig.plant.temperature_c, 70.0)
    rig.pass_time(0.3)
    hottest_c = []
    for _ in range(50):
        hottest_c.append(rig.plant.temperature_c[:36].max())
        rig.pass_slots(2)
    assert np.median(hottest_c) <= 81.0, "80 C is the set-point"
    assert np.percentile(hottest_c, 95) <= 83.0
    assert np.median(rig.powers_w(50)) < 0.9 * free_w
    assert any(reason & THERMAL for reason in controller.client.request(TelemetryReasons(0)).reasons)


def test_at_95_degrees_a_core_goes_to_its_lowest_clock_until_it_is_at_79(rig: Rig) -> None:
    client = rig.client()
    assert rig.wait_for(lambda: rig.freq_khz().min() > 1_000_000, 0.1)
    rig.plant.temperature_c[:] = 96.0
    rig.plant.temperature_c[SINK] = 90.0
    assert rig.wait_for(lambda: set(rig.freq_khz()) == {400_000}, 0.1)
    # the page of telemetry is renewed once per slot, so it may still be that of the slot before
    assert rig.wait_for(lambda: all(one & EMERGENCY for one in client.request(TelemetryReasons(0)).reasons), 0.1)
    rig.pass_slots(20)
    assert rig.plant.temperature_c[:36].min() > 79.0
    assert set(rig.freq_khz()) == {400_000}, "79 C has not been reached"
    rig.plant.temperature_c[:] = 40.0
    assert rig.wait_for(lambda: rig.freq_khz().min() > 1_000_000, 0.1)

"""Performance levels, of one agent and of several."""

from __future__ import annotations

import numpy as np
import pytest

from firmware_bridge.scmi.protocols.performance import LevelSet
from firmware_bridge.scmi.protocols.telemetry import LeaseSet, TelemetryStatus
from hil_tests.rig import Ability, Rig


def test_a_level_becomes_the_clock_of_its_domain_alone(rig: Rig) -> None:
    controller = rig.controller()
    rig.plant.capacitance[:] = 0.5  # light enough for the highest clock
    rig.pass_slots(10)
    domain = controller.speed_domains[2]
    assert controller.set_level(domain, 1_600_000).is_as_requested
    assert rig.wait_for(lambda: set(rig.freq_khz()[18:27]) == {1_600_000}, 0.1)
    assert rig.freq_khz()[:18].min() > 1_600_000
    controller.set_level(domain, 2_400_000)
    assert rig.wait_for(lambda: set(rig.freq_khz()[18:27]) == {2_400_000}, 0.1)
    assert rig.plant.unsafe_steps == 0


@pytest.mark.needs(Ability.SEVERAL_AGENTS)
def test_of_two_agents_levels_the_higher_one_is_in_force_while_both_live(rig: Rig) -> None:
    first, second = rig.controller(1), rig.controller(2)
    domain = first.speed_domains[0]
    assert first.set_level(domain, 1_600_000).in_force == 1_600_000
    second.client.request(LeaseSet(200, 0))
    assert second.set_level(domain, 2_200_000).in_force == 2_200_000
    assert first.set_level(domain, 1_350_000).in_force == 2_200_000
    assert rig.wait_for(lambda: set(rig.freq_khz()[:9]) == {2_200_000}, 0.1)
    assert rig.wait_for(lambda: set(rig.freq_khz()[:9]) == {1_350_000}, 1.0), "the second agent's lease has ended"
    assert first.level(domain) == 1_350_000


@pytest.mark.needs(Ability.BYPASS)
def test_a_lower_level_takes_effect_before_it_is_answered(rig: Rig) -> None:
    """With the bypass: it writes the clock while the message is served; the voltage follows with the next fast job."""
    controller = rig.controller()
    seen = []
    for level in (2_000_000, 1_800_000, 1_600_000, 1_350_000, 800_000) * 4:
        if level == 2_000_000:
            controller.set_level(controller.speed_domains[1], 2_400_000)
            assert rig.wait_for(lambda: set(rig.freq_khz()[9:18]) == {2_400_000}, 0.1)
            rig.pass_slots(4)
        controller.client.request(LevelSet(1, level))
        seen.append(set(rig.freq_khz()[9:18]) == {level})
        rig.pass_slots(4)
        assert set(rig.freq_khz()[9:18]) == {level}, "later slots do not undo it"
    assert np.mean(seen) == 1.0
    assert rig.plant.unsafe_steps == 0


@pytest.mark.needs(Ability.EXACT_TIME)
def test_without_the_bypass_a_lower_level_takes_effect_within_two_slots(rig: Rig) -> None:
    client = rig.client()
    rig.plant.capacitance[:] = 0.5
    rig.pass_slots(4)
    for level in (2_400_000, 1_600_000, 1_350_000):
        client.request(LevelSet(1, level))
        rig.pass_slots(2)
        assert set(rig.freq_khz()[9:18]) == {level}
    assert client.request(TelemetryStatus()).bypasses == 0


@pytest.mark.needs(Ability.EXACT_TIME, Ability.BYPASS)
def test_a_higher_level_takes_effect_within_two_slots_and_a_lower_voltage_within_a_fast_period(rig: Rig) -> None:
    client = rig.client()
    rig.plant.capacitance[:] = 0.5
    client.request(LevelSet(1, 1_600_000))
    rig.pass_slots(4)
    for offset_s in (0.0, 125e-6, 375e-6):
        rig.pass_time(offset_s)
        client.request(LevelSet(1, 2_400_000))
        rig.pass_slots(2)
        assert set(rig.freq_khz()[9:18]) == {2_400_000}
        client.request(LevelSet(1, 1_600_000))
        rig.pass_time(250e-6)
        soon_w = rig.plant.power_w[2]
        rig.pass_slots(4)
        assert soon_w == pytest.approx(rig.plant.power_w[2], rel=0.02), "the voltage is down, too"

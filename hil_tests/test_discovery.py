"""What an agent discovers."""

from __future__ import annotations

import pytest

from firmware_bridge.scmi.protocols.telemetry import TelemetryAttributes, TelemetryStatus
from hil_tests.rig import Ability, Rig


def test_an_agent_discovers_the_whole_controller(rig: Rig) -> None:
    controller = rig.controller()
    assert (controller.identity.sub_vendor, controller.identity.agent) == ("controlpulp", 1)
    assert controller.identity.versions == {
        0x10: 0x20001, 0x12: 0x20001, 0x13: 0x40000, 0x14: 0x30000, 0x15: 0x30001, 0x18: 0x20000, 0x80: 0x10000,
    }  # fmt: skip
    assert [domain.parent for domain in controller.cap_domains] == [0xFFFFFFFF, 0, 0, 0, 0]
    levels = controller.speed_domains[0].levels
    assert [len(domain.levels) for domain in controller.speed_domains] == [17] * 4
    assert (levels[0].khz, levels[-1].khz) == (400_000, 3_660_000)
    assert {sensor.unit for sensor in controller.sensors} == {"C", "W", "J", "Hz", "V"}
    assert controller.client.request(TelemetryAttributes()).attributes == 36 | 4 << 8


@pytest.mark.needs(Ability.SEVERAL_AGENTS)
def test_each_agent_is_known_by_its_channel(rig: Rig) -> None:
    assert [rig.controller(agent).identity.agent for agent in (1, 2, 3)] == [1, 2, 3]


def test_what_agents_read_of_power_and_heat_is_the_chips(rig: Rig) -> None:
    controller = rig.controller()
    rig.pass_time(0.1)
    package = controller.cap_domains[0]

    def shows_the_watts() -> bool:
        measured_w = package.watts(controller.power(package)[0])
        return bool(measured_w == pytest.approx(rig.plant.power_w[0], rel=0.05))

    assert rig.wait_for(shows_the_watts, 1.0), "once the chip has settled: the measurement is a mean"
    hottest = next(sensor for sensor in controller.sensors if sensor.unit == "C")
    assert hottest.value(controller.readings(hottest)[0].value) == pytest.approx(
        rig.plant.temperature_c[:9].max(), abs=2
    )
    assert controller.client.request(TelemetryStatus()).failed_checks == 0

"""The SCMI platform, message by message: layouts, statuses, arbitration, permissions, versions, notifications."""

from __future__ import annotations

import struct

import pytest

from firmware_bridge.controlpulp.host import HostController
from tests.firmware.rig import cap, joined
from tests.firmware.scmi_words import (
    BASE,
    BUSY,
    CLOCK,
    HARDWARE_ERROR,
    INVALID_PARAMETERS,
    NOT_FOUND,
    NOT_SUPPORTED,
    OUT_OF_RANGE,
    PERFORMANCE,
    POWERCAP,
    PROTOCOL_ERROR,
    SENSOR,
    SUCCESS,
    SYSTEM,
    TELEMETRY,
    ask,
    command,
    events,
    header,
    must,
    text,
)

LEVELS_KHZ = [400_000, 800_000, 1_350_000, 1_600_000, 1_800_000, 2_000_000, 2_200_000, 2_400_000, 2_600_000, 2_750_000]
LEVELS_KHZ += [2_900_000, 3_050_000, 3_200_000, 3_350_000, 3_450_000, 3_550_000, 3_660_000]
VERSIONS = {BASE: 0x20001, SYSTEM: 0x20001, PERFORMANCE: 0x40000, CLOCK: 0x30000, SENSOR: 0x30001, POWERCAP: 0x20000}
VERSIONS[TELEMETRY] = 0x10000
OLDER = {BASE: 0x20000, PERFORMANCE: 0x30000, SENSOR: 0x30000, POWERCAP: 0x10000}


@pytest.fixture
def host() -> HostController:
    return HostController()


# ---- discovery ----


def test_the_versions_are_those_that_linux_6_12_supports_fully(host: HostController) -> None:
    assert {protocol: must(host, protocol, 0x0)[0] for protocol in VERSIONS} == VERSIONS


def test_protocols_and_agents_are_listed(host: HostController) -> None:
    assert must(host, BASE, 0x1) == [6 | 3 << 8]
    words = [int.from_bytes(four, "little") for four in ([SYSTEM, PERFORMANCE, CLOCK, SENSOR], [POWERCAP, TELEMETRY])]
    assert must(host, BASE, 0x6, 0) == [6, *words]
    assert must(host, BASE, 0x6, 5) == [1, TELEMETRY]
    assert must(host, BASE, 0x6, 6) == [0]
    assert ask(host, BASE, 0x6, 7)[0] == INVALID_PARAMETERS
    agents = [must(host, BASE, 0x7, i) for i in range(4)]
    assert [(a[0], text(a[1:])) for a in agents] == [(0, "platform"), (1, "ospm"), (2, "runtime"), (3, "bmc")]
    assert must(host, BASE, 0x7, 0xFFFFFFFF, channel=1)[0] == 2
    assert ask(host, BASE, 0x7, 4)[0] == NOT_FOUND
    assert text(must(host, BASE, 0x3)) == "nodectl"


def test_message_attributes_agree_with_what_is_answered(host: HostController) -> None:
    for protocol in VERSIONS:
        for message in range(256):
            listed = ask(host, protocol, 0x2, message)[0] == SUCCESS
            reply = ask(host, protocol, message, *[0] * 9)[0]  # nine words: no command takes them
            assert reply == (PROTOCOL_ERROR if listed else NOT_FOUND), f"{protocol:#x} {message:#x}"


def test_messages_with_a_fast_channel_say_so(host: HostController) -> None:
    fast = {(p, m) for p in VERSIONS for m in range(16) if ask(host, p, 0x2, m) == (SUCCESS, [1])}
    assert fast == {(PERFORMANCE, m) for m in (5, 6, 7, 8)} | {(POWERCAP, m) for m in (4, 5, 6, 7)}


@pytest.mark.parametrize("protocol", OLDER)
def test_every_protocol_goes_down_to_one_older_version_and_up_again(host: HostController, protocol: int) -> None:
    must(host, protocol, 0x10, OLDER[protocol])
    assert must(host, protocol, 0x0) == [OLDER[protocol]]
    assert must(host, protocol, 0x0, channel=1) == [VERSIONS[protocol]], "another agent keeps its own"
    assert ask(host, protocol, 0x10, OLDER[protocol] - 1)[0] == NOT_SUPPORTED
    must(host, protocol, 0x10, VERSIONS[protocol])
    assert must(host, protocol, 0x0) == [VERSIONS[protocol]]


# ---- performance ----


@pytest.mark.parametrize(("version", "width"), [(0x40000, 5), (0x30000, 3)])
def test_seventeen_levels_are_described_in_the_entries_of_the_version(
    host: HostController, version: int, width: int
) -> None:
    must(host, PERFORMANCE, 0x10, version)
    levels: list[list[int]] = []
    while True:
        count, *words = must(host, PERFORMANCE, 0x4, 0, len(levels))
        assert len(words) == (count & 0xFFF) * width
        levels += [words[i : i + width] for i in range(0, len(words), width)]
        if count >> 16 == 0:
            break
    assert [level[0] for level in levels] == LEVELS_KHZ
    costs = [level[1] for level in levels]
    assert costs == sorted(costs) and costs[0] > 0
    assert all(level[2] == 1000 for level in levels), "two control slots"
    if width == 5:
        assert [level[3:] for level in levels] == [[khz, i] for i, khz in enumerate(LEVELS_KHZ)]
    assert ask(host, PERFORMANCE, 0x4, 0, 17)[0] == INVALID_PARAMETERS


def test_no_level_is_hidden_as_boost(host: HostController) -> None:
    for domain in range(4):
        _, _, sustained_khz, sustained_level, *name = must(host, PERFORMANCE, 0x3, domain)
        assert sustained_level == LEVELS_KHZ[-1] == sustained_khz
        assert text(name) == f"cluster-{domain}"
    assert ask(host, PERFORMANCE, 0x3, 4)[0] == NOT_FOUND


def test_the_highest_request_is_the_level_and_withdrawing_it_leaves_the_others(host: HostController) -> None:
    must(host, PERFORMANCE, 0x7, 1, 1_600_000, channel=0)
    assert must(host, PERFORMANCE, 0x8, 1) == [1_600_000]
    must(host, PERFORMANCE, 0x7, 1, 2_400_000, channel=1)
    assert must(host, PERFORMANCE, 0x8, 1) == [2_400_000]
    must(host, PERFORMANCE, 0x7, 1, 0, channel=1)
    assert must(host, PERFORMANCE, 0x8, 1) == [1_600_000]
    must(host, BASE, 0xB, 1, 0, channel=0)
    assert must(host, PERFORMANCE, 0x8, 1) == [3_660_000], "nobody asks: the platform's choice"


def test_a_level_between_two_is_rounded_down(host: HostController) -> None:
    must(host, PERFORMANCE, 0x7, 0, 1_700_000)
    assert must(host, PERFORMANCE, 0x8, 0) == [1_600_000]


@pytest.mark.parametrize("level", [1, 399_999, 3_660_001, 0xFFFFFFFF])
def test_a_level_out_of_range_changes_nothing(host: HostController, level: int) -> None:
    must(host, PERFORMANCE, 0x7, 0, 1_600_000)
    assert ask(host, PERFORMANCE, 0x7, 0, level)[0] == OUT_OF_RANGE
    assert must(host, PERFORMANCE, 0x8, 0) == [1_600_000]


def test_limits_of_all_agents_bound_the_level(host: HostController) -> None:
    must(host, PERFORMANCE, 0x5, 2, 2_400_000, 800_000, channel=0)
    must(host, PERFORMANCE, 0x5, 2, 2_000_000, 0, channel=1)
    assert must(host, PERFORMANCE, 0x6, 2) == [2_000_000, 800_000]
    assert must(host, PERFORMANCE, 0x8, 2) == [2_000_000], "the level moves into the range"
    assert ask(host, PERFORMANCE, 0x7, 2, 2_200_000)[0] == OUT_OF_RANGE
    assert ask(host, PERFORMANCE, 0x5, 2, 0, 0)[0] == OUT_OF_RANGE
    assert ask(host, PERFORMANCE, 0x5, 2, 800_000, 2_000_000)[0] == INVALID_PARAMETERS
    assert ask(host, PERFORMANCE, 0x5, 2, 4_000_000, 800_000)[0] == OUT_OF_RANGE


# ---- power capping ----


def test_power_domains_satisfy_what_linux_demands_of_them(host: HostController) -> None:
    assert must(host, POWERCAP, 0x1) == [5]
    for domain in range(5):
        words = must(host, POWERCAP, 0x3, domain)
        assert len(words) == 14
        attributes, name, rest = words[0], text(words[1:5]), words[5:]
        min_pai, max_pai, pai_step, min_cap, max_cap, cap_step, sustainable, accuracy, parent = rest
        assert attributes >> 25 == 0x7F and attributes >> 23 & 3 == 2
        assert name == ("package" if domain == 0 else f"cluster-{domain - 1}")
        assert 0 < min_pai < max_pai and pai_step > 0
        assert 0 < min_cap < sustainable <= max_cap and cap_step > 0 and accuracy > 0
        assert parent == (0xFFFFFFFF if domain == 0 else 0)


def test_the_lowest_cap_is_in_force_rounded_down_to_the_step(host: HostController) -> None:
    assert must(host, POWERCAP, 0x4, 0) == [0], "capping is disabled at first"
    must(host, POWERCAP, 0x5, 0, 0, 123_456, channel=0)
    assert must(host, POWERCAP, 0x4, 0) == [123_400]
    must(host, POWERCAP, 0x5, 0, 0, 100_000, channel=1)
    assert must(host, POWERCAP, 0x4, 0, channel=0) == [100_000]
    must(host, POWERCAP, 0x5, 0, 0, 0, channel=1)
    assert must(host, POWERCAP, 0x4, 0) == [123_400]


@pytest.mark.parametrize("milliwatts", [1, 19_999, 324_001, 0xFFFFFFFF])
def test_a_cap_out_of_range_leaves_the_one_in_force(host: HostController, milliwatts: int) -> None:
    cap(host, 100.0)
    assert ask(host, POWERCAP, 0x5, 0, 0, milliwatts)[0] == OUT_OF_RANGE
    assert must(host, POWERCAP, 0x4, 0) == [100_000]


def test_in_version_1_a_cap_cannot_be_disabled(host: HostController) -> None:
    cap(host, 100.0)
    must(host, POWERCAP, 0x10, 0x10000)
    assert ask(host, POWERCAP, 0x5, 0, 0, 0)[0] == OUT_OF_RANGE


def test_an_asynchronous_cap_is_answered_when_it_is_applied() -> None:
    host, _ = joined()
    host.advance_slots(10)
    host.send(0, command(POWERCAP, 0x5, 0, 2, 100_000, token=77))
    host.advance(1e-6)
    assert host.poll(0) is not None
    assert ask(host, POWERCAP, 0x5, 0, 0, 90_000)[0] == BUSY
    assert host.notifications(0) == []
    host.advance_slots(3)
    (message,) = host.notifications(0)
    assert struct.unpack("<Iiii", message) == (header(POWERCAP, 0x5, token=77, kind=2), 0, 0, 100_000)
    assert host.wires["freq_khz"].sum() > 0
    must(host, POWERCAP, 0x5, 0, 3, 90_000)
    assert events(host, 0) == [], "bit 0 asks for silence"


def test_flags_and_domains_are_checked_in_the_order_of_the_reference_platform(host: HostController) -> None:
    assert ask(host, POWERCAP, 0x5, 9, 8, 1)[0] == NOT_FOUND
    assert ask(host, POWERCAP, 0x5, 0, 8, 1)[0] == INVALID_PARAMETERS
    assert ask(host, POWERCAP, 0x7, 0, 1, 1000)[0] == INVALID_PARAMETERS
    assert ask(host, POWERCAP, 0x7, 0, 0, 100)[0] == OUT_OF_RANGE


def test_measurements_average_over_the_interval_that_was_set() -> None:
    host, plant = joined()
    must(host, POWERCAP, 0x7, 0, 0, 20_700)
    assert must(host, POWERCAP, 0x6, 0) == [20_500]
    cap(host, 100.0)
    host.advance_slots(1000)
    power, interval = must(host, POWERCAP, 0x9, 0)
    assert interval == 20_500
    assert power == pytest.approx(plant.power_w[0] * 1000, rel=0.01)
    domains = [must(host, POWERCAP, 0x9, d)[0] for d in range(1, 5)]
    assert sum(domains) == pytest.approx(power, rel=0.02)


# ---- sensors ----


def test_sensors_are_described_and_read_in_their_units() -> None:
    host, plant = joined()
    host.advance_slots(100)
    descriptors: list[tuple[int, str, int, int]] = []
    while True:
        count, *words = must(host, SENSOR, 0x3, len(descriptors))
        for i in range(0, len(words), 7):
            kind = words[i + 2]
            scale = (kind >> 11 & 0x1F) - (32 if kind >> 11 & 0x10 else 0)
            descriptors.append((words[i], text(words[i + 3 : i + 7]), kind & 0xFF, scale))
        if count >> 16 == 0:
            break
    assert [d[0] for d in descriptors] == list(range(18))
    assert {d[2:] for d in descriptors} == {(0x2, -3), (0x7, -3), (0x8, -6), (0x14, 3), (0x5, -3)}
    reading = {d[1]: must(host, SENSOR, 0x6, d[0], 0)[0] for d in descriptors}
    assert reading["temp-0"] == pytest.approx(plant.temperature_c[:9].max() * 1000, abs=300)
    assert reading["power-package-0"] == pytest.approx(plant.power_w[0] * 1000, rel=0.01)
    assert reading["energy-0"] == pytest.approx(plant.energy_j * 1e6, rel=0.05)
    assert reading["clock-3"] == host.wires["freq_khz"][27:].max()
    assert reading["volt-3"] == host.wires["volt_mv"][3]


def test_a_sensor_that_cannot_be_read_is_a_hardware_error_never_zero() -> None:
    host, plant = joined()
    plant.temperature_fault[:9] = 1
    plant.power_fault[0] = 1
    host.advance_slots(4)
    assert ask(host, SENSOR, 0x6, 0, 0)[0] == HARDWARE_ERROR
    assert ask(host, SENSOR, 0x6, 4, 0)[0] == HARDWARE_ERROR
    assert ask(host, POWERCAP, 0x9, 0)[0] == HARDWARE_ERROR
    assert ask(host, SENSOR, 0x6, 1, 0)[0] == SUCCESS


def test_a_disabled_sensor_and_an_asynchronous_read_are_refused(host: HostController) -> None:
    assert ask(host, SENSOR, 0x6, 0, 1)[0] == NOT_SUPPORTED
    assert ask(host, SENSOR, 0x6, 0, 2)[0] == INVALID_PARAMETERS
    must(host, SENSOR, 0xA, 0, 0)
    assert ask(host, SENSOR, 0x6, 0, 0)[0] == PROTOCOL_ERROR
    assert ask(host, SENSOR, 0x6, 18, 0)[0] == NOT_FOUND

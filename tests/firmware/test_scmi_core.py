"""What all SCMI protocols of the firmware share: headers, versions, names, permissions, watches and the event queue."""

from __future__ import annotations

import struct

import pytest

from firmware_bridge.controlpulp.host import AGENTS, HostController, HostOptions
from tests.firmware.rig import cap, joined
from tests.firmware.scmi_words import (
    BASE,
    BMC,
    CLOCK,
    DENIED,
    HARDWARE_ERROR,
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
)

PROTOCOLS = {BASE: 0x20001, SYSTEM: 0x20001, PERFORMANCE: 0x40000, CLOCK: 0x30000, SENSOR: 0x30001, POWERCAP: 0x20000}
PROTOCOLS[TELEMETRY] = 0x10000
DOMAINS, POWER_DOMAINS, SENSORS = 4, 5, 18
QUEUE = 16


@pytest.fixture
def host() -> HostController:
    return HostController()


def status(host: HostController, message: bytes, channel: int = 0) -> int:
    """Of an answer that has nothing after it."""
    reply = host.exchange(channel, message)
    assert reply[:4] == message[:4] and len(reply) == 8
    return int(struct.unpack_from("<i", reply, 4)[0])


# ---- one message ----


def test_seven_protocols_answer_and_no_other_number_does(host: HostController) -> None:
    answering = [protocol for protocol in range(256) if ask(host, protocol, 0x0)[0] == SUCCESS]
    assert answering == list(PROTOCOLS)
    assert ask(host, 0x16, 0x0) == (NOT_SUPPORTED, [])


@pytest.mark.parametrize("token", [0, 1, 0x155, 0x3FF])
def test_an_answer_carries_the_header_of_its_message(host: HostController, token: int) -> None:
    message = command(POWERCAP, 0x4, 0, token=token)
    assert host.exchange(0, message) == message[:4] + struct.pack("<iI", SUCCESS, 0)


@pytest.mark.parametrize("bit", [8, 9, 28, 29, 30, 31])
def test_only_a_command_with_clear_reserved_bits_is_answered(host: HostController, bit: int) -> None:
    """Bits 8 and 9 are the type, 28 to 31 are reserved."""
    assert status(host, struct.pack("<I", header(BASE, 0) | 1 << bit)) == PROTOCOL_ERROR


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("message", "words"), [(0x0, 0), (0x2, 1), (0x10, 1)])
def test_the_commands_of_every_protocol_take_their_own_number_of_words(
    host: HostController, protocol: int, message: int, words: int
) -> None:
    for sent in range(4):
        code, _ = ask(host, protocol, message, *[0] * sent)
        assert (code == PROTOCOL_ERROR) == (sent != words)
    for more in (1, 2, 3):
        assert status(host, command(protocol, message, *[0] * words) + bytes(more)) == PROTOCOL_ERROR


def test_message_attributes_of_what_all_protocols_have(host: HostController) -> None:
    for protocol in PROTOCOLS:
        for message in (0x0, 0x2, 0x10):
            assert ask(host, protocol, 0x2, message) == (SUCCESS, [0])
        assert ask(host, protocol, 0x2, 0x11) == (NOT_FOUND, [])
        assert ask(host, protocol, 0x2, 0x1) == (SUCCESS, [0]) and ask(host, protocol, 0x2, 0x101) == (NOT_FOUND, [])


def test_an_error_is_answered_without_what_was_written_before_it(host: HostController) -> None:
    host.wires["temperature_mk"][:] = -(2**31)
    host.advance_slots(2)
    assert ask(host, SENSOR, 0x6, 0, 0) == (HARDWARE_ERROR, [])


def test_every_message_is_counted(host: HostController) -> None:
    for count in range(1, 4):
        host.exchange(1, struct.pack("<I", 0xFFFFFFFF))
        assert must(host, TELEMETRY, 0x3)[9] == 2 * count


# ---- versions ----

OLDER = {
    BASE: (0x20000,), PERFORMANCE: (0x30000, 0x20000), SENSOR: (0x30000, 0x20000, 0x10000), POWERCAP: (0x10000,),
}  # fmt: skip


def test_a_client_of_scmi_2_gets_its_messages_and_layouts(host: HostController) -> None:
    """Performance 0x20000 and sensor 0x10000, as Linux 5.10 and Arm's suite of 2021 know them."""
    host.wires["temperature_mk"][:] = 320_000
    must(host, PERFORMANCE, 0x10, 0x20000)
    must(host, SENSOR, 0x10, 0x10000)
    host.advance_slots(2)
    assert must(host, PERFORMANCE, 0x3, 0)[0] >> 26 & 1 == 0, "no extended names"
    count, *words = must(host, PERFORMANCE, 0x4, 0, 0)
    assert len(words) == 3 * (count & 0xFFF)
    assert ask(host, PERFORMANCE, 0xC, 0)[0] == ask(host, PERFORMANCE, 0x2, 0xC)[0] == NOT_FOUND
    assert ask(host, PERFORMANCE, 0x5, 0, 2_000_000, 0)[0] == OUT_OF_RANGE, "no limit is left unchanged by 0"
    assert must(host, SENSOR, 0x6, 0, 0) == [46_850, 0], "a value, without a timestamp"
    assert [words & 3 << 29 for words in must(host, SENSOR, 0x3, 0)[2::7]] == [0] * 4
    assert all(ask(host, SENSOR, message, 0, 0)[0] == NOT_FOUND for message in (7, 8, 9, 0xA, 0xB, 0xC, 0xD))
    must(host, SENSOR, 0x10, 0x20000)
    assert len(must(host, SENSOR, 0x6, 0, 0)) == 4
    assert ask(host, SENSOR, 0xC, 0)[0] == NOT_FOUND and must(host, SENSOR, 0x9, 0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_version_but_the_listed_ones_is_negotiated(host: HostController, protocol: int) -> None:
    """Some have no older version: 0 is none."""
    older = OLDER.get(protocol, ())
    for version in (0, 1, 0x10000, 0x20000, 0x20001, 0x30000, 0x30001, 0x40000, 0x40001, 0xFFFFFFFF):
        is_spoken = version in (PROTOCOLS[protocol], *older)
        assert ask(host, protocol, 0x10, version) == (SUCCESS if is_spoken else NOT_SUPPORTED, [])
        if is_spoken:
            assert must(host, protocol, 0x0) == [version]
    for version in older:
        must(host, protocol, 0x10, version)
        assert all(must(host, other, 0x0) == [PROTOCOLS[other]] for other in PROTOCOLS if other != protocol)


# ---- names ----


def test_names_fill_their_fields_with_zeros(host: HostController) -> None:
    def field(protocol: int, message: int, words: slice, *arguments: int) -> bytes:
        values = must(host, protocol, message, *arguments)[words]
        return struct.pack(f"<{len(values)}I", *values)

    assert field(BASE, 0x3, slice(0, None)) == b"nodectl".ljust(16, b"\0")
    assert field(BASE, 0x4, slice(0, None)) == b"controlpulp".ljust(16, b"\0")
    for agent, name in enumerate([b"platform", b"ospm", b"runtime", b"bmc"]):
        assert field(BASE, 0x7, slice(1, None), agent) == name.ljust(16, b"\0")
    for d in range(DOMAINS):
        assert field(PERFORMANCE, 0x3, slice(4, None), d) == (b"cluster-%d" % d).ljust(16, b"\0")
        assert field(PERFORMANCE, 0xC, slice(1, None), d) == (b"voltage domain %d" % d).ljust(64, b"\0")
    assert field(SENSOR, 0xC, slice(1, None), 4) == b"power-package-0".ljust(64, b"\0")
    assert field(SENSOR, 0x3, slice(4, 8), 4) == b"power-package-0\0", "fills its field but for the last byte"


# ---- permissions ----


@pytest.mark.parametrize("denied", [PERFORMANCE, SENSOR, POWERCAP, TELEMETRY])
def test_a_denied_protocol_is_denied_alone_on_its_device_and_to_its_agent(host: HostController, denied: int) -> None:
    changes = {
        PERFORMANCE: (0x7, (0, 800_000)),
        SENSOR: (0xA, (0, 1)),
        POWERCAP: (0x5, (1, 0, 30_000)),
        TELEMETRY: (0x5, (0, 0)),
    }
    device = 0 if denied == TELEMETRY else 1
    must(host, BASE, 0xA, 1, device, denied, 0, channel=BMC)
    for channel in range(AGENTS):
        for protocol, (message, words) in changes.items():
            is_denied = (channel, protocol) == (0, denied)
            assert ask(host, protocol, message, *words, channel=channel)[0] == (DENIED if is_denied else SUCCESS)
    must(host, PERFORMANCE, 0x7, 1, 800_000)


# ---- watches ----


def everything_changes(host: HostController, channel: int, turn: int) -> None:
    """Level, limits, cap and averaging interval of every domain; ``turn``: 1, 2, ..."""
    for d in range(DOMAINS):
        must(host, PERFORMANCE, 0x7, d, (1_600_000, 1_800_000)[turn % 2], channel=channel)
        must(host, PERFORMANCE, 0x5, d, (3_200_000, 3_350_000)[turn % 2], 0, channel=channel)
    for p in range(POWER_DOMAINS):
        must(host, POWERCAP, 0x5, p, 0, 50_000 + 1000 * turn, channel=channel)
        must(host, POWERCAP, 0x7, p, 0, 500 + 500 * turn, channel=channel)


@pytest.mark.parametrize("watcher", range(AGENTS))
@pytest.mark.parametrize("domain", range(DOMAINS))
def test_a_watched_domain_and_no_other_is_reported(host: HostController, watcher: int, domain: int) -> None:
    must(host, PERFORMANCE, 0x9, domain, 1, channel=watcher)
    must(host, PERFORMANCE, 0xA, domain, 1, channel=watcher)
    must(host, POWERCAP, 0xA, domain + 1, 1, channel=watcher)
    everything_changes(host, 1, 1)
    expected = [
        (header(PERFORMANCE, 1, kind=3), [2, domain, 1_800_000]),
        (header(PERFORMANCE, 0, kind=3), [2, domain, 3_350_000, 400_000]),
        (header(POWERCAP, 0, kind=3), [2, domain + 1, 51_000, 500]),
        (header(POWERCAP, 0, kind=3), [2, domain + 1, 51_000, 1000]),
    ]
    assert [events(host, channel) for channel in range(AGENTS)] == [
        expected if channel == watcher else [] for channel in range(AGENTS)
    ]
    everything_changes(host, 0, 1)
    assert events(host, watcher) == [], "what another agent wants too changes nothing"
    must(host, PERFORMANCE, 0x5, domain, 0, 800_000)
    assert events(host, watcher) == [(header(PERFORMANCE, 0, kind=3), [1, domain, 3_350_000, 800_000])]


@pytest.mark.parametrize(("options", "expected"), [(HostOptions(bypass=True), [1, 1, 1, 2]), (None, [0] * 4)])
def test_with_the_bypass_a_lowered_level_is_applied_ahead_of_the_slot_and_a_raised_one_is_not(
    options: HostOptions | None, expected: list[int]
) -> None:
    host, _ = joined(1e-9, options)
    host.advance_slots(20)
    bypasses = []
    for level in (1_600_000, 2_000_000, 2_000_000, 1_800_000):
        must(host, PERFORMANCE, 0x7, 2, level)
        host.advance_slots(4)
        bypasses.append(host.view().bypasses)
    assert bypasses == expected


def test_a_reset_agent_has_the_newer_versions_no_requests_and_watches_nothing() -> None:
    host, plant = joined()
    host.advance_slots(20)
    for channel in (0, 1):
        for d in range(DOMAINS):
            must(host, PERFORMANCE, 0x9, d, 1, channel=channel)
            must(host, PERFORMANCE, 0xA, d, 1, channel=channel)
            must(host, SENSOR, 0x4, d, 1, channel=channel)
        for p in range(POWER_DOMAINS):
            must(host, POWERCAP, 0xA, p, 1, channel=channel)
            must(host, POWERCAP, 0xB, p, 1, 0, 0, channel=channel)
        for i in range(SENSORS):
            must(host, SENSOR, 0xB, i, 1, channel=channel)
        must(host, BASE, 0x8, 1, channel=channel)
    for protocol, version in ((BASE, 0x20000), (PERFORMANCE, 0x30000), (SENSOR, 0x30000), (POWERCAP, 0x10000)):
        must(host, protocol, 0x10, version)
    for p in range(POWER_DOMAINS):
        must(host, POWERCAP, 0x5, p, 2, 40_000)  # answered when it is applied, which the reset prevents
    events(host, 0, slots=1)
    must(host, BASE, 0xB, 1, 0)
    assert must(host, POWERCAP, 0x4, 0) == [0]
    assert [must(host, protocol, 0x0)[0] for protocol in PROTOCOLS] == list(PROTOCOLS.values())
    for p in range(POWER_DOMAINS):
        must(host, POWERCAP, 0x5, p, 0, 45_000)  # not busy: nothing is pending
    for d in range(DOMAINS):
        must(host, SENSOR, 0x5, d, 3, 0, 0)
    while events(host, 0, slots=1):
        pass  # from before the reset
    everything_changes(host, 2, 1)
    host.send(2, command(BASE, 0x0))
    struct.pack_into("<I", host.area(2), 0x14, 3)
    plant.temperature_c[:] = -5.0
    host.advance_slots(300)
    assert host.notifications(0) == [] and must(host, TELEMETRY, 0x3, channel=0)[7] == 0
    assert len(events(host, 1, slots=40)) > QUEUE, "the other agent's watches stay"


# ---- events ----


def test_events_come_in_order_through_the_queues_end_and_beyond_it_are_counted(host: HostController) -> None:
    must(host, POWERCAP, 0xA, 0, 1)
    host.advance_slots(1)
    sent, seen = [], []

    def change(count: int) -> None:
        for _ in range(count):
            sent.append(100_000 + 100 * len(sent))
            cap(host, sent[-1] / 1000, channel=1)

    for count in (10, 10, 11):
        change(count)
        seen += [words[2] for _, words in events(host, 0, slots=8)]
    seen += [words[2] for _, words in events(host, 0)]
    assert seen == sent
    assert must(host, TELEMETRY, 0x3)[7] == 0
    change(QUEUE)
    assert must(host, TELEMETRY, 0x3)[7] == 0
    change(2)
    assert must(host, TELEMETRY, 0x3)[7] == 2
    assert must(host, TELEMETRY, 0x3, channel=1)[7] == 0
    assert [words[2] for _, words in events(host, 0)] == sent[-QUEUE - 2 : -2]


# ---- start ----


def test_every_sensor_starts_enabled_with_an_interval_of_a_tenth_of_a_second(host: HostController) -> None:
    assert [must(host, SENSOR, 0x9, i) for i in range(SENSORS)] == [[1 | 0x1F << 11 | 1 << 16]] * SENSORS

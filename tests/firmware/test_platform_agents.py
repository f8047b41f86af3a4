"""Several agents at one platform: permissions, notifications, mailbox, FastChannels, telemetry and leases."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_bridge.controlpulp.host import ChannelBusy, ChannelError, HostController, HostOptions
from tests.firmware.rig import cap, joined
from tests.firmware.scmi_words import (
    BASE,
    BMC,
    DENIED,
    INVALID_PARAMETERS,
    NOT_FOUND,
    NOT_SUPPORTED,
    OUT_OF_RANGE,
    PERFORMANCE,
    POWERCAP,
    PROTOCOL_ERROR,
    SENSOR,
    SUCCESS,
    TELEMETRY,
    ask,
    command,
    events,
    header,
    must,
)


@pytest.fixture
def host() -> HostController:
    return HostController()


# ---- permissions ----


@pytest.mark.parametrize("protocol", [PERFORMANCE, SENSOR, POWERCAP, TELEMETRY])
def test_who_is_denied_the_package_is_denied_the_whole_protocol(host: HostController, protocol: int) -> None:
    """As Arm's suite asks (cases 112, 114, 116, 117), even its version."""
    must(host, BASE, 0xA, 1, 0, protocol, 0, channel=BMC)
    for message in (0x0, 0x1, 0x3):
        assert ask(host, protocol, message)[0] == DENIED
    assert ask(host, protocol, 0x0, channel=1)[0] == SUCCESS
    for other in {PERFORMANCE, SENSOR, POWERCAP, TELEMETRY} - {protocol}:
        must(host, other, 0x0)
    must(host, BASE, 0xA, 1, 0, protocol, 1, channel=BMC)
    must(host, protocol, 0x0)
    must(host, BASE, 0x9, 1, 0, 0, channel=BMC)
    assert ask(host, protocol, 0x0)[0] == DENIED
    must(host, BASE, 0xB, 1, 1, channel=BMC)
    must(host, protocol, 0x0)


def test_an_agent_that_is_denied_a_domain_sees_that_it_exists_and_nothing_of_its_state(host: HostController) -> None:
    host.advance_slots(2)
    hidden = [
        (PERFORMANCE, 0x6, (1,)), (PERFORMANCE, 0x8, (1,)), (PERFORMANCE, 0x9, (1, 1)),
        (PERFORMANCE, 0x7, (1, 800_000)),
        (POWERCAP, 0x4, (2,)), (POWERCAP, 0x6, (2,)), (POWERCAP, 0xA, (2, 1)), (POWERCAP, 0x5, (2, 0, 30_000)),
        (SENSOR, 0x6, (1, 0)), (SENSOR, 0x6, (6, 0)), (SENSOR, 0x6, (11, 0)), (SENSOR, 0x6, (15, 0)),
        (SENSOR, 0x9, (1,)),
    ]  # fmt: skip
    words = host.fast_channel(0)
    level, cap = 6 * 1 + 1, 6 * 4 + 4 * 2 + 3
    assert words[level] and words[cap]
    must(host, BASE, 0x9, 1, 2, 0, channel=BMC)
    host.advance_slots(1)
    assert (words[level], words[cap]) == (0, 0) and words[6 * 0 + 1]
    for protocol, message, parameters in hidden:
        assert ask(host, protocol, message, *parameters)[0] == DENIED
        assert ask(host, protocol, message, *parameters, channel=1)[0] != DENIED
        other = (parameters[0] + 1 - 2 * (message == 0x6 and protocol == SENSOR), *parameters[1:])
        assert ask(host, protocol, message, *other)[0] != DENIED, "another domain"
    for protocol, message, parameters in ((PERFORMANCE, 0x3, (1,)), (PERFORMANCE, 0x4, (1, 0)), (POWERCAP, 0x3, (2,))):
        must(host, protocol, message, *parameters)


def test_what_an_agent_watched_is_silent_once_it_is_denied(host: HostController) -> None:
    must(host, POWERCAP, 0xA, 2, 1)
    must(host, PERFORMANCE, 0xA, 1, 1)
    must(host, BASE, 0x9, 1, 2, 0, channel=BMC)
    must(host, POWERCAP, 0x5, 2, 0, 30_000, channel=1)
    must(host, PERFORMANCE, 0x7, 1, 800_000, channel=1)
    assert events(host, 0, slots=4) == []


def test_only_the_trusted_agent_sets_permissions_or_resets_others(host: HostController) -> None:
    assert ask(host, BASE, 0xA, 1, 0, POWERCAP, 1, channel=0)[0] == DENIED
    assert ask(host, BASE, 0x9, 2, 0, 0, channel=1)[0] == DENIED
    assert ask(host, BASE, 0xB, 2, 0, channel=0)[0] == DENIED
    assert ask(host, BASE, 0xB, 1, 0, channel=0)[0] == SUCCESS
    assert ask(host, BASE, 0xA, 9, 0, POWERCAP, 1, channel=BMC)[0] == NOT_FOUND


def test_an_agent_is_its_channel_whatever_the_doorbell_says() -> None:
    host, _ = joined()
    host.send(0, command(PERFORMANCE, 0x7, 0, 800_000))
    host.ring(0, 3)
    must(host, PERFORMANCE, 0x9 + 1, 0, 1, channel=1)
    host.advance_slots(2)
    host.poll(0)
    ((_, words),) = events(host, 1)
    assert words == [1, 0, 800_000]


# ---- notifications ----


def test_changes_are_notified_to_subscribers_with_the_agent_that_made_them() -> None:
    host, _ = joined()
    for domain in range(4):
        must(host, PERFORMANCE, 0xA, domain, 1, channel=1)
    must(host, PERFORMANCE, 0x9, 3, 1, channel=1)
    must(host, POWERCAP, 0xA, 0, 1, channel=1)
    must(host, PERFORMANCE, 0x7, 3, 2_400_000, channel=0)
    must(host, PERFORMANCE, 0x5, 3, 2_000_000, 0, channel=2)
    cap(host, 120.0, channel=0)
    seen = events(host, 1)
    assert seen == [
        (header(PERFORMANCE, 1, kind=3), [1, 3, 2_400_000]),
        (header(PERFORMANCE, 0, kind=3), [3, 3, 2_000_000, 400_000]),
        (header(PERFORMANCE, 1, kind=3), [3, 3, 2_000_000]),
        (header(POWERCAP, 0, kind=3), [1, 0, 120_000, 500]),
    ]
    assert events(host, 0) == []


def test_power_that_leaves_its_band_is_notified_once() -> None:
    host, _ = joined()
    cap(host, 100.0)
    host.advance_slots(200)
    must(host, POWERCAP, 0xB, 0, 1, 80_000, 110_000)
    assert events(host, 0) == []
    cap(host, 150.0)
    ((head, words),) = events(host, 0)
    assert head == header(POWERCAP, 1, kind=3)
    assert words[:2] == [0, 0] and words[2] > 110_000
    assert ask(host, POWERCAP, 0xB, 0, 1, 2, 1)[0] == INVALID_PARAMETERS


def test_a_temperature_trip_point_is_notified_when_crossed() -> None:
    host, plant = joined()
    cap(host, 60.0)
    host.advance_slots(200)
    must(host, SENSOR, 0x5, 0, 1, round(plant.temperature_c[:9].max() + 5) * 1000, 0)
    must(host, SENSOR, 0x4, 0, 1)
    cap(host, 250.0)
    ((head, words),) = events(host, 0, slots=100)
    assert head == header(SENSOR, 0, kind=3)
    assert words == [0, 0, 1 << 16]


def test_events_beyond_the_queue_are_lost_and_counted() -> None:
    host, _ = joined()
    must(host, POWERCAP, 0xA, 0, 1)
    for i in range(30):
        cap(host, 100.0 + i)
    seen = events(host, 0, slots=40)
    assert len(seen) == 16
    assert must(host, TELEMETRY, 0x3)[7] == 14


# ---- mailbox ----


def test_a_command_is_answered_once_and_the_area_is_handed_back() -> None:
    host = HostController(HostOptions(job_us=(5.0, 50.0, 5.0)))
    host.send(1, command(BASE, 0x0, token=5))
    assert host.poll(1) is None
    with pytest.raises(ChannelBusy):
        host.send(1, command(BASE, 0x0))
    host.advance(70e-6)
    assert host.poll(1) == struct.pack("<IiI", header(BASE, 0, token=5), 0, 0x20001)
    assert host.poll(1) is None
    host.ring(1, 2)
    host.advance(100e-6)
    assert host.poll(1) is None, "a doorbell without a message"


@pytest.mark.parametrize("length", [0, 3, 137, 0xFFFFFFFF])
def test_a_length_that_cannot_be_is_a_channel_error_and_notified_to_subscribers(length: int) -> None:
    host = HostController()
    must(host, BASE, 0x8, 1, channel=2)
    host.send(0, command(BASE, 0x0))
    struct.pack_into("<I", host.area(0), 0x14, length)
    host.advance_slots(1)
    with pytest.raises(ChannelError):
        host.poll(0)
    ((head, words),) = events(host, 2)
    assert head == header(BASE, 0, kind=3) and words[:2] == [1, 1]
    host.send(0, command(BASE, 0x0))
    host.advance_slots(1)
    assert host.poll(0) is not None, "the next message clears the error"


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (struct.pack("<I", header(0x16, 0)), NOT_SUPPORTED),
        (struct.pack("<I", header(BASE, 0x42)), NOT_FOUND),
        (struct.pack("<I", header(BASE, 0, kind=2)), PROTOCOL_ERROR),
        (struct.pack("<I", header(BASE, 0) | 1 << 28), PROTOCOL_ERROR),
        (struct.pack("<II", header(BASE, 0), 0), PROTOCOL_ERROR),
        (struct.pack("<I", header(POWERCAP, 5)), PROTOCOL_ERROR),
        (struct.pack("<IB", header(BASE, 6), 0), PROTOCOL_ERROR),
    ],
)
def test_malformed_input_gets_the_status_of_the_standard(host: HostController, message: bytes, status: int) -> None:
    reply = host.exchange(0, message)
    assert struct.unpack("<Ii", reply) == (struct.unpack_from("<I", message)[0], status)


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(min_size=4, max_size=136)), max_size=40))
@settings(max_examples=150)
def test_any_bytes_get_one_answer_with_their_own_header(messages: list[tuple[int, bytes]]) -> None:
    host = HostController()
    for channel, message in messages:
        host.send(channel, message)
        host.advance(1e-6)
        reply = host.poll(channel)
        assert reply is not None and reply[:4] == message[:4]
        assert 8 <= len(reply) <= 4 + 128 and len(reply) % 4 == 0


# ---- FastChannels ----


def test_a_fast_channel_sets_without_a_message_and_is_the_agents_own() -> None:
    host, _ = joined()
    words = must(host, PERFORMANCE, 0xB, 2, 0x7, channel=1)
    assert words[0] == 0 and words[4] == 4
    at = (words[2] - 0x2000) // 4
    host.advance_slots(4)
    host.fast_channel(1)[at] = 800_000
    host.advance_slots(1)
    assert must(host, PERFORMANCE, 0x8, 2) == [800_000]
    get = (must(host, PERFORMANCE, 0xB, 2, 0x8, channel=0)[2] - 0x1000) // 4
    assert host.fast_channel(0)[get] == 800_000
    caps = (must(host, POWERCAP, 0xC, 0, 0x5)[2] - 0x1000) // 4
    host.fast_channel(0)[caps] = 1
    host.advance_slots(1)
    assert must(host, POWERCAP, 0x4, 0) == [0], "what a message would refuse is ignored"
    host.fast_channel(0)[caps] = 90_000
    host.advance_slots(1)
    assert must(host, POWERCAP, 0x4, 0) == [90_000]
    assert ask(host, PERFORMANCE, 0xB, 0, 0x3)[0] == NOT_SUPPORTED
    assert ask(host, PERFORMANCE, 0xB, 4, 0x7)[0] == NOT_FOUND


def test_an_agent_that_does_not_reach_the_memory_is_offered_no_fast_channels() -> None:
    host = HostController(HostOptions(message_only=frozenset({0})))
    host.advance_slots(2)
    domain = {0: must(host, PERFORMANCE, 0x3, 0)[0], 1: must(host, PERFORMANCE, 0x3, 0, channel=1)[0]}
    power = {0: must(host, POWERCAP, 0x3, 0)[0], 1: must(host, POWERCAP, 0x3, 0, channel=1)[0]}
    assert domain[1] - domain[0] == 1 << 27
    assert power[1] - power[0] == 1 << 22
    for protocol, describe, message in ((PERFORMANCE, 0xB, 0x7), (POWERCAP, 0xC, 0x5)):
        assert must(host, protocol, 0x2, message) == [0]
        assert must(host, protocol, 0x2, message, channel=1) == [1]
        assert ask(host, protocol, describe, 0, message)[0] == NOT_SUPPORTED
        assert ask(host, protocol, describe, 0, message, channel=1)[0] == SUCCESS


# ---- telemetry and leases ----


def test_telemetry_has_reasons_and_the_margin_under_the_cap() -> None:
    host, plant = joined()
    cap(host, 100.0)
    host.advance_slots(100)
    status = must(host, TELEMETRY, 0x3)
    assert status[1] == host.view().slots
    assert np.int32(np.uint32(status[4])) / 1000 == pytest.approx(100.0 - plant.power_w[0], abs=1.0)
    count, *words = must(host, TELEMETRY, 0x4, 0)
    reasons = struct.unpack(f"<{count}H", struct.pack(f"<{len(words)}I", *words))
    assert count == 36 and reasons == host.view().reasons
    assert all(r & 2 for r in reasons)


def test_a_lease_ends_an_agents_requests_and_leaves_the_agreed_cap() -> None:
    host, _ = joined()
    assert must(host, TELEMETRY, 0x6) == [0, 0], "off until requested"
    cap(host, 150.0)
    must(host, PERFORMANCE, 0x7, 0, 800_000)
    must(host, TELEMETRY, 0x5, 100, 80_000)
    for _ in range(5):
        host.advance(0.08)
        must(host, BASE, 0x0)
    assert must(host, POWERCAP, 0x4, 0, channel=1) == [150_000], "any message renews"
    host.advance(0.102)
    assert must(host, POWERCAP, 0x4, 0, channel=1) == [80_000]
    assert must(host, PERFORMANCE, 0x8, 0, channel=1) == [3_660_000]


def test_an_expired_lease_without_an_agreed_cap_withdraws_it() -> None:
    host, _ = joined()
    cap(host, 150.0)
    must(host, TELEMETRY, 0x5, 50, 0)
    host.advance(0.06)
    assert must(host, POWERCAP, 0x4, 0, channel=1) == [0]


def test_without_a_lease_a_cap_outlives_its_agents_silence() -> None:
    host, _ = joined()
    cap(host, 150.0)
    host.advance(3.0)
    assert must(host, POWERCAP, 0x4, 0, channel=1) == [150_000]


def lease_until(host: HostController, after_ms: int, cap_mw: int) -> None:
    now_ms, _, _ = must(host, TELEMETRY, 0x8)
    must(host, TELEMETRY, 0x7, (now_ms + after_ms) % 2**32, cap_mw)


def in_force(host: HostController) -> int:
    return must(host, POWERCAP, 0x4, 0, channel=1)[0]


def test_a_lease_with_a_set_end_ends_then_however_much_is_said_until_then() -> None:
    host, _ = joined()
    cap(host, 150.0)
    must(host, PERFORMANCE, 0x7, 0, 800_000)
    lease_until(host, 100, 80_000)
    for _ in range(9):
        host.advance(0.01)
        must(host, BASE, 0x0)
    assert in_force(host) == 150_000
    host.advance(0.0105)
    assert in_force(host) == 80_000, "within a slot of the end"
    assert must(host, PERFORMANCE, 0x8, 0, channel=1) == [800_000], "only watts are leased"
    assert must(host, TELEMETRY, 0x8)[1:] == [0, 80_000], "it is over"


def test_after_its_lease_an_agent_gets_a_higher_cap_only_with_a_new_one() -> None:
    host, _ = joined()
    lease_until(host, 10, 80_000)
    host.advance(0.011)
    assert in_force(host) == 80_000, "also where it had requested no cap"
    cap(host, 150.0)
    host.advance(0.001)
    assert in_force(host) == 80_000, "a delayed request raises nothing"
    cap(host, 60.0)
    assert in_force(host) == 60_000
    cap(host, 150.0)
    must(host, TELEMETRY, 0x7, must(host, TELEMETRY, 0x8)[0] - 1, 80_000)
    host.advance(0.001)
    assert in_force(host) == 80_000, "nor does a lease that comes after its end"
    lease_until(host, 10, 80_000)
    assert in_force(host) == 150_000
    must(host, TELEMETRY, 0x7, 0, 0)
    host.advance(0.1)
    assert (in_force(host), must(host, TELEMETRY, 0x8)[1:]) == (150_000, [0, 0])


def test_a_lease_of_silence_rests_while_one_with_a_set_end_is_there() -> None:
    host, _ = joined()
    cap(host, 150.0)
    must(host, TELEMETRY, 0x5, 20, 0)
    lease_until(host, 100, 80_000)
    host.advance(0.05)
    assert in_force(host) == 150_000
    host.advance(0.06)
    assert in_force(host) == 80_000
    must(host, TELEMETRY, 0x7, 0, 0)
    host.advance(0.01)
    assert in_force(host) == 150_000
    host.advance(0.02)
    assert in_force(host) == 0, "it is as it was found"


def test_a_lease_with_a_set_end_has_bounds_and_is_an_agents_own() -> None:
    host, _ = joined()
    now_ms = must(host, TELEMETRY, 0x8)[0]
    assert ask(host, TELEMETRY, 0x7, now_ms + 3_600_001, 80_000)[0] == OUT_OF_RANGE
    assert ask(host, TELEMETRY, 0x7, now_ms + 100, 19_999)[0] == OUT_OF_RANGE
    lease_until(host, 100, 80_050)
    assert must(host, TELEMETRY, 0x8)[2] == 80_000, "rounded down to the step of caps"
    assert must(host, TELEMETRY, 0x8, channel=1)[1:] == [0, 0]
    host.advance(0.2)
    assert in_force(host) == 80_000
    lease_until(host, 2**32 - 5, 90_000)
    host.advance(0.001)
    assert in_force(host) == 90_000, "the clock wraps: an end before now is over"

"""Protocols 0x14 (clocks, to be read) and 0x12 (an orderly end, passed on), message by message."""

from __future__ import annotations

import numpy as np
import pytest

from firmware_bridge.controlpulp.host import HostController
from tests.firmware.rig import cap, joined
from tests.firmware.scmi_words import (
    BASE,
    BMC,
    CLOCK,
    DENIED,
    INVALID_PARAMETERS,
    NOT_FOUND,
    NOT_SUPPORTED,
    OUT_OF_RANGE,
    PERFORMANCE,
    SUCCESS,
    SYSTEM,
    ask,
    events,
    header,
    must,
    text,
)

GRACEFUL, SHUTDOWN, WARM_RESET, POWER_UP = 1, 0, 2, 3
MHZ = 1_000_000


@pytest.fixture
def host() -> HostController:
    return HostController()


def rate_hz(host: HostController, clock: int) -> int:
    low, high = must(host, CLOCK, 0x6, clock)
    return low | high << 32


# ---- clocks ----


def test_there_is_a_clock_for_each_domain_with_a_name_and_always_on(host: HostController) -> None:
    assert must(host, CLOCK, 0x1) == [4], "and no asynchronous changes"
    for clock in range(4):
        attributes, *name, delay = must(host, CLOCK, 0x3, clock)
        assert attributes == 1 | 1 << 1, "enabled, has permissions"
        assert (text(name), delay) == (f"clock-{clock}", 0)
        assert must(host, CLOCK, 0xB, clock, 0) == [0, 1, 0]


def test_rates_are_a_range_in_steps_of_a_kilohertz(host: HostController) -> None:
    expected = [3 | 1 << 12, 400 * MHZ, 0, 3660 * MHZ, 0, 1000, 0]
    assert must(host, CLOCK, 0x4, 3, 0) == expected
    assert ask(host, CLOCK, 0x4, 3, 1) == (OUT_OF_RANGE, [])


def test_a_rate_is_that_of_the_domains_fastest_core_in_force() -> None:
    host, _ = joined()
    host.advance_slots(4)
    must(host, PERFORMANCE, 0x7, 1, 800_000)
    cap(host, 60.0)
    host.advance_slots(50)
    clocks = np.array(host.wires["freq_khz"]).reshape(4, 9)
    assert len(set(clocks.max(axis=1).tolist())) > 1
    assert [rate_hz(host, clock) for clock in range(4)] == [int(khz) * 1000 for khz in clocks.max(axis=1)]


def test_nobody_sets_a_rate_or_stops_a_clock(host: HostController) -> None:
    for channel in (0, BMC):
        assert must(host, CLOCK, 0xF, 0, channel=channel) == [0]
        assert ask(host, CLOCK, 0x5, 0, 2, 800 * MHZ, 0, channel=channel) == (DENIED, [])
        assert ask(host, CLOCK, 0x7, 2, 0, 0, channel=channel) == (DENIED, [])
        assert ask(host, CLOCK, 0x7, 2, 1, 0, channel=channel) == (DENIED, [])
    before = rate_hz(host, 2)
    host.advance_slots(4)
    assert rate_hz(host, 2) >= before


@pytest.mark.parametrize(
    ("message", "words"), [(0x3, (4,)), (0x4, (4, 0)), (0x5, (0, 4, 0, 0)), (0x6, (4,)), (0x7, (4, 1, 0))]
)
def test_there_is_no_fifth_clock(host: HostController, message: int, words: tuple[int, ...]) -> None:
    assert ask(host, CLOCK, message, *words) == (NOT_FOUND, [])
    assert ask(host, CLOCK, 0xB, 4, 0) == ask(host, CLOCK, 0xF, 4) == (NOT_FOUND, [])


@pytest.mark.parametrize(
    ("attributes", "status"),
    [
        *[(wrong, INVALID_PARAMETERS) for wrong in (2, 3, 4, 1 << 24)],
        *[(vendors, NOT_SUPPORTED) for vendors in (3 | 1 << 16, 1 | 0x80 << 16)],
    ],
)
def test_a_clock_has_no_other_settings(host: HostController, attributes: int, status: int) -> None:
    assert ask(host, CLOCK, 0x7, 0, attributes, 0) == (status, [])


def test_reserved_flags_of_clocks_are_refused(host: HostController) -> None:
    assert ask(host, CLOCK, 0x5, 16, 0, 800 * MHZ, 0) == (INVALID_PARAMETERS, [])
    assert ask(host, CLOCK, 0xB, 0, 1) == (NOT_SUPPORTED, [])
    assert ask(host, CLOCK, 0xB, 0, 256) == (INVALID_PARAMETERS, [])


# ---- system power ----


def test_the_management_controllers_request_for_an_orderly_end_reaches_who_watches(host: HostController) -> None:
    must(host, SYSTEM, 0x5, 1, channel=0)
    for state in (SHUTDOWN, 1, WARM_RESET):
        must(host, SYSTEM, 0x3, GRACEFUL, state, channel=BMC)
        assert events(host, 0) == [(header(SYSTEM, 0, kind=3), [BMC + 1, GRACEFUL, state, 0])]
        assert events(host, 1) == events(host, BMC) == []
    must(host, SYSTEM, 0x5, 0, channel=0)
    must(host, SYSTEM, 0x3, GRACEFUL, SHUTDOWN, channel=BMC)
    assert events(host, 0) == []


def test_a_reset_agent_watches_no_longer(host: HostController) -> None:
    must(host, SYSTEM, 0x5, 1, channel=0)
    must(host, BASE, 0xB, 1, 0, channel=0)
    must(host, SYSTEM, 0x3, GRACEFUL, SHUTDOWN, channel=BMC)
    assert events(host, 0) == []


def test_only_the_management_controller_may_ask_for_an_end_unless_it_took_that_from_itself(
    host: HostController,
) -> None:
    must(host, SYSTEM, 0x5, 1, channel=0)
    for channel in (0, 1):
        assert ask(host, SYSTEM, 0x3, GRACEFUL, SHUTDOWN, channel=channel) == (DENIED, [])
    must(host, BASE, 0xA, BMC + 1, 0, SYSTEM, 0, channel=BMC)
    assert ask(host, SYSTEM, 0x3, GRACEFUL, SHUTDOWN, channel=BMC) == (DENIED, [])
    assert events(host, 0) == []
    must(host, BASE, 0xA, BMC + 1, 0, SYSTEM, 1, channel=BMC)
    assert ask(host, SYSTEM, 0x3, GRACEFUL, SHUTDOWN, channel=BMC) == (SUCCESS, [])


def test_what_the_controller_cannot_do_itself_is_not_supported(host: HostController) -> None:
    must(host, SYSTEM, 0x5, 1, channel=0)
    for flags, state in ((0, SHUTDOWN), (0, WARM_RESET), (GRACEFUL, POWER_UP), (GRACEFUL, 4), (0, 0x80000000)):
        assert ask(host, SYSTEM, 0x3, flags, state, channel=BMC) == (NOT_SUPPORTED, [])
    for flags, state in ((2, SHUTDOWN), (GRACEFUL, 5), (GRACEFUL, 0x7FFFFFFF)):
        assert ask(host, SYSTEM, 0x3, flags, state, channel=BMC) == (INVALID_PARAMETERS, [])
    assert ask(host, SYSTEM, 0x5, 2) == (INVALID_PARAMETERS, [])
    assert events(host, 0) == []
    assert must(host, SYSTEM, 0x4) == [POWER_UP]
    assert must(host, SYSTEM, 0x1) == [0]

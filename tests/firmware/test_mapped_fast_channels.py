"""FastChannels in memory of the agent's own: a virtual machine's, which the controller maps."""

from __future__ import annotations

import struct

import pytest

from firmware_bridge.controlpulp.host import FAST_WORDS, HostController, HostOptions
from tests.firmware.scmi_words import NOT_SUPPORTED, PERFORMANCE, POWERCAP, ask, must

ADDRESS = 0x1_4FF0_0000
LEVEL_SET, LEVEL_GET, CAP_SET = 0x7, 0x8, 0x5


def word_of(host: HostController, protocol: int, message: int, domain: int) -> int:
    """The described place of a channel, in words from the start of the window."""
    describe = 0xB if protocol == PERFORMANCE else 0xC
    _, _, low, high, size, *_ = must(host, protocol, describe, domain, message)
    assert size == 4
    return ((high << 32 | low) - ADDRESS) // 4


@pytest.fixture
def window() -> bytearray:
    return bytearray(4 * FAST_WORDS)


@pytest.fixture
def host() -> HostController:
    return HostController(HostOptions(message_only=frozenset({0})))


def write(window: bytearray, word: int, value: int) -> None:
    struct.pack_into("<I", window, 4 * word, value)


def test_a_mapped_window_is_described_by_the_agents_address_and_its_words_are_requests(
    host: HostController, window: bytearray
) -> None:
    assert ask(host, PERFORMANCE, 0xB, 0, LEVEL_SET) == (NOT_SUPPORTED, [])
    host.map_fast_channel(0, window, ADDRESS)
    host.advance_slots(2)
    write(window, word_of(host, PERFORMANCE, LEVEL_SET, 2), 800_000)
    write(window, word_of(host, POWERCAP, CAP_SET, 0), 120_000)
    host.advance_slots(2)
    assert must(host, PERFORMANCE, LEVEL_GET, 2) == [800_000]
    assert must(host, POWERCAP, 0x4, 0) == [120_000]
    assert struct.unpack_from("<I", window, 4 * word_of(host, PERFORMANCE, LEVEL_GET, 2)) == (800_000,)
    assert host.view().fast_writes == (2, 0, 0)


def test_what_lies_in_a_window_when_it_is_mapped_is_no_request(host: HostController, window: bytearray) -> None:
    must(host, PERFORMANCE, LEVEL_SET, 0, 1_600_000)
    for word in range(FAST_WORDS):
        write(window, word, 800_000)
    host.map_fast_channel(0, window, ADDRESS)
    host.advance_slots(4)
    assert must(host, PERFORMANCE, LEVEL_GET, 0) == [1_600_000]
    assert host.view().fast_writes == (0, 0, 0)


def test_a_window_that_is_taken_away_is_not_read_and_its_memory_is_free(
    host: HostController, window: bytearray
) -> None:
    host.map_fast_channel(0, window, ADDRESS)
    host.advance_slots(2)
    word = word_of(host, PERFORMANCE, LEVEL_SET, 1)
    host.map_fast_channel(0, None, 0)
    write(window, word, 800_000)
    host.advance_slots(4)
    assert must(host, PERFORMANCE, LEVEL_GET, 1) == [3_660_000]
    assert ask(host, PERFORMANCE, 0xB, 1, LEVEL_SET) == (NOT_SUPPORTED, [])
    window.extend(b"resizing fails while a buffer is in use")


def test_a_window_too_small_is_refused(host: HostController) -> None:
    with pytest.raises(ValueError, match="takes 256"):
        host.map_fast_channel(0, bytearray(4 * FAST_WORDS - 1), ADDRESS)

"""FastChannels: a word of shared memory that replaces a SET, and one that replaces a GET (DEN0056 chapter 5).

A write gets no response. So a request counts as executed only when the GET word shows it and did not show it before. In
all other cases a message is sent, which gets a status.
"""

from __future__ import annotations

from typing import Final

from firmware_bridge.errors import NotFoundError, NotSupportedError
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.clock import Clock
from firmware_bridge.scmi.messages.message import Command
from firmware_bridge.scmi.protocols.common import FastChannelDescription
from firmware_bridge.scmi.transports.shared_words import WORD_BYTES, SharedWords, Sharing

VERIFY_TRIES: Final = 5
VERIFY_PAUSE_S: Final = 1e-3
"""Ours: a request is read back up to five times, two control periods apart."""

_RATE_BITS: Final = (1 << 20) - 1


class FastChannel:
    """One channel, as the platform describes it."""

    def __init__(self, description: FastChannelDescription, words: SharedWords, clock: Clock) -> None:
        self._description = description
        self._words = words
        self._clock = clock
        self._next_write_s = 0.0

    def read(self) -> int:
        """The word."""
        return self._words.load(self._description.address)

    def write(self, value: int) -> None:
        """Write the word, after waiting for the rate limit, then ring the doorbell if there is one."""
        description = self._description
        wait_s = self._next_write_s - self._clock.now_s()
        if wait_s > 0.0:
            self._clock.sleep(wait_s)
        self._words.store(description.address, value)
        if description.has_doorbell:
            width = description.doorbell_bytes
            kept = self._words.load(description.doorbell_address, width) & description.doorbell_preserve
            rung = (kept | description.doorbell_set) & ((1 << 8 * width) - 1)
            self._words.store(description.doorbell_address, rung, width)
        self._next_write_s = self._clock.now_s() + (description.rate_limit_us & _RATE_BITS) * 1e-6


class FastSetting:
    """A pair of channels: one to request a value, one to read it back."""

    def __init__(self, request: FastChannel, in_force: FastChannel, clock: Clock) -> None:
        self._request = request
        self._in_force = in_force
        self._clock = clock

    def put_in_force(self, value: int) -> bool:
        """Write a request and wait until it shows; ``False`` if only a message can confirm it.

        A platform without doorbell notices only changes of the word. A value that was in force before proves nothing.
        """
        if value in (self._request.read(), self._in_force.read()):
            return False
        self._request.write(value)
        for _ in range(VERIFY_TRIES):
            self._clock.sleep(VERIFY_PAUSE_S)
            if self._in_force.read() == value:
                return True
        return False


def find_setting(
    client: Client, set_command: Command[FastChannelDescription], get_command: Command[FastChannelDescription]
) -> FastSetting | None:
    """The pair of channels that two commands describe; ``None`` if this agent cannot use one of them."""
    transport = client.transport
    if not isinstance(transport, Sharing):
        return None
    try:
        request, in_force = client.request(set_command), client.request(get_command)
    except (NotSupportedError, NotFoundError):
        return None
    words, clock = transport.shared_words, transport.clock
    if not (_is_usable(request, words) and _is_usable(in_force, words)):
        return None
    return FastSetting(FastChannel(request, words, clock), FastChannel(in_force, words, clock), clock)


def _is_usable(description: FastChannelDescription, words: SharedWords) -> bool:
    """Check a platform's description: addresses outside the shared memory are not used."""
    if description.size != WORD_BYTES or not words.contains(description.address, WORD_BYTES):
        return False
    return not description.has_doorbell or words.contains(description.doorbell_address, description.doorbell_bytes)

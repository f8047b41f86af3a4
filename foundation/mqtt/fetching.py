"""Fetching what a broker has kept for a process that is not always there.

The process has a session at the broker: between two fetches the broker keeps what comes to the topic, as far as its own
limits go (mosquitto: ``max_queued_messages``). A message is acknowledged once it has been kept here, so a kill loses
none. What another client made the broker retain is no news and is not fetched: only MQTT 3.1.1 sends it, marked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from foundation.mqtt.mqtt_settings import MqttSettings

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage

    from foundation.mqtt.broker_link import BrokerLink

SESSION_S: Final = 7 * 86_400
"""Ours: a broker forgets a process that has not come for so long."""

IDLE_S: Final = 2.0
"""Ours: nothing more is there once nothing has come for so long."""

ANSWER_S: Final = 20.0
"""Ours: a broker has so long to take the subscription."""

MOST: Final = 1_000_000
MOST_S: Final = 60.0
"""Ours: at one fetch; the broker has the rest for the next one."""

BATCH: Final = 1000
LARGEST: Final = 1 << 16
"""Bytes: no message that we take has more."""


class Received(NamedTuple):
    """A message. ``is_old``: the broker had retained it."""

    payload: bytes
    is_old: bool


class Fetched(NamedTuple):
    """How many messages came, and what was wrong. ``is_all``: nothing is left at the broker."""

    messages: int
    trouble: str
    is_all: bool


def fetch(
    settings: MqttSettings, client: str, topic: str, keep: Callable[[Sequence[Received]], None],
    most: int = MOST, most_s: float = MOST_S,
) -> Fetched:  # fmt: skip
    """Give ``keep`` all that the broker has on this topic, some at a time. Ends after so many messages or seconds."""
    from foundation.mqtt.broker_link import LEAVE_S, BrokerLink  # needs paho

    waiting: list[MQTTMessage] = []
    link = BrokerLink(settings, client, SESSION_S, waiting.append)
    count, begin_s, is_subscribed = 0, time.monotonic(), False
    until_s, heard_s = begin_s + most_s, begin_s + ANSWER_S
    try:
        while count < most and (now_s := time.monotonic()) < min(until_s, heard_s + IDLE_S):
            was, was_granted = len(waiting), link.granted
            link.turn(0.05)
            if link.is_connected and not is_subscribed:
                link.subscribe(topic)
                is_subscribed = True
            if link.trouble:
                break
            heard_s = now_s if (len(waiting), link.granted) != (was, was_granted) else heard_s
            if len(waiting) >= BATCH or len(waiting) == was > 0:
                count += _kept(link, waiting, keep)
        count += _kept(link, waiting, keep)
        trouble = link.trouble or ("" if link.granted else f"no broker at {settings.broker}: it does not answer")
    finally:
        link.close(LEAVE_S)
    return Fetched(count, trouble, not trouble and count < most and time.monotonic() < until_s)


def _kept(link: BrokerLink, waiting: list[MQTTMessage], keep: Callable[[Sequence[Received]], None]) -> int:
    """Keep what came, then acknowledge it; how many."""
    keep([Received(bytes(one.payload[: LARGEST + 1]), one.retain) for one in waiting])
    for one in waiting:
        link.acknowledge(one)
    count = len(waiting)
    waiting.clear()
    return count

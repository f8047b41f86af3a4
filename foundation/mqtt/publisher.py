"""Publishing figures: a queue with an end, that a lost broker fills and nobody waits for.

Whoever controls is another process. When the broker does not take what is sent, the oldest points are dropped and
counted: what the machine does now is worth more than what it did an hour ago. How many were is said on stderr, and
published as soon as the broker is back.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from foundation.mqtt.broker_link import LEAVE_S, BrokerLink
from foundation.mqtt.examon_topics import Message, Source, payload
from foundation.mqtt.mqtt_settings import MqttSettings
from foundation.shell.plain_text import say

TURN_S: Final = 0.25
"""Ours: so soon a signal is seen."""

SAY_EVERY_S: Final = 60.0
"""Ours: between two lines about lost points."""

COUNTERS: Final = ("mqtt_published_points_total", "mqtt_dropped_points_total", "mqtt_refused_points_total")


class Publisher:
    """What is offered goes to the broker in order, as far as that takes it."""

    def __init__(self, settings: MqttSettings, client: str) -> None:
        self._queue: deque[Message] = deque(maxlen=settings.queue)
        self._link = BrokerLink(settings, client)
        self._broker = settings.broker
        self._said: str | None = None
        self._said_lost, self._said_s = (0, 0), float("-inf")
        self.dropped = 0

    @property
    def counts(self) -> tuple[int, int, int]:
        """Points that the broker has acknowledged, that were dropped here, and that it has refused."""
        return self._link.acknowledged, self.dropped, self._link.refused

    def offer(self, messages: Iterable[Message]) -> None:
        """Put these into the queue; the oldest go where it is full."""
        for message in messages:
            self.dropped += len(self._queue) == self._queue.maxlen
            self._queue.append(message)

    def turn(self, timeout_s: float) -> None:
        """Send and receive for at most this time, and say what has changed."""
        until_s = time.monotonic() + timeout_s
        while True:
            self._link.publish_from(self._queue)
            self._link.turn(max(until_s - time.monotonic(), 0.0))
            self._say()
            if time.monotonic() >= until_s:
                return

    def close(self) -> None:
        """Leave the broker; what is left in the queue is lost with the process, and said."""
        self._link.close(LEAVE_S)
        if left := len(self._queue) + self._link.in_flight:
            say(f"{left} points were not taken by the broker before the end")

    def _say(self) -> None:
        trouble, now_s = self._link.trouble, time.monotonic()
        if not trouble and not self._link.is_connected:
            return  # it connects
        if trouble != self._said:
            say(trouble or f"figures go to the broker at {self._broker}")
            self._said = trouble
        lost = self.dropped, self._link.refused
        if lost != self._said_lost and now_s > self._said_s + SAY_EVERY_S:
            reasons = "dropped: the queue is full ([mqtt] queue)", self._link.refusal
            for count, why in zip(lost, reasons, strict=True):
                if count:
                    say(f"{count} points in all were {why}")
            self._said_lost, self._said_s = lost, now_s


def publish_figures(
    settings: MqttSettings, source: Source, client: str, figures: Callable[[], Iterator[Message]]
) -> None:
    """Publish what ``figures`` gives every ``period_s``, until SIGTERM or SIGINT."""
    with _stopping() as is_stopping:
        publisher = Publisher(settings, client)
        try:
            due_s = time.monotonic()
            while not is_stopping():
                now_s = time.monotonic()
                if now_s >= due_s:
                    publisher.offer(figures())
                    publisher.offer(_own(publisher, source))
                    due_s += settings.period_s * (1 + (time.monotonic() - due_s) // settings.period_s)
                publisher.turn(min(TURN_S, max(due_s - time.monotonic(), 0.0)))
        finally:
            publisher.close()


def _own(publisher: Publisher, source: Source) -> Iterator[Message]:
    prefix = source.plugin.removesuffix("_pub")
    for name, value in zip(COUNTERS, publisher.counts, strict=True):
        yield Message(source.topic(f"{prefix}_{name}"), payload(value, time.time()))


def publish_once(settings: MqttSettings, client: str, messages: list[Message], patience_s: float) -> str:
    """Publish these within this time; why the broker has not taken all of them, else empty."""
    link, until_s = BrokerLink(settings, client), time.monotonic() + patience_s
    left = deque(messages)
    try:
        while (left or link.in_flight) and time.monotonic() < until_s:
            link.publish_from(left)
            link.turn(0.05)
        trouble = link.trouble
    finally:
        link.close(LEAVE_S)
    if link.refused:
        return f"{link.refused} messages were {link.refusal}"
    return (
        "" if link.acknowledged == len(messages) else trouble or f"no broker at {settings.broker}: it does not answer"
    )


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    stopped = list[int]()
    before = {one: signal.signal(one, lambda number, frame: stopped.append(number))
              for one in (signal.SIGTERM, signal.SIGINT)}  # fmt: skip
    try:
        yield lambda: bool(stopped)
    finally:
        for one, was in before.items():
            signal.signal(one, was)

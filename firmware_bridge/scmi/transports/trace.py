"""Reports every message that passes a transport, in both directions."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from firmware_bridge.scmi.messages.header import Sender
from firmware_bridge.scmi.transports.transport import Transport


class Passed(msgspec.Struct, frozen=True):
    """One message that passed."""

    at_s: float
    """In the transport's time."""
    sender: Sender
    data: bytes


class Traced:
    """A transport that reports every message to ``sink`` and passes it to the inner transport."""

    def __init__(self, inside: Transport, sink: Callable[[Passed], None]) -> None:
        self.name = inside.name
        self.clock = inside.clock
        self.reply_timeout_s = inside.reply_timeout_s
        self._inside = inside
        self._sink = sink

    def send(self, message: bytes) -> None:
        """Report, then send."""
        self._sink(Passed(self.clock.now_s(), Sender.AGENT, message))
        self._inside.send(message)

    def receive(self, timeout_s: float) -> bytes | None:
        """Receive, then report."""
        message = self._inside.receive(timeout_s)
        if message is not None:
            self._sink(Passed(self.clock.now_s(), Sender.PLATFORM, message))
        return message

    def diagnosis(self) -> str:
        """As inside."""
        return self._inside.diagnosis()

    def close(self) -> None:
        """As inside."""
        self._inside.close()

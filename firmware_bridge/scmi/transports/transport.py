"""The interface of all transports between an agent and its platform.

A transport moves whole messages (header and payload) and does not interpret them: ``receive`` returns responses,
delayed responses and notifications in the order of their arrival. It repairs damage where it can, and drops a message
rather than deliver a wrong one.
"""

from __future__ import annotations

from typing import Protocol

from firmware_bridge.scmi.clock import Clock


class Transport(Protocol):
    """One agent's channels to a platform. ``send`` and ``receive`` raise ``LinkError`` when the link is lost."""

    name: str
    """The link's URL, for error messages."""

    clock: Clock
    """The platform's clock."""

    reply_timeout_s: float
    """Timeout of a response."""

    def send(self, message: bytes) -> None:
        """Send a command."""

    def receive(self, timeout_s: float) -> bytes | None:
        """The next message from the platform; ``None`` after the timeout."""

    def diagnosis(self) -> str:
        """What the link has received so far, to explain a missing response: one clause."""

    def close(self) -> None:
        """Close the link."""

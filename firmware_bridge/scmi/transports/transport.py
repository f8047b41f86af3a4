"""What carries messages between an agent and its platform.

A transport moves whole messages (header and payload) and knows nothing of their meaning: responses, delayed responses
and notifications come out of ``receive`` in the order of their arrival. It repairs what its medium damages where it
can, and loses a message rather than delivering a wrong one.
"""

from __future__ import annotations

from typing import Protocol

from firmware_bridge.scmi.clock import Clock


class Transport(Protocol):
    """One agent's channels to a platform. ``send`` and ``receive`` raise ``LinkError`` when the link has gone."""

    name: str
    """The link's URL, for messages to a person."""

    clock: Clock
    """The time in which the platform lives."""

    reply_timeout_s: float
    """How long a response may take."""

    def send(self, message: bytes) -> None:
        """Put a command on its way."""

    def receive(self, timeout_s: float) -> bytes | None:
        """The next message from the platform; ``None`` when the time has passed without one."""

    def diagnosis(self) -> str:
        """What the link has seen so far, to explain a silence: one clause."""

    def close(self) -> None:
        """Let go of the link."""

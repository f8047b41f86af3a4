"""A platform in this process, in its own virtual time (``scmi+inproc:``).

The platform advances only while a caller waits for it, by one period of its fast job at a time. So runs are
reproducible and a timeout costs no real time.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from firmware_bridge.errors import LinkError
from firmware_bridge.scmi.clock import Clock
from firmware_bridge.scmi.transports.shared_words import SharedWords

STEP_S: Final = 125e-6
"""The period of the controller's fast job."""

REPLY_TIMEOUT_S: Final = 30e-3
"""As for shared memory (Linux 6.12 mailbox clients)."""

FREE_TIMEOUTS: Final = 2
"""How many reply timeouts to wait for a channel that is not free; as for shared memory."""


class Platform(Protocol):
    """The methods that this transport needs of a platform; a channel identifies an agent."""

    def send(self, channel: int, message: bytes) -> None:
        """Write a command into the channel and ring its doorbell; ``RuntimeError`` while the channel is not free."""

    def poll(self, channel: int) -> bytes | None:
        """The response, once; ``RuntimeError`` if the command was marked as damaged."""

    def notifications(self, channel: int) -> list[bytes]:
        """The notifications and delayed responses since the last call."""

    def advance(self, duration_s: float) -> None:
        """Advance the platform's time."""


class VirtualClock:
    """A clock whose time passes only when it advances the platform."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._now_s = 0.0

    def now_s(self) -> float:
        """Virtual seconds since the clock was made."""
        return self._now_s

    def sleep(self, duration_s: float) -> None:
        """Advance the platform."""
        self._platform.advance(duration_s)
        self._now_s += duration_s


class InProcess:
    """The transport over a ``Platform``."""

    def __init__(self, platform: Platform, channel: int = 0, shared_words: SharedWords | None = None) -> None:
        """``shared_words``: the FastChannels of this channel, if there are any."""
        self.name = "scmi+inproc"
        self.clock: Clock = VirtualClock(platform)
        self.reply_timeout_s = REPLY_TIMEOUT_S
        if shared_words is not None:
            self.shared_words = shared_words
        self._platform = platform
        self._channel = channel
        self._events: deque[bytes] = deque()
        self._damaged = 0

    def send(self, message: bytes) -> None:
        """Give the command to the platform. Waits while it works on an earlier one, whose response is dropped."""
        deadline_s = self.clock.now_s() + FREE_TIMEOUTS * self.reply_timeout_s
        while True:
            try:
                self._platform.send(self._channel, message)
                return
            except RuntimeError as error:
                if self.clock.now_s() >= deadline_s:
                    raise LinkError(f"{self.name}: {error}") from None
            self.clock.sleep(STEP_S)
            self._response()

    def receive(self, timeout_s: float) -> bytes | None:
        """Advance the platform until it sends a message or the time is over."""
        deadline_s = self.clock.now_s() + timeout_s
        while True:
            response = self._response()
            if response is not None:
                return response
            self._events.extend(self._platform.notifications(self._channel))
            if self._events:
                return self._events.popleft()
            if self.clock.now_s() >= deadline_s:
                return None
            self.clock.sleep(STEP_S)

    def _response(self) -> bytes | None:
        try:
            return self._platform.poll(self._channel)
        except RuntimeError:
            self._damaged += 1
            return None

    def diagnosis(self) -> str:
        """The missing response, with the number of commands that the platform marked as damaged."""
        damaged = f", and marked {self._damaged} commands as damaged" if self._damaged else ""
        return f"the platform in this process gave no response{damaged}"

    def close(self) -> None:
        """Does nothing: this link owns no resource."""

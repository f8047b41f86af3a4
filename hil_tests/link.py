"""A link that can be disturbed: messages are lost, late, doubled, damaged or truncated, or the link is cut.

It disturbs whole messages, so it works over every transport; a rig with a serial line disturbs its bytes as well.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto

from firmware_bridge.scmi.messages.codec import encode
from firmware_bridge.scmi.messages.header import MessageType, unpack_header
from firmware_bridge.scmi.messages.message import Body
from firmware_bridge.scmi.transports.transport import Transport


class Disturbance(Enum):
    """What happens to one message."""

    COMMAND_LOST = auto()
    COMMAND_TWICE = auto()
    COMMAND_DAMAGED = auto()
    """Its header arrives with another token."""
    COMMAND_TRUNCATED = auto()
    """Only the header arrives."""
    RESPONSE_LOST = auto()
    RESPONSE_LATE = auto()
    """It arrives when the next one is expected."""
    RESPONSE_TWICE = auto()
    RESPONSE_DAMAGED = auto()
    RESPONSE_TRUNCATED = auto()


_TOKEN_BIT = 0x10
"""In byte 2 of the header (DEN0056 4.1: bits 27:18 are the token)."""


class DisturbedLink:
    """A ``Transport`` around another one."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.name, self.clock, self.reply_timeout_s = inner.name, inner.clock, inner.reply_timeout_s
        self._commands: deque[Disturbance] = deque()
        self._responses: deque[Disturbance] = deque()
        self._delayed: deque[bytes] = deque()
        self._replacement: Body | None = None
        self._is_cut = False

    # ---- what a scenario does ----

    def disturb(self, *disturbances: Disturbance) -> None:
        """Queue disturbances: each affects one message, in this order for commands and for responses."""
        for one in disturbances:
            (self._commands if one.name.startswith("COMMAND") else self._responses).append(one)

    def replace_next(self, other: Body) -> None:
        """Replace the next command by another one with its token."""
        self._replacement = other

    def cut(self) -> None:
        """Cut the link."""
        self._is_cut = True

    def mend(self) -> None:
        """Restore the link; messages sent meanwhile are lost."""
        while self._inner.receive(0.0) is not None:
            pass
        self._is_cut = False

    # ---- Transport ----

    def send(self, message: bytes) -> None:
        """Send the message, as the disturbance changes it."""
        kind = self._commands.popleft() if self._commands else None
        if self._is_cut or kind is Disturbance.COMMAND_LOST:
            return
        if kind is Disturbance.COMMAND_DAMAGED:
            message = _with_other_token(message)
        elif kind is Disturbance.COMMAND_TRUNCATED:
            message = message[:4]
        if self._replacement:
            message = encode(self._replacement, unpack_header(message).token)
            self._replacement = None
        self._inner.send(message)
        if kind is Disturbance.COMMAND_TWICE:
            self._inner.send(message)

    def receive(self, timeout_s: float) -> bytes | None:
        """The next message that gets through."""
        if self._delayed:
            return self._delayed.popleft()
        deadline_s = self.clock.now_s() + timeout_s
        while True:
            left_s = max(deadline_s - self.clock.now_s(), 0.0)
            if self._is_cut:
                self.clock.sleep(left_s)
                return None
            message = self._inner.receive(left_s)
            if message is None:
                return None
            passed = self._disturbed(message)
            if passed is not None:
                return passed

    def _disturbed(self, message: bytes) -> bytes | None:
        if not self._responses or unpack_header(message).type != MessageType.SYNCHRONOUS:
            return message
        kind = self._responses.popleft()
        if kind is Disturbance.RESPONSE_LOST:
            return None
        if kind is Disturbance.RESPONSE_LATE:
            self._delayed.append(message)
            return None
        if kind is Disturbance.RESPONSE_TWICE:
            self._delayed.append(message)
        if kind is Disturbance.RESPONSE_DAMAGED:
            return _with_other_token(message)
        return message[:6] if kind is Disturbance.RESPONSE_TRUNCATED else message

    def diagnosis(self) -> str:
        """Diagnosis of the inner link."""
        return self._inner.diagnosis()

    def close(self) -> None:
        """Close the inner link."""
        self._inner.close()


def _with_other_token(message: bytes) -> bytes:
    return message[:2] + bytes([message[2] ^ _TOKEN_BIT]) + message[3:]

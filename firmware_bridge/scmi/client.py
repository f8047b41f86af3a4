"""Sends commands to a platform and waits for responses: tokens, timeouts, bounded retries, stale replies, versions.

Each try of a command has its own token, so a reply that arrives after its timeout is recognised and dropped. The client
retries only after silence and BUSY, and only a few times. A retry is safe: every supported command sets or reads a
state, so executing it twice has the same effect as once.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeVar, cast

import msgspec

from firmware_bridge.errors import (
    BusyError,
    MessageError,
    NoAnswerError,
    NotSupportedError,
    WrongDeviceError,
    refusal,
)
from firmware_bridge.scmi.messages.codec import LATEST, SPOKEN, Dialect, decode, encode
from firmware_bridge.scmi.messages.header import TOKENS, MessageType, Sender, unpack_header
from firmware_bridge.scmi.messages.message import Body, Command, Failed, Message, wire_of
from firmware_bridge.scmi.protocols.common import NegotiateVersion, ProtocolVersion
from firmware_bridge.scmi.transports.transport import Transport

TRIES: Final = 3
"""Ours: the number of tries of a command that gets no response."""

BUSY_TRIES: Final = 5
BUSY_PAUSE_S: Final = 1e-3
"""Ours: the first pause after BUSY, two control periods; it doubles each time."""

DELAYED_TIMEOUT_S: Final = 2.0
"""Linux 6.12."""

EVENTS_KEPT: Final = 256

R = TypeVar("R", bound=Body)
D = TypeVar("D", bound=Body)


class Counts(msgspec.Struct):
    """Counts of events on a client's link."""

    sent: int = 0
    answered: int = 0
    timeouts: int = 0
    busy: int = 0
    stale: int = 0
    """Replies that came too late or a second time."""
    malformed: int = 0
    events_lost: int = 0
    """Events dropped because nobody read them in time."""


class Client:
    """The connection of one agent to a platform."""

    def __init__(self, transport: Transport, dialect: Dialect = LATEST, tries: int = TRIES) -> None:
        self.transport = transport
        self.dialect = dialect
        self.counts = Counts()
        self._tries = tries
        self._token = 0
        self._events: deque[Message] = deque()
        self._last_malformed = ""

    def request(self, command: Command[R], timeout_s: float | None = None) -> R:
        """The response to a command.

        Raises a ``RefusedError`` for an error status, ``NoAnswerError`` or ``WrongDeviceError`` when no try gets a
        valid response.
        """
        return self._response_and_token(command, timeout_s)[0]

    def request_delayed(self, command: Command[R], complete: type[D], timeout_s: float = DELAYED_TIMEOUT_S) -> D:
        """Sends an asynchronous command and returns its delayed response."""
        token = self._response_and_token(command, None)[1]
        deadline_s = self.transport.clock.now_s() + timeout_s
        while True:
            for message in self._events:
                if message.token == token and isinstance(message.body, complete | Failed):
                    self._events.remove(message)
                    if isinstance(message.body, Failed):
                        raise refusal(self._title(command), message.body.status)
                    return message.body
            if self.transport.clock.now_s() >= deadline_s:
                raise NoAnswerError(f"{self._title(command)}: accepted, but not completed within {timeout_s:g} s")
            self._receive(deadline_s)

    def events(self) -> list[Message]:
        """The notifications received so far, without waiting."""
        for _ in range(EVENTS_KEPT):  # a platform that never stops sending must not block the caller
            if not self._receive(self.transport.clock.now_s()):
                break
        return self._take_events()

    def wait_for_events(self, timeout_s: float) -> list[Message]:
        """The notifications received so far, else the next one; empty after the timeout."""
        deadline_s = self.transport.clock.now_s() + timeout_s
        while not self._events and self.transport.clock.now_s() < deadline_s:
            self._receive(deadline_s)
        return self._take_events()

    def agree_on_version(self, protocol: int) -> int:
        """Find the newest version that both sides support, and use it from now on.

        A newer platform is requested to serve the client's newest version; for an older platform the client uses the
        platform's version. Raises ``WrongDeviceError`` when there is no common version.
        """
        offered = self.request(ProtocolVersion(protocol)).version
        spoken = SPOKEN.get(protocol)
        if spoken is None:
            self.dialect = self.dialect.with_version(protocol, offered)
            return offered
        if offered > spoken[-1]:
            return self.negotiate(protocol, spoken[-1])
        same_major = [version for version in spoken if version <= offered and version >> 16 == offered >> 16]
        if not same_major:
            raise WrongDeviceError(
                f"{self.transport.name}: speaks version {offered:#x} of protocol {protocol:#x};"
                f" this client speaks {' and '.join(f'{version:#x}' for version in spoken)}"
            )
        self.dialect = self.dialect.with_version(protocol, same_major[-1])
        return same_major[-1]

    def negotiate(self, protocol: int, version: int) -> int:
        """Make the platform serve this version of a protocol to this agent, and use it."""
        try:
            self.request(NegotiateVersion(protocol, version))
        except NotSupportedError:
            raise WrongDeviceError(
                f"{self.transport.name}: does not serve version {version:#x} of protocol {protocol:#x}"
            ) from None
        self.dialect = self.dialect.with_version(protocol, version)
        return version

    def close(self) -> None:
        """Close the link."""
        self.transport.close()

    def _response_and_token(self, command: Command[R], timeout_s: float | None) -> tuple[R, int]:
        timeout_s = self.transport.reply_timeout_s if timeout_s is None else timeout_s
        silent = busy = 0
        while True:
            token = self._next_token()
            body = self._exchange(encode(command, token), timeout_s)
            if body is None:
                silent += 1
                self.counts.timeouts += 1
                if silent >= self._tries:
                    raise self._silence(command, silent, timeout_s)
            elif not isinstance(body, Failed):
                return cast(R, body), token  # the dialect knows the response class of each command
            else:
                refused = refusal(self._title(command), body.status)
                busy += 1
                if not isinstance(refused, BusyError) or busy >= BUSY_TRIES:
                    raise refused
                self.counts.busy += 1
                self.transport.clock.sleep(BUSY_PAUSE_S * 2 ** (busy - 1))

    def _next_token(self) -> int:
        self._token = (self._token + 1) % TOKENS
        return self._token

    def _exchange(self, command: bytes, timeout_s: float) -> Body | None:
        """Send once and wait for the response with the same header; ``None`` after the timeout."""
        transport = self.transport
        deadline_s = transport.clock.now_s() + timeout_s
        self.counts.sent += 1
        transport.send(command)
        header = command[:4]
        while True:
            left_s = deadline_s - transport.clock.now_s()
            data = transport.receive(max(left_s, 0.0))
            if data is None:
                return None
            if data[:4] == header:
                try:
                    body = decode(data, Sender.PLATFORM, self.dialect).body
                except MessageError as error:
                    self._note_malformed(error)
                    return None
                self.counts.answered += 1
                return body
            self._sort(data)
            if left_s <= 0.0:
                return None

    def _receive(self, deadline_s: float) -> bool:
        """Wait for one message and process it; returns whether there was one."""
        data = self.transport.receive(max(deadline_s - self.transport.clock.now_s(), 0.0))
        if data is None:
            return False
        self._sort(data)
        return True

    def _sort(self, data: bytes) -> None:
        """Handle a message that is not the awaited response: keep an event, drop anything else."""
        try:
            if unpack_header(data).type == MessageType.SYNCHRONOUS:
                self.counts.stale += 1
                return
            message = decode(data, Sender.PLATFORM, self.dialect)
        except MessageError as error:
            self._note_malformed(error)
            return
        if len(self._events) >= EVENTS_KEPT:
            self._events.popleft()
            self.counts.events_lost += 1
        self._events.append(message)

    def _take_events(self) -> list[Message]:
        events = list(self._events)
        self._events.clear()
        return events

    def _note_malformed(self, error: MessageError) -> None:
        self.counts.malformed += 1
        self._last_malformed = str(error)

    def _silence(self, command: Body, tries: int, timeout_s: float) -> NoAnswerError | WrongDeviceError:
        title = f"{self._title(command)}: no usable answer to {tries} tries of {timeout_s * 1e3:g} ms"
        if self._last_malformed:
            return WrongDeviceError(f"{title}: {self._last_malformed} (another device, or another SCMI version?)")
        return NoAnswerError(f"{title}: {self.transport.diagnosis()}")

    def _title(self, command: Body) -> str:
        return f"{self.transport.name}: {wire_of(command).name}"

"""SCMI over a serial line (``scmi+serial:///dev/ttyUSB0?baud=921600``), through any URL that pyserial opens.

One command is in flight at a time. This module repairs damage within the command's time. If the controller could not
read a frame, it sends a NAK; the frame is sent again under the same sequence number, by which the controller
distinguishes a repetition from a new command. If a response arrives damaged, a NAK requests it again. If a frame is
lost completely, the client notices by its timeout. Events are not repeated: a GET reads the same state.
"""

from __future__ import annotations

import errno
import importlib
import os
from collections import deque
from typing import Any, Final, Protocol

from firmware_bridge.errors import LinkError, NoAnswerError, RequestError, WrongDeviceError
from firmware_bridge.scmi.clock import Clock, RealClock, SlowClock
from firmware_bridge.scmi.transports.frames import (
    FRAMING_VERSION,
    LARGEST_PAYLOAD,
    Broken,
    Frame,
    FrameDecoder,
    FrameKind,
    greeted_version,
    greeting,
    pack_frame,
)

DEFAULT_BAUD: Final = 115200
REPLY_TIMEOUT_S: Final = 0.25
POLL_S: Final = 0.005
"""Ours: the longest single wait for a byte, hence the resolution of the timeouts."""

BURST_GAP_S: Final = 0.02
"""Ours: silence of this length ends a frame; USB adapters deliver within 16 ms."""

REPEATS: Final = 3
"""Ours: how often a command is sent again, or a response requested again, because of damage."""

GREETINGS: Final = 5
"""Ours: 1.25 s in all, since QEMU checks only once a second whether its pty is open."""


CONNECT_TIMEOUT_S: Final = 0.5
"""Ours, for ``socket://``; pyserial waits five seconds and has no option for it."""

_HINTS: Final = {
    errno.ENOENT: "is it plugged in?",
    errno.EACCES: "may this user open it? (group dialout)",
    errno.EAGAIN: "another program uses it",
    errno.EBUSY: "another program uses it",
}


class Port(Protocol):
    """The methods of ``serial.SerialBase`` that are used; ``read`` waits up to ``POLL_S`` for the first byte."""

    @property
    def in_waiting(self) -> int:
        """Bytes that can be read without waiting."""

    def read(self, size: int, /) -> bytes:
        """Up to ``size`` bytes."""

    def write(self, data: bytes, /) -> int | None:
        """Write all bytes."""

    def close(self) -> None:
        """Close."""


class SerialLine:
    """The host's end of the line."""

    def __init__(self, port: Port, name: str, clock: Clock | None = None, reply_timeout_s: float = REPLY_TIMEOUT_S):
        self.name = name
        self.clock: Clock = clock or RealClock()
        self.reply_timeout_s = reply_timeout_s
        self._port = port
        self._decoder = FrameDecoder()
        self._sequence = 0
        self._outstanding: bytes | None = None
        self._repeats_left = 0
        self._naks_left = 0
        self._found: deque[Frame | Broken] = deque()
        self._received_at_s = self.clock.now_s()
        self._received_bytes = self._frames = self._broken = 0

    def greet(self) -> None:
        """Reset the exchange at both ends; ``NoAnswerError`` or ``WrongDeviceError`` if there is no SCMI controller."""
        for _ in range(GREETINGS):
            self._write(pack_frame(FrameKind.HELLO, 0, greeting()))
            deadline_s = self.clock.now_s() + self.reply_timeout_s
            while (frame := self._next_frame(deadline_s)) is not None:
                if isinstance(frame, Frame) and frame.kind is FrameKind.HELLO:
                    raise WrongDeviceError(f"{self.name}: the line returns what is sent: RX and TX are connected")
                if isinstance(frame, Frame) and frame.kind is FrameKind.WELCOME:
                    self._check_version(frame.payload)
                    return
                if self._is_over(deadline_s):
                    break
        tries = f"{GREETINGS} greetings in {GREETINGS * self.reply_timeout_s:g} s"
        if self._received_bytes:
            raise WrongDeviceError(f"{self.name}: no SCMI controller answers {tries}: {self.diagnosis()}")
        raise NoAnswerError(f"{self.name}: no answer to {tries}: {self.diagnosis()}")

    def _check_version(self, payload: bytes) -> None:
        version = greeted_version(payload)
        if version != FRAMING_VERSION:
            raise WrongDeviceError(f"{self.name}: framing version {version} instead of {FRAMING_VERSION}")

    def send(self, message: bytes) -> None:
        """Send a command; gives up an earlier one that is still unanswered."""
        if len(message) > LARGEST_PAYLOAD:
            raise LinkError(f"{self.name}: a message of {len(message)} bytes; frames carry {LARGEST_PAYLOAD}")
        self._sequence = (self._sequence + 1) & 0xFF
        self._outstanding = pack_frame(FrameKind.COMMAND, self._sequence, message)
        self._repeats_left = self._naks_left = REPEATS
        self._write(self._outstanding)

    def receive(self, timeout_s: float) -> bytes | None:
        """The response to the last command, or an event."""
        deadline_s = self.clock.now_s() + timeout_s
        while (frame := self._next_frame(deadline_s)) is not None:
            message = self._taken(frame)
            if message is not None or self._is_over(deadline_s):
                return message
        return None

    def _taken(self, frame: Frame | Broken) -> bytes | None:
        """The message in a frame, if the client expects it; responds to damage with a NAK."""
        if isinstance(frame, Broken):
            if self._outstanding is not None and self._naks_left:
                self._naks_left -= 1
                self._write(pack_frame(FrameKind.NAK, self._sequence))
        elif frame.kind is FrameKind.NAK:
            if self._outstanding is not None and self._repeats_left:
                self._repeats_left -= 1
                self._write(self._outstanding)
        elif frame.kind is FrameKind.EVENT:
            return frame.payload
        elif frame.kind is FrameKind.RESPONSE and frame.sequence == self._sequence and self._outstanding is not None:
            self._outstanding = None
            return frame.payload
        return None

    def _next_frame(self, deadline_s: float) -> Frame | Broken | None:
        """The next frame; ``None`` at the deadline."""
        while not self._found:
            data = self._read()
            now_s = self.clock.now_s()
            if data:
                self._received_at_s = now_s
                self._received_bytes += len(data)
                self._found.extend(self._decoder.feed(data))
            elif self._decoder.is_within_frame and now_s - self._received_at_s >= BURST_GAP_S:
                self._found.extend(self._decoder.end_of_burst())
            if not self._found and now_s >= deadline_s:
                return None
        frame = self._found.popleft()
        self._broken += isinstance(frame, Broken)
        self._frames += isinstance(frame, Frame)
        return frame

    def _is_over(self, deadline_s: float) -> bool:
        """Drop all received bytes, without waiting for more, however fast they come."""
        return not self._found and self.clock.now_s() >= deadline_s

    def _read(self) -> bytes:
        try:
            data = self._port.read(1)
            while data and (waiting := self._port.in_waiting):
                more = self._port.read(waiting)
                if not more:
                    break
                data += more
                if len(data) > 4 * LARGEST_PAYLOAD:
                    break
        except (OSError, ValueError) as error:  # pyserial's SerialException is an OSError
            raise self._gone(error) from None
        return data

    def _write(self, data: bytes) -> None:
        try:
            self._port.write(data)
        except (OSError, ValueError) as error:
            raise self._gone(error) from None

    def _gone(self, error: Exception) -> LinkError:
        return LinkError(f"{self.name}: the line is lost ({error}); plug it in and open it again")

    def diagnosis(self) -> str:
        """What was received so far, as one clause."""
        if not self._received_bytes:
            return "nothing was received (cable, power, or the wrong port?)"
        if not self._frames:
            return (
                f"{self._received_bytes} bytes were received, none of them a whole frame"
                " (wrong baud rate, or another device?)"
            )
        return f"{self._frames} frames, {self._broken} broken frames and {self._decoder.garbage_bytes} stray bytes came"

    def close(self) -> None:
        """Close the port."""
        self._port.close()


def open_serial(device: str, baud: int, name: str, slowdown: int = 1) -> SerialLine:
    """Open a pyserial URL or device and greet the controller, whose time may run slower than ours."""
    try:
        serial: Any = importlib.import_module("serial")
    except ModuleNotFoundError:
        raise LinkError(f"{name}: needs pyserial; install nodectl[serial]") from None
    # a device belongs to one client; pyserial's other kinds of URL have no locks
    locks = {} if "://" in device else {"exclusive": True}
    if device.startswith("socket://"):
        sockets: Any = importlib.import_module("serial.urlhandler.protocol_socket")
        sockets.POLL_TIMEOUT = CONNECT_TIMEOUT_S
    try:
        port: Port = serial.serial_for_url(
            device, baudrate=baud, timeout=POLL_S, write_timeout=REPLY_TIMEOUT_S * slowdown, **locks
        )
    except ValueError as error:
        raise RequestError(f"{name}: cannot be opened: {error}") from None
    except OSError as error:
        raise LinkError(f"{name}: cannot be opened: {_reason(error)}") from None
    line = SerialLine(port, name, SlowClock(slowdown))
    try:
        line.greet()
    except BaseException:
        line.close()
        raise
    return line


def _reason(error: OSError) -> str:
    """Why a port cannot be opened, without the repetitions in pyserial's message."""
    if error.errno:
        hint = _HINTS.get(error.errno)
        return os.strerror(error.errno) + (f" ({hint})" if hint else "")
    if "configure port" in str(error):  # the terminal's settings were refused
        return "it is not a serial device"
    return str(error).rpartition("] ")[2]

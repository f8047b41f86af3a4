"""The controller's end of a serial line, written from docs/scmi.md and independent of the product's frame code."""

from __future__ import annotations

import os
import select
import threading
import tty
from collections import deque
from collections.abc import Callable

from tests.scmi.small_platform import SmallPlatform

HELLO, WELCOME, COMMAND, RESPONSE, EVENT, NAK = 1, 2, 3, 4, 5, 6
GREETING = b"SCMI\x01\x00\x01"


def crc(data: bytes) -> int:
    value = 0xFFFF
    for byte in data:
        value ^= byte << 8
        for _ in range(8):
            value = (value << 1 ^ 0x1021 if value & 0x8000 else value << 1) & 0xFFFF
    return value


def frame(kind: int, sequence: int, payload: bytes = b"") -> bytes:
    body = bytes((kind, sequence)) + len(payload).to_bytes(2, "little") + payload
    return b"\xa5\x5a" + body + crc(body).to_bytes(2, "little")


class FrameDevice:
    """Answers commands once each; a repeated sequence number gets the kept answer again.

    The next entry of ``faults`` is applied to the next frame that is sent; ``None`` leaves it alone.
    """

    def __init__(self, platform: SmallPlatform, write: Callable[[bytes], object]) -> None:
        self.platform = platform
        self.write = write
        self.faults: deque[Callable[[bytes], bytes] | None] = deque()
        self.executed = 0
        self._kept = b""
        self._sequence: int | None = None
        self._answer = b""
        self._events = 0

    def feed(self, data: bytes) -> None:
        self._kept += data
        while True:
            start = self._kept.find(b"\xa5\x5a")
            self._kept = self._kept[start:] if start >= 0 else self._kept[-1:]
            if start < 0 or len(self._kept) < 6:
                return
            size = int.from_bytes(self._kept[4:6], "little")
            if size > 256 or not 1 <= self._kept[2] <= 6:
                broken, self._kept = self._kept[3], self._kept[1:]
                self._send(frame(NAK, broken))
                continue
            if len(self._kept) < 8 + size:
                return
            body, check = self._kept[2 : 6 + size], int.from_bytes(self._kept[6 + size : 8 + size], "little")
            if crc(body) != check:
                self._kept = self._kept[1:]
                self._send(frame(NAK, body[1]))
                continue
            self._kept = self._kept[8 + size :]
            self._take(body[0], body[1], body[4:])

    def silence(self) -> None:
        """Nothing has come for 20 ms: what has begun is over."""
        while self._kept:
            if len(self._kept) >= 6:
                self._send(frame(NAK, self._kept[3]))
            self._kept = self._kept[1:]
            self.feed(b"")

    def _take(self, kind: int, sequence: int, payload: bytes) -> None:
        if kind == HELLO:
            self._sequence = None
            self._send(frame(WELCOME, 0, GREETING))
        elif kind == COMMAND:
            if sequence != self._sequence:
                self.executed += 1
                self._answer = frame(RESPONSE, sequence, self.platform.answer(1, payload))
                self._sequence = sequence
                for event in self.platform.notifications(1):
                    self._events += 1
                    self._send(frame(EVENT, self._events & 0xFF, event))
            self._send(self._answer)
        elif kind == NAK and sequence == self._sequence:
            self._send(self._answer)

    def _send(self, data: bytes) -> None:
        fault = self.faults.popleft() if self.faults else None
        self.write(fault(data) if fault else data)


class PtyDevice:
    """A ``FrameDevice`` behind a pseudo terminal, in a thread of its own; ``path`` is what a client opens."""

    def __init__(self, platform: SmallPlatform | None = None) -> None:
        self.platform = platform or SmallPlatform()
        self._ours, theirs = os.openpty()
        tty.setraw(theirs)
        self.path = os.ttyname(theirs)
        self._theirs = theirs
        self.device = FrameDevice(self.platform, lambda data: os.write(self._ours, data))
        self._stop_read, self._stop = os.pipe()
        self.before: deque[Callable[[bytes], bytes] | None] = deque()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            ready, _, _ = select.select([self._ours, self._stop_read], [], [], 0.02)
            if self._stop_read in ready:
                return
            if not ready:
                self.device.silence()
                continue
            try:
                data = os.read(self._ours, 4096)
            except OSError:
                return
            fault = self.before.popleft() if self.before else None
            self.device.feed(fault(data) if fault else data)

    def say(self, data: bytes) -> None:
        """Bytes that nobody requested."""
        os.write(self._ours, data)

    def unplug(self) -> None:
        """The other end is gone, as a USB adapter that was pulled."""
        self.close()

    def close(self) -> None:
        if self._ours < 0:
            return
        os.write(self._stop, b"x")
        self._thread.join()
        for descriptor in (self._ours, self._theirs, self._stop, self._stop_read):
            os.close(descriptor)
        self._ours = -1

"""A core in RTL as a board: its serial line on a pty, as a cable would lead to it.

A core in RTL is a hundred times slower than real time, more on a busy machine, and the bytes of one frame come in
pieces with long pauses. So a client counts its timeouts in the board's time: one in this process by ``now_s``, another
program by the option ``slowdown`` of its URL.
"""

from __future__ import annotations

import contextlib
import os
import select
import tty
from typing import Final

from firmware_bridge.controlpulp import rtl
from firmware_bridge.errors import LinkError

PTY_PATIENCE_S: Final = 60.0
"""Ours: real time that the kernel may take to carry bytes through a pty."""


class RtlBoard:
    """A model with its serial line on a pty: ``pty`` is the device to open."""

    def __init__(self, controller: rtl.RtlController) -> None:
        self.controller = controller
        self._end, self._device_end = os.openpty()  # ours keeps the device open: it lives on between two clients
        tty.setraw(self._device_end)
        os.set_blocking(self._end, False)
        self.pty = os.ttyname(self._device_end)
        self.sent = 0
        """Bytes written to the pty."""

    def now_s(self) -> float:
        """The board's time."""
        return self.controller.counts().cycles / rtl.CLOCK_HZ

    def step(self) -> None:
        """Lets a tick of the core's time pass, with the bytes that cross the line in it."""
        self._take()
        self.controller.run(rtl.TICK_CYCLES)
        sent = self.controller.get()
        if sent:
            with contextlib.suppress(BlockingIOError):  # nobody reads, and the pty is full: lost, as on a cable
                self.sent += os.write(self._end, sent)

    def _take(self) -> int:
        """Puts the bytes from the pty on the line; their count."""
        received = b""
        with contextlib.suppress(BlockingIOError):
            received = os.read(self._end, 4096)
        if received:
            self.controller.put(received)
        return len(received)

    def await_bytes(self, count: int) -> None:
        """Takes so many bytes, which a client has written, from the pty."""
        while count > 0:
            if not select.select([self._end], [], [], PTY_PATIENCE_S)[0]:
                raise LinkError(f"{self.pty}: {count} bytes are lost in the pty")
            count -= self._take()

    def has_settled(self) -> bool:
        """Whether the image has read its line, is idle and has sent everything."""
        return self.controller.counts().line_bytes_in_flight == 0 and bool(self.controller.words("line_is_idle")[0])

    def close(self) -> None:
        """Ends the model; the pty goes away."""
        self.controller.close()
        for descriptor in (self._end, self._device_end):
            with contextlib.suppress(OSError):
                os.close(descriptor)

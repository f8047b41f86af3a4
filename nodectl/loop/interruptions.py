"""What may interrupt a sleep: a signal to stop, the end of the command that is run, or a hint of a job.

Signals arrive as bytes in a pipe (``signal.set_wakeup_fd``) on which the loop sleeps, so nothing is done inside a
signal handler and no thread is needed. The handlers installed here do nothing; they replace the default ones, which
would end the process.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable
from types import FrameType
from typing import Final

from pmu.ports import Clock

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

STEP_S: Final = 1.0
"""Ours: whoever sleeps for long does something else so often, such as feeding a watchdog (15 s in the unit)."""


class Interruptions:
    """Collects signals from its making to the end of its ``with`` block; ``wait`` is a sleep that they end.

    Without a command any of the stop signals ends the run. Around a command they are passed on to it, and the run
    continues until it has ended; a second one kills it. ``while_waiting`` is called each ``STEP_S`` that a sleep
    takes: a loop with a long period does not hang.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.while_waiting: Callable[[], object] = lambda: None
        self.also: int | None = None
        """A descriptor that ends a sleep, and not the run, when it is readable."""
        self._child: subprocess.Popen[bytes] | None = None
        self._stops = 0
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old_wakeup = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        self._old = {number: signal.signal(number, _stay_alive) for number in (*STOP_SIGNALS, signal.SIGCHLD)}

    def __enter__(self) -> Interruptions:
        return self

    def __exit__(self, *_: object) -> None:
        for number, action in self._old.items():
            signal.signal(number, signal.SIG_DFL if action is None else action)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self._read_fd)
        os.close(self._write_fd)

    def watch(self, child: subprocess.Popen[bytes]) -> None:
        """From now on the run is over when this command has ended."""
        self._child = child

    def is_over(self) -> bool:
        """Whether the run should end now."""
        self._take_signals()
        return self._child.poll() is not None if self._child else self._stops > 0

    @property
    def descriptor(self) -> int:
        """Readable when a signal has arrived, for callers that also wait for other things; ``is_over`` empties it."""
        return self._read_fd

    def wait(self, deadline_ns: int) -> None:
        """Sleep until the deadline, until ``also`` is readable, or until the run is over."""
        sources = [self._read_fd] if self.also is None else [self._read_fd, self.also]
        while not self.is_over():
            left_ns = deadline_ns - self._clock.now_ns()
            if left_ns <= 0:
                return
            ready = select.select(sources, [], [], min(left_ns / 1e9, STEP_S))[0]
            self.while_waiting()
            if self.also in ready:
                return

    def _take_signals(self) -> None:
        try:
            arrived = os.read(self._read_fd, 4096)
        except BlockingIOError:
            return
        for number in arrived:
            if number not in STOP_SIGNALS:
                continue
            self._stops += 1
            if self._child and not (number == signal.SIGINT and _is_in_foreground()):
                self._child.send_signal(number if self._stops == 1 else signal.SIGKILL)


def _stay_alive(number: int, frame: FrameType | None) -> None:
    """Do nothing: the byte in the pipe is the message."""


def _is_in_foreground() -> bool:
    """Whether Ctrl-C at the terminal has already reached the command, which is in the same process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)

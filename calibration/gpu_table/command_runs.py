"""A program that a calibration runs again and again, each time to its end: the same work at every clock.

Its speed is known by the seconds that it takes, or, if it reports progress (docs/progress.md), by units per second:
then what it does before and after its work, such as loading data, does not count. A kernel of our own runs for so many
seconds, and its speed is by its units.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Final, Protocol

from calibration.kernels.port import Kernel, KernelPort
from foundation.shell.errors import NodectlError
from nodectl.jobs.progress_file import VARIABLE, progress_file
from pmu.descriptors import give_back_descriptor_limit
from pmu.instruments.job_progress import CounterFile
from pmu.ports import Clock

PR_SET_PDEATHSIG: Final = 1  # prctl(2)

END_S: Final = 5.0
"""Ours: a program that is stopped has this long to end by itself."""


class CommandError(NodectlError):
    """The program cannot be run, or failed; one line."""


class CommandPort(Protocol):
    """One program."""

    def start(self) -> None:
        """Start it. ``CommandError`` if it cannot be."""

    def is_over(self) -> bool:
        """Whether it has ended. ``CommandError`` if it failed."""

    def units(self) -> float:
        """Units of progress that it has reported since its start; 0 where it reports none."""

    def stop(self) -> None:
        """End it, if it runs."""


class KernelRuns:
    """A GPU kernel on all cards, each time for so many seconds of ``clock``."""

    def __init__(self, port: KernelPort, kernel: Kernel, clock: Clock, seconds: float) -> None:
        self._port, self._kernel, self._clock, self._seconds = port, kernel, clock, seconds
        self._end_ns = 0
        self._units = 0.0

    def start(self) -> None:
        """It computes when this returns. ``KernelError`` if it cannot."""
        self._port.start(self._kernel, self._port.cpus)
        self._end_ns = self._clock.now_ns() + round(self._seconds * 1e9)

    def is_over(self) -> bool:
        """Whether its seconds have passed. ``KernelError`` if a card has failed."""
        self._units = self._port.units_done()
        return self._clock.now_ns() >= self._end_ns

    def units(self) -> float:
        """Units of work when its seconds had passed."""
        return self._units

    def stop(self) -> None:
        """End it, and verify: ``KernelError`` if a card computed wrongly."""
        self._port.stop()


class ShellCommand:
    """A command line, split as a shell does, without one. Its output goes where ours does."""

    def __init__(self, text: str) -> None:
        try:
            self._words = shlex.split(text)
        except ValueError as error:
            raise CommandError(f"--command: {text!r} cannot be split into words: {error}") from None
        if not self._words:
            raise CommandError("--command: is empty: name the program and its arguments")
        self._child: subprocess.Popen[bytes] | None = None
        self._counter: CounterFile | None = None
        self._of_run = contextlib.ExitStack()

    def start(self) -> None:
        """In a session of its own, so that all of it can be ended."""
        path = self._of_run.enter_context(progress_file())
        self._counter = self._opened(path) if path else None
        environment = {**os.environ, VARIABLE: str(path)} if path else None
        try:
            self._child = subprocess.Popen(
                self._words, env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=_as_child,
            )  # fmt: skip
        except OSError as error:
            self._of_run.close()
            raise CommandError(f"--command: {self._words[0]}: {error.strerror}") from None

    def is_over(self) -> bool:
        """Whether it has ended; anything but status 0 is a failure."""
        status = self._child.poll() if self._child else 0
        if status:
            how = f"signal {-status}" if status < 0 else f"status {status}"
            raise CommandError(f"--command: {self._words[0]} ended with {how}: nothing is measured of it")
        return status == 0

    def units(self) -> int:
        """The counter, which only this run has had."""
        return max(self._counter.read(), 0) if self._counter else 0

    def stop(self) -> None:
        """SIGTERM to its session, then SIGKILL; the progress file goes."""
        if self._child and self._child.poll() is None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._child.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._child.wait(END_S)
                    break
        self._child = self._counter = None
        self._of_run.close()

    def _opened(self, path: Path) -> CounterFile | None:
        try:
            counter = CounterFile(path)
        except OSError:
            return None
        self._of_run.callback(counter.close)
        return counter


_prctl: Final = ctypes.CDLL(None).prctl


def _as_child() -> None:
    """Between fork and exec: the program ends with us, also after a ``kill -9``."""
    give_back_descriptor_limit()
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

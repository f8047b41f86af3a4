"""How far the application has come, by its own count: a number in a small file that the job writes at will.

The only instrument here that a user's program owns, so nothing it holds is taken on trust: it is read by pread(2), for
a mapping of a file that its owner cuts short is a SIGBUS; it is opened without following links or waiting for the other
end of a pipe; and what it says is judged by ``pmu.decode``. Units mean something to the application alone: they compare
with units of the same program, at work of the same kind.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeAlias

from pmu.readings import NOTHING_TOLD, RAW_HIGHEST, RAW_MISSING, RawProgress

_COUNTER = struct.Struct("<Q")


class Counter(Protocol):
    """A job's own count of its finished units."""

    def read(self) -> int:
        """Units since its start, at most ``RAW_HIGHEST``; ``RAW_MISSING`` if there is none to be had."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class CounterFile:
    """The counter at the start of a job's file. ``OSError`` if there is no such file, or it is not a plain one."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._descriptor = os.open(path, flags)
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            self.close()
            raise OSError(f"{path}: not a plain file")

    def read(self) -> int:
        """Units since its start, at most ``RAW_HIGHEST``; ``RAW_MISSING`` if there is none to be had."""
        try:
            data = os.pread(self._descriptor, _COUNTER.size, 0)
        except OSError:
            return RAW_MISSING
        return min(int(_COUNTER.unpack(data)[0]), RAW_HIGHEST) if len(data) == _COUNTER.size else RAW_MISSING

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


Told: TypeAlias = Callable[[], RawProgress]
"""What the one program that is followed says now; ``NOTHING_TOLD`` where there is none, or more than one."""


def nobody_tells() -> RawProgress:
    """``Told`` of a node whose jobs are not known."""
    return NOTHING_TOLD


def told_by(counter: Counter) -> Told:
    """``Told`` of a run around one program."""
    return lambda: RawProgress(1, counter.read())

"""The progress of the application, by its own count: a number in a small file that the job writes as it likes.

This is the only instrument that a user's program owns, so nothing in it is trusted. It is read by pread(2), since a
mapping of a file that its owner cuts short raises SIGBUS. It is opened without following links and without waiting for
the other end of a pipe. And ``pmu.decode`` checks the count. Units have a meaning for the application alone: they can
be compared with units of the same program, for work of the same kind.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeAlias

from pmu.readings import NO_RAW_PROGRESS, RAW_HIGHEST, RAW_MISSING, RawProgress

_COUNTER = struct.Struct("<Q")


class Counter(Protocol):
    """A job's own count of its finished units."""

    def read(self) -> int:
        """Units since its start, at most ``RAW_HIGHEST``; ``RAW_MISSING`` where there is no count."""
        ...

    def close(self) -> None:
        """Close it."""
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
        """Units since its start, at most ``RAW_HIGHEST``; ``RAW_MISSING`` where there is no count."""
        try:
            data = os.pread(self._descriptor, _COUNTER.size, 0)
        except OSError:
            return RAW_MISSING
        return min(int(_COUNTER.unpack(data)[0]), RAW_HIGHEST) if len(data) == _COUNTER.size else RAW_MISSING

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


ProgressSource: TypeAlias = Callable[[], RawProgress]
"""The progress that the one program on this node reports now; ``NO_RAW_PROGRESS`` where there is none, or several."""


def no_progress() -> RawProgress:
    """The source of progress of a node whose jobs are not known."""
    return NO_RAW_PROGRESS


def progress_of(counter: Counter) -> ProgressSource:
    """The source of progress of a run around one program."""
    return lambda: RawProgress(1, counter.read())

"""Hints of the application on what it does now: a page of 64 bytes that the job writes as it likes (docs/hints.md).

As with progress (``job_progress``), nothing in it is trusted. It is read by pread(2), never through a mapping, since a
mapping of a file that its owner cuts short raises SIGBUS. Its mapping is only the address that the kernel sleeps on
(futex(2)); it answers EFAULT where the page is gone. ``pmu.decode`` decides what of a hint is believed.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import select
import stat
import struct
import threading
import time
from pathlib import Path
from typing import Final, Protocol

from pmu._native import ffi, lib
from pmu.readings import NO_RAW_HINTS, RAW_HIGHEST, PmuError, RawHints

VERSION: Final = 1
PAGE: Final = struct.Struct("<6I5Q")
"""version, wake, news, phase, last, unused; copies, kernels, waits, waited, phases (``nodectl_hints.h``)."""

EMPTY: Final = PAGE.pack(VERSION, *[0] * 10)


class HintFile:
    """The page of a job that runs as user ``uid``. ``FileNotFoundError`` while there is none; ``PmuError`` for what is
    not a plain file of 64 bytes with one name, of that user."""

    def __init__(self, path: Path, uid: int) -> None:
        self.path = path
        self._descriptor = _open(path)
        is_ = os.fstat(self._descriptor)
        problem = (
            "not a plain file" if not stat.S_ISREG(is_.st_mode)
            else f"belongs to user {is_.st_uid}, not to {uid}" if is_.st_uid != uid
            else f"has {is_.st_size} bytes, not {PAGE.size}" if is_.st_size != PAGE.size
            else "has several names" if is_.st_nlink != 1
            else ""
        )  # fmt: skip
        if problem:
            self.close()
            raise PmuError(f"{path}: {problem}: no hints are read")

    def read(self, source: int) -> RawHints:
        """The page now, as of this source; ``NO_RAW_HINTS`` where it cannot be read. A page whose version is not ours
        has the impossible ``last`` -1."""
        try:
            data = os.pread(self._descriptor, PAGE.size, 0)
        except OSError:
            return NO_RAW_HINTS
        if len(data) != PAGE.size:
            return NO_RAW_HINTS
        version, _, news, phase, last, _, *counts = PAGE.unpack(data)
        believed = (min(count, RAW_HIGHEST) for count in counts)
        return RawHints(source, news, phase, last if version == VERSION else -1, *believed)

    def sleeper(self, news: int) -> Sleeper:
        """A thread that adds 1 to ``news``, an eventfd(2), when the page has changed. ``OSError`` if it cannot be
        mapped."""
        return Sleeper(self._descriptor, news)

    def close(self) -> None:
        """Close the file; a sleeper has its own."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Sleeper:
    """Sleeps on one page. Each ``sleep`` is answered by at most one wake-up, so the loop sets the pace and no job."""

    def __init__(self, descriptor: int, news: int) -> None:
        self._descriptor, self._news = os.dup(descriptor), os.dup(news)
        try:
            self._page = mmap.mmap(self._descriptor, PAGE.size, mmap.MAP_SHARED, mmap.PROT_READ)
        except (OSError, ValueError) as error:  # ValueError: it is shorter by now
            os.close(self._descriptor)
            os.close(self._news)
            raise OSError(str(error)) from error
        self._address = ffi.from_buffer(self._page)
        self._go = os.eventfd(0, os.EFD_CLOEXEC)
        self._seen, self._not_before_s = 0, 0.0
        self._is_over = self._is_asleep = False
        self._closing = threading.Lock()
        self.why_not = ""
        """Why this page cannot be slept on any more."""
        self._thread = threading.Thread(target=self._run, name="hints", daemon=True)
        self._thread.start()

    def sleep(self, seen: int, least_s: float = 0.0) -> None:
        """Have it sleep until ``news`` of the page is no longer ``seen``, and for ``least_s`` at least. Does nothing
        while it sleeps."""
        if not self._is_asleep and not self.why_not:
            self._seen, self._is_asleep, self._not_before_s = seen, True, time.monotonic() + least_s
            os.eventfd_write(self._go, 1)

    def close(self) -> None:
        """End the thread: at once, or within a second if the job has cut its page short. Nobody waits for it."""
        with self._closing:  # the descriptors are the thread's to close: not before this has written
            if not self._is_over:
                self._is_over = True
                os.eventfd_write(self._go, 1)
                lib.hints_wake(self._address)

    def _run(self) -> None:
        closing = select.poll()
        closing.register(self._go, select.POLLIN)
        while os.eventfd_read(self._go) and not self._is_over and not self.why_not:
            error = lib.hints_sleep(self._address, self._descriptor, self._seen, self._go)
            if error == errno.ECANCELED:
                break
            self.why_not = os.strerror(error) if error else ""
            closing.poll(1e3 * max(self._not_before_s - time.monotonic(), 0.0))
            self._is_asleep = False
            os.eventfd_write(self._news, 1)
        with self._closing:
            self._is_over = True
            for descriptor in (self._go, self._news, self._descriptor):
                os.close(descriptor)


class HintSource(Protocol):
    """What gives the hints of the one program on this node."""

    def read(self) -> RawHints:
        """Its hints now; ``NO_RAW_HINTS`` where there is no program, or several."""
        ...


class NoHints:
    """The source of hints of a node whose jobs are not known."""

    def read(self) -> RawHints:
        """None."""
        return NO_RAW_HINTS


def _open(path: Path) -> int:
    """To read and, for the byte that says that we sleep, to write."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(PermissionError):
        return _open_as(path, os.O_RDWR | flags)
    return _open_as(path, os.O_RDONLY | flags)


def _open_as(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags)
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:
        raise PmuError(f"{path}: {error.strerror}: no hints are read") from None

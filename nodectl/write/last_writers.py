"""Which process wrote a file last: fanotify on the files of the knobs that enforce a cap.

A file below /sys does not show who has written it. The kernel reports each write to whoever watches the file, with the
writer's process id; that takes CAP_SYS_ADMIN and a kernel with fanotify. Where either is missing, nobody is named, and
neither is who sets a limit by other ways: registers (``/dev/cpu/N/msr``), NVML, the firmware.

A process that ends at once is named only by its id: its name is read after its write. So read events soon, which is
what ``descriptor`` is for. Sources: fanotify(7), fanotify_init(2), fanotify_mark(2), proc_pid_comm(5).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import time
from collections.abc import Iterable
from typing import Final

from nodectl.knobs.api import UNKNOWN

_CLOEXEC_NONBLOCK: Final = 0x1 | 0x2  # FAN_CLOEXEC, FAN_NONBLOCK; the class is FAN_CLASS_NOTIF, 0
_MARK_ADD, _MODIFY, _OVERFLOW, _AT_FDCWD = 0x1, 0x2, 0x4000, -100
_EVENT: Final = struct.Struct("IBBHQii")  # struct fanotify_event_metadata
_READ_BYTES, _READS = 4096, 4

YOUNG_S: Final = 5.0
"""Ours: a write that was seen longer ago says nothing of a value that is found now."""

LONGEST_NAME: Final = 80
"""Ours: of what is said of a process; a report to the cluster has room for 96 characters."""


class LastWriters:
    """Who wrote each of the watched files last, other than this process."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, str]] = {}
        self._path_of: dict[str, str] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = -1
        """Readable when somebody has written; -1 where the kernel reports no writes."""
        if hasattr(self._libc, "fanotify_init"):
            self.descriptor = self._libc.fanotify_init(_CLOEXEC_NONBLOCK, os.O_RDONLY | os.O_CLOEXEC)

    def watch(self, paths: Iterable[str]) -> None:
        """Watch these files too, named as this process opens them. One that is not there, or that the kernel does not
        watch, is left out."""
        for path in paths if self.descriptor >= 0 else ():
            target = os.path.realpath(path)
            mask = ctypes.c_uint64(_MODIFY)
            if self._libc.fanotify_mark(self.descriptor, _MARK_ADD, mask, _AT_FDCWD, os.fsencode(target)) == 0:
                self._path_of[target] = path

    def read(self) -> bool:
        """Take what has happened since the last call, or part of it where that is much. True if another process has
        written."""
        found = False
        for _ in range(_READS if self.descriptor >= 0 else 0):
            try:
                data = os.read(self.descriptor, _READ_BYTES)
            except BlockingIOError:
                break
            except OSError:  # an event's file could not be opened, and the event is lost
                return True
            found |= self._take(data)
        return found

    def of(self, path: str) -> str:
        """Who wrote this file a moment ago; ``UNKNOWN`` if that was not seen."""
        at_s, by = self._last.get(path, (0.0, UNKNOWN))
        return by if time.monotonic() - at_s < YOUNG_S else UNKNOWN

    def close(self) -> None:
        """Stop watching."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _take(self, data: bytes) -> bool:
        found, at, own = False, 0, os.getpid()
        while at + _EVENT.size <= len(data):
            length, _, _, _, mask, descriptor, pid = _EVENT.unpack_from(data, at)
            at += max(length, _EVENT.size)
            if mask & _OVERFLOW:
                found = True
            if descriptor < 0:
                continue
            try:
                if pid != own:
                    found = True
                    path = self._path_of.get(os.readlink(f"/proc/self/fd/{descriptor}"))
                    if path:
                        self._last[path] = time.monotonic(), described(pid)
            except OSError:
                continue
            finally:
                os.close(descriptor)
        return found


def described(pid: int) -> str:
    """A process for people: name, id and user, as far as it is still there and may be seen."""
    if pid <= 0:
        return "a process outside of this container"
    name, user = "", ""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            name = "".join(character for character in file.read().strip() if character.isprintable())
        user = f", user {os.stat(f'/proc/{pid}').st_uid}"
    return f"{name} (process {pid}{user})"[:LONGEST_NAME] if name else f"process {pid}, which has ended or is hidden"

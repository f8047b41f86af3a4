"""Lists, makes and removes mounts. Numbers and rules of mount(2), umount2(2)."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

from twin._serve import ffi, lib
from twin.errors import TwinError

NODEV, NOEXEC, NOSUID, REMOUNT, BIND, MOVE, RECURSIVE, PRIVATE = 4, 8, 2, 0x20, 0x1000, 0x2000, 0x4000, 0x40000
"""linux/mount.h; Python has no names for them."""

_DETACH = 2


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/PID/mountinfo (proc_pid_mountinfo(5)). ``root`` is the part of the file system that is
    mounted."""

    number: int
    parent: int
    root: str
    point: str
    type: str
    source: str


def listed(path: str = "/proc/self/mountinfo") -> Iterator[Mount]:
    """The mounts of a process, outermost first."""
    with open(path, errors="surrogateescape") as lines:  # paths have any bytes
        for line in lines:
            fields, _, rest = line.partition(" - ")
            words, (kind, source, *_) = fields.split(" "), rest.split(" ")  # one blank each: a source may be empty
            root, point = (os.fsencode(word).decode("unicode_escape") for word in words[3:5])
            yield Mount(int(words[0]), int(words[1]), root, point, kind, source)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2); TwinError with the reason."""
    error = lib.mount_at(
        source.encode(), target.encode(), kind.encode() or ffi.NULL, flags, options.encode() or ffi.NULL
    )
    if error:
        hint = " (is the kernel built with overlayfs?)" if kind == "overlay" and error == -errno.ENODEV else ""
        raise TwinError(f"cannot mount {kind or 'a bind'} on {target}: {os.strerror(-error)}{hint}")


def bind(source: str, target: str) -> None:
    """Show ``source``, with all mounts below it, at ``target`` too."""
    mount(source, target, flags=BIND | RECURSIVE)


def make_read_only(point: str) -> None:
    """A mount and all below it; TwinError with the reason."""
    if error := lib.mount_read_only(point.encode()):
        raise TwinError(f"cannot make {point} read-only: {os.strerror(-error)}")


def detach(point: str) -> None:
    """Unmount all mounts on ``point``, with all below; does nothing if there are none."""
    while lib.unmount_at(point.encode(), _DETACH) == 0:
        pass


@contextlib.contextmanager
def built_aside(kind: str, point: str, options: str = "") -> Iterator[str]:
    """Mount a file system at a temporary place, where the caller fills it, then move it to replace the mounts on
    ``point``.

    So no earlier mount stays below it, which an unmount would uncover.
    """
    aside = "/tmp"  # covered while the file system is filled, uncovered again by the move
    mount("nodectl-twin", aside, kind, options=options)
    yield aside
    detach(point)
    mount(aside, point, flags=MOVE)

"""Opening the files of a job, without ever waiting for them.

A job's user names its output, and the job may replace every file that its user may write. To open a FIFO waits until
its other end is opened, for ever if nobody does that, and whoever waits sees neither walltime nor cancel. To open a
device may do something: a tape is rewound, a watchdog is armed. So only regular files and the null device are opened.
Sources: open(2), fifo(7).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from pathlib import Path
from typing import Final

NULL: Final = os.makedev(1, 3)

_KINDS: Final = {
    stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}  # fmt: skip


def open_plain(path: Path, flags: int) -> int:
    """Open a regular file or the null device. ``OSError`` with the reason for anything else; never waits for it."""
    with contextlib.suppress(FileNotFoundError):
        _refuse_special(os.stat(path), path)
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    try:
        _refuse_special(os.fstat(descriptor), path)  # it may have been replaced meanwhile
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_output(path: Path) -> int:
    """Open a job's output, to append to it."""
    return open_plain(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def read_plain(path: Path) -> str:
    """The text of a small file that a job may have replaced. ``OSError``, or ``ValueError`` for what is not text."""
    with open(open_plain(path, os.O_RDONLY), encoding="utf-8") as file:
        return file.read(1 << 20)


def open_new(path: Path, mode: int = 0o600) -> int:
    """Make a file and open it to write, in place of whatever has that name."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def let_execute(descriptor: int, uid: int, gid: int) -> None:
    """Let another user read and execute our file, and nobody else: by an access control list, so that it stays ours to
    write. On a file system without lists it becomes that user's. ``OSError`` if neither can be done.

    Source: acl(5); the format is that of Linux include/uapi/linux/posix_acl_xattr.h."""
    nobody = 0xFFFFFFFF
    entries = ((_OWNER, 5, nobody), (_USER, 5, uid), (_GROUP, 0, nobody), (_MASK, 5, nobody), (_OTHERS, 0, nobody))
    text = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(descriptor, "system.posix_acl_access", text)
    except OSError:
        os.fchown(descriptor, uid, gid)


_OWNER, _USER, _GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20


def _refuse_special(found: os.stat_result, path: Path) -> None:
    if stat.S_ISREG(found.st_mode) or (stat.S_ISCHR(found.st_mode) and found.st_rdev == NULL):
        return
    what = _KINDS.get(stat.S_IFMT(found.st_mode), "special")
    raise OSError(errno.EINVAL, f"is {what}; it must be a regular file or /dev/null", str(path))

"""The twin's files as a FUSE file system: ``twin.files.sysfs_tree.SysfsTree`` behind libfuse3, one thread per caller.

Measured (2 cores, p50): 35 us for a read on an open descriptor, 155 us for open, read and close. That is fast enough
for the few files of a period. Counters, of which a period reads one per CPU, have a server in C
(``csrc/serve_fuse.c``).

As in sysfs, a file has size 4096, a read from its start computes its text, and reads of the rest see the same text.
``direct_io`` makes reads and writes bypass the page cache.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
import time
from collections.abc import Iterator
from typing import Any

import mfusepy

from twin._serve import lib
from twin.errors import TwinError
from twin.files.sysfs_tree import SysfsTree
from twin.serve.mirror import Mirror

FUSE_SUPER_MAGIC = 0x65735546
"""statfs f_type of every FUSE file system (linux/magic.h)."""

FILE_BYTES = 4096
"""The size of every sysfs attribute (fs/sysfs/file.c: PAGE_SIZE)."""

PROC_BLOCK_BYTES = 1024
"""st_blksize in procfs (fs/proc/root.c), by which csrc/serve_statfs.c recognises its files."""

CACHED_S = 0.1
"""Ours: how long the kernel may cache names and modes, hence how long a removed file stays in listings."""

_MOUNT_TIMEOUT_S = 10.0

_TYPES = {"dir": stat.S_IFDIR, "link": stat.S_IFLNK, "file": stat.S_IFREG}


class _Operations(mfusepy.Operations):  # type: ignore[misc]  # mfusepy is untyped
    """Answers FUSE requests from the tree or, for the host's settings, from their private copies.

    Errors are the trees' OSErrors; mfusepy returns their errno.
    """

    use_ns = True

    def __init__(self, tree: SysfsTree, settings: Mirror) -> None:
        self._sysfs = tree
        self._settings = settings
        self._texts: dict[int, bytes] = {}
        self._modes: dict[str, int] = {}  # modes changed by chmod
        self._owners: dict[str, tuple[int, int]] = {}  # owners changed by chown
        self._handles = itertools.count(1)

    def getattr(self, path: str, fh: Any = None) -> dict[str, int]:
        block = PROC_BLOCK_BYTES if path.startswith("/proc") else FILE_BYTES
        match self._tree(path).kind(path):
            case "dir":
                return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2, "st_uid": 0, "st_gid": 0, "st_blksize": block}
            case "link":
                return {"st_mode": stat.S_IFLNK | 0o777, "st_nlink": 1, "st_uid": 0, "st_gid": 0}
            case "file":
                mode = stat.S_IFREG | self._mode(path)
                size = 0 if path.startswith("/proc/") else FILE_BYTES  # files of /proc have size 0
                user, group = self._owners.get(path, (0, 0))
                owner = {"st_uid": user, "st_gid": group}
                return {"st_mode": mode, "st_nlink": 1, "st_size": size, "st_blksize": block, **owner}
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))

    def readdir(self, path: str, fh: Any) -> Iterator[tuple[str, dict[str, int], int]]:
        """With types: libsensors skips entries without."""
        tree = self._tree(path)
        for name in (".", ".."):
            yield name, {"st_mode": stat.S_IFDIR}, 0
        for name in tree.listdir(path):
            kind = tree.kind(f"{path.rstrip('/')}/{name}")
            yield name, {"st_mode": _TYPES.get(kind or "", 0)}, 0

    def readlink(self, path: str) -> str:
        return self._tree(path).readlink(path)

    def open(self, path: str, fi: Any) -> int:
        """Root too needs the permission bit in the file's mode (fs/kernfs/file.c,
        KERNFS_ROOT_EXTRA_OPEN_PERM_CHECK)."""
        mode = self._mode(path)
        access = fi.flags & os.O_ACCMODE
        wants_read, wants_write = access != os.O_WRONLY, access != os.O_RDONLY
        if (wants_read and not mode & 0o444) or (wants_write and not mode & 0o222):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        fi.direct_io = 1
        fi.fh = next(self._handles)
        return 0

    def read(self, path: str, size: int, offset: int, fi: Any) -> bytes:
        if offset == 0 or fi.fh not in self._texts:
            self._wait_if_slow(path)
            self._texts[fi.fh] = self._tree(path).read(path)
        return self._texts[fi.fh][offset : offset + size]

    def write(self, path: str, data: bytes, offset: int, fi: Any) -> int:
        self._wait_if_slow(path)
        if delay_s := self._sysfs.write_delay_s:
            time.sleep(delay_s)
        return self._tree(path).write(path, data)

    def truncate(self, path: str, length: int, fh: Any = None) -> int:
        """Shells open with O_TRUNC; sysfs ignores it."""
        return 0

    def release(self, path: str, fi: Any) -> int:
        self._texts.pop(fi.fh, None)
        return 0

    def chmod(self, path: str, mode: int) -> int:
        """Administrators use it to open energy counters to users; they are for root only since Linux 5.10."""
        if self._tree(path).kind(path) == "file":
            self._modes[path] = stat.S_IMODE(mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        """As ``chmod``; -1 leaves an id unchanged."""
        if self._tree(path).kind(path) == "file":
            user, group = self._owners.get(path, (0, 0))
            self._owners[path] = user if uid == -1 else uid, group if gid == -1 else gid
        return 0

    def utimens(self, path: str, times: Any = None) -> int:
        """Accepted, as in sysfs, but not stored."""
        return 0

    def create(self, path: str, mode: int, fi: Any) -> int:
        """No process can make a file in sysfs: open(2) with O_CREAT gives EACCES, other changes of names EPERM."""
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    def _forbid(self, *_: Any) -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    mknod = mkdir = unlink = rmdir = symlink = rename = link = _forbid

    def _tree(self, path: str) -> SysfsTree | Mirror:
        return self._settings if self._settings.has(path) else self._sysfs

    def _mode(self, path: str) -> int:
        mode = self._tree(path).mode(path)  # checked in any case: a fault may have removed the file
        return self._modes.get(path, mode)

    def _wait_if_slow(self, path: str) -> None:
        if delay_s := self._tree(path).delay_s(path):
            time.sleep(delay_s)


def mount(tree: SysfsTree, settings: Mirror, point: str) -> int:
    """Serve both at ``point`` from threads of this process; returns the file system's ``st_dev``."""
    options: dict[str, Any] = {
        "raw_fi": True,
        "foreground": True,
        "nothreads": False,
        "allow_other": True,
        "default_permissions": True,
        "fsname": "nodectl-twin",
        "attr_timeout": CACHED_S,
        "entry_timeout": CACHED_S,
        "max_idle_threads": 16,  # libfuse 3.12 to 3.16 complain about their own default
    }
    serve = threading.Thread(
        target=mfusepy.FUSE, args=(_Operations(tree, settings), point), kwargs=options, daemon=True
    )
    serve.start()
    deadline = time.monotonic() + _MOUNT_TIMEOUT_S
    while lib.filesystem_type(point.encode()) != FUSE_SUPER_MAGIC:
        if not serve.is_alive() or time.monotonic() > deadline:
            raise TwinError(f"the twin's files could not be mounted at {point} (FUSE)")
        time.sleep(0.001)
    return os.stat(point).st_dev

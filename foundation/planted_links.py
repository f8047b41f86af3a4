"""Opening a file in a directory that another user may write to.

Root reads and writes in directories of the agents' users: the lock, the journal and the save of a state directory, the
page for Prometheus. Whoever owns such a directory may put a link in the place of a file, or of a directory above it,
and root would write wherever it leads. So the way to a file is walked from name to name, and a link is followed only if
root or this process's own user made it. A FIFO would make the opener wait, a device may do anything, and a second name
may be that of somebody else's file: in a directory of another user these are refused, too.
Sources: open(2), openat(2), symlink(7), path_resolution(7), proc_sys_fs(5) ("protected_symlinks" does the same, in /tmp
alone).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from foundation.directories import sync_directory

MOST_LINKS: Final = 40
"""As in Linux: path_resolution(7)."""

_ENTRY: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_safely(path: str | Path, flags: int, mode: int = 0o600) -> int:
    """``os.open`` by the rules above; ``OSError`` with the reason where they are broken."""
    directory, name = _find(os.fspath(path), is_new=bool(flags & os.O_EXCL))
    try:
        try:
            file = os.open(name, flags | _FILE, mode, dir_fd=directory)
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None
        try:
            if not _is_trusted(os.fstat(directory)):
                _refuse_strange(os.fstat(file), os.fspath(path))
            os.set_blocking(file, True)
        except BaseException:
            os.close(file)
            raise
        return file
    finally:
        os.close(directory)


def open_new(path: str | Path, mode: int = 0o600) -> int:
    """Make a file, in place of whatever has that name, and open it for reading and writing."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return open_safely(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)


@contextlib.contextmanager
def replacing(path: Path, mode: int) -> Iterator[BinaryIO]:
    """A new file, which has this path once the block has ended: nobody reads half of it. ``OSError``, and the old one
    stays, if that is impossible. It is not synced: for what need not outlive a boot."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(open_new(part, mode), "wb") as file:
            yield file
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file of this user alone as a whole; on return it is on the disk, and so is its name. ``OSError``."""
    made = path.with_suffix(".new")
    with open(open_new(made), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)
    sync_directory(path.parent)


def _is_trusted(found: os.stat_result) -> bool:
    """Whether only root and this process's own user can have made this."""
    return found.st_uid in (0, os.geteuid())


def _refuse_strange(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file: remove it", path)
    if found.st_nlink > 1:
        raise OSError(errno.EMLINK, "it has a second name, in a directory of another user: remove it", path)


def _find(path: str, is_new: bool) -> tuple[int, str]:
    """The directory that a path leads to (O_PATH), and the name in there, which need not exist and is no link. A file
    that ``is_new`` is made under the last name itself."""
    at = os.open("/" if path.startswith("/") else ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    left, links = _names(path), 0
    try:
        while True:
            name = left.pop() if left else "."
            if not left and is_new:
                return at, name
            try:
                entry = os.open(name, _ENTRY, dir_fd=at)
            except FileNotFoundError:
                if left:
                    raise
                return at, name
            found = os.fstat(entry)
            if stat.S_ISLNK(found.st_mode):
                try:
                    links += 1
                    target = _target(entry, found, name, path, links)
                finally:
                    os.close(entry)
                left += _names(target)
                if target.startswith("/"):
                    os.close(at)
                    at = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            elif left:
                os.close(at)
                at = entry
            else:
                os.close(entry)
                return at, name
    except BaseException:
        os.close(at)
        raise


def _target(entry: int, found: os.stat_result, name: str, path: str, links: int) -> str:
    """Where a link leads, if it may be followed."""
    if not _is_trusted(found):
        what = f"{name} is a link of user {found.st_uid}, which is not followed: remove it"
        raise OSError(errno.ELOOP, what, path)
    if links > MOST_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return os.readlink("", dir_fd=entry)


def _names(path: str) -> list[str]:
    """The names of a path, the first one last."""
    return [name for name in path.split("/")[::-1] if name not in ("", ".")]

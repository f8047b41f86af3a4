"""The file in which a job reports its progress (docs/progress.md): made before the job starts, removed after its end.

Whoever runs the job makes the file in a directory that only the job's user can enter, and names it in
``NODECTL_PROGRESS``. ``pmu.decode`` decides what of it is believed; nothing that the job does to the file harms the
reader (``pmu.instruments.job_progress``).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

VARIABLE: Final = "NODECTL_PROGRESS"

SIZE: Final = 64
"""Bytes of the file: the counter, then zeros that are reserved."""

_SPARE: Final = 1 << 20  # what a file system may allocate for a small file


def make_progress_file(path: Path) -> None:
    """Make a file with the counter at zero, of our own user. ``OSError`` as ``new_progress_file``."""
    os.close(new_progress_file(path))


def new_progress_file(path: Path, uid: int = -1, content: bytes = bytes(SIZE), mode: int = 0o640) -> int:
    """Make it for this user (-1: for us) with this content, and return a descriptor to write it. ``OSError`` if there
    is one already, or no room on the disk: the page is allocated now, so that a job that maps it cannot fail later.

    Its group stays ours and has the rights of ``mode``, since an agent that is root may lack the right to read what is
    another user's. As long as the descriptor is open, nobody can take a lease on the file (fcntl(2), F_SETLEASE), and
    so keep whoever opens it waiting for 45 s."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, content)
        if uid not in (-1, os.geteuid()):
            os.fchmod(descriptor, mode)
            os.fchown(descriptor, uid, -1)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def cut_progress_file(descriptor: int) -> bool:
    """Its user may write it; it becomes no larger than it was, and fills no disk, neither by data nor by attributes,
    of which some file systems take any number. False: those are too many to be listed, and so to be removed."""
    found = os.fstat(descriptor)
    if found.st_size > SIZE or found.st_blocks * 512 > SIZE + _SPARE:
        os.ftruncate(descriptor, SIZE)
    try:
        names = os.listxattr(descriptor)
    except OSError as error:
        return error.errno != errno.E2BIG
    for name in names:
        if name.startswith("user."):
            os.removexattr(descriptor, name)
    return True


def progress_file() -> AbstractContextManager[Path | None]:
    """A progress file in a private directory, removed afterwards; None where none can be made."""
    return private_file("progress", make_progress_file)


@contextlib.contextmanager
def private_file(name: str, make: Callable[[Path], None]) -> Iterator[Path | None]:
    """A file of this name in a private directory, removed afterwards; None where ``make`` cannot make it."""
    import tempfile  # here, so that job steps, which have a directory of their own, do not import it

    with contextlib.ExitStack() as gone_afterwards:
        path: Path | None = None
        with contextlib.suppress(OSError):
            directory = tempfile.TemporaryDirectory(prefix=f"nodectl-{name}-", ignore_cleanup_errors=True)
            place = Path(gone_afterwards.enter_context(directory)) / name
            make(place)
            path = place
        yield path

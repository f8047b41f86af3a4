"""The file in which a job reports its progress (docs/progress.md): made before the job starts, removed after its end.

Whoever runs the job makes the file in a directory that only the job's user can enter, and names it in
``NODECTL_PROGRESS``. ``pmu.decode`` decides what of it is believed; nothing that the job does to the file harms the
reader (``pmu.instruments.job_progress``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

VARIABLE: Final = "NODECTL_PROGRESS"

SIZE: Final = 64
"""Bytes of the file: the counter, then zeros that are reserved."""


def make_progress_file(path: Path, uid: int = -1, gid: int = -1) -> None:
    """Make a file with the counter at zero, of this user (-1: of ours). ``OSError`` if there is one already, or no room
    on the disk: the page is allocated now, so that a job that maps it cannot fail later."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, bytes(SIZE))
        if (uid, gid) != (-1, -1) and uid != os.geteuid():
            os.fchown(descriptor, uid, gid)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def progress_file() -> Iterator[Path | None]:
    """A progress file in a private directory, removed afterwards; None where none can be made."""
    import tempfile  # here, so that job steps, which have a directory of their own, do not import it

    with contextlib.ExitStack() as gone_afterwards:
        path: Path | None = None
        with contextlib.suppress(OSError):
            directory = tempfile.TemporaryDirectory(prefix="nodectl-progress-", ignore_cleanup_errors=True)
            place = Path(gone_afterwards.enter_context(directory)) / "progress"
            make_progress_file(place)
            path = place
        yield path

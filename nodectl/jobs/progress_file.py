"""The file by which a job tells its progress (docs/progress.md): made for it before it starts, removed after its end.

Whoever runs the job makes the file in a directory that is the job's user's alone and names it in ``NODECTL_PROGRESS``.
What the job writes there is believed as far as ``pmu.decode`` goes, and nothing it does to the file harms the reader
(``pmu.instruments.job_progress``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

VARIABLE: Final = "NODECTL_PROGRESS"

SIZE: Final = 64
"""Of the file: the counter, then zeros that are reserved."""


def make_progress_file(path: Path) -> None:
    """A counter at zero. ``OSError`` if there is one already, or no room: its page is there before a job maps it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, bytes(SIZE))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def progress_file() -> Iterator[Path | None]:
    """One in a private directory of its own, gone afterwards; None where none can be made."""
    import tempfile  # not for what stands over each job, which has a directory of its own

    with contextlib.ExitStack() as gone_afterwards:
        path: Path | None = None
        with contextlib.suppress(OSError):
            directory = tempfile.TemporaryDirectory(prefix="nodectl-progress-", ignore_cleanup_errors=True)
            place = Path(gone_afterwards.enter_context(directory)) / "progress"
            make_progress_file(place)
            path = place
        yield path

"""The page on which a job gives hints (docs/hints.md): made before the job starts, removed after its end.

It lies next to the file of the job's progress, and is made and cut to its size as that is. The agent may write it too,
since it leaves word there when it sleeps; whose page it is decides nothing else.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from nodectl.jobs.progress_file import new_progress_file, private_file
from pmu.instruments.job_hints import EMPTY

VARIABLE: Final = "NODECTL_HINTS"

_MODE: Final = 0o660


def make_hint_page(path: Path) -> None:
    """Make a page without hints, of our own user. ``OSError`` as ``new_hint_page``."""
    os.close(new_hint_page(path))


def new_hint_page(path: Path, uid: int = -1) -> int:
    """Make it for this user (-1: for us), and return a descriptor to write it; as ``new_progress_file``. It gets its
    name when it is whole and belongs to the user, which is what its reader checks."""
    part = path.with_name(path.name + ".part")
    descriptor = new_progress_file(part, uid, EMPTY, _MODE)
    os.rename(part, path)
    return descriptor


def hint_page() -> AbstractContextManager[Path | None]:
    """A page in a private directory, removed afterwards; None where none can be made."""
    return private_file("hints", make_hint_page)

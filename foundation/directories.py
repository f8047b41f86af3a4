"""Directories whose names are on the disk: a file that is synced may still lose its name in a power cut.

Source: fsync(2), "does not necessarily ensure that the entry in the directory containing the file has also reached
disk".
"""

from __future__ import annotations

import os


def make_directory(path: str) -> None:
    """Make a directory for this user alone, and missing ones above it; on return their names are on the disk."""
    missing = [os.path.abspath(path)]
    while not os.path.isdir(missing[-1]):
        missing.append(os.path.dirname(missing[-1]))
    os.makedirs(path, mode=0o700, exist_ok=True)
    for made in missing[:-1]:
        sync_directory(os.path.dirname(made))


def sync_directory(path: str | os.PathLike[str]) -> None:
    """On return, what was made, renamed or removed in this directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

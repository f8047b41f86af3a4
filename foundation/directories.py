"""Directories whose names are on the disk: a file that is synced may still lose its name in a power cut.

Source: fsync(2), "does not necessarily ensure that the entry in the directory containing the file has also reached
disk".
"""

from __future__ import annotations

import os


def make_directory(path: str) -> None:
    """Make a directory for this user alone, and missing ones above it; on return their names are on the disk."""
    missing = _missing(path)
    os.makedirs(path, mode=0o700, exist_ok=True)
    for made in missing:
        sync_directory(os.path.dirname(made))


def make_shared_directory(path: str | os.PathLike[str]) -> None:
    """Make a directory that everybody may enter, and missing ones above it, whatever the umask: one of 077 would make
    an image's /usr for root alone."""
    for made in reversed(_missing(path)):
        os.makedirs(made, exist_ok=True)
        os.chmod(made, 0o755)


def _missing(path: str | os.PathLike[str]) -> list[str]:
    """It, and those above it, as far as they are not there; the lowest first."""
    found = [os.path.abspath(path)]
    while not os.path.isdir(found[-1]):
        found.append(os.path.dirname(found[-1]))
    return found[:-1]


def sync_directory(path: str | os.PathLike[str]) -> None:
    """On return, what was made, renamed or removed in this directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

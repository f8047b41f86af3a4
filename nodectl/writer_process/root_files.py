"""What only root may read, opened by the writer and read by the agent (docs/security.md has the table).

Since Linux 5.10 the kernel lets only root read ``energy_uj`` (CVE-2020-8694, PLATYPUS), and some drivers of hwmon do
the same. The writer opens these files read-only and passes the descriptors, so that the agent reads them at each sweep
without rights of its own. The kernel checks the mode when a file is opened, not when it is read.

A descriptor of ``/dev/ipmi0`` is not passed: whoever has one, even read-only, can send commands to the management
controller (IPMICTL_SEND_COMMAND), power limits among them.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from pmu.instruments.kept import NativeIntegers
from pmu.system import OsFiles, OsKeptFile

MOST_FILES: Final = 1024
"""Ours: a node of 16 packages has some 100 zones."""

_FOLDERS: Final = (
    ("/sys/class/powercap", r"energy_uj"),
    ("/sys/class/hwmon", r"(energy|power|temp)\d+_(input|average)"),
)


def find_root_files(root: str = "") -> list[str]:
    """Paths of sensor files that exist and that other users may not read."""
    found = [path for folder, pattern in _FOLDERS for path in _matching(root, folder, pattern)]
    return [path for path in found if _is_for_root(root + path)][:MOST_FILES]


def open_root_files(paths: Sequence[str], root: str = "") -> dict[str, int]:
    """Descriptors of these files, read-only; one that cannot be opened is left out."""
    opened: dict[str, int] = {}
    for path in paths:
        try:
            opened[path] = os.open(root + path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue  # unplugged since: the agent's own attempt says so
    return opened


class AgentFiles(OsFiles):
    """The agent's files: it reads what root opened for it, and writes nothing, whatever user it is."""

    def __init__(self, opened: Mapping[str, int], movable: Collection[str], root: str = "") -> None:
        """``opened``: descriptors by path; ``movable``: files that the writer process may write."""
        super().__init__(root)
        self._opened, self._movable = opened, movable

    def read(self, path: str) -> str:
        """The whole text."""
        if path not in self._opened:
            return super().read(path)
        return OsKeptFile(self._opened[path]).read().decode(errors="replace")

    def write(self, path: str, text: str) -> None:
        """Refused: only the writer process writes."""
        raise OSError(errno.EPERM, "the agent writes nothing; its writer process does", path)

    def keep(self, path: str) -> OsKeptFile:
        """Keep the file open."""
        return OsKeptFile(os.dup(self._opened[path])) if path in self._opened else super().keep(path)

    def keep_integers(self, paths: Sequence[str]) -> NativeIntegers:
        """Keep many files with one number each."""
        return NativeIntegers([self._root + path for path in paths], [self._opened.get(path, -1) for path in paths])

    def writable(self, path: str) -> bool:
        """Whether the writer process may write it."""
        return path in self._movable


def _matching(root: str, folder: str, pattern: str) -> Iterator[str]:
    for device in _names(root + folder):
        for name in _names(f"{root}{folder}/{device}"):
            if re.fullmatch(pattern, name):
                yield f"{folder}/{device}/{name}"


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _is_for_root(path: str) -> bool:
    try:
        return not os.stat(path).st_mode & stat.S_IROTH
    except OSError:
        return False

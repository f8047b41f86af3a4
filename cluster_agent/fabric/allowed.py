"""Who may connect to the cluster agent: one line per key, ``ROLE NAME PUBLIC-KEY``.

A key has one role and one name; the sender of a message is looked up by its key and never taken from the message. The
file is read again when it has changed, so ``clusterctl keys revoke`` takes effect at once, on open connections too.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cluster_agent.errors import ClusterError, WrongUseError
from foundation.shell.errors import nearest
from foundation.shell.plain_text import read_text
from foundation.wire.keys import create_private, is_key

ROLES: Final = ("node", "admin", "notifier", "viewer", "submitter")
FILE: Final = "allowed"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One key's role and name."""

    role: str
    name: str
    public: str


def checked_name(name: str) -> str:
    """A name that can stand in a list, a file name and a log."""
    if not _NAME.fullmatch(name):
        raise WrongUseError(f"{name!r} is not a name: use at most 64 letters, digits, '.', '_' and '-'")
    return name


def checked_role(role: str) -> str:
    """One of the roles."""
    if role not in ROLES:
        raise WrongUseError(f"no role is called {role!r}{nearest(role, ROLES)}")
    return role


class Allowed:
    """The list in a directory of keys."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE
        self._seen: tuple[int, int, int] | None = None
        self._by_key: dict[str, Entry] = {}

    def find(self, public: str) -> Entry | None:
        """Name and role of this key, as of the last ``refresh``."""
        return self._by_key.get(public)

    def entries(self) -> list[Entry]:
        """All keys, as of now."""
        self.refresh()
        return list(self._by_key.values())

    def refresh(self) -> bool:
        """Read the list again if it has changed; returns whether it had."""
        try:
            status = os.stat(self.path)
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen == self._seen:
                return False
            text = read_text(self.path)
        except FileNotFoundError:
            seen, text = (0, 0, 0), ""
            if self._seen == seen:
                return False
        except OSError as error:
            raise ClusterError(f"{self.path}: cannot read the allow list: {error.strerror}") from None
        self._by_key = {entry.public: entry for entry in _entries(self.path, text)}
        self._seen = seen
        return True

    def allow(self, entry: Entry) -> None:
        """Add a key. A name has one key: another one of the same name is replaced."""
        kept = [one for one in self.entries() if one.name != entry.name and one.public != entry.public]
        self._write([*kept, entry])

    def revoke(self, name: str) -> Entry:
        """Take the key of this name off the list."""
        entries = self.entries()
        found = next((entry for entry in entries if entry.name == name), None)
        if found is None:
            raise WrongUseError(f"{self.path}: no key is called {name!r}{nearest(name, [e.name for e in entries])}")
        self._write([entry for entry in entries if entry != found])
        return found

    def _write(self, entries: Iterable[Entry]) -> None:
        replacement = self.path.with_name(f"{FILE}.new")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replacement.unlink(missing_ok=True)  # what a killed command has left
            descriptor = create_private(replacement)
            with os.fdopen(descriptor, "w") as file:
                file.writelines(f"{entry.role} {entry.name} {entry.public}\n" for entry in entries)
                file.flush()
                _open_like(self.path, descriptor)
                os.fsync(descriptor)
            os.replace(replacement, self.path)
        except OSError as error:
            raise ClusterError(f"{self.path}: cannot write the list: {error.strerror}") from None
        self.refresh()


def _open_like(before: Path, descriptor: int) -> None:
    """Who could read the list before may read the new one: a node manager that is a user of its own, and others of its
    group."""
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(before)
        if stat.S_ISREG(found.st_mode):
            with contextlib.suppress(PermissionError):  # we are none of that group
                os.fchown(descriptor, -1, found.st_gid)
            os.fchmod(descriptor, found.st_mode & 0o644)


def _entries(path: Path, text: str) -> Iterable[Entry]:
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or line.startswith("# "):
            continue
        if len(words) != 3 or words[0] not in ROLES or not _NAME.fullmatch(words[1]) or not is_key(words[2]):
            raise ClusterError(f"{path}:{number}: not ROLE NAME PUBLIC-KEY (roles: {', '.join(ROLES)})")
        yield Entry(*words)

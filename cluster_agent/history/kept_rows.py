"""Rows on the disk, one JSON line each, of which the oldest go: bounded, whatever is added and however it is killed.

They are no promise of the budget: where they cannot be written, ``trouble`` says why, and the rows of this process stay
readable. A line that a kill has cut off, or that anybody damaged, is left out.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from foundation.directories import sync_directory
from foundation.planted_links import open_new

KEPT: Final = 20_000
"""Ours: rows in memory, which people are answered from: some days of a large partition."""

MOST_BYTES: Final = 32 << 20
"""Ours: a file of rows of that size becomes the older one, which is the only other one."""

Row = TypeVar("Row", bound=Any)


class KeptRows(Generic[Row]):
    """The rows of a ``kind``, which has ``user`` and ``ended_s``, the newest last. ``what``: they are, in messages."""

    def __init__(self, path: Path, kind: type[Row], what: str) -> None:
        self._path, self._kind, self._what = path, kind, what
        self._rows: deque[Row] = deque(maxlen=KEPT)
        self.trouble = ""
        for file in (self._older, path):
            self._rows.extend(self._read(file))

    @property
    def _older(self) -> Path:
        return self._path.with_name(f"{self._path.name}-older")

    def since(self, ended_s: float, user: str, most: int) -> list[Row]:
        """At most so many rows that ended after this time, the oldest first; of all users if ``user`` is empty."""
        found = (one for one in self._rows if one.ended_s > ended_s and user in ("", one.user))
        return list(islice(found, most))

    def forget(self, user: str) -> int:
        """Remove the rows of this user; how many there were. ``OSError`` if they cannot be removed."""
        return self.keep_only(lambda row: row.user != user)

    def add(self, one: Row) -> None:
        """Keep a row, on the disk as well."""
        self._rows.append(one)
        try:
            if self._path.exists() and self._path.stat().st_size > MOST_BYTES:
                self._path.replace(self._older)
            if not self._path.exists():
                os.close(open_new(self._path))
            with open(self._path, "r+b") as file:
                end = file.seek(0, os.SEEK_END)
                if end:  # a kill may have cut the last line off
                    file.seek(end - 1)
                    if file.read(1) != b"\n":
                        file.write(b"\n")
                file.write(msgspec.json.encode(one) + b"\n")
            self.trouble = ""
        except OSError as error:
            self.trouble = f"{self._path}: cannot write {self._what}: {error.strerror}"

    def keep_only(self, keeps: Callable[[Row], bool]) -> int:
        """Remove all other rows, from the disk as well; returns how many. ``OSError`` if they cannot be removed."""
        before = [row for file in (self._older, self._path) for row in self._read(file, None)]
        stay = [row for row in before if keeps(row)]
        if len(stay) == len(before):
            return 0
        made = self._path.with_name(f"{self._path.name}.new")
        with open(open_new(made), "wb") as file:
            file.writelines(msgspec.json.encode(row) + b"\n" for row in stay)
            file.flush()
            os.fsync(file.fileno())
        made.replace(self._path)
        self._older.unlink(missing_ok=True)
        sync_directory(self._path.parent)  # or a power cut brings them back
        self._rows = deque(stay, maxlen=KEPT)
        return len(before) - len(stay)

    def _read(self, path: Path, last: int | None = KEPT) -> Iterable[Row]:
        try:
            lines = path.read_bytes().splitlines()
        except OSError:
            return []
        found = []
        for line in lines[-last:] if last else lines:
            try:
                found.append(msgspec.json.decode(line, type=self._kind))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
        return found

"""A second copy of the records of jobs, next to the store: ``cluster.db-jobs`` and ``cluster.db-ended``.

    6b1f02aa [0,"from"]
    9f1c02ab [17,"job",5,1000,"running",null,{"id":5, ...}]
    4410be97 [18,"drained_node","n07","fan",0]
    77ab3d10 [19,"job",5]                         has ended: its record is in the file of ended jobs
    0c9d51e0 [20,"drained_node","n07"]            is gone

Each line has the number of the transaction that changed the record; the store has that number too
(``PRAGMA user_version``). Lines are appended and synced after their commit, before anybody is answered and before
anything is sent to a node. So if one of the files is damaged, whichever it is, no job is lost and none starts twice: of
what the store has not, or has an older number of, the copy's last line counts.

The first file is written again, with the records that are still of use, once it has grown long; records of ended jobs
are only ever added to the second. Both are written again from the store when the number shows that they lack the last
change, as after a kill in between.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from cluster_agent.errors import ClusterError
from cluster_agent.jobs.job import OVER
from cluster_agent.store.ledger_copy import sync_directory
from cluster_agent.store.records import TABLES, Row

COPIED: Final = ("job", "drained_node", "node_power", "stored_joules")
"""The tables whose records are copied."""

Record: TypeAlias = tuple[str, Row]
"""A table and a row without its checksum; only the key: it is gone."""

LONG: Final = 1 << 20
"""Ours: a file of this many bytes is written again, if it is four times as long as after the last time."""


@dataclass(slots=True)
class Copied:
    """What the copy says. ``number``: of the newest transaction in it. ``rows``: by table and key the number of the
    last change, and the row without its checksum; None: it is gone. ``damaged``: so many lines are, or are missing."""

    number: int = 0
    rows: dict[tuple[str, Any], tuple[int, Row | None]] = field(default_factory=dict)
    damaged: int = 0
    is_there: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether all that was written is there, as far as can be known."""
        return self.is_there and not self.damaged

    def of(self, table: str) -> Iterator[tuple[Any, int, Row | None]]:
        """Key, number and row of each record of that table."""
        for (of, key), (number, row) in self.rows.items():
            if of == table:
                yield key, number, row


class JobCopy:
    """The copy of the store at this path. What cannot be written raises ``ClusterError``."""

    def __init__(self, store: Path) -> None:
        self.path = store.with_name(f"{store.name}-jobs")
        self.ended = store.with_name(f"{store.name}-ended")
        self._number: int | None = None
        self._waiting: dict[Path, list[bytes]] = {self.ended: [], self.path: []}  # in the order of writing
        self._long = LONG

    def number(self) -> int | None:
        """The transaction whose change it got last; None: there is no copy, or its end is damaged."""
        if self._number is None:
            with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
                if self.ended.exists():
                    last = self.path.read_bytes().removesuffix(b"\n").rpartition(b"\n")[2]
                    self._number = _number_of(_parts(last))
        return self._number

    def append(self, number: int, records: Iterable[Record]) -> bool:
        """Add what a transaction has changed, if there is a copy; on the disk when this returns. What cannot be written
        is tried again with the next. Returns whether the file has become long."""
        if self.number() is None:
            return False
        self._number = number
        for table, row in records:
            if is_over(table, row):
                self._waiting[self.ended].append(_line(number, table, row))
                row = row[:1]
            self._waiting[self.path].append(_line(number, table, row))
        with self._saying():
            for path, lines in self._waiting.items():
                if lines:
                    size = _append(path, b"".join(lines))
                    lines.clear()
        return size > self._long

    def write(self, number: int, records: Iterable[Record], ended: Iterable[Row] | None) -> None:
        """Replace the copy: ``records`` that are not those of ended jobs, and ``ended``, rows of jobs (None: as they
        are)."""
        self._number = None
        with self._saying():
            if ended is not None:
                _replace(self.ended, (_line(number, "job", row) for row in ended))
            size = _replace(self.path, (_line(number, table, row) for table, row in records), number)
        for lines in self._waiting.values():
            lines.clear()
        self._number, self._long = number, max(LONG, 4 * size)

    def forget(self) -> None:
        """It is damaged: the next start of the jobs' side writes it again."""
        self._number = None
        with self._saying():
            self.path.unlink(missing_ok=True)

    def read(self) -> Copied:
        """What it says; what is damaged is left out."""
        found = Copied()
        with self._saying("read"), contextlib.suppress(FileNotFoundError):
            # in this order: who ends meanwhile is in the second file
            found.is_there = _read(found, self.path)
            ended = Copied()
            found.is_there &= _read(ended, self.ended)
            found.damaged += ended.damaged
            for at, (number, row) in ended.rows.items():
                known, copied = found.rows.get(at, (0, None))
                if number > known or copied is None:
                    found.damaged += number < known  # its last record is missing
                    found.rows[at] = number, row
        missing = [at for at, (_, row) in found.rows.items() if row is None and at[0] == "job"]
        found.damaged += len(missing)
        for at in missing:
            del found.rows[at]
        return found

    @contextlib.contextmanager
    def _saying(self, verb: str = "write") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ClusterError(f"{self.path}: cannot {verb} the copy of the jobs: {error.strerror}") from None


def is_over(table: str, row: Row) -> bool:
    """Is this the record of a job that has ended?"""
    return table == "job" and len(row) > 2 and row[2] in OVER


def _read(found: Copied, path: Path) -> bool:
    """Add the lines of a file; returns whether it begins as it should."""
    first, *lines = path.read_bytes().split(b"\n")
    is_begun = False
    for line in filter(None, (first, *lines)):
        try:
            parts = _parts(line)
            number = _number_of(parts)
            table = msgspec.json.decode(parts[1], type=str)
            if table == "from":
                is_begun = is_begun or line is first
            else:
                row = tuple(
                    bytes(part) if column == "body" else msgspec.json.decode(part)
                    for column, part in zip(TABLES[table].columns, parts[2:], strict=False)
                )
                if len(row) > 1:
                    TABLES[table].check(*row)
                found.rows[table, row[0]] = number, row if len(row) > 1 else None
            found.number = max(found.number, number)
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError, msgspec.MsgspecError):
            found.damaged += 1
    found.damaged += not is_begun
    return is_begun


def _parts(line: bytes) -> list[msgspec.Raw]:
    """What is in a line; ``ValueError`` if it is damaged."""
    if line[:9] != b"%08x " % zlib.crc32(line[9:]):
        raise ValueError("its checksum is wrong")
    return msgspec.json.decode(line[9:], type=list[msgspec.Raw])


def _number_of(parts: list[msgspec.Raw]) -> int:
    return msgspec.json.decode(parts[0], type=int)


def _line(number: int, table: str, row: Row) -> bytes:
    parts = (msgspec.Raw(part) if isinstance(part, bytes) else part for part in row)
    text = msgspec.json.encode((number, table, *parts))
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _replace(path: Path, lines: Iterable[bytes], number: int = 0) -> int:
    """Write the file again, in one piece; returns its size."""
    part = path.with_name(f"{path.name}.new")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.writelines((_line(0, "from", ()), *lines, _line(number, "from", ())))
        file.flush()
        os.fsync(descriptor)
        size = file.tell()
    os.replace(part, path)
    sync_directory(path.parent)
    return size


def _append(path: Path, data: bytes) -> int:
    """Add it, or nothing of it, and sync; returns the size."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        size = end = os.fstat(descriptor).st_size
        try:
            while data:
                written = os.pwrite(descriptor, data, end)
                data, end = data[written:], end + written
            os.fsync(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
            raise
        return end
    finally:
        os.close(descriptor)

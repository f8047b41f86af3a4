"""The log of commits, next to the store: ``cluster.db-log``. A commit is in force exactly if its line here is whole.

    6b1f02aa [417,["from",1,2,20480,5]]     what was in force after commit 417: two lines follow
    9f1c02ab [417,["owner",1,7,"4a0c..."]]
    77ab3d10 [417,["job",5,1000,"running",null,{"id":5, ...}], ...]
    0c9d51e0 [418,["budget",1,1400000,[]],["change",9,1.7e9,"root","set 1400 W"]]
    1a2b3c4d [419,["drained_node","n07"]]   only its key: the record is gone
    \\0\\0\\0\\0 ...                            room that is reserved

A line has its checksum, the number of its commit, and all records that the commit changes. It is synced before anybody
is answered and before anything is sent; only then SQLite gets the same records. So SQLite can always be made again from
here, and whatever stopped between the two, the next one that opens the store completes it.

- **The last line is cut short**: its commit was never answered, and is not in force. Any other line that is not whole,
  or a number that is missing, is damage; SQLite, which has its own checksums and the number of its last commit, proves
  then what was there (``mending``).
- **A line that could not be synced** is overwritten with zeros, since a restart would find it whole.
- **Room is reserved** before a byte is written, so a full disk refuses a commit and cuts none short. ``RESERVE`` bytes
  are kept for commits that only lower the budget.
- **A log that has grown long** is written again in one piece. The records of ended jobs go to ``cluster.db-past``,
  which is only ever added to: the first line says how many bytes of it count. It also has the highest number of a job.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from cluster_agent.errors import StoreError
from cluster_agent.jobs.job import OVER
from cluster_agent.store.records import BLOBS, TABLES, Row
from foundation.directories import sync_directory

Record: TypeAlias = tuple[str, Row]
"""A table and a row without its checksum; only the key: it is gone."""

FORMAT: Final = 1

RESERVE: Final = 64 * 1024
"""Ours: so many bytes are kept for lowering the budget on a full disk; one such line takes some 200."""

CHUNK: Final = 1 << 20
"""Ours: room is reserved in pieces of this size."""

LONG: Final = 8 << 20
"""Ours: a log of this many bytes is written again, if it is four times as long as after the last time."""


TOGETHER: Final = 32
"""Ours: records of one table in one line of those that a log begins with."""


@dataclass(slots=True)
class Logged:
    """What a log says. ``first``: the commit whose result it begins with; ``number``: the last whole commit. ``rows``:
    by table and key the number of the last change, and the row; None: it is gone. ``commits``: those after ``first``.
    ``damaged``: so many lines are, or are missing. ``end``: where the next line begins. ``is_cut``: nothing is reserved
    after it, so bytes are missing, nobody knows how many."""

    is_there: bool = False
    first: int = 0
    number: int = 0
    rows: dict[tuple[str, Any], tuple[int, Row | None]] = field(default_factory=dict)
    commits: list[tuple[int, list[Record]]] = field(default_factory=list)
    damaged: int = 0
    end: int = 0
    begin_size: int = 0
    past_size: int = 0
    last_job: int = 0
    is_torn: bool = False
    is_cut: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether it says all that was in force after its last commit."""
        return self.is_there and not self.damaged

    def of(self, table: str) -> Iterator[tuple[Any, int, Row | None]]:
        """Key, number and row of each record of that table."""
        for (of, key), (number, row) in self.rows.items():
            if of == table:
                yield key, number, row

    def take(self, number: int, records: Iterable[Record]) -> None:
        """These records are the newest."""
        for table, row in records:
            self.rows[table, row[0]] = number, row if len(row) > 1 else None


class CommitLog:
    """The log of the store at this path. What cannot be read or written raises ``StoreError``; then nothing of it is
    in force."""

    def __init__(self, store: Path) -> None:
        self.path = store.with_name(f"{store.name}-log")
        self.past = store.with_name(f"{store.name}-past")
        self.number = 0
        """Of the last commit."""
        self._end = self._begin_size = self._past_size = 0
        self._unsure: tuple[int, int] | None = None  # where a line is that could not be synced, and up to where
        self._over: dict[int, bytes] = {}  # by job: lines for the file of ended jobs

    # --- reading

    def read(self) -> Logged:
        """What it says; what is damaged is left out."""
        found = Logged()
        with self._saying("read"):
            with contextlib.suppress(FileNotFoundError):
                _read(found, self.path.read_bytes())
            _read_past(found, self.past.read_bytes() if self.past.exists() else b"")
        return found

    def take(self, found: Logged) -> None:
        """Go on after what was read. A line that was cut short is overwritten."""
        self.number, self._end, self._begin_size = found.number, found.end, found.begin_size
        self._past_size, self._unsure = found.past_size, None
        self._over.clear()
        for number, records in found.commits:
            self._note_over(number, records)
        if found.is_torn:
            with self._saying(), _opened(self.path) as descriptor:
                self._void(descriptor, found.end, os.fstat(descriptor).st_size)

    # --- writing

    def append(self, number: int, records: Iterable[Record], may_use_reserve: bool = False) -> None:
        """Put a commit in force: when this returns, its line is on the disk."""
        records = list(records)
        line = _line(number, records)
        with self._saying(), _opened(self.path) as descriptor:  # by name: another agent may have replaced the file
            if self._unsure is not None:
                self._void(descriptor, *self._unsure)
            end = self._end + len(line)
            self._make_room(descriptor, end, may_use_reserve)
            try:
                _put(descriptor, line, self._end)
            except OSError:
                self._unsure = self._end, end
                with contextlib.suppress(OSError):
                    self._void(descriptor, *self._unsure)
                raise
        self._end, self.number = end, number
        self._note_over(number, records)

    def make_room(self) -> None:
        """Reserve room for the next commit, as a trial of whether one can be written."""
        with self._saying(), _opened(self.path) as descriptor:
            if self._unsure is not None:
                self._void(descriptor, *self._unsure)
            self._make_room(descriptor, self._end + 4096, False)

    @property
    def is_long(self) -> bool:
        """Whether it should be written again."""
        return self._end > max(LONG, 4 * self._begin_size)

    def write(self, number: int, records: Iterable[Record], last_job: int, past: Iterable[Row] | None = None) -> None:
        """Replace the log by one that begins with what is in force after this commit: ``records``, without those of
        ended jobs. ``last_job``: the highest number that a job has got. ``past``: rows of all ended jobs; None: the
        file of those gets what ended since the last time."""
        lines = []
        for _, of_table in itertools.groupby(records, lambda record: record[0]):
            while some := list(itertools.islice(of_table, TOGETHER)):
                lines.append(_line(number, some))
        with self._saying():
            if past is None:
                past_size = self._add_past()
            else:
                past_size = _replace(self.past, (_line(number, [("job", row)]) for row in past))
            head = _line(number, [("from", (FORMAT, len(lines), past_size, last_job))])
            size = _replace(self.path, (head, *lines), reserve=CHUNK + RESERVE)
        self._past_size, self._over, self._unsure = past_size, {}, None
        self.number, self._end, self._begin_size = number, size, size

    def postpone(self) -> None:
        """It cannot be written again now: not before it is four times as long."""
        self._begin_size = self._end

    # --- inside

    def _add_past(self) -> int:
        """After the bytes that count: what a writing that was interrupted has left there is overwritten."""
        data = b"".join(self._over.values())
        if data:
            descriptor = os.open(self.past, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                _put(descriptor, data, self._past_size)
            finally:
                os.close(descriptor)
        return self._past_size + len(data)

    def _note_over(self, number: int, records: Iterable[Record]) -> None:
        for table, row in records:
            if table == "job":
                self._over.pop(row[0], None)
                if is_over(table, row):
                    self._over[row[0]] = _line(number, [(table, row)])

    def _make_room(self, descriptor: int, end: int, may_use_reserve: bool) -> None:
        size = os.fstat(descriptor).st_size
        if may_use_reserve and end < size:  # a log always ends with some zeros
            return
        if end + RESERVE > size:
            try:
                os.posix_fallocate(descriptor, size, end + RESERVE + CHUNK - size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                os.posix_fallocate(descriptor, size, end + RESERVE - size)
            os.fsync(descriptor)  # else a crash may leave a line without the zeros after it

    def _void(self, descriptor: int, begin: int, end: int) -> None:
        """Overwrite what must not be taken for a commit."""
        _put(descriptor, bytes(end - begin), begin)
        self._unsure = None

    @contextlib.contextmanager
    def _saying(self, verb: str = "write") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            fix = ": make room there" if error.errno == errno.ENOSPC else ""
            unsure = "; a restart may find the change in force" if self._unsure is not None else ""
            raise StoreError(f"{self.path}: cannot {verb} the store: {error.strerror}{fix}{unsure}") from None


def is_over(table: str, row: Row) -> bool:
    """Is this the record of a job that has ended?"""
    return table == "job" and len(row) > 2 and row[2] in OVER


def read_line(line: bytes) -> tuple[int, list[Record]]:
    """The number of a commit and its records; an exception of msgspec, ``ValueError``, ``TypeError``, ``LookupError``
    or ``OverflowError`` for what is none."""
    if line[:9] != b"%08x " % zlib.crc32(line[9:]):
        raise ValueError("its checksum is wrong")
    number, *parts = msgspec.json.decode(line[9:], type=list[msgspec.Raw])
    return msgspec.json.decode(number, type=int), [read_record(part) for part in parts]


def read_record(part: msgspec.Raw) -> Record:
    """One record; exceptions as ``read_line``."""
    name, *values = msgspec.json.decode(part, type=list[msgspec.Raw])
    table = msgspec.json.decode(name, type=str)
    if table == "from":
        return table, tuple(msgspec.json.decode(value, type=int) for value in values)
    columns = TABLES[table].columns
    row = tuple(
        bytes(value) if column in BLOBS else msgspec.json.decode(value)
        for column, value in zip(columns, values, strict=len(values) != 1)
    )
    if len(row) > 1:
        TABLES[table].check(*row)
    elif not isinstance(row[0], int | str):
        raise ValueError("its key is none")
    return table, row


NO_LINE: Final = (ValueError, TypeError, LookupError, OverflowError, RecursionError, msgspec.MsgspecError)
"""What ``read_line`` raises."""


def _read(found: Logged, data: bytes) -> None:
    found.is_there = True
    body = data.rstrip(b"\0")
    expected, n_begin, at, bad = 0, -1, 0, 0
    for line in body.split(b"\n"):
        begin, at = at, at + len(line) + 1
        if begin >= len(body):
            break  # after the last line
        try:
            if at > len(body):
                raise ValueError("it is cut short")
            number, records = read_line(line)
            if begin == 0:
                ((kind, (version, n_lines, found.past_size, found.last_job)),) = records
                if kind != "from" or version != FORMAT:
                    raise ValueError("it is no first line")
                found.first, expected, n_begin = number, number, n_lines
            elif number == found.first and n_begin > 0:
                n_begin -= 1
                found.take(number, records)
            else:
                found.damaged += max(number - expected - 1, bad) if n_begin == 0 else bad
                expected = number
                found.commits.append((number, records))
                found.take(number, records)
            bad, found.end, found.number = 0, at, max(found.number, number)
            if n_begin == 0 and not found.begin_size:
                found.begin_size = at
        except NO_LINE:
            bad += 1
    # one line after the last whole one is that of a commit which was never answered
    found.is_torn = bad > 0
    found.is_cut = len(body) == len(data)
    found.damaged += max(bad - 1, 0) + max(n_begin, 0) + (n_begin < 0) + found.is_cut


def _read_past(found: Logged, data: bytes) -> None:
    """The jobs that have ended; what the log says of a job is newer. Next to a damaged log all that is there counts."""
    size = found.past_size if found.is_whole else len(data)
    found.damaged += len(data) < size  # bytes that count are missing there
    for line in filter(None, data[:size].split(b"\n")):
        try:
            number, records = read_line(line)
        except NO_LINE:
            found.damaged += 1
            continue
        for table, row in records:
            known = found.rows.get((table, row[0]))
            if known is None or known[0] < number:
                found.rows[table, row[0]] = number, row


def _line(number: int, records: Iterable[Record]) -> bytes:
    parts = [
        (table, *(msgspec.Raw(value) if isinstance(value, bytes) else value for value in row)) for table, row in records
    ]
    text = msgspec.json.encode((number, *parts))
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _replace(path: Path, lines: Iterable[bytes], reserve: int = 0) -> int:
    """Write the file again, in one piece; returns its size without what is reserved after it."""
    part = path.with_name(f"{path.name}.new")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    size, waiting = 0, b""
    try:
        for line in lines:
            waiting += line
            if len(waiting) >= CHUNK:
                size, waiting = _write(descriptor, waiting, size), b""
        size = _write(descriptor, waiting, size)
        if reserve:
            os.posix_fallocate(descriptor, size, reserve)
        os.fsync(descriptor)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    os.replace(part, path)
    sync_directory(path.parent)
    return size


def _put(descriptor: int, data: bytes, at: int) -> None:
    """Write all of it there, and sync."""
    _write(descriptor, data, at)
    os.fdatasync(descriptor)


def _write(descriptor: int, data: bytes, at: int) -> int:
    """Write all of it there; returns where it ends."""
    while data:
        written = os.pwrite(descriptor, data, at)
        data, at = data[written:], at + written
    return at


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)

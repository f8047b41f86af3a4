"""The second copies of a store of versions 5 and 6 (nodectl 0.1 and 0.2), which had no log of commits.

``cluster.db-copy`` has the epoch, the nodes and the budget, ``cluster.db-jobs`` and ``cluster.db-ended`` the records of
jobs and of nodes without jobs. They are read only where such a store is damaged or missing, and removed once the store
has a log.

    00000000000000000417                     the first line of -copy: a commit that the store had
    ["member",0,"n01",{...}]                 a line of -copy
    [17,"job",5,1000,"running",null,{...}]   of -jobs and -ended: the number of the transaction, and a record
    [19,"job",5]                             of -jobs: it has ended; of another table: it is gone
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from cluster_agent.errors import StoreError
from cluster_agent.store.commit_log import NO_LINE, Logged, read_record
from cluster_agent.store.records import Row

SUFFIXES = ("-copy", "-jobs", "-ended")


@dataclass(slots=True)
class OldCopies:
    """What they say. ``commit``: the store had this one; ``job_number``: and this transaction of jobs."""

    is_there: bool = False
    commit: int = 0
    job_number: int = 0
    ledger: dict[tuple[str, Any], Row] = field(default_factory=dict)
    jobs: dict[tuple[str, Any], tuple[int, Row | None]] = field(default_factory=dict)
    knows_jobs: bool = False

    def next_to(self, commit: int, job_number: int) -> Logged:
        """As a log next to a store that has this commit: what is newer there counts as a later commit."""
        has_more = self.commit > commit or self.job_number > job_number
        found = Logged(is_there=self.is_there, damaged=1, number=commit + has_more, knows_jobs=self.knows_jobs)
        for key, row in self.ledger.items():
            found.rows[key] = commit + (self.commit > commit), row
        for key, (number, row_or_none) in self.jobs.items():
            found.rows[key] = commit + (number > job_number), row_or_none
        return found


def read_old_copies(store: Path) -> OldCopies:
    """What the copies of this store say; what is damaged in them is left out."""
    found, is_whole = OldCopies(), True
    for line in _lines(store, "-copy", found):
        with contextlib.suppress(*NO_LINE):
            if (text := _checked(line)).isdigit():
                found.commit = int(text)
            else:
                _take_ledger(found, text)
    begun = 0
    for suffix in ("-ended", "-jobs"):
        for line in filter(None, _lines(store, suffix, found)):
            try:
                number, *parts = msgspec.json.decode(_checked(line), type=list[msgspec.Raw])
                count = msgspec.json.decode(number, type=int)
                if parts[:1] == [msgspec.Raw(b'"from"')]:
                    begun += 1
                else:
                    table, row = read_record(msgspec.Raw(msgspec.json.encode(parts)))
                    known, _ = found.jobs.get((table, row[0]), (-1, None))
                    has_ended = table == "job" and len(row) == 1  # its record is in -ended, which was read first
                    is_whole &= not has_ended or known >= count
                    if count >= known and not has_ended:
                        found.jobs[table, row[0]] = count, row if len(row) > 1 else None
                found.job_number = max(found.job_number, count)
            except NO_LINE:
                is_whole = False
    found.knows_jobs = is_whole and begun >= 2
    return found


def remove_old_copies(store: Path) -> None:
    """The store has a log."""
    for suffix in SUFFIXES:
        Path(f"{store}{suffix}").unlink(missing_ok=True)


def _lines(store: Path, suffix: str, found: OldCopies) -> Iterator[bytes]:
    try:
        data = Path(f"{store}{suffix}").read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"{store}{suffix}: cannot read it: {error.strerror}") from None
    found.is_there = True
    yield from data.split(b"\n")


def _checked(line: bytes) -> bytes:
    if int(line[:8], 16) != zlib.crc32(line[9:]):
        raise ValueError("its checksum is wrong")
    return line[9:]


def _take_ledger(found: OldCopies, text: bytes) -> None:
    kind, *values = msgspec.json.decode(text, type=list[msgspec.Raw])
    name = msgspec.json.decode(kind, type=str)
    if name == "epoch":
        row: list[Any] = ["owner", 1, *values, ""]
    elif name == "budget":
        row = ["budget", 1, *values]
    elif name == "member":
        row = ["member", *values]
    else:
        return
    table, values_of = read_record(msgspec.Raw(msgspec.json.encode(row)))
    found.ledger[table, values_of[0]] = values_of

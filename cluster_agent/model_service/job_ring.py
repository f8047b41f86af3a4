"""The jobs that models are trained and judged on: a ring of records of one size on the disk, the oldest overwritten.

A record is ten words of 64 bits, of which the last is a checksum of the others (multilinear hashing modulo 2^64 with
odd factors: Thorup, High Speed Hashing for Integers and Strings, 2015). So a change of any one word is always found,
and NumPy checks millions of records in some hundredths of a second. The number of a record, from 1 on, decides its
place, so a reader knows which record must be where: one that a kill cut off, or that anybody damaged, is left out and
counted, and the next append takes the place of a tail that is not there. Users and names are words of a keyed hash.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from cluster_agent.errors import ClusterError
from foundation.planted_links import open_safely

RECORD: Final = np.dtype(
    [
        ("number", "<u8"), ("job", "<u8"), ("user", "<u8"), ("text", "<u8"), ("shape", "<u8"), ("submitted_s", "<f8"),
        ("ended_s", "<f8"), ("node_w", "<f4"), ("most_w", "<f4"), ("nodes", "<u4"), ("request_s", "<u4"),
        ("check", "<u8"),
    ]
)  # fmt: skip
"""``node_w``, ``most_w``: mean and highest watts of one node. ``job``, ``user``, ``text``, ``shape``: hashes."""

WORDS: Final = RECORD.itemsize // 8
FORMAT: Final = 1
CHUNK: Final = 1 << 16
"""Ours: records read at a time, 5 MiB: they stay in the processor's cache."""

DEFAULT_KEPT: Final = 1_000_000
MOST_KEPT: Final = 100_000_000

Records: TypeAlias = npt.NDArray[np.void]
UInt64s: TypeAlias = npt.NDArray[np.uint64]

_FACTORS: Final[UInt64s] = np.array(
    [
        int.from_bytes(hashlib.blake2b(bytes([at]), digest_size=8).digest(), "little") | 1
        for at in range(WORDS - 1)
    ],
    np.uint64,
)  # fmt: skip
_START: Final = np.uint64(0x9E3779B97F4A7C15)
"""So that a record of zeros is none."""

_HEADER: Final = re.compile(rb"nodectl job ring, version (\d+), (\d+) records *\n")


def checks_of(records: Records) -> UInt64s:
    """The checksum of each record."""
    words = records.view(np.uint64).reshape(-1, WORDS)
    found = np.full(len(words), _START, np.uint64)
    for at in range(WORDS - 1):
        found += words[:, at] * _FACTORS[at]
    return found


class JobRing:
    """``path``: the file, made with room for ``kept`` records if it is missing. ``ClusterError`` in one line for a file
    that is none, is of a newer version, or cannot be read."""

    def __init__(self, path: Path, kept: int = DEFAULT_KEPT, hint: int = 0) -> None:
        """``hint``: the number of a record that was there; spares a look at the whole file."""
        self._path = path
        try:
            self._file = open_safely(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ClusterError(f"{path}: cannot be opened: {error.strerror}") from None
        try:
            self.kept = self._room(kept)
            self.head = self._find_head(hint)
        except BaseException:
            self.close()
            raise
        self.damaged = 0
        """Records that were left out by ``since``."""

    def close(self) -> None:
        """The file."""
        os.close(self._file)

    def append(self, records: Records) -> None:
        """Number these records, and write them to the disk. ``ClusterError``, and they are not there, if that fails."""
        records = records[-self.kept :]
        records["number"] = np.arange(self.head + 1, self.head + 1 + len(records), dtype=np.uint64)
        records["check"] = checks_of(records)
        first = self.head % self.kept
        here = min(len(records), self.kept - first)
        try:
            for part, place in ((records[:here], first), (records[here:], 0)):
                self._write(part.tobytes(), place)
            os.fdatasync(self._file)
        except OSError as error:
            raise ClusterError(f"{self._path}: cannot be written: {error.strerror}; nothing was added") from None
        self.head += len(records)

    def since(self, number: int) -> Iterator[Records]:
        """The valid records after this one, the oldest first, some thousand at a time."""
        at = max(number, self.head - self.kept, 0)
        while at < self.head:
            place = at % self.kept
            count = min(CHUNK, self.head - at, self.kept - place)
            records = self._read(place, count)
            is_valid = self._is_valid(records, at)
            self.damaged += count - int(is_valid.sum())
            at += count
            yield records if is_valid.all() else records[is_valid]

    def last(self, count: int) -> Records:
        """At most so many of the newest."""
        return np.concatenate([np.zeros(0, RECORD), *self.since(self.head - count)])

    def forget(self, user: int) -> int:
        """Make records of this user nobody's, on the disk as well; how many. ``ClusterError`` if that fails."""
        found = 0
        for place in range(0, min(self.head, self.kept), CHUNK):
            records = self._read(place, min(CHUNK, self.kept - place))
            is_whole = (records["check"] == checks_of(records)) & (records["user"] == user)
            if not is_whole.any():
                continue
            for name in ("job", "user", "text"):
                records[name][is_whole] = 0
            records["check"][is_whole] = checks_of(records)[is_whole]
            found += int(is_whole.sum())
            try:
                self._write(records.tobytes(), place)
                os.fdatasync(self._file)
            except OSError as error:
                raise ClusterError(f"{self._path}: cannot be written: {error.strerror}") from None
        return found

    def _room(self, kept: int) -> int:
        header = os.pread(self._file, RECORD.itemsize, 0)
        if not header.strip(b"\0"):
            header = b"nodectl job ring, version %d, %d records" % (FORMAT, kept)
            try:
                self._write(header.ljust(RECORD.itemsize - 1) + b"\n", -1)
                os.fsync(self._file)
            except OSError as error:
                raise ClusterError(f"{self._path}: cannot be written: {error.strerror}") from None
            return kept
        found = _HEADER.fullmatch(header)
        if found is None:
            raise ClusterError(f"{self._path}: is no ring of jobs, or its first line is damaged: move it away")
        if int(found[1]) > FORMAT:
            raise ClusterError(f"{self._path}: was made by a newer nodectl (version {int(found[1])} of the format)")
        return min(max(int(found[2]), 1), MOST_KEPT)

    def _find_head(self, hint: int) -> int:
        """The number of the newest record. It follows one that is known, or is the highest of the file."""
        at = hint
        if at > 0 and self._is_valid(self._read((at - 1) % self.kept, 1), at - 1).all():
            while True:
                place = at % self.kept
                records = self._read(place, min(CHUNK, self.kept - place))
                valid = np.flatnonzero(self._is_valid(records, at))
                if not len(valid):
                    return at
                at += int(valid[-1]) + 1
        return self._highest()

    def _highest(self) -> int:
        highest = 0
        slots = (os.fstat(self._file).st_size // RECORD.itemsize) - 1
        for place in range(0, min(slots, self.kept), CHUNK):
            records = self._read(place, min(CHUNK, self.kept - place))
            is_whole = records["check"] == checks_of(records)
            is_whole &= (records["number"] - 1) % np.uint64(self.kept) == np.arange(place, place + len(records))
            if is_whole.any():
                highest = max(highest, int(records["number"][is_whole].max()))
        return highest

    def _is_valid(self, records: Records, before: int) -> npt.NDArray[np.bool_]:
        numbers = np.arange(before + 1, before + 1 + len(records), dtype=np.uint64)
        valid: npt.NDArray[np.bool_] = (records["number"] == numbers) & (records["check"] == checks_of(records))
        return valid

    def _read(self, place: int, count: int) -> Records:
        """Records from this place on; fewer at the end of the file."""
        try:
            content = os.pread(self._file, count * RECORD.itemsize, (place + 1) * RECORD.itemsize)
        except OSError as error:
            raise ClusterError(f"{self._path}: cannot be read: {error.strerror}") from None
        whole = len(content) // RECORD.itemsize
        found = np.zeros(count, RECORD)
        found[:whole] = np.frombuffer(content, RECORD, whole)
        return found

    def _write(self, content: bytes, place: int) -> None:
        view, at = memoryview(content), (place + 1) * RECORD.itemsize
        while view:
            written = os.pwrite(self._file, view, at)
            view, at = view[written:], at + written

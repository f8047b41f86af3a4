"""Reading a journal: records in order, as they were appended.

Damage never hides what is whole. A record cut short at the end (the agent was killed, the machine went down) ends its
segment; so does a damaged one, since what follows are differences to it. Reading continues with the next segment, which
needs no other one. What was skipped is listed in ``problems`` and counted in ``loss``. The end of a run that was cut
short is only reported; ``loss.is_damage`` is true where a record was lost that had been written.
"""

from __future__ import annotations

import fnmatch
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from foundation.shell.errors import plain_reason
from nodectl.decide.node_cap import NO_CAP, PackageCap
from nodectl.journal.format import (
    HEADER,
    KEYFRAME,
    LONGEST_PAYLOAD,
    MAGIC,
    RECORD,
    SEGMENT_PATTERN,
    JournalError,
    Keyframe,
    RecordedOutcome,
    Shape,
    checksum,
    decode_keyframe,
    decode_record,
    impossible_clocks,
)
from nodectl.journal.packing import Row, unpack
from nodectl.policies.api import Request
from pmu.readings import NO_RAW_HINTS, RAW_HIGHEST, RawSweep, type_i64, type_u8

CUT_SHORT, DAMAGE = "a record is cut short", "damage"

MOST_LOOKS = 16
"""Ours: of every byte behind a damage, in the search for records."""

KIND_AT = HEADER.size - 1
_KIND = re.compile(b"[%c%c]" % (KEYFRAME, RECORD))


@dataclass(frozen=True, slots=True)
class Record:
    """One tick as recorded. ``keyframe``: the last one before it; ``follows_keyframe``: this is the first record after.

    ``previous`` is the sweep before (None at the start of a run). ``requests`` in the order of ``keyframe.policies``,
    ``values`` and ``bound`` in that of ``keyframe.knobs``; without ``has_decided`` no policy decided at this tick.
    ``cap``: the input of the decisions in addition to the sweep.
    """

    keyframe: Keyframe
    follows_keyframe: bool
    sequence: int
    previous: RawSweep | None
    raw: RawSweep
    has_decided: bool
    requests: tuple[Request, ...]
    values: type_i64
    bound: type_u8
    outcomes: list[RecordedOutcome]
    lateness_ns: int
    cost_ns: int
    cap: PackageCap = NO_CAP


@dataclass(slots=True)
class Loss:
    """What could not be read: ``n_bytes`` of segments, and ``records`` that a run's own numbering misses."""

    n_bytes: int = 0
    records: int = 0
    is_damage: bool = False

    def __str__(self) -> str:
        if not self.is_damage:
            return f"the end of a run is cut short: {self.n_bytes} bytes skipped" if self.n_bytes else ""
        known = f" and {self.records} records" if self.records else ""
        return f"the journal is damaged: {self.n_bytes} bytes{known} lost"


@dataclass(slots=True)
class Journal:
    """Segments in order. Iterate for the records, any number of times; ``problems`` and ``loss`` are of the last."""

    segments: list[Path]
    problems: list[str] = field(default_factory=list)
    loss: Loss = field(default_factory=Loss)
    position: int = 0  # bytes read so far, of ``size``
    _next: dict[str, int] = field(default_factory=dict)  # by run: the number of its next record

    @property
    def place(self) -> Path:
        """What was opened: the segment, or the directory of several."""
        return self.segments[0] if len(self.segments) == 1 else self.segments[0].parent

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(path.stat().st_size for path in self.segments if path.exists())

    def __iter__(self) -> Iterator[Record]:
        self.problems.clear()
        self._next.clear()
        self.loss, self.position = Loss(), 0
        for path in self.segments:
            try:
                file = path.open("rb")
            except FileNotFoundError:
                self.problems.append(f"{path}: dropped while reading: the journal is still being written")
                continue
            except OSError as error:
                raise JournalError(f"{path}: cannot read: {error.strerror}") from error
            with file:
                yield from self._records(file, path)

    def _records(self, file: BinaryIO, path: Path) -> Iterator[Record]:
        magic = file.read(len(MAGIC))
        if magic != MAGIC:
            if MAGIC.startswith(magic):  # killed in the instant of its first write
                return
            self._skip(path, 0, "is no journal segment (of this version)", None)
            return
        reader: _Reader | None = None
        while True:
            at = file.tell()
            problem, kind, payload = _next_frame(file)
            if problem:
                self._skip(path, at, problem, reader)
            if not payload:
                return
            try:
                if kind == KEYFRAME:
                    reader = _Reader(decode_keyframe(payload))
                    self._find_gap(reader.keyframe)
                    continue
                if reader is None:
                    raise ValueError("a record before any keyframe")
                record = reader.next(payload)
            except (ValueError, OverflowError, RecursionError, zlib.error, msgspec.MsgspecError) as error:
                self._skip(path, at, plain_reason(str(error)), reader)
                return
            self._next[record.keyframe.run] = record.sequence + 1
            self.position += HEADER.size + len(payload)
            yield record

    def _skip(self, path: Path, at: int, problem: str, reader: _Reader | None) -> None:
        """Skip the segment from byte ``at`` on. It counts as cut short only if no whole record follows, or only zeros,
        which the end of a file may be after a power cut; else as damaged."""
        with path.open("rb") as file:
            file.seek(at)
            rest = file.read()
        whole = _whole_records(rest)
        if problem == CUT_SHORT and whole:
            problem = DAMAGE
        elif not rest.strip(b"\0"):
            problem = CUT_SHORT
        self.problems.append(f"{path}: {problem} at byte {at}; the last {len(rest)} bytes are skipped")
        self.loss.n_bytes += len(rest)
        if problem == CUT_SHORT:
            return
        self.loss.is_damage = True
        lost = whole + (problem == DAMAGE)
        self.loss.records += lost
        if reader:
            self._next[reader.keyframe.run] = reader.sequence + lost

    def _find_gap(self, keyframe: Keyframe) -> None:
        """A run that continues with a higher number than expected has lost records, even if no damage was seen."""
        expected = self._next.get(keyframe.run, keyframe.sequence)
        if keyframe.sequence > expected:
            self.loss.records += keyframe.sequence - expected
            self.loss.is_damage = True


def open_journal(path: str | Path) -> Journal:
    """The journal in a directory, or a single segment; ``JournalError`` if there is none."""
    place = Path(path)
    try:
        if place.is_dir():
            names = [name for name in os.listdir(place) if fnmatch.fnmatchcase(name, SEGMENT_PATTERN)]
            segments = [place / name for name in sorted(names)]
            why = "has no journal segments"
        else:
            with place.open("rb") as file:
                segments = [place] if file.read(len(MAGIC)) == MAGIC else []
            why = "is no journal segment (of this version)"
    except FileNotFoundError:
        segments, why = [], "is not there"
    except OSError as error:
        raise JournalError(f"{place}: cannot read: {error.strerror}") from error
    if not segments:
        raise JournalError(f"{place}: {why}; a journal is a directory of journal-NNNNNNNN.seg files")
    return Journal(segments)


class _Reader:
    """Adds up differences, from one keyframe on."""

    def __init__(self, keyframe: Keyframe) -> None:
        if problem := impossible_clocks(keyframe.layout):
            raise ValueError(problem)
        self.keyframe = keyframe
        self._shape = Shape(keyframe.layout, tuple(policy.size for policy in keyframe.policies), len(keyframe.knobs))
        self.sequence = keyframe.sequence
        self._raw: RawSweep | None = None
        before = np.zeros(self._shape.n_raw, np.int64)
        if keyframe.previous:
            time_ns, data = keyframe.previous
            before = np.frombuffer(data, "<i8").astype(np.int64)
            hinted = keyframe.hinted or NO_RAW_HINTS
            self._raw = self._shape.raw(Row(before, np.zeros(0), np.zeros(0, np.uint8)), time_ns, keyframe.told, hinted)
        self._row = self._shape.start(before)

    def next(self, payload: bytes) -> Record:
        """The record in ``payload``; raises on damage."""
        packed = decode_record(payload)
        if self._raw is not None and not self._raw.time_ns < packed.time_ns <= RAW_HIGHEST:
            raise ValueError(f"a sweep at {packed.time_ns} ns after one at {self._raw.time_ns} ns")
        self._row = unpack(packed.row, self._row)
        raw = self._shape.raw(self._row, packed.time_ns, packed.told, packed.hinted)
        requests, values, bound = self._shape.decided(self._row)
        record = Record(
            self.keyframe,
            self.sequence == self.keyframe.sequence,
            self.sequence,
            self._raw,
            raw,
            packed.has_decided,
            requests if packed.has_decided else (),
            values,
            bound,
            packed.outcomes,
            packed.lateness_ns,
            packed.cost_ns,
            PackageCap(packed.cap_mw, packed.cap_is_local),
        )
        self.sequence += 1
        self._raw = raw
        return record


def _next_frame(file: BinaryIO) -> tuple[str, int, bytes]:
    """What is wrong (or ""), the kind, and the payload (empty: no more)."""
    header = file.read(HEADER.size)
    if not header:
        return "", 0, b""
    if len(header) < HEADER.size:
        return CUT_SHORT, 0, b""
    length, expected, kind = HEADER.unpack(header)
    if not 0 < length <= LONGEST_PAYLOAD:
        return DAMAGE, 0, b""
    payload = file.read(length)
    if len(payload) < length:
        return CUT_SHORT, 0, b""
    if checksum(kind, payload) != expected:
        return DAMAGE, 0, b""
    return "", kind, payload


def _whole_records(data: bytes) -> int:
    """How many undamaged records are in ``data``, wherever they begin. Where bytes look like the heads of long records
    again and again, the search ends after ``MOST_LOOKS``: each head would cost a checksum of all that follows."""
    count, look, left = 0, KIND_AT, MOST_LOOKS * len(data)
    while left >= 0 and (found := _KIND.search(data, look)):
        begin = found.start() - KIND_AT
        length, expected, kind = HEADER.unpack_from(data, begin)
        end = begin + HEADER.size + length
        look = found.end()
        if length == 0 or end > len(data):
            continue
        left -= length
        if checksum(kind, data[begin + HEADER.size : end]) == expected:
            count += kind == RECORD
            look = end + KIND_AT
    return count

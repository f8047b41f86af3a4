"""Reading a journal: records in order, as they were appended.

Damage never hides what is whole. A record cut short at the end (the agent was killed, the machine went down) ends its
segment; so does a damaged one, since what follows is differences to it. Reading goes on with the next segment, which
stands on its own. What was skipped is told in ``problems``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from nodectl.journal.format import (
    HEADER,
    KEYFRAME,
    LONGEST_PAYLOAD,
    MAGIC,
    SEGMENT_PATTERN,
    JournalError,
    Keyframe,
    RecordedOutcome,
    Shape,
    checksum,
    decode_keyframe,
    decode_record,
)
from nodectl.journal.packing import Row, unpack
from nodectl.policies.api import Request
from pmu.readings import RawSweep, type_i64, type_u8


@dataclass(frozen=True, slots=True)
class Record:
    """One tick as recorded. ``keyframe`` is the one it stands on; ``follows_keyframe``: it is the first after it.

    ``previous`` is the sweep before (None at the start of a run). ``requests`` in the order of ``keyframe.policies``,
    ``values`` and ``bound`` in that of ``keyframe.knobs``; without ``has_decided`` no policy was asked at this tick.
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


@dataclass(slots=True)
class Journal:
    """Segments in order. Iterate for the records, any number of times; ``problems`` is of the last time."""

    segments: list[Path]
    problems: list[str] = field(default_factory=list)
    position: int = 0  # bytes read so far, of ``size``

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(path.stat().st_size for path in self.segments if path.exists())

    def __iter__(self) -> Iterator[Record]:
        self.problems.clear()
        self.position = 0
        for path in self.segments:
            try:
                with path.open("rb") as file:
                    yield from self._records(file, path)
            except FileNotFoundError:
                self.problems.append(f"{path}: dropped while reading: the journal is still being written")

    def _records(self, file: BinaryIO, path: Path) -> Iterator[Record]:
        if file.read(len(MAGIC)) != MAGIC:
            self.problems.append(f"{path}: is no journal segment (of this version), skipped")
            return
        reader: _Reader | None = None
        while True:
            at = file.tell()
            problem, kind, payload = _next_frame(file)
            if problem:
                left = path.stat().st_size - at
                self.problems.append(f"{path}: {problem} at byte {at}; the last {left} bytes are skipped")
            if not payload:
                return
            try:
                if kind == KEYFRAME:
                    reader = _Reader(decode_keyframe(payload))
                    continue
                if reader is None:
                    raise ValueError("a record before any keyframe")
                record = reader.next(payload)
            except (ValueError, zlib.error, msgspec.MsgspecError) as error:
                self.problems.append(f"{path}: {error} at byte {at}; the rest of this segment is skipped")
                return
            self.position += HEADER.size + len(payload)
            yield record


def open_journal(path: str | Path) -> Journal:
    """The journal in a directory, or a single segment; ``JournalError`` if there is none."""
    place = Path(path)
    if place.is_file():
        return Journal([place])
    segments = sorted(place.glob(SEGMENT_PATTERN))
    if not segments:
        why = "holds no journal segments" if place.is_dir() else "is not there"
        raise JournalError(f"{place}: {why}; a journal is a directory of journal-NNNNNNNN.seg files")
    return Journal(segments)


class _Reader:
    """Adds differences up, from one keyframe on."""

    def __init__(self, keyframe: Keyframe) -> None:
        self._keyframe = keyframe
        self._shape = Shape(keyframe.layout, tuple(policy.size for policy in keyframe.policies), len(keyframe.knobs))
        self._sequence = keyframe.sequence
        self._raw: RawSweep | None = None
        before = np.zeros(self._shape.n_raw, np.int64)
        if keyframe.previous:
            time_ns, data = keyframe.previous
            before = np.frombuffer(data, "<i8").astype(np.int64)
            self._raw = self._shape.raw(Row(before, np.zeros(0), np.zeros(0, np.uint8)), time_ns)
        self._row = self._shape.start(before)

    def next(self, payload: bytes) -> Record:
        """The record in ``payload``; raises on damage."""
        packed = decode_record(payload)
        self._row = unpack(packed.row, self._row)
        raw = self._shape.raw(self._row, packed.time_ns)
        requests, values, bound = self._shape.decided(self._row)
        record = Record(
            self._keyframe,
            self._sequence == self._keyframe.sequence,
            self._sequence,
            self._raw,
            raw,
            packed.has_decided,
            requests if packed.has_decided else (),
            values,
            bound,
            packed.outcomes,
            packed.lateness_ns,
            packed.cost_ns,
        )
        self._sequence += 1
        self._raw = raw
        return record


def _next_frame(file: BinaryIO) -> tuple[str, int, bytes]:
    """What is wrong (or ""), the kind, and the payload (empty: no more)."""
    header = file.read(HEADER.size)
    if not header:
        return "", 0, b""
    if len(header) < HEADER.size:
        return "a record is cut short", 0, b""
    length, expected, kind = HEADER.unpack(header)
    if not 0 < length <= LONGEST_PAYLOAD:
        return "damage", 0, b""
    payload = file.read(length)
    if len(payload) < length:
        return "a record is cut short", 0, b""
    if checksum(kind, payload) != expected:
        return "damage", 0, b""
    return "", kind, payload

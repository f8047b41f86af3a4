"""Writing a journal while the agent runs: one append per tick, and never more than ``max_bytes`` on the disk.

A segment is an eighth of that, 64 MB at most. Before a new one is begun, the oldest are deleted until it fits, those of
earlier runs included; for this a directory has one writer at a time (``.lock``). Records go to the kernel at once, so
the end of a killed agent's journal is readable. The kernel writes them to the disk later, since waiting for the disk
would make a tick late.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from foundation import __version__
from foundation.planted_links import open_safely
from foundation.shell.extension import Extension
from nodectl.decide.decisions import Decisions, PolicyDecision
from nodectl.decide.node_cap import NO_CAP
from nodectl.journal.format import (
    KEYFRAME,
    MAGIC,
    RECORD,
    SEGMENT_PATTERN,
    AddedPolicy,
    CappedRecord,
    HintRecord,
    JournalError,
    Keyframe,
    PackedRecord,
    ProgressRecord,
    RecordedOutcome,
    RecordedPolicy,
    Shape,
    encode_keyframe,
    encode_record,
    frame,
    segment_name,
)
from nodectl.journal.packing import Row, pack
from nodectl.journal.state import StateError, encode_state
from nodectl.knobs.api import Outcome
from nodectl.policies.api import Policy
from nodectl.write.lock import FileLock
from pmu.layout import Layout
from pmu.readings import NO_RAW_HINTS, NO_RAW_PROGRESS, RawSweep, type_i64

DEFAULT_MAX_BYTES = 1_000_000_000
SEGMENTS, LARGEST_SEGMENT = 8, 64_000_000
LOCK_NAME = ".lock"


class JournalWriter:
    """Appends one run to the journal in ``directory``. Raises ``JournalError`` when it cannot write, ``LockError`` when
    another run writes there. ``added``: policies that do not ship with nodectl."""

    def __init__(
        self,
        directory: str | Path,
        layout: Layout,
        config: msgspec.Struct,
        max_bytes: int = DEFAULT_MAX_BYTES,
        added: Sequence[Extension[Policy]] = (),
    ) -> None:
        self._dir = Path(directory)
        self._layout = layout
        self._config = msgspec.to_builtins(config)
        self._max_bytes = max_bytes
        self._added = {
            found.value.name: AddedPolicy(found.value.domain, found.value.reasons, found.origin)
            for found in added
            if found.origin
        }
        self._segment_bytes = min(max_bytes // SEGMENTS, LARGEST_SEGMENT)
        self._run = uuid.uuid4().hex
        self._sequence = 0
        self._knobs: tuple[str, ...] = ()
        self._policies: tuple[str, ...] = ()
        self._last_outcomes: dict[str, Outcome] = {}
        self._previous: RawSweep | None = None
        self._shape = Shape(layout, (), 0)
        self._row: Row = self._shape.start(np.zeros(self._shape.n_raw, np.int64))
        self._fd, self._size = -1, 0
        claim, fix = "already writes a journal in this directory", "--journal or journal.dir names another directory"
        self._lock = FileLock(str(self._dir / LOCK_NAME), claim, fix)
        try:
            self._dir.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            self._older = {path: path.stat().st_size for path in sorted(self._dir.glob(SEGMENT_PATTERN))}
        except OSError as error:
            self._lock.release()
            raise JournalError(f"{self._dir}: cannot keep a journal here: {error.strerror}") from error
        self._number = max((int(path.stem.rpartition("-")[2]) for path in self._older), default=0)

    def append(
        self, raw: RawSweep, decisions: Decisions, outcomes: Sequence[Outcome], lateness_ns: int, cost_ns: int
    ) -> None:
        """Write one tick: the sweep, the decisions, the outcomes of the knobs, and how late and costly it was.

        An outcome is written when it differs from the knob's last one; "unchanged" never is.
        """
        has_decided = bool(decisions.policies or decisions.knobs)
        self._continue_in(raw, decisions, has_decided)
        if has_decided:
            requests = [decision.request for decision in decisions.policies]
            row = self._shape.row(raw, requests, decisions.values, decisions.bound)
        else:
            row = self._shape.undecided(raw, self._row)
        packed = pack(row, self._row)
        news = self._news(outcomes)
        tick = (raw.time_ns, lateness_ns, cost_ns, has_decided, packed, news)
        cap = decisions.cap
        if raw.hints != NO_RAW_HINTS:
            record: PackedRecord = HintRecord(*tick, cap.packages_mw, cap.is_local, raw.progress, raw.hints)
        elif raw.progress != NO_RAW_PROGRESS:
            record = ProgressRecord(*tick, cap.packages_mw, cap.is_local, raw.progress)
        else:
            record = PackedRecord(*tick) if cap == NO_CAP else CappedRecord(*tick, cap.packages_mw, cap.is_local)
        self._write(frame(RECORD, encode_record(record)))
        self._row, self._previous = row, raw
        self._sequence += 1

    def begin_again(self) -> None:
        """What comes next is a run of its own: its policies begin from states that no decision before has left."""
        self._close_segment()
        self._run, self._sequence = uuid.uuid4().hex, 0

    def close(self) -> None:
        """Put the end on the disk, close, and release the directory for the next run."""
        self._close_segment()
        self._lock.release()

    def _close_segment(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # a journal is not worth failing the stop of an agent
                os.fdatasync(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _continue_in(self, raw: RawSweep, decisions: Decisions, has_decided: bool) -> None:
        """Begin a segment, or continue from a keyframe, where this tick needs one.

        A full segment continues until a tick that decides (if any ever did): only that one has the policies' states.
        """
        is_full = self._size >= self._segment_bytes
        names = tuple(decision.policy for decision in decisions.policies) if has_decided else self._policies
        is_other = has_decided and (names != self._policies or decisions.knobs != self._knobs)
        begins_segment = self._fd < 0 or (is_full and (has_decided or not self._knobs))
        if not (begins_segment or is_other):
            return
        self._policies, self._knobs = tuple(d.policy for d in decisions.policies), decisions.knobs
        sizes = tuple(decision.request.target.size for decision in decisions.policies)
        self._shape = Shape(self._layout, sizes, len(decisions.knobs))
        before = self._shape.raw_ints(self._previous) if self._previous else np.zeros(self._shape.n_raw, np.int64)
        data = frame(KEYFRAME, encode_keyframe(self._keyframe(raw, decisions, before)))
        if begins_segment:
            self._begin_segment(len(data))
        self._write(data)
        self._row = self._shape.start(before)

    def _keyframe(self, raw: RawSweep, decisions: Decisions, before: type_i64) -> Keyframe:
        """All that a reader needs to decide again from this tick on; ``before``: the previous sweep's readings."""
        previous = self._previous
        return Keyframe(
            version=__version__,
            run=self._run,
            sequence=self._sequence,
            wall_time_ns=time.time_ns(),
            monotonic_ns=raw.time_ns,
            layout=self._layout,
            config=self._config,
            knobs=decisions.knobs,
            policies=tuple(map(_recorded, decisions.policies)),
            previous=(previous.time_ns, before.astype("<i8").tobytes()) if previous else None,
            told=previous.progress if previous else NO_RAW_PROGRESS,
            hinted=previous.hints if previous and previous.hints != NO_RAW_HINTS else None,
            added=self._added,
        )

    def _news(self, outcomes: Sequence[Outcome]) -> list[RecordedOutcome]:
        news = []
        for outcome in outcomes:
            if outcome.status == "unchanged" or self._last_outcomes.get(outcome.knob) is outcome:
                continue
            self._last_outcomes[outcome.knob] = outcome
            news.append(RecordedOutcome(outcome.knob, outcome.status, outcome.detail, outcome.reason))
        return news

    def _begin_segment(self, first_frame_bytes: int) -> None:
        self._close_segment()
        if self._size:
            self._older[self._dir / segment_name(self._number)] = self._size
        room = self._max_bytes - max(self._segment_bytes + first_frame_bytes, 2 * first_frame_bytes)
        while self._older and sum(self._older.values()) > room:
            oldest = next(iter(self._older))
            with contextlib.suppress(FileNotFoundError):
                oldest.unlink()
            del self._older[oldest]
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        try:
            while self._fd < 0:
                self._number += 1
                with contextlib.suppress(FileExistsError):  # another run's: take the next number
                    self._fd = open_safely(self._dir / segment_name(self._number), flags, 0o640)
        except OSError as error:
            raise JournalError(f"{self._dir}: cannot begin a segment: {error.strerror}") from error
        self._size = 0
        self._write(MAGIC)

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            raise JournalError(f"{self._dir / segment_name(self._number)}: cannot write: {error.strerror}") from error
        self._size += written
        if written != len(data):  # the disk is full: what follows would be unreadable
            raise JournalError(f"{self._dir / segment_name(self._number)}: no space left")


def _recorded(decision: PolicyDecision) -> RecordedPolicy:
    try:
        state = encode_state(decision.state)
    except StateError as error:
        raise JournalError(f"{decision.policy}: {error}") from None
    return RecordedPolicy(decision.policy, decision.request.target.size, msgspec.to_builtins(decision.params), state)

"""The format of a journal on the disk.

A journal is a directory of segments, ``journal-00000001.seg`` and on. A segment is a line of magic and then frames:

    length  u32   of the payload
    crc32   u32   of kind and payload
    kind    u8    'K' keyframe, 'R' record
    payload

A *keyframe* has all that is needed to read and replay what follows without anything before it: layout, settings,
policies with their states, the sweep before. Every segment starts with one; another follows where the set of policies
or knobs changes. A *record* is one tick, as the difference to the tick before (``packing``). Payloads are MessagePack;
a keyframe's is deflated too. All integers are little-endian.

Columns of registered instruments are an addition to format 1. A journal from before them has a layout without
``columns`` and is read as it always was; a node without such instruments still writes those very bytes. A nodectl from
before them reports segments with columns as damaged: their rows are longer than it expects.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from foundation.shell.errors import NodectlError
from foundation.shell.extension import Origin
from nodectl.journal.packing import Row, inflated
from nodectl.policies.api import Request
from pmu.driver_values import MOST_KHZ
from pmu.layout import Layout
from pmu.readings import GPU_FIELDS, NO_RAW_HINTS, NO_RAW_PROGRESS, RawHints, RawProgress, RawSweep, type_i64, type_u8

MAGIC = b"nodectl-journal 1\n"
HEADER = struct.Struct("<IIB")
KEYFRAME, RECORD = ord("K"), ord("R")
LONGEST_PAYLOAD = 1 << 28
"""Ours: no frame comes near; a longer one is damage."""

LONGEST_KEYFRAME = 1 << 25
"""Ours, inflated: some ten times what a node of 8,192 CPUs writes, the most that Linux can be built for."""

LARGEST_ROW = 1 << 20
"""Ours: whole numbers of a tick; with the highest CPU number that ``pmu`` takes there are some 700,000."""

MOST_CLOCKS = 1 << 22
"""Ours: clocks of all knobs of a layout, if each had as many as the one with the most."""

SEGMENT_PATTERN = f"journal-{8 * '[0-9]'}.seg"


class JournalError(NodectlError):
    """A journal cannot be opened or written; the message names file and reason."""


def segment_name(number: int) -> str:
    """File name of a segment; names sort as numbers do."""
    return f"journal-{number:08d}.seg"


class RecordedPolicy(msgspec.Struct, frozen=True, array_like=True):
    """A policy at work when a keyframe was written. ``size`` is the length of its request; ``state`` as encoded by
    ``journal.state`` is the one it decided the next record from."""

    name: str
    size: int
    params: dict[str, Any]
    state: Any


class AddedPolicy(msgspec.Struct, frozen=True):
    """A policy that does not ship with nodectl, so that a journal can be read where it is not installed."""

    domain: str
    reasons: tuple[str, ...]
    origin: Origin


class Keyframe(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that does not change from tick to tick, and where the ticks continue from.

    ``run`` names one run of the agent; ``sequence`` counts its records from 0 and is that of the next record.
    ``wall_time_ns`` (Unix time) and ``monotonic_ns`` were read together, to compute when a tick was. ``previous`` is
    the sweep before the next record: time, and the bytes of its int64 arrays; None at the start of a run. ``told``: the
    application's count in that sweep, ``hinted``: its hints, if it gave any. ``added``: the policies that do not ship
    with nodectl, by name.
    """

    version: str
    run: str
    sequence: int
    wall_time_ns: int
    monotonic_ns: int
    layout: Layout
    config: dict[str, Any]
    knobs: tuple[str, ...]
    policies: tuple[RecordedPolicy, ...]
    previous: tuple[int, bytes] | None
    told: RawProgress = NO_RAW_PROGRESS
    hinted: RawHints | None = None
    added: dict[str, AddedPolicy] = {}


class RecordedOutcome(msgspec.Struct, frozen=True, array_like=True):
    """An ``Outcome`` that was not there at the tick before."""

    knob: str
    status: str
    detail: str
    reason: str


class PackedRecord(msgspec.Struct, frozen=True, array_like=True):
    """One tick. ``has_decided`` is False where no policy decided: the rest of the row is then as before."""

    time_ns: int
    lateness_ns: int
    cost_ns: int
    has_decided: bool
    row: bytes
    outcomes: list[RecordedOutcome]


class CappedRecord(PackedRecord, frozen=True, array_like=True):
    """One tick that was decided under a ``PackageCap``; one without reads as this with the defaults."""

    cap_mw: int = 0
    cap_is_local: bool = True


class ProgressRecord(CappedRecord, frozen=True, array_like=True):
    """One tick in which the application reported progress; one without reads as this with the default."""

    told: RawProgress = NO_RAW_PROGRESS


class HintRecord(ProgressRecord, frozen=True, array_like=True):
    """One tick in which the application gave hints; one without reads as this with the default."""

    hinted: RawHints = NO_RAW_HINTS


class Shape:
    """Where each array lies in a ``Row``.

    Integers: counters by event, zone energies, GPU readings by field (neighbours are alike, which packs better),
    columns of registered instruments, then each policy's targets and the knobs' values. Floats: each policy's loss and
    saving. Bytes: its reasons, the bounds.
    """

    def __init__(self, layout: Layout, policy_sizes: tuple[int, ...], n_knobs: int) -> None:
        self._cpus, self._events = len(layout.cpus), len(layout.events)
        self._zones, self._gpus = len(layout.zones), len(layout.gpus)
        self._columns = len(layout.columns)
        self._sizes = policy_sizes
        self._knobs = n_knobs
        self.n_raw = self._cpus * self._events + self._zones + self._gpus * len(GPU_FIELDS) + self._columns
        self._decided = sum(policy_sizes)
        if min(policy_sizes, default=0) < 0 or self.n_raw + self._decided + n_knobs > LARGEST_ROW:
            raise ValueError(
                f"no tick has {self.n_raw} readings, {n_knobs} knobs and policies of {policy_sizes[:9]} targets"
            )

    def zeros(self) -> Row:
        """An empty row of this shape."""
        return Row.zeros(self.n_raw + self._decided + self._knobs, 2 * self._decided, self._decided + self._knobs)

    def raw_ints(self, raw: RawSweep) -> type_i64:
        """A sweep's integers, in row order."""
        return np.concatenate((raw.counters.T.reshape(-1), raw.energy_uj, raw.gpu.T.reshape(-1), raw.columns))

    def start(self, previous: type_i64) -> Row:
        """The row that the first record after a keyframe differs from: the sweep before, nothing decided."""
        row = self.zeros()
        row.ints[: self.n_raw] = previous
        return row

    def row(self, raw: RawSweep, requests: Sequence[Request], values: type_i64, bound: type_u8) -> Row:
        """One tick as a row."""
        targets = [request.target for request in requests]
        floats = [array for request in requests for array in (request.loss, request.saved_w)]
        reasons = [request.reason for request in requests]
        return Row(
            np.concatenate((self.raw_ints(raw), *targets, values)),
            np.concatenate(floats) if floats else np.zeros(0),
            np.concatenate((*reasons, bound)),
        )

    def undecided(self, raw: RawSweep, before: Row) -> Row:
        """A tick in which no policy decided: the decided part stays as it was."""
        return Row(np.concatenate((self.raw_ints(raw), before.ints[self.n_raw :])), before.floats, before.small)

    def raw(self, row: Row, time_ns: int, told: RawProgress, hinted: RawHints) -> RawSweep:
        """The sweep in a row, with its time and what the application reported."""
        n_counters = self._cpus * self._events
        zones_end = n_counters + self._zones
        counters = row.ints[:n_counters].reshape(self._events, self._cpus).T.copy()
        gpus_end = self.n_raw - self._columns
        gpu = row.ints[zones_end:gpus_end].reshape(len(GPU_FIELDS), self._gpus).T.copy()
        columns = row.ints[gpus_end : self.n_raw].copy()
        return RawSweep(time_ns, counters, row.ints[n_counters:zones_end].copy(), gpu, told, columns, hinted)

    def decided(self, row: Row) -> tuple[tuple[Request, ...], type_i64, type_u8]:
        """The requests, knob values and bounds in a row."""
        requests = []
        at = 0
        for size in self._sizes:
            end = at + size
            target, reason = row.ints[self.n_raw + at : self.n_raw + end], row.small[at:end]
            loss, saved_w = row.floats[2 * at : at + end], row.floats[at + end : 2 * end]
            requests.append(Request(target, reason, loss, saved_w))
            at = end
        return tuple(requests), row.ints[self.n_raw + at :], row.small[at:]


def impossible_clocks(layout: Layout) -> str:
    """Which clocks of a recorded node no node has; empty: none. Tables are made of them, so they are believed only
    within the bounds of ``pmu.instruments.cpufreq``."""
    for domain in layout.domains:
        if not 0 < domain.min_khz <= domain.max_khz < MOST_KHZ:
            return f"no processor has clocks from {domain.min_khz} to {domain.max_khz} kHz"
    knobs = [
        *(domain.steps_khz for domain in layout.domains),
        *(gpu.clocks_mhz for gpu in layout.gpus),
        *(row.steps for row in layout.ranges),
    ]
    most = max(map(len, knobs), default=0)
    return f"no node has {len(knobs)} knobs of {most} clocks" if len(knobs) * most > MOST_CLOCKS else ""


def checksum(kind: int, payload: bytes) -> int:
    """Over kind and payload."""
    return zlib.crc32(payload, zlib.crc32(bytes((kind,))))


def frame(kind: int, payload: bytes) -> bytes:
    """A payload with its header."""
    return HEADER.pack(len(payload), checksum(kind, payload), kind) + payload


def encode_keyframe(keyframe: Keyframe) -> bytes:
    """A keyframe's payload. Empty fields that came after format 1 are left out: journals stay as they were."""
    tree = msgspec.to_builtins(keyframe, builtin_types=(bytes,))
    for holder, name in ((tree, "added"), (tree, "hinted"), (tree["layout"], "columns"), (tree["layout"], "ranges")):
        if not holder[name]:
            del holder[name]
    return zlib.compress(_ENCODER.encode(tree), 1)


def decode_keyframe(payload: bytes) -> Keyframe:
    """Decode a keyframe; ``zlib.error`` or ``msgspec.DecodeError`` for a wrong payload."""
    return _KEYFRAMES.decode(inflated(payload, LONGEST_KEYFRAME))


def encode_record(record: PackedRecord) -> bytes:
    """A record's payload."""
    return _ENCODER.encode(record)


def decode_record(payload: bytes) -> HintRecord:
    """Decode a record; ``msgspec.DecodeError`` for a wrong payload."""
    return _RECORDS.decode(payload)


_ENCODER = msgspec.msgpack.Encoder()
_KEYFRAMES = msgspec.msgpack.Decoder(Keyframe)
_RECORDS = msgspec.msgpack.Decoder(HintRecord)

"""A journal as a table for other programs: CSV, or Parquet where pyarrow is installed (extra ``export``).

One row per tick and part of the node: ``part`` is "agent", "cpu/N" (CPU number), "gpu/N", the name of an energy zone,
of a registered instrument's column (``reading`` in ``unit``), or of what another knob moves
("uncore/package_00_die_00") while a policy does; a knob has a row when its value, its bound or its outcome changes,
"progress" while an application reports any (``units``), "hints/..." while it gives hints (``reading``). Quantities are
those that the policies saw, decoded from the sweeps by the agent's own code. What does not apply to a part, or is
missing, is empty: never 0.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from foundation.shell.errors import UsageError
from nodectl.decide.decisions import BOUNDS
from nodectl.journal.format import JournalError, Keyframe
from nodectl.journal.reading import Journal, Record
from nodectl.policies import registry
from pmu.decode import decode
from pmu.readings import NO_RAW_HINTS, NO_RAW_PROGRESS, Quality

_SHARED = ("run", "record", "unix_s", "elapsed_s")
_CPU = ("ipc", "busy", "stall", "frequency_khz", "instructions", "cycles", "reference_cycles", "llc_misses")
_GPU = (
    "sm_clock_mhz",
    "memory_clock_mhz",
    "power_w",
    "energy_j",
    "temperature_c",
    "gpu_utilization",
    "memory_utilization",
    "sm_occupancy",
    "sm_active",
    "dram_active",
    "throttle_reasons",
)
_HINTS = ("last", "phase", "copies", "kernels", "phases", "waiting")
_REQUEST = ("target", "reason", "loss", "saved_w")
_KNOB = ("value", "bound", "outcome", "detail")
COLUMNS = (
    *_SHARED,
    "part",
    "quality",
    *_CPU,
    *_GPU,
    *_REQUEST,
    *_KNOB,
    "lateness_ms",
    "cost_ms",
    "units",
    "reading",
    "unit",
)

_TEXT = frozenset({"run", "part", "quality", "reason", "bound", "outcome", "detail", "unit"})
_INTEGER = frozenset({"record", "throttle_reasons", "target", "value"})
_QUALITY_NAMES = np.array([quality.name.lower() for quality in Quality], dtype=object)

ROWS_AT_ONCE = 100_000
"""Ours: rows gathered before a Parquet row group is written."""

type_block = Mapping[str, Any]
"""Rows of one kind of part: ``part`` and the columns it has, equally long."""


class _Sink(Protocol):
    def write(self, shared: tuple[Any, ...], block: type_block) -> None: ...

    def close(self) -> None: ...


def export(journal: Journal, target: str, progress: Callable[[Record], None] = lambda record: None) -> int:
    """Write the journal to ``target`` (.csv or .parquet) and return the number of records."""
    with _naming(target):
        sink = _sink(target)
    count = 0
    try:
        view: _View | None = None
        for record in journal:
            if view is None or view.keyframe is not record.keyframe:
                view = _View(record.keyframe)
            unix_s = (record.keyframe.wall_time_ns + record.raw.time_ns - record.keyframe.monotonic_ns) / 1e9
            elapsed_s = (record.raw.time_ns - record.previous.time_ns) / 1e9 if record.previous else float("nan")
            shared = (record.keyframe.run[:8], record.sequence, unix_s, elapsed_s)
            blocks = list(view.blocks(record))
            with _naming(target):
                for block in blocks:
                    sink.write(shared, block)
            count += 1
            progress(record)
    except BaseException:
        with contextlib.suppress(OSError):  # report only the first error
            sink.close()
        raise
    with _naming(target):
        sink.close()
    return count


@contextlib.contextmanager
def _naming(target: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JournalError(f"{target}: cannot write: {error.strerror or error}; it is not complete") from error


class _View:
    """Names and policies that are valid from one keyframe on, and the last state of each knob."""

    def __init__(self, keyframe: Keyframe) -> None:
        self.keyframe = keyframe
        layout = keyframe.layout
        self._cpus = [f"cpu/{cpu}" for cpu in layout.cpus]
        self._gpus = [f"gpu/{gpu.index}" for gpu in layout.gpus]
        self._zones = [zone.name for zone in layout.zones]
        self._columns = [column.name for column in layout.columns]
        self._units = [column.unit for column in layout.columns]
        self._sides = {side: _first_of(keyframe, side) for side in registry.DOMAINS}
        self._ranges: dict[str, list[str]] = {}
        for row in layout.ranges:
            self._ranges.setdefault(row.domain, []).append(row.name.rpartition("/")[0])
        self._knobs_before: list[tuple[int, int]] | None = None  # value and bound of each

    def blocks(self, record: Record) -> Iterator[type_block]:
        """All rows of one record."""
        yield {"part": ["agent"], "lateness_ms": [record.lateness_ns / 1e6], "cost_ms": [record.cost_ns / 1e6]}
        if record.previous is not None:
            sample = decode(self.keyframe.layout, record.previous, record.raw)
            cpu, gpu = sample.cpu, sample.gpu
            columns = {name: getattr(cpu, name) for name in _CPU}
            quality = _QUALITY_NAMES[cpu.quality]
            yield {"part": self._cpus, "quality": quality, **columns, **self._requests(record, "cpu")}
            columns = {name: getattr(gpu, name) for name in _GPU}
            quality = _QUALITY_NAMES[gpu.quality]
            yield {"part": self._gpus, "quality": quality, **columns, **self._requests(record, "gpu")}
            power_w = (
                sample.energy_j / sample.elapsed_s if sample.elapsed_s > 0 else np.full_like(sample.energy_j, np.nan)
            )
            quality = _QUALITY_NAMES[sample.energy_quality]
            yield {"part": self._zones, "quality": quality, "energy_j": sample.energy_j, "power_w": power_w}
            quality = _QUALITY_NAMES[sample.columns.quality]
            yield {"part": self._columns, "quality": quality, "reading": sample.columns.value, "unit": self._units}
            if record.raw.progress != NO_RAW_PROGRESS:
                progress = sample.progress
                yield {"part": ["progress"], "quality": [progress.quality.name.lower()], "units": [progress.units]}
            if record.raw.hints != NO_RAW_HINTS:
                names = [f"hints/{name}" for name in _HINTS]
                readings = [float(getattr(sample.hints, name)) for name in _HINTS]
                yield {"part": names, "quality": [sample.hints.quality.name.lower()] * len(names), "reading": readings}
            for domain, parts in self._ranges.items():
                yield {"part": parts, **self._requests(record, domain)}
        yield self._knobs(record)

    def _requests(self, record: Record, side: str) -> type_block:
        found = self._sides[side]
        if found is None or not record.has_decided:
            return {}
        position, reasons = found
        request = record.requests[position]
        words = [reasons[code] if code < len(reasons) else str(code) for code in request.reason.tolist()]
        return {"target": request.target, "reason": words, "loss": request.loss, "saved_w": request.saved_w}

    def _knobs(self, record: Record) -> type_block:
        """Knobs that changed at this record, and knobs that no policy moves but that have an outcome."""
        if not record.has_decided and not record.outcomes:
            return {"part": []}
        outcomes = {outcome.knob: outcome for outcome in record.outcomes}
        rows = self._changed_knobs(record, outcomes)
        rows += [(name, None, "") for name in outcomes if name not in self.keyframe.knobs]
        found = [outcomes.get(name) for name, _, _ in rows]
        return {
            "part": [name for name, _, _ in rows],
            "value": [value for _, value, _ in rows],
            "bound": [bound for _, _, bound in rows],
            "outcome": [outcome.status if outcome else "" for outcome in found],
            "detail": [outcome.detail if outcome else "" for outcome in found],
        }

    def _changed_knobs(self, record: Record, outcomes: Container[str]) -> list[tuple[str, int | None, str]]:
        """Name, value and bound of each knob where value, bound or outcome is new."""
        now = list(zip(record.values.tolist(), record.bound.tolist(), strict=True))
        before, self._knobs_before = self._knobs_before, now
        return [
            (name, now[row][0], BOUNDS[now[row][1]])
            for row, name in enumerate(self.keyframe.knobs)
            if name in outcomes or before is None or before[row] != now[row]
        ]


def _first_of(keyframe: Keyframe, side: str) -> tuple[int, tuple[str, ...]] | None:
    """The position of the policy of this side of the node, and its reasons; limits come after it."""
    for position, recorded in enumerate(keyframe.policies):
        if added := keyframe.added.get(recorded.name):
            if added.domain == side:
                return position, added.reasons
            continue
        try:
            return position, registry.recorded(recorded.name, side).reasons
        except registry.PolicyError:
            continue  # the other side's
    return None


def _sink(target: str) -> _Sink:
    kinds: dict[str, Callable[[str], _Sink]] = {".csv": _Csv, ".parquet": _Parquet}
    suffix = Path(target).suffix.lower()
    if suffix not in kinds:
        raise UsageError(f"{target}: the name must end in .csv or .parquet, to say what to write")
    return kinds[suffix](target)


class _Csv:
    def __init__(self, target: str) -> None:
        self._file = open(target, "w", newline="", encoding="utf-8")  # noqa: SIM115 - closed by close()
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(COLUMNS)

    def write(self, shared: tuple[Any, ...], block: type_block) -> None:
        columns = [_texts(block[name]) if name in block else itertools.repeat("") for name in COLUMNS[len(_SHARED) :]]
        start = _texts(list(shared))
        self._writer.writerows((*start, *row) for row in zip(block["part"], *columns[1:], strict=False))

    def close(self) -> None:
        self._file.close()


def _texts(column: Any) -> list[str]:
    """Cells as text; NaN and None as nothing."""
    values = column.tolist() if isinstance(column, np.ndarray) else column
    return ["" if value is None or value != value else str(value) for value in values]


class _Parquet:
    def __init__(self, target: str) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise JournalError(f"{target}: Parquet needs pyarrow: pip install 'nodectl[export]'") from None
        self._arrow = pyarrow
        kinds = {name: pyarrow.string() for name in _TEXT} | {name: pyarrow.int64() for name in _INTEGER}
        self._schema = pyarrow.schema([(name, kinds.get(name, pyarrow.float64())) for name in COLUMNS])
        self._file = pyarrow.parquet.ParquetWriter(target, self._schema)
        self._tables: list[Any] = []
        self._rows = 0

    def write(self, shared: tuple[Any, ...], block: type_block) -> None:
        size = len(block["part"])
        known = dict(zip(_SHARED, ([value] * size for value in shared), strict=True)) | dict(block)
        columns = [
            self._arrow.array(known[field.name], field.type, from_pandas=True)  # NaN and None become null
            if field.name in known
            else self._arrow.nulls(size, field.type)
            for field in self._schema
        ]
        self._tables.append(self._arrow.Table.from_arrays(columns, schema=self._schema))
        self._rows += size
        if self._rows >= ROWS_AT_ONCE:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        if self._tables:
            self._file.write_table(self._arrow.concat_tables(self._tables))
        self._tables, self._rows = [], 0

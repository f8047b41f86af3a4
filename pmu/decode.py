"""From the integers of two sweeps to what happened between them; pure, and in C (``csrc/decode.c``).

Rules for counters of a CPU, so that a bad instrument never looks like a quiet CPU:

- missing in either sweep, running backwards, or faster than any processor: NaN, MISSING;
- the CPU ran but one of its counters did not change: that count and the IPC are NaN, STALE;
- more reference cycles than the interval can have, or more stalls than cycles: set to the bound, CLIPPED;
- a column derived from something else (``Layout.estimated_events``): ESTIMATED.

A CPU that did next to nothing has no IPC (NaN, MEASURED). Quality is that of instructions and reference cycles, which
the IPC is made of; events that a machine does not count are NaN and say nothing about it. Columns of
registered instruments: ``pmu.layout.Column``. Energy, which is a column, too: pmu/instruments/rapl.py.

Rules for the application's count, which the application may write as it likes: missing in either sweep, of another
program, or never changed: MISSING; running backwards, faster than any loop, or at the end of its range: CLIPPED. Its
hints follow the same rules, count by count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from pmu._native import ffi, lib
from pmu.driver_values import MOST_BOARD_MW
from pmu.instruments import rapl
from pmu.instruments.counters import EVENTS
from pmu.layout import KINDS, Column, Layout
from pmu.readings import (
    GPU_FIELDS,
    NO_COLUMNS,
    NO_HINTS,
    NO_PROGRESS,
    NO_RAW_HINTS,
    RAW_HIGHEST,
    RAW_MISSING,
    ColumnSample,
    CpuSample,
    GpuSample,
    Hint,
    HintSample,
    PmuError,
    ProgressSample,
    Quality,
    RawHints,
    RawProgress,
    RawSweep,
    Sample,
    type_f64,
    type_i64,
    type_u8,
)

FASTEST = {"cycles": 10e9, "instructions": 100e9, "stalls": 10e9, "llc-misses": 10e9}
"""Ours, per second: 10 GHz at 10 instructions per cycle is beyond any processor."""

REFERENCE_MARGIN = 2.0
"""Ours: reference cycles above twice the interval are wrong; a nominal clock known too roughly explains less."""

FASTEST_UNITS = 1e12
"""Ours, per second: units finished by a whole node in which each core adds to the count at every cycle."""

MOST_WAITING = 1 << 20
"""Ours: threads of one job that wait on one node; more is a page that somebody has written by hand."""

BOARD_PEAK = 1.5
"""Ours: a board may exceed its power limit for milliseconds, not by more than half."""

_INT64, _FLOAT64, _UINT8, _GPU_READING = map(ffi.typeof, ("int64_t[]", "double[]", "uint8_t[]", "gpu_reading_t[]"))
"""How the native code sees an array. Looked up once: by its name a type takes as long as the array itself."""


def decode(layout: Layout, previous: RawSweep, current: RawSweep) -> Sample:
    """What the node did between two sweeps of the same layout; PmuError if they are not in order."""
    elapsed_ns = current.time_ns - previous.time_ns
    if elapsed_ns <= 0:
        raise PmuError(f"sweeps out of order: {previous.time_ns} ns, then {current.time_ns} ns")
    elapsed_s = elapsed_ns * 1e-9
    rules = _rules_of(layout)
    energy_j, energy_quality = decode_columns(rules.zones, previous.energy_uj, current.energy_uj, elapsed_s)
    columns = NO_COLUMNS
    if layout.columns:
        columns = ColumnSample(*decode_columns(rules.columns, previous.columns, current.columns, elapsed_s))
    return Sample(
        time_ns=current.time_ns,
        elapsed_s=elapsed_s,
        cpu=_decode_cpus(rules, previous.counters, current.counters, elapsed_s),
        gpu=_decode_gpus(rules, previous.gpu, current.gpu, elapsed_s),
        energy_j=energy_j,
        energy_quality=energy_quality,
        progress=_decode_progress(previous.progress, current.progress, elapsed_s),
        columns=columns,
        hints=_decode_hints(previous.hints, current.hints, elapsed_s),
    )


def column_rules(columns: Sequence[Column]) -> Any:
    """The columns as the native code takes them (column_rules_t[])."""
    rules = ffi.new("column_rules_t[]", len(columns))
    for rule, column in zip(rules, columns, strict=True):
        rule.kind = KINDS.index(column.kind)
        rule.sound = Quality.ESTIMATED if column.is_estimated else Quality.MEASURED
        rule.is_never_idle, rule.range = column.is_never_idle, column.range
        rule.per_unit, rule.unit_per_count = column.per_unit, 1 / column.per_unit
        rule.most_per_s, rule.lowest, rule.highest = column.most_per_s, column.lowest, column.highest
    return rules


def decode_columns(rules: Any, before: type_i64, now: type_i64, elapsed_s: float) -> tuple[type_f64, type_u8]:
    """Values and quality of columns from two sweeps of them, by ``column_rules``."""
    n_columns = len(rules)
    values, quality = np.empty(n_columns), np.empty(n_columns, np.uint8)
    lib.decode_columns(
        rules,
        n_columns,
        _integers(_INT64, before, (n_columns,)),
        _integers(_INT64, now, (n_columns,)),
        elapsed_s,
        ffi.from_buffer(_FLOAT64, values),
        ffi.from_buffer(_UINT8, quality),
    )
    return values, quality


def _decode_progress(before: RawProgress, now: RawProgress, elapsed_s: float) -> ProgressSample:
    if RAW_MISSING in (before.units, now.units) or before.source != now.source or before.units == now.units == 0:
        return NO_PROGRESS
    units = now.units - before.units
    if 0 <= units <= FASTEST_UNITS * elapsed_s and now.units < RAW_HIGHEST:
        return ProgressSample(float(units), now.source, Quality.MEASURED)
    return ProgressSample(float("nan"), now.source, Quality.CLIPPED)


def _decode_hints(before: RawHints, now: RawHints, elapsed_s: float) -> HintSample:
    if now == NO_RAW_HINTS or before.source != now.source or not any(now[1:]):
        return NO_HINTS
    most = FASTEST_UNITS * elapsed_s
    is_counted = all(0 <= new - old <= most and new < RAW_HIGHEST for old, new in zip(before[4:], now[4:], strict=True))
    if not (is_counted and now.last in _HINTS and abs(now.waits - now.waited) <= MOST_WAITING):
        return _DOUBTED_HINTS
    waiting = before.waits - now.waited  # as if all that ended in the interval had begun before it
    return HintSample(
        Hint(now.last), now.phase, now.copies - before.copies, now.kernels - before.kernels,
        now.phases - before.phases, max(waiting, 0), Quality.MEASURED,
        max(now.waits - now.waited, 0),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _Rules:
    """The constants of a layout, in the form of the native code."""

    layout: Layout
    cpus: Any  # cpu_rules_t
    zones: Any  # column_rules_t[]
    peak_mw: Any  # double[n_gpus]
    columns: Any  # column_rules_t[]


_last: _Rules | None = None  # a cache for the last layout: a run has one, a replay one after another


def _rules_of(layout: Layout) -> _Rules:
    global _last
    if _last is None or _last.layout is not layout:
        reference = layout.reference_khz * 1e3 * REFERENCE_MARGIN or FASTEST["cycles"]
        cpus = ffi.new("cpu_rules_t *")
        cpus.n_cpus, cpus.n_events = len(layout.cpus), len(layout.events)
        cpus.column = [layout.events.index(event) if event in layout.events else -1 for event in EVENTS]
        cpus.most_per_s = [FASTEST.get(event, reference) for event in EVENTS]
        cpus.reference_khz = layout.reference_khz
        cpus.is_estimated = "reference-cycles" in layout.estimated_events
        limits_mw = [board.max_power_limit_w * 1e3 for board in layout.gpus]
        peaks_mw = [limit * BOARD_PEAK if limit > 0 else float(MOST_BOARD_MW) for limit in limits_mw]
        zones = column_rules([rapl.column(zone) for zone in layout.zones])
        _last = _Rules(layout, cpus, zones, ffi.new("double[]", peaks_mw), column_rules(layout.columns))
    return _last


def _decode_cpus(rules: _Rules, before: type_i64, now: type_i64, elapsed_s: float) -> CpuSample:
    n_cpus = len(rules.layout.cpus)
    shape = (n_cpus, len(rules.layout.events))
    values, quality = np.empty((lib.CPU_VALUES, n_cpus)), np.empty(n_cpus, np.uint8)
    lib.decode_cpus(
        rules.cpus,
        _integers(_INT64, before, shape),
        _integers(_INT64, now, shape),
        elapsed_s,
        ffi.from_buffer(_FLOAT64, values),
        ffi.from_buffer(_UINT8, quality),
    )
    return CpuSample(**dict(zip(_CPU_VALUES, values, strict=True)), quality=quality)


def _decode_gpus(rules: _Rules, before: type_i64, now: type_i64, elapsed_s: float) -> GpuSample:
    n_gpus = len(rules.layout.gpus)
    shape = (n_gpus, len(GPU_FIELDS))
    values = np.empty((lib.GPU_VALUES, n_gpus))
    occupancy_quality, quality = np.empty(n_gpus, np.uint8), np.empty(n_gpus, np.uint8)
    lib.decode_gpus(
        rules.peak_mw,
        n_gpus,
        _integers(_GPU_READING, before, shape),
        _integers(_GPU_READING, now, shape),
        elapsed_s,
        ffi.from_buffer(_FLOAT64, values),
        ffi.from_buffer(_UINT8, occupancy_quality),
        ffi.from_buffer(_UINT8, quality),
    )
    return GpuSample(
        **dict(zip(_GPU_VALUES, values, strict=True)),
        throttle_reasons=now[:, _THROTTLE].copy(),
        occupancy_quality=occupancy_quality,
        quality=quality,
    )


def _integers(kind: Any, array: type_i64, shape: tuple[int, ...]) -> Any:
    """The memory of one part of a sweep; the native code trusts its size."""
    if array.shape != shape:
        raise PmuError(f"a sweep of shape {array.shape} where the layout has {shape}")
    return ffi.from_buffer(kind, np.ascontiguousarray(array, np.int64))


_CPU_VALUES = tuple(field.name for field in fields(CpuSample))[: lib.CPU_VALUES]
_GPU_VALUES = tuple(field.name for field in fields(GpuSample))[: lib.GPU_VALUES]
_THROTTLE = GPU_FIELDS.index("throttle_reasons")
_HINTS = frozenset(map(int, Hint))
_DOUBTED_HINTS = HintSample(Hint.NONE, 0, 0, 0, 0, 0, Quality.CLIPPED)

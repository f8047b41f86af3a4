"""From the integers of two sweeps to what happened between them: pure, on whole arrays.

Rules for counters of a CPU, so that a bad instrument never looks like a quiet CPU:

- missing in either sweep, running backwards, or faster than any processor: NaN, MISSING;
- the CPU ran but one of its counters stands still: that count and the IPC are NaN, STALE;
- more reference cycles than the interval holds, or more stalls than cycles: held at the bound, CLIPPED;
- a column derived from something else (``Layout.estimated_events``): ESTIMATED.

A CPU that did next to nothing has no IPC (NaN, MEASURED). Quality is that of instructions and reference cycles, which
the IPC is made of; columns that a machine does not have are NaN and say nothing about it. Energy: pmu/rapl.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pmu import rapl
from pmu.counters import EVENTS
from pmu.layout import Layout
from pmu.readings import (
    GPU_FIELDS,
    RAW_MISSING,
    CpuSample,
    GpuSample,
    PmuError,
    Quality,
    RawSweep,
    Sample,
    type_f64,
    type_i64,
    type_u8,
)

IDLE_CYCLES = 10_000.0
"""Ours: fewer reference cycles than this (some microseconds) are the kernel's housekeeping and have no IPC."""

STUCK_CYCLES = 100_000.0
"""Ours: a CPU that ran this long retired something; an interrupt's entry alone is hundreds of instructions."""

FASTEST = {"cycles": 10e9, "instructions": 100e9, "stalls": 10e9, "llc-misses": 10e9}
"""Ours, per second: 10 GHz at 10 instructions per cycle is beyond any processor."""

REFERENCE_MARGIN = 2.0
"""Ours: reference cycles beyond twice the interval are nonsense rather than a nominal clock known too roughly."""

REFERENCE_TOLERANCE = 1.1
"""Ours: an excess up to here is that rough nominal clock, or CPUs read at slightly different times in two sweeps."""

JITTER_S = 0.005
"""Ours: how much later one sweep may reach a CPU than the other did."""

BOARD_PEAK = 1.5
"""Ours: a board may exceed its power limit for milliseconds, not by more than half."""

GPU_ENERGY_STEP_S = 1.0
"""Ours: the energy counter advances in steps of 20 to 100 ms, so a short interval may show that of a longer one."""

GPU_STUCK_S = 0.5
"""Ours: no energy counter stands still for longer on a board that draws power."""

type_counts = dict[str, type_f64]


def decode(layout: Layout, previous: RawSweep, current: RawSweep) -> Sample:
    """What the node did between two sweeps of the same layout; PmuError if they are not in order."""
    elapsed_ns = current.time_ns - previous.time_ns
    if elapsed_ns <= 0:
        raise PmuError(f"sweeps out of order: {previous.time_ns} ns, then {current.time_ns} ns")
    elapsed_s = elapsed_ns * 1e-9
    constants = _constants_of(layout)
    energy_j, energy_quality = rapl.interval_energy(
        previous.energy_uj,
        current.energy_uj,
        constants.range_uj,
        constants.max_zone_w,
        constants.is_package,
        elapsed_s,
    )
    return Sample(
        time_ns=current.time_ns,
        elapsed_s=elapsed_s,
        cpu=_decode_cpus(constants, previous.counters, current.counters, elapsed_s),
        gpu=_decode_gpus(constants, previous.gpu, current.gpu, elapsed_s),
        energy_j=energy_j,
        energy_quality=energy_quality,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Constants:
    """What a layout says, as arrays."""

    layout: Layout
    fastest: type_f64  # [n_events, 1] counts per second that no CPU exceeds
    is_estimated: bool
    nothing: type_f64  # [n_cpus] NaN: the column of an event that is not there
    range_uj: type_i64
    max_zone_w: type_f64
    is_package: type_u8
    board_peak_mw: type_f64  # [n_gpus]; infinite where the limit is unknown


_last: _Constants | None = None  # of the layout decoded last: a run has one, and a replay one after another


def _constants_of(layout: Layout) -> _Constants:
    global _last
    if _last is None or _last.layout is not layout:
        nothing = np.full(len(layout.cpus), np.nan)
        nothing.flags.writeable = False
        reference = layout.reference_khz * 1e3 * REFERENCE_MARGIN or FASTEST["cycles"]
        limits = np.array([board.max_power_limit_w for board in layout.gpus]) * 1e3
        _last = _Constants(
            layout=layout,
            fastest=np.array([[FASTEST.get(event, reference)] for event in layout.events]).reshape(-1, 1),
            is_estimated="reference-cycles" in layout.estimated_events,
            nothing=nothing,
            range_uj=np.array([zone.max_energy_uj for zone in layout.zones], np.int64),
            max_zone_w=np.array([rapl.max_power_w(zone) for zone in layout.zones]),
            is_package=np.array([zone.kind == "package" for zone in layout.zones], np.uint8),
            board_peak_mw=np.where(limits > 0, limits * BOARD_PEAK, np.inf),
        )
    return _last


# ---- CPUs ----------------------------------------------------------------------------------------------------------


def _decode_cpus(constants: _Constants, before: type_i64, now: type_i64, elapsed_s: float) -> CpuSample:
    layout = constants.layout
    counts = _counts(constants, before, now, elapsed_s)
    cycles, reference, instructions, stalls, misses = (counts.get(event, constants.nothing) for event in EVENTS)

    with np.errstate(invalid="ignore", divide="ignore"):
        # a busy-time stand-in cannot testify that a CPU ran; core cycles can
        ran = (cycles > STUCK_CYCLES) | (instructions > STUCK_CYCLES)
        if not constants.is_estimated:
            ran |= reference > STUCK_CYCLES
        is_stuck = ran & ((instructions == 0) | (reference == 0) | (cycles == 0))
        if is_stuck.any():
            cycles, reference, instructions = (
                np.where(is_stuck & (counted == 0), np.nan, counted) for counted in (cycles, reference, instructions)
            )
        share = reference * (1e-3 / (layout.reference_khz or np.nan) / elapsed_s)
        stall = stalls / cycles
        is_clipped = (share > REFERENCE_TOLERANCE * (1 + JITTER_S / elapsed_s)) | (stall > REFERENCE_TOLERANCE)
        ipc = np.where((reference >= IDLE_CYCLES) & ~is_stuck, instructions / reference, np.nan)
        frequency_khz = np.where(reference >= IDLE_CYCLES, cycles / reference * layout.reference_khz, np.nan)
    quality = np.full(len(layout.cpus), Quality.ESTIMATED if constants.is_estimated else Quality.MEASURED, np.uint8)
    quality[is_clipped] = Quality.CLIPPED
    quality[is_stuck] = Quality.STALE
    quality[(np.isnan(instructions) | np.isnan(reference)) & ~is_stuck] = Quality.MISSING
    return CpuSample(
        instructions=instructions,
        cycles=cycles,
        reference_cycles=reference,
        ipc=ipc,
        busy=np.minimum(share, 1.0),
        stall=np.minimum(stall, 1.0),
        llc_misses=misses,
        frequency_khz=frequency_khz if layout.reference_khz else constants.nothing,
        quality=quality,
    )


def _counts(constants: _Constants, before: type_i64, now: type_i64, elapsed_s: float) -> type_counts:
    """Per event what each CPU counted; NaN where that cannot be told."""
    steps = np.ascontiguousarray((now - before).T)
    is_bad = ((before == RAW_MISSING) | (now == RAW_MISSING)).T | (steps < 0)
    is_bad |= steps > constants.fastest * (elapsed_s + JITTER_S)
    table = np.where(is_bad, np.nan, steps)
    return dict(zip(constants.layout.events, table, strict=True))


# ---- GPUs ----------------------------------------------------------------------------------------------------------


def _decode_gpus(constants: _Constants, before: type_i64, now: type_i64, elapsed_s: float) -> GpuSample:
    table = np.where(now == RAW_MISSING, np.nan, now).T
    field = dict(zip(GPU_FIELDS, table, strict=True))
    energy_j, power_w, energy_quality = _gpu_energy(constants, before, now, field["power_mw"], elapsed_s)
    shares = table[_SHARE_ROWS] * _SHARE_SCALE
    with np.errstate(invalid="ignore"):
        is_clipped = (shares > 1).any(axis=0)
        np.minimum(shares, 1.0, out=shares)
    gpu_utilization, memory_utilization, occupancy, sm_active, dram_active = shares
    has_occupancy = ~np.isnan(occupancy)
    occupancy_quality = np.where(
        has_occupancy,
        np.uint8(Quality.MEASURED),
        np.where(np.isnan(gpu_utilization), np.uint8(Quality.MISSING), np.uint8(Quality.ESTIMATED)),
    )
    quality = energy_quality
    quality[is_clipped] = Quality.CLIPPED
    is_gone = np.isnan(field["sm_clock_mhz"]) & np.isnan(gpu_utilization)
    quality[is_gone] = Quality.MISSING
    return GpuSample(
        sm_clock_mhz=field["sm_clock_mhz"],
        memory_clock_mhz=field["memory_clock_mhz"],
        power_w=power_w,
        energy_j=energy_j,
        temperature_c=field["temperature_c"],
        gpu_utilization=gpu_utilization,
        memory_utilization=memory_utilization,
        sm_occupancy=np.where(has_occupancy, occupancy, gpu_utilization),
        sm_active=sm_active,
        dram_active=dram_active,
        throttle_reasons=now[:, _COLUMN["throttle_reasons"]].copy(),
        occupancy_quality=occupancy_quality,
        quality=quality,
    )


def _gpu_energy(
    constants: _Constants, before: type_i64, now: type_i64, power_mw: type_f64, elapsed_s: float
) -> tuple[type_f64, type_f64, type_u8]:
    """Joules from the energy counter, or estimated from power where that cannot be; watts; the quality of both."""
    column = _COLUMN["energy_mj"]
    was, total = before[:, column], now[:, column]
    peak_mw = constants.board_peak_mw
    step_mj = total - was
    with np.errstate(invalid="ignore"):
        is_clipped = power_mw > peak_mw
        power_w = np.minimum(power_mw, peak_mw) * 1e-3
        is_counted = (was != RAW_MISSING) & (total != RAW_MISSING) & (step_mj >= 0)
        is_counted &= step_mj <= peak_mw * (elapsed_s + GPU_ENERGY_STEP_S)
        is_stuck = is_counted & (step_mj == 0) & (power_mw > 0) & (elapsed_s >= GPU_STUCK_S)
    energy_j = np.where(is_counted, step_mj * 1e-3, power_w * elapsed_s)
    quality = np.where(is_counted, np.uint8(Quality.MEASURED), np.uint8(Quality.ESTIMATED))
    quality[is_clipped] = Quality.CLIPPED
    if is_stuck.any():
        energy_j[is_stuck] = np.nan
        quality[is_stuck] = Quality.STALE
    return energy_j, power_w, quality


_COLUMN = {name: column for column, name in enumerate(GPU_FIELDS)}
_SHARES = {
    "gpu_utilization_pct": 1e-2,
    "memory_utilization_pct": 1e-2,
    "sm_occupancy_ppm": 1e-6,
    "sm_active_ppm": 1e-6,
    "dram_active_ppm": 1e-6,
}
_SHARE_ROWS = np.array([_COLUMN[name] for name in _SHARES])
_SHARE_SCALE = np.array([[scale] for scale in _SHARES.values()])

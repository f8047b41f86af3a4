"""The rules of ``pmu/decode.py`` and ``pmu/instruments/rapl.py``, one CPU, zone or GPU at a time, as their docstrings
say them.

Slow and plain: the native code is compared with this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pmu.layout import Column
from pmu.readings import RAW_MISSING, Quality

NAN = math.nan
JITTER_S = 0.005  # how much later one sweep may reach a CPU than the other did
TOLERANCE = 1.1  # a nominal clock that is known too roughly
IDLE_CYCLES, STUCK_CYCLES = 10_000, 100_000
MOST_PER_S = {"cycles": 10e9, "instructions": 100e9, "stalls": 10e9, "llc-misses": 10e9}
COUNTER_STEP_S, COUNTER_STUCK_S = 0.01, 0.005
GPU_STEP_S, GPU_STUCK_S = 1.0, 0.5


def step_of(before: int, now: int) -> int:
    """Of a counter of 64 bits, as a signed number."""
    return (now - before + 2**63) % 2**64 - 2**63


@dataclass(frozen=True)
class PlainCpu:
    instructions: float
    cycles: float
    reference_cycles: float
    ipc: float
    busy: float
    stall: float
    llc_misses: float
    frequency_khz: float
    quality: Quality


def plain_cpu(
    steps: Mapping[str, tuple[int, int]], reference_khz: float, *, is_estimated: bool, elapsed_s: float
) -> PlainCpu:
    """``steps``: before and now of each event that the machine counts."""
    most_per_s = MOST_PER_S | {"reference-cycles": 2 * reference_khz * 1e3 if reference_khz else 10e9}

    def counted(event: str) -> float:
        if event not in steps or RAW_MISSING in steps[event]:
            return NAN
        step = step_of(*steps[event])
        return float(step) if 0 <= step <= most_per_s[event] * (elapsed_s + JITTER_S) else NAN

    count = {event: counted(event) for event in most_per_s}
    witnesses = ["cycles", "instructions"] + ([] if is_estimated else ["reference-cycles"])
    has_run = any(count[event] > STUCK_CYCLES for event in witnesses)
    stuck = [event for event in ("cycles", "reference-cycles", "instructions") if has_run and count[event] == 0]
    for event in stuck:
        count[event] = NAN

    reference = count["reference-cycles"]
    is_awake = reference >= IDLE_CYCLES
    busy = reference * (1e-3 / reference_khz / elapsed_s) if reference_khz else NAN
    stall = count["stalls"] / count["cycles"] if count["cycles"] else (math.inf if count["stalls"] else NAN)
    if math.isnan(count["stalls"]):
        stall = NAN
    if stuck:
        quality = Quality.STALE
    elif math.isnan(count["instructions"]) or math.isnan(reference):
        quality = Quality.MISSING
    elif busy > TOLERANCE * (1 + JITTER_S / elapsed_s) or stall > TOLERANCE:
        quality = Quality.CLIPPED
    else:
        quality = Quality.ESTIMATED if is_estimated else Quality.MEASURED
    return PlainCpu(
        instructions=count["instructions"],
        cycles=count["cycles"],
        reference_cycles=reference,
        ipc=count["instructions"] / reference if is_awake and not stuck else NAN,
        busy=_at_most_1(busy),
        stall=_at_most_1(stall),
        llc_misses=count["llc-misses"],
        frequency_khz=count["cycles"] / reference * reference_khz if is_awake and reference_khz else NAN,
        quality=quality,
    )


@dataclass(frozen=True)
class PlainColumn:
    value: float
    quality: Quality


def plain_column(column: Column, before: int, now: int, elapsed_s: float) -> PlainColumn:
    """As ``pmu.layout.Column`` says."""
    sound = Quality.ESTIMATED if column.is_estimated else Quality.MEASURED
    if column.kind == "flag":
        return PlainColumn(now, sound) if 0 <= now <= column.highest else PlainColumn(NAN, Quality.MISSING)
    if column.kind == "level":
        value = now / column.per_unit
        if now == RAW_MISSING:
            return PlainColumn(NAN, Quality.MISSING)
        held = min(max(value, column.lowest), column.highest)
        return PlainColumn(held, sound if held == value else Quality.CLIPPED)
    for reading in (before, now):
        if reading < 0 or (column.range and reading > column.range):
            return PlainColumn(NAN, Quality.MISSING)
    step = now - before
    most_per_s = column.most_per_s * column.per_unit
    is_wrapped = step < 0 and column.range > 0
    step += column.range if is_wrapped else 0
    is_late = column.range > 0 and elapsed_s * most_per_s >= column.range
    if not is_late and not 0 <= step <= most_per_s * (elapsed_s + COUNTER_STEP_S):
        return PlainColumn(NAN, Quality.MISSING)
    if step == 0 and column.is_never_idle and elapsed_s >= COUNTER_STUCK_S:
        return PlainColumn(NAN, Quality.STALE)
    if is_late:
        return PlainColumn(step / column.per_unit, Quality.STALE)
    return PlainColumn(step / column.per_unit, Quality.WRAPPED if is_wrapped else sound)


@dataclass(frozen=True)
class PlainZone:
    energy_j: float
    energy_quality: Quality


def plain_zone(
    before_uj: int, now_uj: int, *, range_uj: int, most_w: float, is_package: bool, elapsed_s: float
) -> PlainZone:
    """Readings in microjoules: a counter that always runs on a package."""
    column = Column(
        instrument="rapl",
        name="zone",
        unit="J",
        kind="counter",
        per_unit=1e6,
        range=range_uj,
        most_per_s=most_w,
        is_never_idle=is_package,
    )
    plain = plain_column(column, before_uj, now_uj, elapsed_s)
    return PlainZone(plain.value, plain.quality)


@dataclass(frozen=True)
class PlainGpu:
    sm_clock_mhz: float
    memory_clock_mhz: float
    power_w: float
    energy_j: float
    temperature_c: float
    gpu_utilization: float
    memory_utilization: float
    sm_occupancy: float
    sm_active: float
    dram_active: float
    occupancy_quality: Quality
    quality: Quality


def plain_gpu(before: Mapping[str, int], now: Mapping[str, int], peak_mw: float, elapsed_s: float) -> PlainGpu:
    """Readings by the names of ``GPU_FIELDS``."""

    def value(name: str) -> float:
        return NAN if now[name] == RAW_MISSING else float(now[name])

    quality = Quality.MEASURED
    power_mw = value("power_mw")
    watts = (peak_mw if power_mw > peak_mw else power_mw) * 1e-3
    energies = before["energy_mj"], now["energy_mj"]
    step_mj = -1 if RAW_MISSING in energies else step_of(*energies)
    if 0 <= step_mj <= peak_mw * (elapsed_s + GPU_STEP_S):
        joules = step_mj * 1e-3
    else:
        joules, quality = watts * elapsed_s, Quality.ESTIMATED
    if power_mw > peak_mw:
        quality = Quality.CLIPPED
    if quality in (Quality.MEASURED, Quality.CLIPPED) and step_mj == 0 and power_mw > 0 and elapsed_s >= GPU_STUCK_S:
        joules, quality = NAN, Quality.STALE

    share = {
        "gpu_utilization": value("gpu_utilization_pct") * 1e-2,
        "memory_utilization": value("memory_utilization_pct") * 1e-2,
        "sm_occupancy": value("sm_occupancy_ppm") * 1e-6,
        "sm_active": value("sm_active_ppm") * 1e-6,
        "dram_active": value("dram_active_ppm") * 1e-6,
    }
    if any(part > 1 for part in share.values()):
        quality = Quality.CLIPPED
    share = {name: _at_most_1(part) for name, part in share.items()}
    occupancy_quality = Quality.MEASURED
    if math.isnan(share["sm_occupancy"]):  # before Hopper: the weaker signal
        share["sm_occupancy"] = share["gpu_utilization"]
        occupancy_quality = Quality.MISSING if math.isnan(share["sm_occupancy"]) else Quality.ESTIMATED
    if math.isnan(value("sm_clock_mhz")) and math.isnan(share["gpu_utilization"]):
        quality = Quality.MISSING
    return PlainGpu(
        sm_clock_mhz=value("sm_clock_mhz"),
        memory_clock_mhz=value("memory_clock_mhz"),
        power_w=watts,
        energy_j=joules,
        temperature_c=value("temperature_c"),
        **share,
        occupancy_quality=occupancy_quality,
        quality=quality,
    )


def _at_most_1(share: float) -> float:
    return 1.0 if share > 1 else share

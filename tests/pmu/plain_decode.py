"""The rules of ``pmu/decode.py`` and ``pmu/instruments/rapl.py``, one CPU, zone or GPU at a time, as their docstrings
say them.

Slow and plain: the native code is compared with this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pmu.readings import RAW_MISSING, Quality

NAN = math.nan
JITTER_S = 0.005  # how much later one sweep may reach a CPU than the other did
TOLERANCE = 1.1  # a nominal clock that is known too roughly
IDLE_CYCLES, STUCK_CYCLES = 10_000, 100_000
MOST_PER_S = {"cycles": 10e9, "instructions": 100e9, "stalls": 10e9, "llc-misses": 10e9}
ZONE_STEP_S, ZONE_STUCK_S = 0.01, 0.005
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
class PlainZone:
    energy_j: float
    energy_quality: Quality


def plain_zone(
    before_uj: int, now_uj: int, *, range_uj: int, most_w: float, is_package: bool, elapsed_s: float
) -> PlainZone:
    """Readings in microjoules."""
    for reading in (before_uj, now_uj):
        if reading < 0 or (range_uj and reading > range_uj):
            return PlainZone(NAN, Quality.MISSING)
    step_uj = now_uj - before_uj
    is_wrapped = step_uj < 0 and range_uj > 0
    step_uj += range_uj if is_wrapped else 0
    is_late = range_uj > 0 and elapsed_s * most_w * 1e6 >= range_uj
    if not is_late and not 0 <= step_uj <= most_w * 1e6 * (elapsed_s + ZONE_STEP_S):
        return PlainZone(NAN, Quality.MISSING)
    if step_uj == 0 and is_package and elapsed_s >= ZONE_STUCK_S:
        return PlainZone(NAN, Quality.STALE)
    if is_late:
        return PlainZone(step_uj * 1e-6, Quality.STALE)
    return PlainZone(step_uj * 1e-6, Quality.WRAPPED if is_wrapped else Quality.MEASURED)


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

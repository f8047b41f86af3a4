"""Temperature limits for GPUs and for memory, below those that their firmware keeps.

Boards throttle by themselves near their own limit, in coarse steps and at the expense of every kernel. A site that
wants to stay below (a warm aisle, a shared cooling loop) sets a temperature; this limit then lowers the clock step by
step while a GPU is hotter, and raises it once the GPU is clearly cooler. Rate and hysteresis are ours: one step per
second is slow compared with the heating of a die and fast compared with that of a heat sink, so the clock settles
instead of oscillating. CPUs need none: PROCHOT limits them in hardware within a millisecond.

Memory modules heat over minutes with the traffic that the CPUs cause. Above 85 C they must be refreshed twice as often
(JEDEC DDR4 and DDR5), which costs bandwidth at full power, and near its own limit the firmware cuts bandwidth by half.
The limit on the hottest module lowers the clocks of all CPUs instead, since a sensor does not say which package its
module belongs to. A module follows its power so late that the limit looks ahead: where the module will be in 20 s at
its present pace decides. Clocks fall by a rung for each kelvin too many and rise by one rung at a time.

Limits have the form of policies, so that their states are journalled and replayed like any other; the arbiter uses
their targets as limits, not as requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from nodectl.policies.api import Policy, Request
from pmu.layout import FrequencyDomain, Layout
from pmu.readings import Quality, Sample, type_f64, type_i64

SECONDS_PER_RUNG: Final = 1.0  # ours
HYSTERESIS_C: Final = 3.0  # ours: NVML reports whole degrees that flicker by one


class ThermalParams(msgspec.Struct, frozen=True):
    """``limit_c``: the temperature not to exceed."""

    limit_c: float = 80.0


@dataclass(frozen=True, slots=True)
class ThermalState:
    """``rungs_down`` ``[n_gpus]`` below the top clock, 0 = no limit; ``waited_s`` since the last step."""

    rungs_down: type_i64
    waited_s: type_f64


def initial(params: ThermalParams, layout: Layout) -> ThermalState:
    """No GPU limited; the first step may come at once."""
    return ThermalState(np.zeros(len(layout.gpus), np.int64), np.full(len(layout.gpus), SECONDS_PER_RUNG))


def decide(params: ThermalParams, layout: Layout, state: ThermalState, sample: Sample) -> tuple[ThermalState, Request]:
    """One step down where it is too hot, one up where it is clearly cool; a missing temperature (NaN) changes
    nothing."""
    temperature = sample.gpu.temperature_c
    waited = state.waited_s + sample.elapsed_s
    is_hot = (waited >= SECONDS_PER_RUNG) & (temperature > params.limit_c)
    is_cool = (waited >= SECONDS_PER_RUNG) & (temperature < params.limit_c - HYSTERESIS_C) & (state.rungs_down > 0)
    rungs_in_all = np.array([max(len(gpu.clocks_mhz) - 1, 0) for gpu in layout.gpus], np.int64)
    rungs = np.clip(state.rungs_down + is_hot - is_cool, 0, rungs_in_all)
    limits = [gpu.clocks_mhz[-1 - n] if n else 0 for gpu, n in zip(layout.gpus, rungs.tolist(), strict=True)]
    free = Request.free(len(layout.gpus))
    request = Request(np.array(limits, np.int64), (rungs > 0).astype(np.uint8), free.loss, free.saved_w)
    return ThermalState(rungs, np.where(is_hot | is_cool, 0.0, waited)), request


POLICY: Final = Policy(
    name="gpu-thermal",
    domain="gpu",
    summary="walks the clock down while a GPU is hotter than the site wants",
    source="ours",
    reasons=("cool enough", "too hot"),
    params=ThermalParams,
    initial=initial,
    decide=decide,
)


SECONDS_PER_LOOK: Final = 5.0  # ours: as often as the sensors are read
LOOK_AHEAD_S: Final = (
    20.0  # ours: a third of the minute in which modules heat; more would lower clocks for short bursts
)
MEMORY_RUNG_KHZ: Final = 100_000  # ours, where a driver takes any clock
MEMORY_HYSTERESIS_C: Final = 2.0  # ours: one step of the sensor, 0.25 K, is 1 K ahead


@dataclass(frozen=True, slots=True)
class MemoryThermalState:
    """``rungs_down`` below the highest clocks, 0 = no limit; ``waited_s`` since the last look; ``last_c`` at that look
    (NaN: none so far)."""

    rungs_down: int
    waited_s: float
    last_c: float


def initial_memory(params: ThermalParams, layout: Layout) -> MemoryThermalState:
    """No limit; the first look may come at once."""
    return MemoryThermalState(0, SECONDS_PER_LOOK, math.nan)


def decide_memory(
    params: ThermalParams, layout: Layout, state: MemoryThermalState, sample: Sample
) -> tuple[MemoryThermalState, Request]:
    """Look at the hottest module every few seconds: down while it will be too hot, up while it is clearly cool and will
    be. Without a reading that can be trusted the limit stays as it is."""
    free = Request.free(len(layout.domains))
    waited_s = state.waited_s + sample.elapsed_s
    now_c = _hottest_module_c(layout, sample)
    ladders = [_ladder(domain) for domain in layout.domains]
    rungs, last_c = state.rungs_down, state.last_c
    if waited_s >= SECONDS_PER_LOOK and not math.isnan(now_c):
        ahead_c = now_c if math.isnan(last_c) else now_c + (now_c - last_c) / waited_s * LOOK_AHEAD_S
        if ahead_c > params.limit_c:
            lowest = max((len(ladder) - 1 for ladder in ladders), default=0)
            rungs = min(rungs + math.ceil(ahead_c - params.limit_c), lowest)
        elif max(now_c, ahead_c) < params.limit_c - MEMORY_HYSTERESIS_C:
            rungs = max(rungs - 1, 0)
        waited_s, last_c = 0.0, now_c
    if rungs:
        limits = np.array([ladder[max(len(ladder) - 1 - rungs, 0)] for ladder in ladders], np.int64)
        free = Request(limits, np.ones_like(free.reason), free.loss, free.saved_w)
    return MemoryThermalState(rungs, waited_s, last_c), free


def _modules(layout: Layout) -> list[int]:
    return [row for row, column in enumerate(layout.columns) if column.part == "memory" and column.unit == "C"]


def _hottest_module_c(layout: Layout, sample: Sample) -> float:
    """NaN if no module gave a reading that can be trusted."""
    columns, trusted = sample.columns, (Quality.MEASURED, Quality.ESTIMATED)
    return max(
        (float(columns.value[row]) for row in _modules(layout) if columns.quality[row] in trusted), default=math.nan
    )


def _ladder(domain: FrequencyDomain) -> tuple[int, ...]:
    """The clocks of a domain, ascending; never empty."""
    return domain.steps_khz or tuple(range(domain.max_khz, domain.min_khz - 1, -MEMORY_RUNG_KHZ))[::-1]


MEMORY_POLICY: Final = Policy(
    name="memory-thermal",
    domain="cpu",
    summary="walks the CPU clocks down while a memory module is hotter than the site wants",
    source="ours",
    reasons=POLICY.reasons,
    params=ThermalParams,
    initial=initial_memory,
    decide=decide_memory,
)


def _no_module(layout: Layout) -> str:
    return "" if _modules(layout) else "no memory module shows its temperature (drivers spd5118 and jc42)"


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that ``[caps]`` sets: ``setting`` in degrees Celsius, 0 for none. ``lacks`` says in one line why a node
    cannot keep it, or nothing. The policy's targets limit the clocks of its domain: ``[n_gpus]`` MHz, or
    ``[n_domains]`` kHz."""

    setting: str
    policy: Policy
    lacks: Callable[[Layout], str] = lambda layout: ""


LIMITS: Final = (
    Limit("gpu_temperature_c", POLICY),
    Limit("memory_temperature_c", MEMORY_POLICY, _no_module),
)


def chosen(caps: msgspec.Struct) -> list[tuple[Limit, ThermalParams]]:
    """The limits that are set."""
    limits = [(limit, getattr(caps, limit.setting)) for limit in LIMITS]
    return [(limit, ThermalParams(limit_c=limit_c)) for limit, limit_c in limits if limit_c]

"""A temperature limit for GPUs above the one their firmware keeps.

Boards throttle by themselves near their own limit, in coarse steps and at the expense of every kernel. A site that
wants to stay below (a warm aisle, a shared loop) gives a temperature; this limit then walks the clock down the ladder
while a GPU is hotter and back up once it is clearly cooler. Walk and hysteresis are ours: one rung a second is slower
than a board's RC time constant is short, so the clock settles instead of hunting. CPUs need none: PROCHOT acts in
hardware within a millisecond, and cpufreq is not told a temperature.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pmu.layout import Layout
from pmu.readings import Sample, type_f64, type_i64

SECONDS_PER_RUNG: Final = 1.0  # ours
HYSTERESIS_C: Final = 3.0  # ours: NVML reports whole degrees that flicker by one


@dataclass(frozen=True, slots=True)
class ThermalState:
    """``rungs_down`` ``[n_gpus]`` below the top clock, 0 = no limit; ``waited_s`` since the last step."""

    rungs_down: type_i64
    waited_s: type_f64

    @staticmethod
    def cool(n_gpus: int) -> ThermalState:
        """No GPU limited; the first step may come at once."""
        return ThermalState(np.zeros(n_gpus, np.int64), np.full(n_gpus, SECONDS_PER_RUNG))


def thermal_limit(layout: Layout, limit_c: float, state: ThermalState, sample: Sample) -> tuple[ThermalState, type_i64]:
    """Next state and the limit ``[n_gpus]`` in MHz, 0 = none. A missing temperature (NaN) moves nothing."""
    temperature = sample.gpu.temperature_c
    is_due = state.waited_s + sample.elapsed_s >= SECONDS_PER_RUNG
    is_hot = is_due & (temperature > limit_c)
    is_cool = is_due & (temperature < limit_c - HYSTERESIS_C) & (state.rungs_down > 0)
    rungs_in_all = np.array([max(len(gpu.clocks_mhz) - 1, 0) for gpu in layout.gpus], np.int64)
    rungs = np.clip(state.rungs_down + is_hot - is_cool, 0, rungs_in_all)
    waited = np.where(is_hot | is_cool, 0.0, state.waited_s + sample.elapsed_s)
    limits = [gpu.clocks_mhz[-1 - n] if n else 0 for gpu, n in zip(layout.gpus, rungs.tolist(), strict=True)]
    return ThermalState(rungs, waited), np.array(limits, np.int64)

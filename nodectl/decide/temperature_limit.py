"""A temperature limit for GPUs, below the one of their firmware.

Boards throttle by themselves near their own limit, in coarse steps and at the expense of every kernel. A site that
wants to stay below (a warm aisle, a shared cooling loop) sets a temperature; this limit then lowers the clock step by
step while a GPU is hotter, and raises it once the GPU is clearly cooler. Rate and hysteresis are ours: one step per
second is slow compared with the heating of a die and fast compared with that of a heat sink, so the clock settles
instead of oscillating. CPUs need none: PROCHOT limits them in hardware within a millisecond.

It has the form of a policy, so that its state is journalled and replayed like any other; the arbiter uses its targets
as limits, not as requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from nodectl.policies.api import Policy, Request
from pmu.layout import Layout
from pmu.readings import Sample, type_f64, type_i64

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

"""A temperature limit for GPUs, below the one their firmware keeps.

Boards throttle by themselves near their own limit, in coarse steps and at the expense of every kernel. A site that
wants to stay below (a warm aisle, a shared loop) gives a temperature; this limit then walks the clock down the ladder
while a GPU is hotter and back up once it is clearly cooler. Walk and hysteresis are ours: a rung a second is slow
beside the heating of a die and quick beside that of a heat sink, so the clock settles instead of hunting. CPUs need
none: PROCHOT acts in hardware within a millisecond.

It has the form of a policy, so that its state is journalled and replayed like any other; the arbiter reads its targets
as limits, not wishes.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """One rung down where it is too hot, one up where it is clearly cool. A missing temperature (NaN) moves nothing."""
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


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that ``[caps]`` sets: ``setting`` in degrees Celsius, 0 for none. ``lacks`` says in one line why a node
    cannot keep it, or nothing. The policy's targets limit the clocks of its domain: ``[n_gpus]`` MHz, or
    ``[n_domains]`` kHz."""

    setting: str
    policy: Policy
    lacks: Callable[[Layout], str] = lambda layout: ""


LIMITS: Final = (Limit("gpu_temperature_c", POLICY),)


def chosen(caps: msgspec.Struct) -> list[tuple[Limit, ThermalParams]]:
    """The limits that are set."""
    limits = [(limit, getattr(caps, limit.setting)) for limit in LIMITS]
    return [(limit, ThermalParams(limit_c=limit_c)) for limit, limit_c in limits if limit_c]

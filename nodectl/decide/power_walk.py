"""Enforce a cap in watts by clock limits, where neither a controller nor a RAPL limit does.

The packages' energy counters give their power. Above the cap all clock limits are lowered at once; below it they rise
slowly. Power falls at least in proportion to the clock and at most with its third power. So the clock is scaled by the
square root of the ratio by which the power must fall: the error is small, and corrected at the next sample.

- With RAPL limits: this walk caps the power while their averaging window of about a second fills; later it is a second
  line of defence.
- Without a power reading the node cannot know whether it keeps the cap, which others rely on: its clocks go to the
  lowest within a second.
- When a controller takes over the cap, the limits do not go at once but rise step by step. A sudden rise would teach
  the controller a wrong model of its chip, since clocks do not follow it while these limits last.

Aim and rates are ours. The walk has the form of a policy, so that its state is journalled and replayed like any other;
the arbiter uses its targets as limits, not as requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np

from nodectl.decide.node_cap import PackageCap
from nodectl.policies.api import Policy, Request
from pmu.layout import Layout
from pmu.readings import Sample, type_i64

AIM: Final = 0.97
"""Of the cap: room for the sensor's noise and the load's."""

BAND: Final = 0.94
"""Of the cap: below it clocks rise. The band between this and the cap keeps them from oscillating."""

RISE_PER_S: Final = 0.5
"""Of the highest clock, at most; a fall is not limited."""

BLIND_FALL_PER_S: Final = 1.0


class WalkParams(msgspec.Struct, frozen=True):
    """No parameters: the cap comes with each sample."""


@dataclass(frozen=True, slots=True)
class WalkState:
    """``cap_w``: the cap to enforce here, 0 for none, infinite where a controller enforces it; ``scale``: clock limits
    over the highest clocks."""

    cap_w: float
    scale: float


def under(cap: PackageCap) -> Callable[[WalkState], WalkState]:
    """A function that puts the cap of this tick into a state."""
    cap_w = cap.packages_mw / 1000 if cap.is_local or not cap.packages_mw else math.inf
    return lambda state: replace(state, cap_w=cap_w)


def initial(params: WalkParams, layout: Layout) -> WalkState:
    """No cap, no limit."""
    return WalkState(0.0, 1.0)


def decide(params: WalkParams, layout: Layout, state: WalkState, sample: Sample) -> tuple[WalkState, Request]:
    """A limit for each frequency domain, the same share of its highest clock; 0 where there is none."""
    free = Request.free(len(layout.domains))
    if state.cap_w <= 0 or sample.elapsed_s <= 0:
        return replace(state, scale=1.0), free
    highest = np.array([domain.max_khz for domain in layout.domains], np.int64)
    if math.isinf(state.cap_w):
        scale = min(state.scale + RISE_PER_S * sample.elapsed_s, 1.0)
        return replace(state, scale=scale), replace(free, target=_limits(highest, scale))
    packages = np.array([zone.kind == "package" for zone in layout.zones], np.bool_)
    power_w = float(sample.energy_j[packages].sum()) / sample.elapsed_s if packages.any() else float("nan")
    lowest = min((domain.min_khz / domain.max_khz for domain in layout.domains), default=1.0)
    if np.isnan(power_w):
        scale, reason = state.scale - BLIND_FALL_PER_S * sample.elapsed_s, BLIND
    elif power_w > state.cap_w:
        scale, reason = state.scale * (AIM * state.cap_w / power_w) ** 0.5, ABOVE
    elif power_w < BAND * state.cap_w:
        rise = min((AIM * state.cap_w / max(power_w, 1e-3)) ** 0.5 - 1.0, RISE_PER_S * sample.elapsed_s)
        scale, reason = state.scale * (1.0 + rise), BELOW
    else:
        scale, reason = state.scale, AT
    scale = min(max(scale, lowest), 1.0)
    reasons = np.full_like(free.reason, reason)
    return WalkState(state.cap_w, scale), Request(_limits(highest, scale), reasons, free.loss, free.saved_w)


def _limits(highest: type_i64, scale: float) -> type_i64:
    return (highest * scale).astype(np.int64) if scale < 1.0 else np.zeros_like(highest)


BELOW, ABOVE, BLIND, AT = range(4)

POLICY: Final = Policy(
    name="power-walk",
    domain="cpu",
    summary="enforces a cap in watts by clocks while no controller does",
    source="ours",
    reasons=("below the cap", "above the cap", "no power reading", "at the cap"),
    params=WalkParams,
    initial=initial,
    decide=decide,
)

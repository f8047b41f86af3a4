"""REGALE's GPU daemon, as printed: LOW while SM occupancy is under 10 %, HIGH otherwise (D2.3 §3.4, ``dmon``).

    loop: if sm_occupancy < 10 %: LOW   else if clock is LOW: HIGH

The listing leaves open the poll period, averaging, dwell and what happens at exactly 10 %. Read here as: one poll per
tick of the agent (100 ms by default), no averaging of its own beyond what the driver reports, no dwell, and 10 % is not
under 10 %, so HIGH. "Else if clock is LOW" only spares a needless write; the agent's writer does that for every knob.

The report names the two clocks for one card, A100-80: LOW 1005 and HIGH 1410 MHz. For other cards LOW is derived
(ours): the supported clock nearest to the same share of the card's highest one. Before Hopper no SM occupancy exists,
so the sample has ``utilization.gpu`` in its place, marked ESTIMATED: a busy GPU then never reads under 10 %.
A missing reading gives HIGH: a dead sensor must never lower a clock.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec
import numpy as np

from nodectl.policies.api import Policy, Request
from pmu.layout import Gpu, Layout
from pmu.readings import Sample

A100_LOW_MHZ: Final = 1005  # REGALE D2.3 §3.4
A100_HIGH_MHZ: Final = 1410  # REGALE D2.3 §3.4

IDLE, BUSY, MISSING = range(3)
REASONS: Final = ("occupancy under the threshold", "occupancy at or over the threshold", "occupancy missing")


class Params(msgspec.Struct, frozen=True):
    """``low_mhz`` and ``high_mhz`` for every GPU of the node; 0 = derived from the card's ladder."""

    threshold: float = 0.10  # REGALE D2.3 §3.4: strictly under 10 %
    low_mhz: int = 0
    high_mhz: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ValueError("threshold must be in [0, 1]")
        if min(self.low_mhz, self.high_mhz) < 0 or (self.low_mhz and self.high_mhz and self.low_mhz > self.high_mhz):
            raise ValueError("low_mhz must not be above high_mhz, and neither negative")
        if max(self.low_mhz, self.high_mhz) >= 2**31:
            raise ValueError("high_mhz and low_mhz must be clocks in MHz, below 2147483648")


class State(msgspec.Struct, frozen=True):
    """The daemon remembers nothing from one poll to the next."""


def initial(params: Params, layout: Layout) -> State:
    """The only state there is."""
    return State()


def decide(params: Params, layout: Layout, state: State, sample: Sample) -> tuple[State, Request]:
    """LOW or HIGH for each GPU from its occupancy in this interval; what that costs is not estimated."""
    occupancy = sample.gpu.sm_occupancy
    if not layout.gpus:
        return state, Request.free(0)
    low, high = np.array([clocks(params, gpu) for gpu in layout.gpus], np.int64).T
    is_low = occupancy < params.threshold  # NaN compares false: HIGH
    reason = np.where(np.isnan(occupancy), MISSING, np.where(is_low, IDLE, BUSY)).astype(np.uint8)
    free = Request.free(len(layout.gpus))
    return state, Request(np.where(is_low, low, high), reason, free.loss, free.saved_w)


@lru_cache(maxsize=64)
def clocks(params: Params, gpu: Gpu) -> tuple[int, int]:
    """LOW and HIGH of one card, in MHz; (0, 0), no request, for a card that lists no clocks."""
    if not gpu.clocks_mhz:
        return 0, 0
    high = params.high_mhz or gpu.clocks_mhz[-1]
    share = A100_LOW_MHZ / A100_HIGH_MHZ
    return params.low_mhz or min(gpu.clocks_mhz, key=lambda mhz: abs(mhz - share * high)), high


POLICY: Final = Policy(
    name="bdpo-gpu",
    domain="gpu",
    summary="two clocks: LOW while SM occupancy is under 10 %, else HIGH",
    source="REGALE D2.3 §3.4, prototype dmon",
    reasons=REASONS,
    params=Params,
    initial=initial,
    decide=decide,
)

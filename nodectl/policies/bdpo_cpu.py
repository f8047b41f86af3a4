"""bdpo-cpu: core clocks follow the IPC of the last interval (BDPO, REGALE D2.3 §3.4).

A core that retires few instructions per reference cycle waits for memory, so it loses little at a lower clock. The
clock is lowered one step at a time, and only after the IPC has stayed low for a dwell; it is free again at once when
the IPC rises, because a late rise costs the application time while a late drop only costs some joules.

D2.3 gives the principle but no thresholds, period, hysteresis or step rule. The defaults here are ours and
conservative: an IPC below 0.5 per reference cycle is rare outside codes that stall on memory, and the clock is never
taken below 70 % of its maximum, where a wrong guess costs at most 43 % of speed for one period.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from nodectl.policies.api import Policy, Request
from nodectl.policies.parts.clocks import ClockLadder
from pmu.layout import Layout
from pmu.readings import Sample, type_i64

REASONS = ("free", "low-ipc", "held", "high-ipc", "idle", "missing")
FREE, LOW_IPC, HELD, HIGH_IPC, IDLE, MISSING = range(len(REASONS))


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Thresholds of the reactive rule; a calibrated P-state table supplies its own."""

    low_ipc: float = 0.5  # lower the clock below this
    high_ipc: float = 0.7  # free it above this; between the two it stays unchanged
    dwell_s: float = 0.3  # how long the IPC must stay low before each step down
    floor: float = 0.7  # lowest clock, as a share of the highest
    step_mhz: int = 100  # step where the driver takes any clock
    idle: float = 0.05  # a CPU that is busy for less than this share of the interval is idle: its clock is free

    def __post_init__(self) -> None:
        if not 0 < self.low_ipc <= self.high_ipc:
            raise ValueError("low_ipc must be above 0 and at most high_ipc")
        if not 0 < self.floor <= 1:
            raise ValueError("floor must be in (0, 1]")
        if self.dwell_s < 0 or self.step_mhz <= 0 or not 0 <= self.idle < 1:
            raise ValueError("dwell_s must be >= 0, step_mhz > 0 and idle in [0, 1)")


@dataclass(frozen=True, slots=True)
class State:
    """Per logical CPU: steps below the highest clock, and nanoseconds for which the IPC has been low."""

    level: type_i64
    low_ns: type_i64


def initial(params: Params, layout: Layout) -> State:
    """Every CPU at its highest clock."""
    return State(np.zeros(len(layout.cpus), np.int64), np.zeros(len(layout.cpus), np.int64))


def decide(params: Params, layout: Layout, state: State, sample: Sample) -> tuple[State, Request]:
    """Lower the clock of each CPU whose IPC has been low for a dwell; free it when the IPC is high, or unknown."""
    ladder = ClockLadder.of(layout, params.step_mhz)
    ipc = sample.cpu.ipc
    unknown = ~np.isfinite(sample.cpu.busy)
    idle = ~unknown & (sample.cpu.busy < params.idle)
    missing = unknown | (~idle & ~np.isfinite(ipc))
    judged = ~idle & ~missing
    low = judged & (ipc < params.low_ipc)
    high = judged & (ipc > params.high_ipc)

    low_ns = np.where(low, state.low_ns + round(sample.elapsed_s * 1e9), 0)
    due = low & (low_ns >= round(params.dwell_s * 1e9))
    lowest = ladder.level_at_or_above(params.floor)
    level = np.where(due, np.minimum(state.level + 1, lowest), state.level)
    level = ladder.follow_domain(np.where(high | missing, 0, level), judged | missing)
    low_ns = np.where(due, 0, low_ns)

    reason = np.full(len(level), HELD, np.uint8)
    for mask, code in (
        (level == 0, FREE),
        (low & (level > 0), LOW_IPC),
        (high, HIGH_IPC),
        (idle, IDLE),
        (missing, MISSING),
    ):
        reason[mask] = code
    unknown_estimate = np.full(len(level), np.nan)
    return State(level, low_ns), Request(ladder.target_khz(level), reason, unknown_estimate, unknown_estimate)


POLICY = Policy(
    name="bdpo-cpu",
    domain="cpu",
    summary="lowers core clocks step by step while IPC stays low, frees them at once when it rises",
    source="REGALE D2.3 §3.4; thresholds, dwell and steps are ours",
    reasons=REASONS,
    params=Params,
    initial=initial,
    decide=decide,
)

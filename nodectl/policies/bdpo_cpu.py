"""bdpo-cpu: core clocks follow the IPC of the last interval (BDPO, REGALE D2.3 §3.4).

A core that retires few instructions per reference cycle waits for memory, so it loses little at a lower clock. The
clock is lowered one step at a time, and only after the IPC has stayed low for a dwell; it is free again at once when
the IPC rises, because a late rise costs the application time while a late drop only costs some joules.

D2.3 gives the principle but no thresholds, period, hysteresis or step rule. The defaults here are ours and
conservative: an IPC below 0.5 per reference cycle is rare outside codes that stall on memory, and the clock is never
taken below 70 % of its maximum, where a wrong guess costs at most 43 % of speed for one period.

``loss`` (ours) is a second sign, for work whose IPC says little: from how far IPC fell at a first lower clock
follows the lowest that costs no more (``parts.clock_response``). Thresholds then only say whose clock is worth a look.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np

from nodectl.journal.state import LATER
from nodectl.policies.api import Policy, Request
from nodectl.policies.parts.clock_response import PROBE, ClockResponse, type_bools
from nodectl.policies.parts.clocks import ClockLadder
from pmu.layout import Layout
from pmu.readings import Sample, type_i64

REASONS = ("free", "low-ipc", "held", "high-ipc", "idle", "missing", "follows-clock")
FREE, LOW_IPC, HELD, HIGH_IPC, IDLE, MISSING, FOLLOWS_CLOCK = range(len(REASONS))


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Thresholds of the reactive rule; a calibrated P-state table supplies its own."""

    low_ipc: float = 0.5  # lower the clock below this
    high_ipc: float = 0.7  # free it above this; between the two it stays unchanged
    dwell_s: float = 0.3  # how long the IPC must stay low before each step down
    floor: float = 0.7  # lowest clock, as a share of the highest
    step_mhz: int = 100  # step where the driver takes any clock
    idle: float = 0.05  # a CPU that is busy for less than this share of the interval is idle: its clock is free
    loss: float = 0.0  # share of time that a lower clock may cost, by how IPC falls with it; 0: not looked at

    def __post_init__(self) -> None:
        if not 0 < self.low_ipc <= self.high_ipc:
            raise ValueError("low_ipc must be above 0 and at most high_ipc")
        if not 0 < self.floor <= 1:
            raise ValueError("floor must be in (0, 1]")
        if not 0 <= self.dwell_s < 1e9 or self.step_mhz <= 0 or not 0 <= self.idle < 1:
            raise ValueError("dwell_s must be in [0, 1e9), step_mhz > 0 and idle in [0, 1)")
        if not 0 <= self.loss < 1:
            raise ValueError("loss must be in [0, 1)")


@dataclass(frozen=True, slots=True)
class State:
    """Per logical CPU: steps below the highest clock, and nanoseconds for which the IPC has been low."""

    level: type_i64
    low_ns: type_i64
    response: ClockResponse | None = field(default=None, kw_only=True, metadata={LATER: True})
    """With ``loss``; None before the first interval."""


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

    response, other_work, chosen = _response(params, ladder, state, sample, judged)
    low_ns = np.where(low & ~other_work, state.low_ns + round(sample.elapsed_s * 1e9), 0)
    due = low & (low_ns >= round(params.dwell_s * 1e9))
    lowest, step = ladder.level_at_or_above(params.floor), np.ones_like(state.level)
    if response is not None:
        due &= (state.level == 0) & response.may_lower
        step = ladder.level_at_or_above(PROBE).clip(1)
    level = np.where(due, np.minimum(state.level + step, lowest), state.level)
    level = np.where(chosen >= 0, np.minimum(chosen, lowest), level)
    level = ladder.follow_domain(np.where(high | missing | other_work, 0, level), judged | missing)
    low_ns = np.where(due, 0, low_ns)
    if response is not None:
        response = response.moved(level != state.level)

    reason = np.full(len(level), HELD, np.uint8)
    for mask, code in (
        (level == 0, FREE),
        (low & (level > 0), LOW_IPC),
        (chosen == 0, FOLLOWS_CLOCK),
        (high, HIGH_IPC),
        (idle, IDLE),
        (missing, MISSING),
    ):
        reason[mask] = code
    unknown_estimate = np.full(len(level), np.nan)
    request = Request(ladder.target_khz(level), reason, unknown_estimate, unknown_estimate)
    return State(level, low_ns, response=response), request


def _response(
    params: Params, ladder: ClockLadder, state: State, sample: Sample, judged: type_bools
) -> tuple[ClockResponse | None, type_bools, type_i64]:
    """How IPC answered the clock so far, the CPUs that do other work than before, and the level that the answer allows
    each; -1: none was looked for, or not long enough."""
    nobody = np.zeros(len(judged), np.bool_)
    if not params.loss:
        return None, nobody, np.full(len(judged), -1)
    before = state.response or ClockResponse.unknown(len(judged))
    elapsed_ns, cpu = round(sample.elapsed_s * 1e9), sample.cpu
    found, other_work = before.seen(state.level == 0, judged, cpu.ipc, cpu.frequency_khz, elapsed_ns)
    level = found.level(ladder.relative, params.loss)
    return found.refusing(level == 0), other_work, level


POLICY = Policy(
    name="bdpo-cpu",
    domain="cpu",
    summary="lowers core clocks step by step while IPC stays low, frees them at once when it rises",
    source="REGALE D2.3 §3.4; thresholds, dwell and steps are ours",
    reasons=REASONS,
    params=Params,
    initial=initial,
    decide=decide,
    waits={"dwell_s": "dwell_s"},
)

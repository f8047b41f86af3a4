"""uncore-bounded: a lower uncore clock in phases that hardly use it, within a slowdown bound over the whole run. Ours.

Problem. The uncore (mesh, last-level cache, memory controllers) can draw a large part of a package's power, also while
the cores work out of their own caches. A job that waits for memory needs all of it. The run may become
slower by no more than ``bound`` (3 %) *in all*, and a CPU policy may be spending on the same run.

Idea. Time that is spent waiting for cache or memory grows at most as the uncore's clock falls; all other time does not
change. So the share of waiting gives an upper bound of the loss, at any clock and without a measurement at two clocks.
How much of waiting follows the uncore at most (``share``: all of it, unless a table has measured it) lowers the bound:

    m       share of a package's busy time, at the highest clocks of core and uncore, that waits
    loss    m * share * (u_max / u - 1)                 most extra time at uncore clock u
    core    (1 - m) * (f_max / f - 1)                   extra time by lower core clocks, whoever lowered them
    lost_s  sum of elapsed * x / (1 + x), x = loss + core of the slowest package                                   s
    room_s  bound * time_s - lost_s                     what is left on the account                                 s
    u       the lowest with loss <= bound - core; u_max while room_s is not positive or m is above ``memory``

A lower clock may cost more joules than it saves, since all else draws its watts for longer. Where a table says how many
watts ``clock_w`` go with the square of the uncores' clocks (the law of two Skylake-SP, ``benchmarks/twin_uncore.py``),
u is the affordable clock of the greatest gain, u_max if there is none. W: packages, DRAM and ``rest_w`` now.

    gain    clock_w / W * (1 - (u / u_max)^2) - loss

Waiting is the share of stalled cycles where that event exists. Otherwise it is bounded by the instructions: a core that
retires ``width`` per cycle at most has worked for ``ipc / width`` of its cycles at least. So without the event only
packages of a high IPC qualify.

Invariant. No interval is planned to lose more than ``bound`` in all, and none anything while the account is overdrawn.
A phase that begins to wait while the uncore is slow costs one interval, which the account is charged with.

The account also carries what core clocks lose. So next to a CPU policy with the same bound this one spends only what
that leaves, and the bound is for both together. The clock rises at once and falls after ``dwell_s``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from nodectl.policies.api import Policy, Request
from pmu.layout import KnobRange, Layout
from pmu.readings import Sample, type_f64, type_i64

REASONS = ("free", "idle", "missing", "memory", "dwell", "bounded", "account", "no-gain")
FREE, IDLE, MISSING, MEMORY, DWELL, BOUNDED, ACCOUNT, NO_GAIN = range(len(REASONS))

TOP_MEMORY_S = 300.0
"""The highest core clock is forgotten this slowly: all-core turbo may follow single-core turbo for the rest of a run,
while CPU policies return to the highest clock more often than that (ours)."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bound and where the uncore is left alone. All defaults are ours."""

    bound: float = 0.03  # slowdown over the whole run, with what core clocks cost
    memory: float = 0.3  # a package of whose time more than this follows the uncore keeps its highest clock
    floor: float = 0.5  # lowest uncore clock, as a share of the highest
    share: float = 1.0  # of the waiting time, how much grows with the uncore's clock at most
    clock_w: float = 0.0  # watts that go with the uncores' clocks, of the node; 0: not known, joules are not looked at
    rest_w: float = 60.0  # power of the node that no zone measures
    dwell_s: float = 0.5  # how long a lower clock must have been affordable
    width: float = 4.0  # instructions that a core retires per cycle: 4 up to Cascade Lake, 5 Ice Lake, 6 later
    idle: float = 0.05  # a CPU is judged if it is busy for at least this share of the interval

    def __post_init__(self) -> None:
        if not 0 < self.bound < 1:
            raise ValueError("bound must be in (0, 1)")
        if not 0 < self.floor <= 1 or not 0 < self.memory <= 1:
            raise ValueError("floor and memory must be in (0, 1]")
        if not 0 < self.share <= 1:
            raise ValueError("share must be in (0, 1]")
        if not (0 <= self.clock_w < math.inf and 0 <= self.rest_w < math.inf):
            raise ValueError("clock_w and rest_w must be watts, and not negative")
        if self.dwell_s < 0 or self.width <= 0 or not 0 <= self.idle < 1:
            raise ValueError("dwell_s must not be negative, width above 0, idle in [0, 1)")


@dataclass(frozen=True, slots=True)
class State:
    """Per range: the requested limit in kHz, the one that has been affordable for ``calm_s``. Of the node: the highest
    core clock seen lately, and the account."""

    requested_khz: type_i64
    candidate_khz: type_i64
    calm_s: type_f64
    top_khz: float
    time_s: float
    lost_s: float


@dataclass(frozen=True, slots=True)
class _Seen:
    """One package in one interval, through the median of its busy CPUs."""

    clock_khz: float
    stall: float  # share of its busy time that waits, at the present clocks


def initial(params: Params, layout: Layout) -> State:
    """Every range at its highest clock, nothing spent."""
    high = np.array([row.high for row in _rows(layout)], np.int64)
    return State(high, high, np.zeros(len(high)), 0.0, 0.0, 0.0)


def decide(params: Params, layout: Layout, state: State, sample: Sample) -> tuple[State, Request]:
    """Charge the last interval to the account, then choose the limit of each range."""
    rows = _rows(layout)
    requested, candidate, calm_s = state.requested_khz.tolist(), state.candidate_khz.tolist(), state.calm_s.tolist()
    seen = [_look(params, row, sample) for row in rows]
    top_khz = _top_khz(state, sample, seen)
    waits, core = _losses(params, rows, seen, requested, top_khz)
    loss = [wait * (row.high / at - 1.0) for wait, row, at in zip(waits, rows, requested, strict=True)]

    # the other packages wait for the slowest at the next barrier
    worst = max((a + b for a, b in zip(loss, core, strict=True) if not math.isnan(a)), default=0.0)
    time_s, lost_s = state.time_s + sample.elapsed_s, state.lost_s + sample.elapsed_s * worst / (1.0 + worst)
    may_spend = params.bound * time_s > lost_s
    saved = _clock_share(params, layout, sample)

    reason = [view if isinstance(view, int) else BOUNDED for view in seen]
    for i, row in enumerate(rows):
        wanted = row.high
        if reason[i] == BOUNDED:
            wanted, reason[i] = _wanted(params, row, waits[i], params.bound - core[i] if may_spend else 0.0, saved)
        if wanted >= requested[i]:  # a late rise costs the application time, a late fall only joules
            requested[i], calm_s[i] = wanted, 0.0
            continue
        candidate[i] = max(candidate[i], wanted) if calm_s[i] > 0 else wanted
        calm_s[i] += sample.elapsed_s
        if calm_s[i] < params.dwell_s - sample.elapsed_s / 2:
            reason[i] = DWELL
        else:
            requested[i], calm_s[i] = candidate[i], 0.0
    after = State(
        np.array(requested, np.int64), np.array(candidate, np.int64), np.array(calm_s), top_khz, time_s, lost_s
    )
    target = [0 if at >= row.high else at for at, row in zip(requested, rows, strict=True)]
    unknown = np.full(len(rows), np.nan)
    return after, Request(np.array(target, np.int64), np.array(reason, np.uint8), np.array(loss), unknown)


def _losses(
    params: Params, rows: Sequence[KnobRange], seen: Sequence[_Seen | int], requested: Sequence[int], top_khz: float
) -> tuple[list[float], list[float]]:
    """Per range the share of time that follows the uncore, and what the core clock costs, ``_at_highest_clocks``; NaN
    and 0 where nothing can be said of its package."""
    waits, core = [math.nan] * len(rows), [0.0] * len(rows)
    for i, view in enumerate(seen):
        if isinstance(view, _Seen):
            found, core[i] = _at_highest_clocks(view, top_khz, requested[i] / rows[i].high, params.share)
            waits[i] = params.share * found
    return waits, core


def _rows(layout: Layout) -> list[KnobRange]:
    return [row for row in layout.ranges if row.domain == "uncore"]


def _look(params: Params, row: KnobRange, sample: Sample) -> _Seen | int:
    """What the package of a range did; ``IDLE`` or ``MISSING`` where nothing can be said of it."""
    cpu, cpus = sample.cpu, np.array(row.cpus, np.int64)
    is_busy = cpu.busy[cpus] >= params.idle
    if not is_busy.any():
        return IDLE if np.isfinite(cpu.busy[cpus]).any() else MISSING
    judged = cpus[is_busy & np.isfinite(cpu.ipc[cpus]) & np.isfinite(cpu.frequency_khz[cpus])]
    if not len(judged):
        return MISSING
    stall = float(np.median(cpu.stall[judged]))
    if math.isnan(stall):
        stall = 1.0 - float(np.median(cpu.instructions[judged] / cpu.cycles[judged])) / params.width
    if math.isnan(stall):
        return MISSING
    return _Seen(float(np.median(cpu.frequency_khz[judged])), min(max(stall, 0.0), 1.0))


def _top_khz(state: State, sample: Sample, seen: list[_Seen | int]) -> float:
    """The highest core clock of late, which core clocks are charged against."""
    clock_khz = max((view.clock_khz for view in seen if isinstance(view, _Seen)), default=math.nan)
    if math.isnan(clock_khz):
        return state.top_khz
    forgotten = (state.top_khz - clock_khz) * min(sample.elapsed_s / TOP_MEMORY_S, 1.0)
    return max(state.top_khz - forgotten, clock_khz)


def _at_highest_clocks(view: _Seen, top_khz: float, uncore: float, share: float) -> tuple[float, float]:
    """The share of time that waits when core and uncore run at their highest clocks, and what the core clock costs.

    ``uncore``: the limit in force over the highest. Work takes ``1 - stall`` of the time now and scales with the core
    clock; waiting takes the rest, of which ``share`` scales with the uncore's at most.
    """
    clock = min(view.clock_khz / top_khz, 1.0) if top_khz > 0 else 1.0
    work, wait = (1.0 - view.stall) * clock, view.stall * uncore / (uncore + share * (1.0 - uncore))
    waits = wait / (work + wait) if work + wait > 0 else 1.0
    return waits, (1.0 - waits) * (1.0 / clock - 1.0) if clock > 0 else 0.0


def _clock_share(params: Params, layout: Layout, sample: Sample) -> float:
    """Of the node's watts now, the share that goes with the uncores' clocks; 0 where either is not known."""
    zones = [i for i, zone in enumerate(layout.zones) if zone.kind in ("package", "dram")]
    zones_w = float(sample.energy_j[zones].sum()) / sample.elapsed_s if params.clock_w and zones else 0.0
    return params.clock_w / (zones_w + params.rest_w) if zones_w > 0 else 0.0


def _wanted(params: Params, row: KnobRange, waits: float, allowed: float, saved: float) -> tuple[int, int]:
    """The limit that gains most among those at which no more than ``allowed`` is lost, and the reason. ``saved``:
    ``_clock_share``; without it the lowest of these limits."""
    if waits > params.memory:
        return row.high, MEMORY
    if allowed <= 0:
        return row.high, ACCOUNT
    lowest = max(row.low, math.ceil(params.floor * row.high))
    affordable = math.ceil(row.high / (1.0 + allowed / waits)) if waits > 0 else lowest
    at_least = max(lowest, affordable)
    steps = [step for step in row.steps if step >= at_least]
    if not saved:
        return min(steps, default=row.high), BOUNDED

    def gain(step: int) -> float:
        return saved * (1.0 - (step / row.high) ** 2) - waits * (row.high / step - 1.0)

    best = max(steps, key=gain, default=row.high)
    return (best, BOUNDED) if gain(best) > 0 else (row.high, NO_GAIN)


POLICY = Policy(
    name="uncore-bounded",
    domain="uncore",
    summary="lowers the uncore in phases that hardly wait for memory, within a slowdown bound over the whole run",
    source="ours, after the beta model of frequency scaling applied to the uncore",
    reasons=REASONS,
    params=Params,
    initial=initial,
    decide=decide,
    waits={"dwell_s": "dwell_s"},
)

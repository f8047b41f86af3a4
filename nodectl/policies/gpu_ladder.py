"""The GPU clock that takes the least energy within a slowdown bound, learned while the job runs (ours).

REGALE's daemon knows two clocks and asks whether the GPU is busy; on EasyWave it saves 11 % where one fixed clock in
between saves 26 % (D2.3 §3.4): that GPU is busy, yet waits for memory. This policy uses the clocks in between. It needs
no prior run and no access to the application, only what NVML shows.

How fast a job goes cannot be read from outside, but at constant memory clock the traffic to memory (``dram_active``
from Hopper on, ``utilization.memory`` before) keeps step with it: the ratio of traffic between two clocks estimates the
ratio of speed. That estimate is noisy, in whole percentages before Hopper, and off by an unknown share per workload.
Hence:

1.  Samples are averaged to blocks of a second; those within ``settle_s`` after a clock change are dropped, since NVML's
    own averaging window (up to a second) still holds the old clock.
2.  Each new phase is measured at the highest clock first, then stepwise lower. All blocks together weigh candidate
    curves of loss against clock (``gpu_curves``); power is simply measured.
3.  ``gpu_choice`` picks the clock of least energy among those whose assumed loss the account can bear, and pays for a
    look at another clock only if that promises more than it costs. Where traffic says too little, loss is taken as
    proportional to the clock, and the bound is spent on that.
4.  The account sums assumed seconds lost over the whole run, with every phase's curve as it is known now, against
    ``aim * bound`` of the time. ``aim`` leaves the rest to what traffic does not tell truly.
5.  A phase (``gpu_phases``) ends when power or traffic leave its range. If the power seen at this clock belongs to one
    known phase, its clock is taken at once; else the GPU goes back to the highest clock until the phase is recognised
    or learned. Without a reading a GPU has no wish and runs free.

Every GPU is judged by itself. The highest clock is asked for by name rather than by no wish, because the bound is
counted against it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from nodectl.policies.api import Policy, Request
from nodectl.policies.gpu_choice import BASELINE, MISSING, NO_CLOCKS, REASONS, SEARCH, Limits, Taste, choose, estimate
from nodectl.policies.gpu_curves import LEVELS, CurveBank, curve_bank
from nodectl.policies.gpu_phases import (
    COLUMNS,
    COUNT,
    FACTS,
    LOSS,
    PHASES,
    SECONDS,
    SEEN_S,
    TICK_WATTS,
    WATTS,
    Block,
    Phases,
    lost,
)
from pmu.layout import Layout
from pmu.readings import Sample, type_f64, type_i64

ODD_TICKS: Final = 3
"""Ours: samples in a row whose power is out of range that end a phase at once, without waiting for a block."""

TICKS, ELAPSED, RATE_SUM, RATE_SQUARES, WATTS_SUM, WATTS_SQUARES, UTILIZATION_SUM = range(7)
SUMS: Final = 7


class Params(msgspec.Struct, frozen=True):
    """Shares are of 1; all defaults are ours, chosen on the V100 table (benchmarks/gpu_savings.py)."""

    bound: float = 0.03  # slowdown over the whole run
    aim: float = 0.9  # share of the bound spent by the estimates
    floor: float = 0.5  # lowest clock, of the highest
    caution: float = 0.5  # standard deviations added to every estimated loss
    price: float = 0.5  # energy share that 1 of time must bring
    least_gain: float = 0.004  # energy share below which nothing is worth a change
    faith: float = 0.3  # share of a hoped-for gain that a look is expected to bring
    try_at_most: float = 0.08  # most assumed loss of a clock that is looked at
    horizon_s: float = 60.0  # the account evens out over this time; shortest time a gain is taken to last
    credit_s: float = 20.0  # looks may spend the account's income of so many seconds in advance
    settle_s: float = 1.2  # NVML utilisation windows: 1/6 to 1 s by product (nvml.h)
    block_s: float = 1.0
    visit_blocks: int = 3
    base_blocks: int = 4
    noise: float = 0.03  # expected scatter of a block's traffic

    def __post_init__(self) -> None:
        if not 0 < self.bound < 1:
            raise ValueError("bound must be in (0, 1)")
        if not 0 < self.floor <= 1:
            raise ValueError("floor must be in (0, 1]")
        if not 0 < self.aim <= 1:
            raise ValueError("aim must be in (0, 1]")
        if min(self.horizon_s, self.block_s, self.noise) <= 0 or min(self.visit_blocks, self.base_blocks) < 1:
            raise ValueError("horizon_s, block_s, noise, visit_blocks and base_blocks must be above 0")
        if min(self.caution, self.price, self.least_gain, self.faith, self.try_at_most, self.credit_s) < 0:
            raise ValueError("caution, price, least_gain, faith, try_at_most and credit_s must not be negative")


@dataclass(frozen=True, slots=True)
class State:
    """What is known of each GPU (rows) and where it stands.

    ``table`` ``[n_gpus, PHASES, COLUMNS, LEVELS]`` and ``facts`` ``[n_gpus, PHASES, FACTS]`` are the phases. ``phase``
    is the current one (-1 = not known), ``level`` the clock asked for, ``reason`` why, ``blocks`` how many more blocks
    it is kept. ``settle_s`` is still to be waited, ``since_s`` was spent at this level since the table was last
    written, ``sums`` add up the current block. ``power_w`` ± ``range_w`` is expected (NaN = anything), ``odd`` counts
    samples outside it. ``doubted`` is a phase that was recognised by mistake just now, else -1. ``forgotten_s`` are
    seconds lost in phases no longer remembered, ``time_s`` the length of the run.
    """

    table: type_f64
    facts: type_f64
    phase: type_i64
    level: type_i64
    reason: type_i64
    blocks: type_i64
    settle_s: type_f64
    since_s: type_f64
    sums: type_f64
    power_w: type_f64
    range_w: type_f64
    odd: type_i64
    doubted: type_i64
    forgotten_s: type_f64
    time_s: float


def initial(params: Params, layout: Layout) -> State:
    """Nothing known, every GPU at its highest clock. Blocks end at different ticks on different GPUs, for the cost."""
    n_gpus = len(layout.gpus)
    facts = np.zeros((n_gpus, PHASES, FACTS))
    facts[:, :, SEEN_S] = -1.0
    return State(
        table=np.zeros((n_gpus, PHASES, COLUMNS, LEVELS)),
        facts=facts,
        phase=np.full(n_gpus, -1),
        level=np.zeros(n_gpus, np.int64),
        reason=np.full(n_gpus, BASELINE),
        blocks=np.zeros(n_gpus, np.int64),
        settle_s=np.asarray(params.settle_s + 0.1 * (np.arange(n_gpus) % 8), np.float64),
        since_s=np.zeros(n_gpus),
        sums=np.zeros((n_gpus, SUMS)),
        power_w=np.full(n_gpus, np.nan),
        range_w=np.full(n_gpus, np.nan),
        odd=np.zeros(n_gpus, np.int64),
        doubted=np.full(n_gpus, -1),
        forgotten_s=np.zeros(n_gpus),
        time_s=0.0,
    )


def decide(params: Params, layout: Layout, state: State, sample: Sample) -> tuple[State, Request]:
    """Add one interval to each GPU's block; where a block is full or the load has changed, choose anew."""
    if not layout.gpus:
        return state, Request.free(0)
    gpu, elapsed_s = sample.gpu, sample.elapsed_s
    rate = np.where(np.isfinite(gpu.dram_active), gpu.dram_active, gpu.memory_utilization)
    watts = np.where(np.isfinite(gpu.energy_j), gpu.energy_j / elapsed_s, gpu.power_w)
    row = np.stack(
        [np.ones(len(rate)), np.full(len(rate), elapsed_s), rate, rate**2, watts, watts**2, gpu.gpu_utilization], axis=1
    )
    banks = _banks(params, layout)
    has_clocks = banks[1][:, 0] > 0
    is_whole = np.isfinite(row).all(axis=1) & has_clocks
    is_learning = is_whole & (state.settle_s <= 1e-9)
    odd = np.where(is_learning & (abs(watts - state.power_w) > state.range_w), state.odd + 1, 0)
    after = replace(
        state,
        settle_s=np.where(is_whole, np.maximum(state.settle_s - elapsed_s, 0.0), params.settle_s),
        since_s=state.since_s + np.where(is_whole, elapsed_s, 0.0),
        sums=np.where(is_learning[:, None], state.sums + row, 0.0),
        odd=odd,
        time_s=state.time_s + elapsed_s,
    )
    is_full = is_learning & (after.sums[:, ELAPSED] >= params.block_s - 1e-6)
    turning = np.flatnonzero(is_full | (odd >= ODD_TICKS))
    if len(turning):
        after = _writable(after)
        for index in turning.tolist():
            one = _Gpu(params, banks[0][index], after, index, bool(np.isnan(gpu.dram_active[index])))
            if odd[index] >= ODD_TICKS:
                one.break_off(float(watts[index]))
            else:
                one.close_block()
    return after, _request(after, state, banks[1], is_whole, has_clocks, watts)


def _request(
    after: State,
    before: State,
    mhz: type_i64,
    is_whole: npt.NDArray[np.bool_],
    has_clocks: npt.NDArray[np.bool_],
    watts: type_f64,
) -> Request:
    every = np.arange(len(watts))
    target = np.where(is_whole, mhz[every, after.level], 0)
    reason = np.where(is_whole, after.reason, np.where(has_clocks, MISSING, NO_CLOCKS)).astype(np.uint8)
    is_known = is_whole & (before.phase >= 0) & (after.table[every, before.phase, COUNT, 0] > 0)
    loss = np.where(is_known, after.table[every, before.phase, LOSS, before.level], np.nan)
    saved_w = np.where(is_known, after.table[every, before.phase, WATTS, 0] - watts, np.nan)
    return Request(target, reason, loss, saved_w)


def _writable(state: State) -> State:
    """A copy whose per-GPU arrays may be written, so that the state given stays as it was."""
    fields = {name: getattr(state, name) for name in State.__slots__}
    copies: dict[str, Any] = {name: value.copy() for name, value in fields.items() if isinstance(value, np.ndarray)}
    return replace(state, **copies)


@dataclass(slots=True)
class _Gpu:
    """One GPU at a turn: a block is full, or its power says that the phase is over. Writes into ``state``."""

    params: Params
    bank: CurveBank
    state: State
    index: int
    is_whole_percent: bool

    def close_block(self) -> None:
        """Learn from the block if it fits the phase; else find out which phase this is."""
        state, i = self.state, self.index
        block, level, phase = self._block(), int(state.level[i]), int(state.phase[i])
        phases = self._phases()
        self._charge()
        if phase < 0:
            phase = phases.recognise(level, block, int(state.doubted[i]))
            if phase < 0:
                phase = self._begin(phases)
            state.doubted[i] = -1
            state.blocks[i] = 0
        elif not phases.fits(phase, level, block):
            fresh = phases.table[phase, COUNT, level] > 0 and state.blocks[i] < 0
            self._leave(phases.recognise(level, block, phase), phase if fresh else -1, phases)
            return
        phases.learn(phase, level, block, state.time_s)
        state.phase[i] = phase
        state.blocks[i] -= 1
        if state.blocks[i] <= 0:
            self._choose(phases)
        else:
            self._expect(phases)

    def break_off(self, watts: float) -> None:
        """Power has left the phase's range: recall a phase by its power, or look from the highest clock."""
        phases = self._phases()
        self._charge()
        self._leave(phases.recognise_power(int(self.state.level[self.index]), watts), -1, phases)

    def _leave(self, recalled: int, doubted: int, phases: Phases) -> None:
        state, i = self.state, self.index
        state.phase[i], state.doubted[i] = recalled, doubted
        if recalled >= 0:
            self._choose(phases)
            state.settle_s[i] = self.params.settle_s
            state.blocks[i] = -1
        else:
            self._go(0, SEARCH, 0)
            state.settle_s[i] = self.params.settle_s
            state.power_w[i] = state.range_w[i] = np.nan

    def _begin(self, phases: Phases) -> int:
        phase, lost_s = phases.forget_oldest()
        self.state.forgotten_s[self.index] += lost_s
        return phase

    def _choose(self, phases: Phases) -> None:
        state, params, i = self.state, self.params, self.index
        phase = int(state.phase[i])
        taste = Taste(
            params.price,
            params.least_gain,
            params.caution,
            params.faith,
            params.try_at_most,
            params.visit_blocks,
            params.base_blocks,
        )
        estimate(taste, phases, phase)
        income = params.bound * params.aim
        lost_s = float(lost(state.table[i]).sum() + state.forgotten_s[i])
        limits = Limits(
            allowance=min(max(income + (income * state.time_s - lost_s) / params.horizon_s, 0.0), 2.0 * params.bound),
            room_s=income * (state.time_s + params.credit_s) - lost_s,
            horizon_s=max(state.time_s, params.horizon_s),
            visit_s=params.settle_s + params.visit_blocks * params.block_s,
        )
        self._go(*choose(taste, phases, phase, int(state.level[i]), limits))
        self._expect(phases)

    def _go(self, level: int, reason: int, blocks: int) -> None:
        state, i = self.state, self.index
        if level != state.level[i]:
            state.settle_s[i] = self.params.settle_s
        state.level[i], state.reason[i], state.blocks[i] = level, reason, blocks

    def _expect(self, phases: Phases) -> None:
        state, i = self.state, self.index
        phase, level = int(state.phase[i]), int(state.level[i])
        watts = phases.table[phase, WATTS, level] if phases.table[phase, COUNT, level] > 0 else np.nan
        state.power_w[i] = watts
        state.range_w[i] = watts * (0.08 + 5.0 * np.sqrt(phases.facts[phase, TICK_WATTS]))

    def _block(self) -> Block:
        sums = self.state.sums[self.index]
        n = sums[TICKS]
        rate, watts = sums[RATE_SUM] / n, sums[WATTS_SUM] / n
        return Block(
            rate=float(rate),
            watts=float(watts),
            utilization=float(sums[UTILIZATION_SUM] / n),
            rate_variance=float(max(sums[RATE_SQUARES] / n - rate**2, 0.0)),
            watts_variance=float(max(sums[WATTS_SQUARES] / n - watts**2, 0.0)),
        )

    def _charge(self) -> None:
        """Book the time at this level to its phase, and start a new block."""
        state, i = self.state, self.index
        if state.phase[i] >= 0:
            state.table[i, state.phase[i], SECONDS, state.level[i]] += state.since_s[i]
        state.since_s[i] = 0.0
        state.sums[i] = 0.0
        state.odd[i] = 0

    def _phases(self) -> Phases:
        state, i = self.state, self.index
        return Phases(state.table[i], state.facts[i], self.bank, self.params.noise, self.is_whole_percent)


_kept: list[tuple[float, Layout, list[CurveBank], type_i64]] = []
"""The banks of the last layout: a cache. Compared by identity, since hashing a layout costs more than a tick may."""


def _banks(params: Params, layout: Layout) -> tuple[list[CurveBank], type_i64]:
    if not _kept or _kept[0][0] != params.floor or _kept[0][1] is not layout:
        banks = [curve_bank(gpu, params.floor) for gpu in layout.gpus]
        _kept[:] = [(params.floor, layout, banks, np.stack([bank.mhz for bank in banks]))]
    return _kept[0][2], _kept[0][3]


POLICY: Final = Policy(
    name="gpu-ladder",
    domain="gpu",
    summary="least energy within a slowdown bound over the whole run, on all clocks, learned while the job runs",
    source="ours; after REGALE D2.3 §3.4, whose two clocks leave 15 of EasyWave's 26 % unsaved",
    reasons=REASONS,
    params=Params,
    initial=initial,
    decide=decide,
)

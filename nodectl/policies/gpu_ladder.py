"""The GPU clock that takes the least energy within a slowdown bound, learned while the job runs (ours).

REGALE's daemon knows two clocks and asks whether the GPU is busy; on EasyWave it saves 11 % where one fixed clock in
between saves 26 % (D2.3 §3.4): that GPU is busy, yet waits for memory. This policy uses the clocks in between. It needs
no prior run and no access to the application, only what NVML shows.

How fast a job goes cannot be read from outside, but at constant memory clock the traffic to memory (``dram_active``
from Hopper on, ``utilization.memory`` before) keeps step with it: the ratio of traffic between two clocks estimates the
ratio of speed. That estimate is noisy, in whole percentages before Hopper, and off by an unknown share per workload.
Hence:

1.  Samples are averaged to blocks of half a second or more; those after a clock change are dropped for as long as
    NVML's own averaging window still holds the old clock.
2.  Each new phase is measured at the highest clock first, then stepwise lower. All blocks together weigh candidate
    curves of loss against clock (``gpu_curves``); power is simply measured.
3.  ``gpu_choice`` picks the clock of least energy among those whose assumed loss the account can bear, and pays for a
    look at another clock only if that promises more than it costs. Where traffic says too little, loss is taken as
    proportional to the clock, and the bound is spent on that.
4.  The account sums assumed seconds lost over the whole run, with every phase's curve as it is known now, against
    ``aim * bound`` of the time. ``aim`` leaves the rest to what traffic does not tell truly.
5.  A phase (``gpu_phases``) ends when power or traffic leave its range. If what is seen at this clock belongs to one
    known phase, its clock is taken at once; else the GPU goes back to the highest clock until the phase is recognised
    or learned. The time in between is charged to that phase. Without a reading a GPU has no wish and runs free.

Every GPU is judged by itself. The highest clock is asked for by name rather than by no wish, because the bound is
counted against it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nodectl.policies.api import Policy, Request
from nodectl.policies.gpu_choice import (
    BASELINE,
    MISSING,
    NO_CLOCKS,
    REASONS,
    SEARCH,
    Limits,
    Params,
    choose,
    estimate,
)
from nodectl.policies.gpu_curves import LEVELS, CurveBank, curve_bank
from nodectl.policies.gpu_phases import (
    COLUMNS,
    COUNT,
    FACTS,
    LOSS,
    PHASES,
    SECONDS,
    SEEN_S,
    STRANGE,
    TICK_WATTS,
    WATTS,
    Phases,
    Sight,
    lost,
)
from pmu.layout import Layout
from pmu.readings import Sample, type_f64, type_i64

PULSE_S: Final = 0.095
"""Ours: shorter intervals are put together to a tenth of a second first, since energy counters move in steps of 20 to
100 ms."""

ODD_PULSES: Final = 2
"""Ours: pulses in a row whose power is out of range that end a phase at once, without waiting for a block."""

LONGEST_WINDOW_S: Final = 1.0
"""NVML averages utilisation over 1/6 to 1 s "depending on the product" (nvml.h, nvmlUtilization_t)."""

GUESS_PULSES: Final = 2.0
"""Ours: after so many pulses with traffic a phase may be recognised, if no other resembles it."""

MARGIN: Final = 2.0
"""Ours: standard deviations by which the next phase must be stranger for that."""

SAFE_TO_WAIT: Final = 0.05
"""Ours: an unknown phase is looked at from where the clock is if none that it may be loses more than this there."""

SHORT_WINDOW_S: Final = 0.5
"""Ours: if traffic follows within this, it is waited for before a phase is recognised."""

RESTARTS: Final = 3
"""Ours: blocks of an unknown phase that are begun anew because power was not steady; the next is taken as it is."""

SECONDS_SUM, RATE_SUM, WATTS_SUM, UTILIZATION_SUM = range(4)
READINGS: Final = 4
PULSES, BLOCK_SECONDS, BLOCK_RATE, RATE_SQUARES, BLOCK_WATTS, WATTS_SQUARES, BLOCK_UTILIZATION = range(7)
SUMS: Final = 7


@dataclass(frozen=True, slots=True)
class State:
    """What is known of each GPU (rows) and where it stands.

    ``table`` ``[n_gpus, PHASES, COLUMNS, LEVELS]`` and ``facts`` ``[n_gpus, PHASES, FACTS]`` are the phases. ``phase``
    is the current one (-1 = not known), ``level`` the clock asked for, ``reason`` why, ``blocks`` how many more blocks
    it is kept (negative while a phase is sought: how often that began anew).

    ``pulse`` ``[n_gpus, READINGS]`` adds up the current pulse, ``sums`` ``[n_gpus, SUMS]`` the current block; ``last``
    ``[n_gpus, fields of Sight]`` is the block before, taken at ``last_level`` and not yet learned (-1 = none).
    ``moved_s`` has passed since clock or phase changed, ``since_s`` was spent at this level since the table was last
    written. ``window_s`` estimates over how long the traffic reading is averaged: it has stood at ``reading`` for
    ``stood_s``. ``power_w`` ± ``range_w`` is expected (NaN = anything), ``odd`` counts pulses outside it. ``doubted``
    is a phase that was recalled by mistake just now, else -1. ``limbo_s`` ``[n_gpus, LEVELS]`` was spent in a phase
    not recognised yet; ``forgotten_s`` are seconds lost in phases no longer remembered, ``time_s`` is the length of the
    run.
    """

    table: type_f64
    facts: type_f64
    phase: type_i64
    level: type_i64
    reason: type_i64
    blocks: type_i64
    pulse: type_f64
    sums: type_f64
    last: type_f64
    last_level: type_i64
    moved_s: type_f64
    since_s: type_f64
    window_s: type_f64
    reading: type_f64
    stood_s: type_f64
    power_w: type_f64
    range_w: type_f64
    odd: type_i64
    doubted: type_i64
    limbo_s: type_f64
    forgotten_s: type_f64
    time_s: float


def initial(params: Params, layout: Layout) -> State:
    """Nothing known, every GPU at its highest clock."""
    n_gpus = len(layout.gpus)
    facts = np.zeros((n_gpus, PHASES, FACTS))
    facts[:, :, SEEN_S] = -1.0
    zero = np.zeros(n_gpus)
    return State(
        table=np.zeros((n_gpus, PHASES, COLUMNS, LEVELS)),
        facts=facts,
        phase=np.full(n_gpus, -1),
        level=np.zeros(n_gpus, np.int64),
        reason=np.full(n_gpus, BASELINE),
        blocks=np.full(n_gpus, -1),
        pulse=np.zeros((n_gpus, READINGS)),
        sums=np.zeros((n_gpus, SUMS)),
        last=np.zeros((n_gpus, len(Sight._fields))),
        last_level=np.full(n_gpus, -1),
        moved_s=np.asarray(-0.1 * (np.arange(n_gpus) % 8), np.float64),  # so that not all blocks end at one tick
        since_s=zero,
        window_s=np.full(n_gpus, LONGEST_WINDOW_S),
        reading=zero,
        stood_s=zero,
        power_w=np.full(n_gpus, np.nan),
        range_w=np.full(n_gpus, np.nan),
        odd=np.zeros(n_gpus, np.int64),
        doubted=np.full(n_gpus, -1),
        limbo_s=np.zeros((n_gpus, LEVELS)),
        forgotten_s=zero,
        time_s=0.0,
    )


def decide(params: Params, layout: Layout, state: State, sample: Sample) -> tuple[State, Request]:
    """Add one interval to what is known; where a block is full or the load has changed, choose the clock anew."""
    if not layout.gpus:
        return state, Request.free(0)
    cards = _cards(params, layout)
    gpu, elapsed_s = sample.gpu, sample.elapsed_s
    rate = np.where(cards.has_gpm, gpu.dram_active, gpu.memory_utilization)
    watts = np.where(np.isfinite(gpu.energy_j), gpu.energy_j / elapsed_s, gpu.power_w)
    row = np.stack(
        [np.full(len(rate), elapsed_s), *(elapsed_s * x for x in (rate, watts, gpu.gpu_utilization))], axis=1
    )
    is_whole = np.isfinite(row).all(axis=1) & cards.has_clocks
    after = replace(state, pulse=state.pulse + row, time_s=state.time_s + elapsed_s)
    if after.pulse[:, SECONDS_SUM].max() >= PULSE_S:
        after = _pulse(params, cards, after, rate)
    return after, _request(after, state, cards, is_whole, watts)


def _pulse(params: Params, cards: _Cards, state: State, rate: type_f64) -> State:
    """Work a tenth of a second or more into blocks, and turn to the GPUs that need a decision."""
    pulse_s = state.pulse[:, SECONDS_SUM]
    mean = state.pulse / pulse_s[:, None]
    is_whole = np.isfinite(mean).all(axis=1) & cards.has_clocks
    watts = mean[:, WATTS_SUM]
    moved_s = np.where(is_whole, state.moved_s + pulse_s, 0.0)
    stood_s, window_s = _window(state, rate, pulse_s)
    has_power = is_whole & (moved_s - pulse_s >= params.latency_s - 1e-6)
    is_learning = is_whole & (moved_s - pulse_s >= params.latency_s + window_s - 1e-6)
    is_first = is_learning & (state.sums[:, PULSES] == 0) & (state.phase < 0)
    power_w = np.where(is_first, watts, state.power_w)
    range_w = np.where(is_first, np.where(state.blocks > -RESTARTS, 0.1, np.inf) * watts, state.range_w)
    odd = np.where(has_power & (abs(watts - power_w) > range_w), state.odd + 1, 0)
    ones = np.ones(len(watts))
    traffic = mean[:, RATE_SUM]
    add = np.stack([ones, pulse_s, traffic, traffic**2, watts, watts**2, mean[:, UTILIZATION_SUM]], axis=1)
    sums = np.where(is_learning[:, None], state.sums + add, 0.0)
    is_full = is_learning & (sums[:, BLOCK_SECONDS] >= np.maximum(params.block_s, window_s) - 1e-6)
    is_guess = (state.phase < 0) & is_learning & (sums[:, PULSES] == GUESS_PULSES)
    after = replace(
        state,
        pulse=np.zeros_like(state.pulse),
        sums=sums,
        moved_s=moved_s,
        since_s=state.since_s + np.where(is_whole, pulse_s, 0.0),
        window_s=window_s,
        reading=rate,
        stood_s=stood_s,
        power_w=power_w,
        range_w=range_w,
        odd=odd,
    )
    is_odd = odd >= ODD_PULSES
    turning = np.flatnonzero(is_full | is_odd | is_guess)
    if len(turning):
        after = _writable(after)
        for index in turning.tolist():
            one = _Gpu(params, cards.banks[index], after, index, not cards.has_gpm[index])
            if is_odd[index]:
                one.break_off(float(watts[index]))
            elif is_full[index]:
                one.close_block()
            else:
                one.guess()
    return after


def _window(state: State, rate: type_f64, pulse_s: type_f64) -> tuple[type_f64, type_f64]:
    """How long the traffic reading has stood, and over how long it is averaged.

    NVML does not tell its window, but a reading that scatters changes once per window: the longest it stood, with older
    observations fading, is the estimate.
    """
    has_changed = rate != state.reading
    stood_s = np.where(has_changed, 0.0, state.stood_s + pulse_s)
    lasted = np.where(has_changed, state.stood_s + pulse_s, stood_s)
    faded = np.where(has_changed, 0.9 * state.window_s, state.window_s)
    return stood_s, np.clip(np.maximum(lasted, faded), 0.0, LONGEST_WINDOW_S)


def _request(after: State, before: State, cards: _Cards, is_whole: npt.NDArray[np.bool_], watts: type_f64) -> Request:
    every = np.arange(len(watts))
    target = np.where(is_whole, cards.mhz[every, after.level], 0)
    reason = np.where(is_whole, after.reason, np.where(cards.has_clocks, MISSING, NO_CLOCKS)).astype(np.uint8)
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
    """One GPU that needs a decision. Writes into ``state``."""

    params: Params
    bank: CurveBank
    state: State
    index: int
    is_whole_percent: bool

    def close_block(self) -> None:
        """Learn from a full block if it fits the phase; else find out which phase this is."""
        state, i = self.state, self.index
        sight, level, phase = self._sight(), int(state.level[i]), int(state.phase[i])
        phases, is_new = self._phases(), False
        if phase < 0:
            phase = phases.recognise(level, sight, int(state.doubted[i]), margin=0.0)
            is_new = phase < 0
            if is_new:
                phase, lost_s = phases.forget_oldest()
                state.forgotten_s[i] += lost_s
                phases.learn(phase, level, sight, state.time_s)
            self._enter(phase, blocks=0)
        elif phases.strangeness(level, sight)[phase] > STRANGE:
            self._leave(phases, sight)
            return
        self._learn_last(phases)
        self._charge()
        if not is_new:
            state.last[i], state.last_level[i] = sight, level
        state.blocks[i] -= 1
        if state.blocks[i] <= 0:
            self._choose(phases)
        else:
            self._expect(phases)

    def _learn_last(self, phases: Phases) -> None:
        """A block is learned once the next one has shown that the phase did not end in it."""
        state, i = self.state, self.index
        if state.last_level[i] >= 0:
            sight = Sight(*state.last[i].tolist())
            phases.learn(int(state.phase[i]), int(state.last_level[i]), sight, state.time_s)

    def break_off(self, watts: float) -> None:
        """Power is out of range: the phase is over, or a block of an unknown one was not steady."""
        if self.state.phase[self.index] < 0:
            self.state.moved_s[self.index] = self.params.latency_s
            self._restart(int(self.state.blocks[self.index]) - 1)
        else:
            self._leave(self._phases(), Sight(np.nan, watts, 1.0))

    def guess(self) -> None:
        """Two pulses may suffice to recall a phase; if not, an unknown phase is looked at from the highest clock."""
        state, i = self.state, self.index
        phases = self._phases()
        recalled = phases.recognise(int(state.level[i]), self._sight(), int(state.doubted[i]), MARGIN)
        if recalled >= 0:
            self._recall(phases, recalled)
        elif state.level[i] > 0:
            self._to_top()

    def _leave(self, phases: Phases, sight: Sight) -> None:
        """The phase is over. What may be a new one's time is not charged to the old one."""
        state, i = self.state, self.index
        level, phase = int(state.level[i]), int(state.phase[i])
        state.doubted[i] = phase
        recalled = phases.recognise(level, sight._replace(rate=np.nan), phase, 2.0 * MARGIN)
        loss = phases.may_lose(level, sight._replace(rate=np.nan), phase)
        self._to_limbo()
        state.moved_s[i] = self.params.latency_s  # the clock is there, traffic of the new phase is not
        if recalled >= 0:
            self._recall(phases, recalled)
        elif state.window_s[i] <= SHORT_WINDOW_S and loss <= SAFE_TO_WAIT:
            state.reason[i] = SEARCH
            self._restart(-1)
        else:
            self._to_top()

    def _to_limbo(self) -> None:
        state, i = self.state, self.index
        state.limbo_s[i, state.level[i]] += state.since_s[i]
        state.phase[i] = state.last_level[i] = -1
        state.since_s[i] = 0.0
        state.sums[i] = 0.0
        state.odd[i] = 0

    def _to_top(self) -> None:
        state, i = self.state, self.index
        self._to_limbo()
        if state.level[i] > 0:
            state.moved_s[i] = 0.0
        state.level[i], state.reason[i] = 0, SEARCH
        self._restart(-1)

    def _enter(self, phase: int, blocks: int) -> None:
        """The phase is known now, and answers for the time it took to find out."""
        state, i = self.state, self.index
        self._to_limbo()
        state.table[i, phase, SECONDS] += state.limbo_s[i]
        state.limbo_s[i] = 0.0
        state.phase[i], state.doubted[i], state.blocks[i] = phase, -1, blocks

    def _recall(self, phases: Phases, phase: int) -> None:
        self._enter(phase, blocks=0)
        self._choose(phases)

    def _restart(self, blocks: int) -> None:
        state, i = self.state, self.index
        state.blocks[i] = blocks
        state.sums[i], state.odd[i] = 0.0, 0
        state.power_w[i] = state.range_w[i] = np.nan

    def _choose(self, phases: Phases) -> None:
        state, params, i = self.state, self.params, self.index
        estimate(params, phases, int(state.phase[i]))
        income = params.bound * params.aim
        lost_s = float(lost(state.table[i]).sum() + state.forgotten_s[i])
        limits = Limits(
            allowance=min(max(income + (income * state.time_s - lost_s) / params.horizon_s, 0.0), 2.0 * params.bound),
            room_s=income * (state.time_s + params.credit_s) - lost_s,
            horizon_s=max(state.time_s, params.horizon_s),
            settle_s=params.latency_s + float(state.window_s[i]),
            block_s=max(params.block_s, float(state.window_s[i])),
        )
        level, reason, blocks = choose(params, phases, int(state.phase[i]), int(state.level[i]), limits)
        if level != state.level[i]:
            state.moved_s[i] = 0.0
        state.level[i], state.reason[i], state.blocks[i] = level, reason, blocks
        self._expect(phases)

    def _expect(self, phases: Phases) -> None:
        state, i = self.state, self.index
        phase, level = int(state.phase[i]), int(state.level[i])
        watts = phases.table[phase, WATTS, level] if phases.table[phase, COUNT, level] > 0 else np.nan
        state.power_w[i] = watts
        state.range_w[i] = watts * (0.05 + 3.5 * np.sqrt(phases.facts[phase, TICK_WATTS]))

    def _sight(self) -> Sight:
        sums = self.state.sums[self.index]
        n = sums[PULSES]
        rate, watts = sums[BLOCK_RATE] / n, sums[BLOCK_WATTS] / n
        return Sight(
            rate=float(rate),
            watts=float(watts),
            pulses=float(n),
            utilization=float(sums[BLOCK_UTILIZATION] / n),
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


@dataclass(frozen=True, slots=True, eq=False)
class _Cards:
    """The unchanging facts of a node's GPUs as arrays."""

    layout: Layout
    floor: float
    banks: list[CurveBank]
    mhz: type_i64  # [n_gpus, LEVELS]
    has_clocks: npt.NDArray[np.bool_]
    has_gpm: npt.NDArray[np.bool_]


_kept: list[_Cards] = []
"""The last ones made: a cache. Compared by identity, since hashing a layout costs more than a tick may."""


def _cards(params: Params, layout: Layout) -> _Cards:
    if not _kept or _kept[0].layout is not layout or _kept[0].floor != params.floor:
        banks = [curve_bank(gpu, params.floor) for gpu in layout.gpus]
        mhz = np.stack([bank.mhz for bank in banks])
        has_gpm = np.array([gpu.has_gpm for gpu in layout.gpus])
        _kept[:] = [_Cards(layout, params.floor, banks, mhz, mhz[:, 0] > 0, has_gpm)]
    return _kept[0]


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

"""The GPU clock that takes the least energy within a slowdown bound, learned while the job runs (ours).

REGALE's daemon knows two clocks and asks whether the GPU is busy; on EasyWave it saves 11 % where one fixed clock in
between saves 26 % (D2.3 §3.4): that GPU is busy, yet waits for memory. This policy uses the clocks in between. It needs
no prior run and no access to the application, only what NVML shows. If the application reports progress, that is one
more estimator of its speed (``gpu_estimators``), without the error of traffic.

How fast a job goes cannot be read from outside, but at constant memory clock the traffic to memory (``dram_active``
from Hopper on, ``utilization.memory`` before) keeps step with it: the ratio of traffic between two clocks estimates the
ratio of speed. That estimate is noisy, in whole percentages before Hopper, and off by an unknown share per workload.
Hence:

1.  Samples are averaged to blocks of half a second or more; those after a clock change are dropped for as long as
    NVML's own averaging window still contains readings of the old clock.
2.  Each new phase is measured at the highest clock first, then stepwise lower. All blocks together weigh candidate
    curves of loss against clock (``gpu_curves``); power is simply measured.
3.  ``gpu_choice`` picks the clock of least energy among those whose assumed loss the account can bear, and pays for a
    measurement at another clock only if it is expected to bring more than it costs. Where traffic shows too little,
    the extra time is assumed to follow the clock, and that much of the bound is spent.
4.  The account sums assumed seconds lost over the whole run, with every phase's curve as it is known now, against
    ``aim * bound`` of the time. The rest of the bound covers the error of traffic as a measure of speed.
5.  A phase (``gpu_phases``) ends when power or traffic leave its range. If what is seen at this clock belongs to one
    known phase, the GPU gets that phase's clock at once; else it goes back to the highest clock until the phase is
    recognised or learned. The time in between is charged to that phase. A small shift of traffic that lasts ends a
    phase, too. Without a reading there is no request for a GPU, and its clock is free.
6.  Where an earlier run of the program has left its phases (``gpu_memory``), the run begins with them, and gives each
    phase the loss at which one more second saves the same everywhere.

GPUs that look alike count as one job and get one clock (``gpu_groups``): a parallel job waits for its slowest GPU. The
highest clock is requested explicitly, not left free, because the slowdown bound is measured against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from nodectl.policies.api import Policy, Request
from nodectl.policies.parts.gpu_choice import MISSING, NO_CLOCKS, REASONS, Params
from nodectl.policies.parts.gpu_course import RESTARTS, Course
from nodectl.policies.parts.gpu_curves import CurveBank, curve_bank
from nodectl.policies.parts.gpu_groups import IDLE, regroup
from nodectl.policies.parts.gpu_memory import MEMORY
from nodectl.policies.parts.gpu_phases import (
    COUNT,
    LOSS,
    STRETCHES,
    TICK_WATTS,
    UNITS,
    UNITS_S,
    WATTS,
    Sight,
    power_range,
)
from nodectl.policies.parts.gpu_state import (
    BLOCK_SECONDS,
    BLOCK_UNITS,
    BLOCK_UNITS_S,
    LONGEST_WINDOW_S,
    PULSES,
    SETTLED_WINDOWS,
    State,
    first_of_kind,
    initial,
    writable,
)
from pmu.layout import Layout
from pmu.readings import Quality, Sample, type_f64, type_i64

PULSE_S: Final = 0.095
"""Ours: shorter intervals are put together to a tenth of a second first, since energy counters move in steps of 20 to
100 ms."""

ODD_PULSES: Final = 2
"""Ours: pulses in a row whose power is out of range that end a phase at once, without waiting for a block."""

GUESS_PULSES: Final = 2.0
"""Ours: after so many pulses with traffic a phase may be recognised, if no other resembles it."""

SECONDS_SUM, RATE_SUM, WATTS_SUM, UTILIZATION_SUM, UNITS_SUM, UNITS_S_SUM = range(6)


def decide(params: Params, layout: Layout, state: State, sample: Sample) -> tuple[State, Request]:
    """Add one interval to what is known; where a block is full or the load has changed, choose the clock again."""
    if not layout.gpus:
        return state, Request.free(0)
    cards = _cards(params, layout)
    gpu, elapsed_s = sample.gpu, sample.elapsed_s
    rate = np.where(cards.has_gpm, gpu.dram_active, gpu.memory_utilization)
    watts = np.where(np.isfinite(gpu.energy_j), gpu.energy_j / elapsed_s, gpu.power_w)
    state, units = _reported(state, sample)
    is_heard = units is not None
    units_s = (units or 0.0) / elapsed_s * cards.ones
    row = np.array([cards.ones, rate, watts, gpu.gpu_utilization, units_s, is_heard * cards.ones]).T * elapsed_s
    is_whole = np.isfinite(row).all(axis=1) & cards.has_clocks
    pulse, time_s = state.pulse + row, state.time_s + elapsed_s
    if pulse[0, SECONDS_SUM] < PULSE_S:
        after = replace(state, pulse=pulse, time_s=time_s)
    else:
        after = _pulse(params, cards, state, pulse, time_s)
    return after, _request(after, state, cards, is_whole, watts)


def _pulse(params: Params, cards: _Cards, state: State, pulse: type_f64, time_s: float) -> State:
    """Add one pulse (a tenth of a second or more) to the blocks, then decide for the groups that need it."""
    pulse_s = float(pulse[0, SECONDS_SUM])
    own = pulse / pulse_s
    is_there = np.isfinite(own).all(axis=1) & cards.has_clocks
    state, alike, idle_s = regroup(
        state, cards.kind, own[:, WATTS_SUM], own[:, RATE_SUM], own[:, UTILIZATION_SUM], is_there, pulse_s
    )
    belongs = (state.leader == cards.every[:, None]) & is_there
    members = belongs.sum(axis=1)
    is_whole = members > 0
    mean = belongs @ np.where(is_there[:, None], own, 0.0) / np.maximum(members, 1)[:, None]
    traffic, watts = mean[:, RATE_SUM], mean[:, WATTS_SUM]
    moved_s = np.where(is_whole, state.moved_s + pulse_s, 0.0)
    stood_s, window_s = _window(state, traffic, pulse_s)
    has_power = is_whole & (moved_s - pulse_s >= params.latency_s - 1e-6)
    is_learning = is_whole & (moved_s >= params.latency_s + SETTLED_WINDOWS * window_s - 1e-6)
    power_w, range_w = _expected_power(state, has_power, watts, cards.every)
    odd = np.where(has_power & (abs(watts - power_w) > range_w), state.odd + 1, 0)
    heard = mean[:, UNITS_SUM:] * (pulse_s if _is_one_job(state, own) else 0.0)
    add = np.array(
        [cards.ones, pulse_s * cards.ones, traffic, traffic**2, watts, watts**2, mean[:, UTILIZATION_SUM], *heard.T]
    ).T
    sums = np.where(is_learning[:, None], state.sums + add, 0.0)
    is_full = is_learning & (sums[:, BLOCK_SECONDS] >= np.maximum(params.block_s, window_s) - 1e-6)
    is_guess = (state.phase < 0) & is_learning & (sums[:, PULSES] == GUESS_PULSES)
    after = replace(
        state,
        pulse=np.zeros_like(pulse),
        time_s=time_s,
        alike=alike,
        idle_s=idle_s,
        sums=sums,
        moved_s=moved_s,
        since_s=state.since_s + np.where(is_whole, pulse_s, 0.0),
        window_s=window_s,
        reading=traffic,
        stood_s=stood_s,
        power_w=power_w,
        range_w=range_w,
        odd=odd,
    )
    is_odd = odd >= ODD_PULSES
    turning = np.flatnonzero(is_full | is_odd | is_guess)
    if len(turning):
        after = writable(after)
        for index in turning.tolist():
            course = Course(params, cards.banks[index], after, index, not cards.has_gpm[index])
            if is_odd[index]:
                course.break_off(float(watts[index]))
            elif is_full[index]:
                course.close_block()
            else:
                course.guess()
    return after


def _reported(state: State, sample: Sample) -> tuple[State, float | None]:
    """Units of progress in this interval, None if none are reported; those of another program are forgotten."""
    progress = sample.progress
    if progress.quality != Quality.MEASURED:
        return state, None
    if progress.source != state.source:
        state = replace(writable(state), source=progress.source)
        state.table[:, :, [UNITS, UNITS_S, STRETCHES]] = 0.0
        state.sums[:, [BLOCK_UNITS, BLOCK_UNITS_S]] = 0.0
        state.last[:, Sight._fields.index("units") :] = 0.0
    return state, progress.units


def _is_one_job(state: State, own: type_f64) -> bool:
    """Whether all GPUs that are busy are of one group, so that reported progress is its own."""
    leaders = state.leader[own[:, UTILIZATION_SUM] > IDLE]
    return len(leaders) > 0 and bool((leaders == leaders[0]).all())


def _expected_power(
    state: State, has_power: npt.NDArray[np.bool_], watts: type_f64, every: type_i64
) -> tuple[type_f64, type_f64]:
    """The expected power of each group and its range; where nothing is known, the power of the first pulse."""
    is_first = has_power & np.isnan(state.power_w)
    known = power_range(state.facts[every, state.phase, TICK_WATTS])
    sought = np.where(state.blocks > -RESTARTS, 0.1, np.inf)
    share = np.where(state.phase >= 0, known, sought)
    return np.where(is_first, watts, state.power_w), np.where(is_first, share * watts, state.range_w)


def _window(state: State, traffic: type_f64, pulse_s: float) -> tuple[type_f64, type_f64]:
    """How long the traffic reading of each group has been unchanged, and over how long NVML averages it.

    NVML does not report its averaging window, but a reading that scatters changes about once per window. So the
    estimate of the window follows the time between changes.
    """
    has_changed = traffic != state.reading
    lasted = np.minimum(state.stood_s + pulse_s, LONGEST_WINDOW_S)
    followed = state.window_s + 0.2 * (lasted - state.window_s)
    window_s = np.where(has_changed, followed, np.maximum(state.window_s, lasted))
    return np.where(has_changed, 0.0, state.stood_s + pulse_s), window_s


def _request(after: State, before: State, cards: _Cards, is_whole: npt.NDArray[np.bool_], watts: type_f64) -> Request:
    row = after.leader
    target = np.where(is_whole, cards.mhz[row, after.level[row]], 0)
    reason = np.where(is_whole, after.reason[row], np.where(cards.has_clocks, MISSING, NO_CLOCKS)).astype(np.uint8)
    was = before.leader
    phase, level = before.phase[was], before.level[was]
    is_known = is_whole & (phase >= 0) & (after.table[was, phase, COUNT, 0] > 0)
    loss = np.where(is_known, after.table[was, phase, LOSS, level], np.nan)
    saved_w = np.where(is_known, after.table[was, phase, WATTS, 0] - watts, np.nan)
    return Request(target, reason, loss, saved_w)


@dataclass(frozen=True, slots=True, eq=False)
class _Cards:
    """The unchanging facts of a node's GPUs as arrays."""

    layout: Layout
    floor: float
    banks: list[CurveBank]
    mhz: type_i64  # [n_gpus, LEVELS]
    has_clocks: npt.NDArray[np.bool_]
    has_gpm: npt.NDArray[np.bool_]
    kind: type_i64  # [n_gpus] the first GPU of the same model
    every: type_i64  # [n_gpus] 0, 1, 2 ...
    ones: type_f64


_kept: list[_Cards] = []
"""A cache of the last result. Layouts are compared by identity, since hashing one costs more than a tick may."""


def _cards(params: Params, layout: Layout) -> _Cards:
    if not _kept or _kept[0].layout is not layout or _kept[0].floor != params.floor:
        banks = [curve_bank(gpu, params.floor) for gpu in layout.gpus]
        mhz = np.stack([bank.mhz for bank in banks])
        has_gpm = np.array([gpu.has_gpm for gpu in layout.gpus])
        every, ones = np.arange(len(banks)), np.ones(len(banks))
        kind = first_of_kind(layout)
        _kept[:] = [_Cards(layout, params.floor, banks, mhz, mhz[:, 0] > 0, has_gpm, kind, every, ones)]
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
    waits={"latency_s": "effect_s"},
    memory=MEMORY,
)

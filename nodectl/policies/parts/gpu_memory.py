"""What ``gpu-ladder`` takes over from earlier runs of a program: its phases, measured at some clocks.

Problem. A run pays for each phase: seconds at the highest clock, looks at lower ones, a search after each change. The
next run of the same program pays all of it again.

Idea. At the end of a run its phases are kept, by clock in MHz and in plain units, with their scatter. The next run
begins with them, as with phases that it has measured itself: it recognises a phase by watts, traffic and utilisation
(``gpu_phases``), and the choice of a clock (``gpu_choice``) looks only where the measurements leave doubt. A program
that has changed shows phases that are none of those, and they are learned as in a first run.

What spoils a table, and is not kept:

    passing     a phase of few blocks: two halves of neighbours in one block, or a search that went wrong
    double      two phases that agree wherever both were measured are one, which was taken for new once
    unseen      a phase that did not come in some runs: each halves its share

Neither seconds nor losses are kept: the account of a run has its own time alone. So a table that is wrong costs what an
error in this run would cost, and the bound is kept by the same account.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from foundation.wire.phase_messages import KeptPhase
from nodectl.policies.api import Memory
from nodectl.policies.parts.gpu_choice import BASELINE, Params, estimate
from nodectl.policies.parts.gpu_curves import LEVELS, curve_bank
from nodectl.policies.parts.gpu_phases import (
    COUNT,
    JUMP_SQUARES,
    JUMPS,
    LAST_BLOCKS,
    LAST_LEVEL,
    LOSS,
    PHASES,
    RATE,
    SCATTER,
    SCATTERS,
    SECONDS,
    SEEN_S,
    STRANGE,
    TICK_RATE,
    TICK_WATTS,
    UTILIZATION,
    WATTS,
    Phases,
    Sight,
    lost,
)
from nodectl.policies.parts.gpu_state import State, first_of_kind, initial, writable
from pmu.layout import Layout
from pmu.readings import type_f64

KEPT_BLOCKS: Final = LAST_BLOCKS
"""What was kept counts for at most so many blocks per clock: what a run remembers."""

LEAST_BLOCKS: Final = 4.0
"""Ours: a phase of fewer blocks is none."""

LEAST_AT_CLOCK: Final = 3.0
"""Ours: a clock at which fewer were measured is not kept: one visit, which another phase may have spoiled."""

LEAST_SHARE: Final = 0.01
"""Ours: a phase that took less of the run's time is none."""

SEEN_BLOCKS: Final = 3.0
"""Ours: so many blocks at the highest clock tell which program this is."""

EXPECTED_SCATTER2: Final = 0.03**2
"""Of a block's traffic, relative: ``Params.noise``."""

SAME: Final = 2.5
"""Ours: two phases no further apart than so many standard deviations, wherever both were measured, are one."""

SETTLED_BLOCKS: Final = 40.0
"""Ours: where so many blocks were measured, the mean of earlier runs stays as it is. Two phases that look alike at a
low clock would else move each other's means a little in every run, until nothing shows them apart there."""


HEARSAY: Final = 0.1
"""Ours: what another node has measured at the highest clock counts for so many blocks: enough to recognise a phase by,
and 1 % of the run's own mean once it has measured that (``Params.base_s``)."""

SEEN_ELSEWHERE: Final = 1.0
"""Ours: the same at a lower clock: a reason to look there, which the second own block there outweighs."""


def kept(params: Params, layout: Layout, state: State, card: int) -> list[KeptPhase]:
    """The phases of the group of GPUs of ``card``'s kind that has most of them; ``card`` is the first of its kind."""
    leader = _leader(layout, state, card)
    phases = _phases_of(params, layout, state, leader)
    seconds = phases.table[:, SECONDS].sum(axis=1)
    share = seconds / max(seconds.sum(), 1e-9)
    if state.share is not None and state.share[leader].any():
        share = 0.5 * (share + state.share[leader])
    blocks = phases.table[:, COUNT].sum(axis=1)
    for phase in range(PHASES):
        if blocks[phase] < LEAST_BLOCKS or phases.table[phase, COUNT, 0] < 1.0:
            blocks[phase] = 0.0
    order = [phase for phase in np.argsort(-share).tolist() if blocks[phase] > 0]
    after = np.zeros((PHASES, PHASES)) if state.after is None else state.after[leader].copy()
    distinct: list[int] = []
    for phase in order:
        twin = next((other for other in distinct if are_one(phases, other, phase)), -1)
        if twin >= 0:
            _merge(phases, twin, phase)
            share[twin] += share[phase]
            after[twin] += after[phase]
            after[:, twin] += after[:, phase]
        elif share[phase] >= LEAST_SHARE:
            distinct.append(phase)
    distinct.sort(key=lambda phase: -share[phase])
    np.fill_diagonal(after, 0.0)
    return [_kept(phases, phase, float(share[phase]), after[phase, distinct]) for phase in distinct]


def recalled(params: Params, layout: Layout, state: State | None, card: int, phases: Sequence[KeptPhase]) -> State:
    """``state``, in which all GPUs of this kind begin with these phases; what they had is charged and forgotten."""
    state = writable(initial(params, layout) if state is None else state)
    share = np.zeros((len(layout.gpus), PHASES)) if state.share is None else state.share
    settled = np.zeros((*share.shape, LEVELS)) if state.settled is None else state.settled
    after = np.zeros((*share.shape, PHASES)) if state.after is None else state.after
    came_from = np.full(len(layout.gpus), -1) if state.came_from is None else state.came_from
    state = replace(state, share=share, settled=settled, after=after, came_from=came_from)
    for row in sorted(set(state.leader[first_of_kind(layout) == card].tolist())):
        _begin_again(state, row)
        gpu = layout.gpus[row]
        own = Phases(state.table[row], state.facts[row], curve_bank(gpu, params.floor), params.noise, not gpu.has_gpm)
        for place, phase in enumerate(_by_share(phases)):
            _put(own, place, phase)
            own.facts[place, SEEN_S] = -1e-3 * place  # the least likely is the first to be replaced
            share[row, place] = phase.share
            settled[row, place] = own.table[place, COUNT] >= SETTLED_BLOCKS
            after[row, place, : len(phase.after)] = phase.after
            if own.table[place, COUNT, 0] > 0:
                estimate(params, own, place)
    return state


def _begin_again(state: State, row: int) -> None:
    """Charge and forget what this row has measured; its GPUs search from the highest clock."""
    assert state.share is not None and state.settled is not None
    assert state.after is not None and state.came_from is not None
    state.forgotten_s[row] += float(lost(state.table[row]).sum())
    state.limbo_s[row, state.level[row]] += state.since_s[row]
    state.table[row], state.facts[row] = 0.0, 0.0
    state.facts[row, :, SEEN_S] = -1.0
    state.share[row], state.settled[row], state.after[row], state.came_from[row] = 0.0, 0.0, 0.0, -1
    if state.level[row] > 0:
        state.moved_s[row] = 0.0
    state.level[row], state.reason[row] = 0, BASELINE
    state.phase[row] = state.last_level[row] = state.doubted[row] = state.blocks[row] = -1
    state.since_s[row], state.sums[row], state.odd[row], state.shift[row], state.is_apart[row] = 0.0, 0.0, 0, 0.0, 1
    state.power_w[row] = state.range_w[row] = np.nan


def at_second_hand(phases: Sequence[KeptPhase]) -> list[KeptPhase]:
    """The same, of a node that may lie: which phases there are, and of each the clock that was measured most, where the
    other run has stayed. A run then measures each phase at the highest clock itself, as a new one, and goes from there
    to that clock at once. Nothing else could be checked: a loss is a ratio to the highest clock, so a figure of it that
    is false by as little as scatter explains shows losses that are none, at all clocks, for as long as it counts
    (benchmarks/phases_elsewhere.py)."""
    return [_at_second_hand(phase) for phase in phases]


def _at_second_hand(phase: KeptPhase) -> KeptPhase:
    most = max(range(1, len(phase.blocks)), key=phase.blocks.__getitem__, default=0)
    places = (0, most) if most else (0,)
    return replace(
        phase,
        clocks_mhz=tuple(phase.clocks_mhz[place] for place in places),
        blocks=tuple(min(phase.blocks[place], SEEN_ELSEWHERE if place else HEARSAY) for place in places),
        traffic=tuple(phase.traffic[place] for place in places),
        watts=tuple(phase.watts[place] for place in places),
        scatter2=EXPECTED_SCATTER2, scatters=1.0,
        jump2=min(phase.jump2, EXPECTED_SCATTER2), jumps=min(phase.jumps, 1.0),
        tick_traffic2=min(phase.tick_traffic2, EXPECTED_SCATTER2),
        tick_watts2=min(phase.tick_watts2, EXPECTED_SCATTER2),
    )  # fmt: skip


def planned(phases: Phases, phase: int, seconds: type_f64, budget: float, most: float) -> float:
    """The loss that ``phase`` may have where all phases together, by their ``seconds``, lose ``budget``, and the least
    energy is drawn: one price of a second for all.

        minimise  sum_j s_j P_j(0) e_j(l_j),  e_j(l) = P_j(l) / P_j(0) (1 + loss_j(l)),  over a level l_j of each phase
        so that   sum_j s_j loss_j(l_j) <= budget sum_j s_j,  loss_j(l_j) <= most

    The price is found by halving an interval.
    """
    known = np.flatnonzero((phases.table[:, COUNT, 0] > 0) & (seconds > 0))
    if phase not in known:
        return min(budget, most)
    power = np.stack([phases.power(row) for row in known.tolist()])
    loss = phases.table[known, LOSS]
    energy = power * (1.0 + loss)
    allowed = (loss <= most) & (np.arange(LEVELS) < phases.bank.n_levels)
    weight = seconds[known] / seconds[known].sum()
    rows = np.arange(len(known))
    place = int(np.flatnonzero(known == phase)[0])

    def at(price: float) -> tuple[float, float]:
        level = np.argmin(np.where(allowed, energy + price * power[:, :1] * loss, np.inf), axis=1)
        return float(weight @ loss[rows, level]), float(loss[place, level[place]])

    low, high = 0.0, 64.0
    if at(low)[0] <= budget:
        return at(low)[1] + 1e-9
    for _ in range(20):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if at(middle)[0] <= budget else (middle, high)
    return at(high)[1] + 1e-9


def fit(layout: Layout, state: State, card: int) -> float:
    """The share of this run's time that was spent in recalled phases; NaN where none was recalled."""
    leader = _leader(layout, state, card)
    seconds = state.table[leader, :, SECONDS].sum(axis=1)
    if state.share is None or not state.share[leader].any() or seconds.sum() <= 0:
        return math.nan
    return float(seconds[state.share[leader] > 0].sum() / seconds.sum())


def distance(params: Params, layout: Layout, state: State, card: int, phases: Sequence[KeptPhase]) -> float:
    """How far the phases that this run has measured at the highest clock are from the nearest of ``phases``, in
    standard deviations, by the time in each; NaN where it has not measured one for ``SEEN_BLOCKS``."""
    leader = _leader(layout, state, card)
    seen = _phases_of(params, layout, state, leader)
    others = _table_of(params, layout, card, phases)
    blocks = seen.table[:, COUNT, 0]
    sure = np.flatnonzero(blocks >= SEEN_BLOCKS)
    if not len(sure):
        return math.nan
    far = [float(others.strangeness(0, _sight(seen, phase, 0)).min()) for phase in sure.tolist()]
    return float(np.average(np.minimum(far, 2.0 * STRANGE), weights=blocks[sure]))


def _leader(layout: Layout, state: State, card: int) -> int:
    """The group that has most of the GPUs of this kind."""
    return int(np.bincount(state.leader[first_of_kind(layout) == card]).argmax())


def _phases_of(params: Params, layout: Layout, state: State, row: int) -> Phases:
    """A copy of what this row of the state has."""
    gpu = layout.gpus[row]
    bank = curve_bank(gpu, params.floor)
    return Phases(state.table[row].copy(), state.facts[row].copy(), bank, params.noise, not gpu.has_gpm)


def _table_of(params: Params, layout: Layout, card: int, phases: Sequence[KeptPhase]) -> Phases:
    """These phases alone, without their losses."""
    own = _phases_of(params, layout, initial(params, layout), card)
    for place, phase in enumerate(_by_share(phases)):
        _put(own, place, phase)
    return own


def _by_share(phases: Sequence[KeptPhase]) -> list[KeptPhase]:
    return sorted(phases, key=lambda one: one.share, reverse=True)[:PHASES]


def are_one(phases: Phases, one: int, other: int) -> bool:
    """Whether two phases agree at every clock at which both were measured; false where there is none."""
    counts = phases.table[[one, other], COUNT]
    both = np.flatnonzero((counts > 0).all(axis=0))
    if not len(both):
        return False
    return all(phases.strangeness(level, _sight(phases, other, level))[one] <= SAME for level in both.tolist())


def _sight(phases: Phases, phase: int, level: int) -> Sight:
    row, pulses = phases.table[phase, :, level], 5.0
    busy = float(phases.facts[phase, UTILIZATION])
    stretch = float(phases.bank.stretch[level])
    return Sight(float(row[RATE]), float(row[WATTS]), pulses, busy * (1.0 + stretch) / (1.0 + busy * stretch))


def _merge(phases: Phases, into: int, other: int) -> None:
    table, facts = phases.table, phases.facts
    count, more = table[into, COUNT], table[other, COUNT]
    both = count + more
    for column in (RATE, WATTS):
        table[into, column] = np.where(
            both > 0, (count * table[into, column] + more * table[other, column]) / np.maximum(both, 1.0), 0.0
        )
    table[into, COUNT] = both
    for column in (SCATTER, SCATTERS, JUMPS, JUMP_SQUARES):
        facts[into, column] += facts[other, column]


def _kept(phases: Phases, phase: int, share: float, after: type_f64) -> KeptPhase:
    table, facts, bank = phases.table[phase], phases.facts[phase], phases.bank
    levels = np.flatnonzero(table[COUNT] >= np.where(np.arange(LEVELS) > 0, LEAST_AT_CLOCK, 1.0))
    return KeptPhase(
        clocks_mhz=tuple(bank.mhz[levels].tolist()),
        blocks=_rounded(np.minimum(table[COUNT, levels], KEPT_BLOCKS)),
        traffic=_rounded(table[RATE, levels]),
        watts=_rounded(table[WATTS, levels]),
        utilization=float(facts[UTILIZATION]),
        scatter2=float(facts[SCATTER] / max(facts[SCATTERS], 1.0)),
        scatters=float(min(facts[SCATTERS], KEPT_BLOCKS)),
        jump2=float(facts[JUMP_SQUARES] / max(facts[JUMPS], 1.0)),
        jumps=float(min(facts[JUMPS], KEPT_BLOCKS)),
        tick_traffic2=float(facts[TICK_RATE]),
        tick_watts2=float(facts[TICK_WATTS]),
        share=share,
        after=_rounded(after / max(float(after.sum()), 1e-9)),
    )


def _put(phases: Phases, row: int, phase: KeptPhase) -> None:
    """Write a kept phase into a free row. Clocks that this card's levels lack are left out."""
    table, facts = phases.table[row], phases.facts[row]
    levels = {mhz: level for level, mhz in enumerate(phases.bank.mhz[: phases.bank.n_levels].tolist())}
    for mhz, blocks, traffic, watts in zip(phase.clocks_mhz, phase.blocks, phase.traffic, phase.watts, strict=True):
        if mhz in levels:
            table[[COUNT, RATE, WATTS], levels[mhz]] = min(blocks, KEPT_BLOCKS), traffic, watts
    facts[[SCATTER, SCATTERS]] = phase.scatter2 * phase.scatters, phase.scatters
    facts[[JUMP_SQUARES, JUMPS]] = phase.jump2 * phase.jumps, phase.jumps
    facts[[TICK_RATE, TICK_WATTS, UTILIZATION]] = phase.tick_traffic2, phase.tick_watts2, phase.utilization
    facts[LAST_LEVEL] = -1.0


def _rounded(values: type_f64) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in values.tolist())


MEMORY: Final = Memory(kept, recalled, fit, distance)

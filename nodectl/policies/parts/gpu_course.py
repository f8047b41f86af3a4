"""What one group of GPUs does when a block is full or the load has changed.

    learning   blocks fit the phase: they are learned, and now and then the clock is chosen again (``gpu_choice``)
    leaving    power, traffic or utilisation do not fit, or traffic has shifted a little and for long: the phase is
               over. If the readings clearly fit another known phase, that one is recalled at once. Else the group
               searches: from the highest clock, or from where it is if no phase that fits loses much there
    searching  after two pulses a phase is recalled if it fits and no other resembles it; after a full block the nearest
               known phase, or a new one

The time between leaving a phase and knowing the next is charged to the next, and so is the block in which the change
was noticed. Otherwise a job that changes often would lose more than its account shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from nodectl.policies.parts.gpu_choice import BEST, REMEMBERED, SEARCH, Limits, Params, choose, estimate
from nodectl.policies.parts.gpu_curves import CurveBank
from nodectl.policies.parts.gpu_memory import planned
from nodectl.policies.parts.gpu_phases import (
    COUNT,
    SECONDS,
    STRANGE,
    TICK_WATTS,
    WATTS,
    Phases,
    Sight,
    lost,
    power_range,
)
from nodectl.policies.parts.gpu_state import (
    BLOCK_RATE,
    BLOCK_UNITS,
    BLOCK_UNITS_S,
    BLOCK_UTILIZATION,
    BLOCK_WATTS,
    PULSES,
    RATE_SQUARES,
    SETTLED_WINDOWS,
    WATTS_SQUARES,
    State,
)
from pmu.readings import type_f64

MARGIN: Final = 2.0
"""Ours: a phase is recalled early if the next one is further away by so many standard deviations."""

SAFE_TO_WAIT: Final = 0.05
"""Ours: the search begins at the present clock if no phase that fits loses more than this there."""

SHORT_WINDOW_S: Final = 0.5
"""Ours: with an averaging window up to this, the search waits for traffic before it recognises a phase."""

SHIFT_SLACK, SHIFT_MOST = 0.75, 6.0
"""Ours: the cumulated sum that finds a lasting shift: what each block must exceed, and where it ends the phase, in
standard errors. White noise gets there once in some 10^5 blocks, a shift of twice the slack in eight."""

RESTARTS: Final = 3
"""Ours: how often a block of an unknown phase is begun again because power was not steady; the next one counts."""

EXPECTED_S: Final = 120.0
"""Ours: for the mix of phases, the earlier runs count as so many seconds."""

USUAL: Final = 0.75
"""Ours: a phase is recalled as the usual successor of another if it came after it in so many of the changes."""

MOST_PLANNED: Final = 3.0
"""Ours: a phase gets at most so many times the bound."""


@dataclass(slots=True)
class Course:
    """One group that needs a decision: row ``index`` of ``state``, which is changed in place."""

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
        state.is_apart[i] = state.is_apart[i] and sight.units_s == 0
        if phase < 0:
            phase = phases.recognise(level, sight, int(state.doubted[i]), margin=0.0)
            is_new = phase < 0
            if is_new:
                phase, lost_s = phases.forget_oldest()
                state.forgotten_s[i] += lost_s
                self._forget(phase)
                phases.learn(phase, level, sight, state.time_s)
            self._enter(phase, blocks=0)
        elif phases.strangeness(level, sight)[phase] > STRANGE or self._has_shifted(phases, phase, level, sight):
            self._leave(phases, sight)
            return
        self._learn_last(phases)
        self._charge()
        if not is_new:
            self._count_change()
            state.last[i], state.last_level[i] = sight, level
        state.blocks[i] -= 1
        if state.blocks[i] <= 0:
            self._choose(phases)
        else:
            self._expect(phases)

    def _learn_last(self, phases: Phases) -> None:
        """Learn the last block; this waits until the next one has shown that the phase did not end in it."""
        state, i = self.state, self.index
        if state.last_level[i] >= 0:
            sight = Sight(*state.last[i].tolist())
            phases.learn(int(state.phase[i]), int(state.last_level[i]), sight, state.time_s)

    def break_off(self, watts: float) -> None:
        """Handle power out of range: the phase is over, or a block of an unknown one was not steady."""
        if self.state.phase[self.index] < 0:
            self._settle(self.params.latency_s)
            self._restart(int(self.state.blocks[self.index]) - 1)
        else:
            self._leave(self._phases(), Sight(np.nan, watts, 1.0))

    def guess(self) -> None:
        """Recall a phase after two pulses if they suffice; else go on searching, from the highest clock."""
        state, i = self.state, self.index
        phases = self._phases()
        recalled = phases.recognise(int(state.level[i]), self._sight(), int(state.doubted[i]), MARGIN)
        if recalled >= 0:
            self._recall(phases, recalled)
        elif state.level[i] > 0:
            self._to_top()

    def _has_shifted(self, phases: Phases, phase: int, level: int, sight: Sight) -> bool:
        """Whether traffic is off by little, and lastingly, from what the phase has at this clock: it is another phase,
        or the mean is of two. The mean is then learned again."""
        shift = self.state.shift[self.index]
        off = phases.shift(phase, level, sight)
        shift[:] = np.maximum(shift + np.array([off - SHIFT_SLACK, -off - SHIFT_SLACK]), 0.0)
        if shift.max() < SHIFT_MOST:
            return False
        phases.table[phase, COUNT, level] = min(phases.table[phase, COUNT, level], 2.0)
        return True

    def _leave(self, phases: Phases, sight: Sight) -> None:
        """End the phase. Time that may belong to the next one is not charged to it."""
        state, i = self.state, self.index
        level, phase = int(state.level[i]), int(state.phase[i])
        state.doubted[i] = phase if state.last_level[i] < 0 else -1  # no block has confirmed it
        recalled = phases.recognise(level, sight._replace(rate=np.nan), phase, 2.0 * MARGIN)
        loss = phases.may_lose(level, sight._replace(rate=np.nan), phase)
        if recalled < 0:
            recalled = self._successor(phases, sight._replace(rate=np.nan))
        self._to_limbo()
        self._settle(self.params.latency_s)
        if recalled >= 0:
            self._recall(phases, recalled)
        elif state.window_s[i] <= SHORT_WINDOW_S and loss <= SAFE_TO_WAIT:
            state.reason[i] = SEARCH
            self._restart(-1)
        else:
            self._to_top()

    def _forget(self, phase: int) -> None:
        """This row of the table is another phase from now on."""
        state, i = self.state, self.index
        if state.share is not None:
            state.share[i, phase] = 0.0
        if state.after is not None and state.came_from is not None:
            state.after[i, phase] = state.after[i, :, phase] = 0.0
            state.came_from[i] = -1 if state.came_from[i] == phase else state.came_from[i]

    def _successor(self, phases: Phases, sight: Sight) -> int:
        """The phase that usually comes after this one, if power allows it; -1: none. It is provisional: nothing is
        learned in it until a block fits, and if none does, it is not guessed again."""
        state, i = self.state, self.index
        if (
            state.share is None or state.after is None or state.last_level[i] < 0
        ):  # the present phase was no more than a guess itself
            return -1
        counts = state.after[i, state.phase[i]]
        usual = int(np.argmax(counts))
        if counts[usual] < max(USUAL * float(counts.sum()), 1.0):
            return -1
        strange = phases.strangeness(int(state.level[i]), sight)
        return usual if usual != state.phase[i] and strange[usual] <= STRANGE else -1

    def _count_change(self) -> None:
        """Count, once a block has fitted, which phase came after which."""
        state, i = self.state, self.index
        if state.after is None or state.came_from is None or state.came_from[i] == state.phase[i]:
            return
        if state.came_from[i] >= 0:
            state.after[i, state.came_from[i], state.phase[i]] += 1.0
        state.came_from[i] = state.phase[i]

    def _to_limbo(self) -> None:
        state, i = self.state, self.index
        state.limbo_s[i, state.level[i]] += state.since_s[i]
        state.phase[i] = state.last_level[i] = -1
        state.is_apart[i], state.shift[i] = 1, 0.0
        state.power_w[i] = state.range_w[i] = np.nan
        state.since_s[i] = 0.0
        state.sums[i] = 0.0
        state.odd[i] = 0

    def _to_top(self) -> None:
        state, i = self.state, self.index
        self._to_limbo()
        if state.level[i] > 0:
            self._settle(0.0)
        state.level[i], state.reason[i] = 0, SEARCH
        self._restart(-1)

    def _enter(self, phase: int, blocks: int) -> None:
        """Begin a known phase; it is charged with the time that the search took."""
        state, i = self.state, self.index
        self._to_limbo()
        state.table[i, phase, SECONDS] += state.limbo_s[i]
        state.limbo_s[i] = 0.0
        state.phase[i], state.doubted[i], state.blocks[i] = phase, -1, blocks

    def _recall(self, phases: Phases, phase: int) -> None:
        self._enter(phase, blocks=0)
        self._choose(phases)

    def _settle(self, since_move_s: float) -> None:
        """Wait, as a phase has begun: traffic shows it after two windows. The clock changed ``since_move_s`` ago."""
        window_s = self.state.window_s[self.index]
        self.state.moved_s[self.index] = since_move_s - (2.0 - SETTLED_WINDOWS) * window_s

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
        allowed = max(income + (income * state.time_s - lost_s) / params.horizon_s, 0.0)
        allowance = min(allowed, 2.0 * params.bound)
        if state.share is not None and state.share[i].any():
            allowance = planned(phases, int(state.phase[i]), self._mix(), allowed, MOST_PLANNED * params.bound)
        limits = Limits(
            allowance=allowance,
            room_s=income * (state.time_s + params.credit_s) - lost_s,
            horizon_s=max(state.time_s, params.horizon_s),
            settle_s=params.latency_s + SETTLED_WINDOWS * float(state.window_s[i]),
            block_s=max(params.block_s, float(state.window_s[i])),
        )
        phase, now = int(state.phase[i]), int(state.level[i])
        level, reason, blocks = choose(params, phases, phase, now, limits)
        if reason == BEST and state.share is not None and state.share[i, phase] > 0:
            reason = REMEMBERED
        if level != now:
            state.moved_s[i] = 0.0
            state.is_apart[i], state.shift[i] = 1, 0.0
            state.power_w[i] = state.range_w[i] = np.nan
        state.level[i], state.reason[i], state.blocks[i] = level, reason, blocks
        self._expect(phases)

    def _mix(self) -> type_f64:
        """Seconds of each phase: those of this run, and those that earlier ones let expect."""
        state, i = self.state, self.index
        assert state.share is not None
        return np.asarray(state.table[i, :, SECONDS].sum(axis=1) + EXPECTED_S * state.share[i])

    def _expect(self, phases: Phases) -> None:
        """Expect the power measured at this level; where there is none, that of the first pulse."""
        state, i = self.state, self.index
        phase, level = int(state.phase[i]), int(state.level[i])
        if phases.table[phase, COUNT, level] > 0:
            state.power_w[i] = phases.table[phase, WATTS, level]
            state.range_w[i] = state.power_w[i] * power_range(phases.facts[phase, TICK_WATTS])

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
            units=float(sums[BLOCK_UNITS]),
            units_s=float(sums[BLOCK_UNITS_S]),
            begins=float(self.state.is_apart[self.index] and sums[BLOCK_UNITS_S] > 0),
        )

    def _charge(self) -> None:
        """Charge the time at this level to its phase, and start a new block."""
        state, i = self.state, self.index
        if state.phase[i] >= 0:
            state.table[i, state.phase[i], SECONDS, state.level[i]] += state.since_s[i]
        state.since_s[i] = 0.0
        state.sums[i] = 0.0
        state.odd[i] = 0

    def _phases(self) -> Phases:
        state, i = self.state, self.index
        settled = None if state.settled is None else state.settled[i]
        return Phases(state.table[i], state.facts[i], self.bank, self.params.noise, self.is_whole_percent, settled)

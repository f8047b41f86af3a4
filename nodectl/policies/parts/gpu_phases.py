"""The phases of a GPU's job: what has been measured in each, and which one the job is in now.

Problem. A job alternates between phases. Each one that is not recognised has to be measured again from the highest
clock, and nothing but board power and memory traffic shows which one it is, often at a clock it was never seen at.

Idea. Up to ``PHASES`` phases are remembered, with the means of traffic and power at each clock where they ran. A new
reading, a *sight*, is compared with what each phase may show at the present clock. Its strangeness is the distance from
that range in standard deviations, the larger one of power and traffic. The nearest phase is recognised if its distance
is at most ``STRANGE`` and the next one is further away by a margin.

    x        highest clock / clock - 1; d: x at this clock - x at the nearest clock where the phase was measured
    power    |W / (W_near * shape(x) / shape(x_near)) - 1| <= |d|,  shape(x) = 0.35 + 0.65 / (1 + x)^2      W: watts
             standard error: sqrt(0.012^2 + variance of a pulse / pulses)                                   relative
    traffic  T_near / (1 + 1.2 d) <= T <= T_near at a lower clock (d > 0); T_near <= T <= T_near * (1 + 1.2 |d|) at a
             higher one                                                      T: share of time that memory is active
             standard error: sqrt((0.02^2 + scatter^2) T_near^2 + (half a percent)^2)
    lost     sum over levels of seconds * loss / (1 + loss)                                                 seconds

Invariant. Work slows down by no more than the clock, so one measurement at any clock bounds what a phase may show at
every other, and recognising it needs no estimate of its loss. And the table keeps seconds per level, not seconds lost:
the account is always the sum by today's estimate of the loss, so an early error does not last.

Cost. O(1) to learn a block, O(PHASES * LEVELS) to recognise a phase, with 8 phases and 32 levels. Nothing grows with
the run.

All arrays are rows of one GPU. ``Phases`` writes into them, so it must be given a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from nodectl.policies.parts.gpu_curves import LEVELS, CurveBank
from pmu.readings import type_f64

PHASES: Final = 8
"""Phases remembered per GPU. A new one replaces the one that was seen least recently (ours)."""

COUNT, RATE, WATTS, SECONDS, LOSS, UNITS, UNITS_S, STRETCHES = range(8)
COLUMNS: Final = 8
"""Columns of the table ``[PHASES, COLUMNS, LEVELS]``: blocks measured, their mean traffic and watts, seconds spent, and
the loss that the account assumes (relative extra time). Then reported progress: units, the seconds that they took, in
how many stretches."""

SCATTER, SCATTERS, TICK_RATE, TICK_WATTS, UTILIZATION, SEEN_S, LAST_LEVEL, LAST_RATE, JUMPS, JUMP_SQUARES = range(10)
FACTS: Final = 10
"""Columns of the facts ``[PHASES, FACTS]``: sum of squared relative deviations of traffic among blocks of one clock,
and their number; mean variance of traffic among the pulses of a block; mean relative variance of watts likewise; GPU
utilisation at the highest clock; when the phase was last seen (-1 = free row); level and traffic of the last block; how
many blocks followed each other at one clock, and half of the sum of squared relative differences of traffic between
them: what scatters within a phase, even if two are taken for one."""

LAST_BLOCKS: Final = 120.0
"""A mean covers about the last 120 blocks (ours)."""

BLOCK_PULSES: Final = 5.0
"""Pulses of a typical block. ``scatter`` is that of such a block; fewer pulses scatter more."""

PERCENT: Final = 0.01
"""Without GPM, NVML reports shares as whole percentages."""


STRANGE: Final = 4.5
"""A sight further from a phase than this many standard deviations does not belong to it (ours; high, since a run
compares many sights)."""


DOUBT: Final = 2.0
"""At a clock where a phase was never measured, traffic outside its range counts this many times as much (ours): the
range is wide already."""

STEEPEST: Final = 1.2
"""Traffic falls at most this many times as far as the clock: work slows down no more than the clock, and traffic may
overstate that (ours)."""


UTILIZATION_ERROR: Final = 0.04
"""Ours: utilisation of a block scatters by this much where kernels and gaps are as long as NVML's window."""

STEP: Final = 0.02
"""Ours: a lasting shift of traffic, relative, that is of no interest: so much moves with temperature and input."""

KNOWN_JUMPS: Final = 6.0
"""Ours: so many pairs of blocks tell how far traffic scatters; before, no shift is seen."""

HIDDEN: Final = (0.012, 0.2)
"""How far traffic may be wrong as a measure of speed, however long it is measured: relative, and as a share of what it
has fallen. The first from the measured curves of applications whose DRAM is active above 4 % of the time (0.5 to 2.8 %
in the mean over clocks; ``twin.physics.error_curves``), the second ours."""


class Sight(NamedTuple):
    """Means over some pulses at one clock, and variances among them. ``rate``: traffic, NaN if only power is known.
    ``units`` of progress were reported in ``units_s`` seconds; ``begins``: 1 in the first block of a stretch."""

    rate: float
    watts: float
    pulses: float
    utilization: float = 0.0
    rate_variance: float = 0.0
    watts_variance: float = 0.0
    units: float = 0.0
    units_s: float = 0.0
    begins: float = 0.0


@dataclass(slots=True)
class Phases:
    """The phases of one GPU. ``noise``: expected relative scatter of a block's traffic before any was measured.
    ``settled`` ``[PHASES, LEVELS]``: 1 where the mean is that of earlier runs and stays (``gpu_memory``)."""

    table: type_f64
    facts: type_f64
    bank: CurveBank
    noise: float
    is_whole_percent: bool
    settled: type_f64 | None = None

    def learn(self, phase: int, level: int, block: Sight, time_s: float) -> None:
        """Add one block to the means of its phase and clock."""
        row, facts = self.table[phase, :, level], self.facts[phase]
        count = row[COUNT]
        if self.settled is not None and self.settled[phase, level]:
            facts[SEEN_S] = time_s
            return
        if count > 0 and block.rate > 0 and row[RATE] > 0:
            facts[SCATTER] += np.log(block.rate / row[RATE]) ** 2 * count / (count + 1.0)
            facts[SCATTERS] += 1.0
        if count > 0 and facts[LAST_LEVEL] == level and min(block.rate, facts[LAST_RATE]) > 0:
            jump2 = np.log(block.rate / facts[LAST_RATE]) ** 2 / 2.0
            facts[JUMP_SQUARES] += min(jump2, 9.0 * self.jump2(phase))  # a single one may be a change of phase
            facts[JUMPS] += 1.0
        facts[LAST_LEVEL], facts[LAST_RATE] = level, block.rate
        blocks = min(self.table[phase, COUNT].sum(), LAST_BLOCKS) + 1.0
        facts[TICK_RATE] += (block.rate_variance - facts[TICK_RATE]) / blocks
        facts[TICK_WATTS] += (block.watts_variance / max(block.watts, 1.0) ** 2 - facts[TICK_WATTS]) / blocks
        row[COUNT] = min(count + 1.0, LAST_BLOCKS)
        row[RATE] += (block.rate - row[RATE]) / row[COUNT]
        row[WATTS] += (block.watts - row[WATTS]) / row[COUNT]
        row[UNITS] += block.units
        row[UNITS_S] += block.units_s
        row[STRETCHES] += block.begins
        if level == 0:
            facts[UTILIZATION] += (block.utilization - facts[UTILIZATION]) / row[COUNT]
        facts[SEEN_S] = time_s

    def forget_oldest(self) -> tuple[int, float]:
        """Clear the row of the phase seen least recently: its number, and the seconds lost that were charged to it."""
        phase = int(np.argmin(self.facts[:, SEEN_S]))
        lost_s = float(lost(self.table[phase]))
        self.table[phase] = 0.0
        self.facts[phase] = 0.0
        if self.settled is not None:
            self.settled[phase] = 0.0
        return phase, lost_s

    def scatter(self, phase: int) -> float:
        """Relative standard deviation of a block's traffic, as measured; ``noise`` counts as much as four blocks."""
        facts = self.facts[phase]
        return float(np.sqrt((4.0 * self.noise**2 + facts[SCATTER]) / (4.0 + facts[SCATTERS])))

    def jump2(self, phase: int | slice) -> type_f64:
        """Relative variance of a block's traffic, by the differences of blocks that follow each other."""
        facts = self.facts[phase]
        return np.asarray((4.0 * self.noise**2 + facts[..., JUMP_SQUARES]) / (4.0 + facts[..., JUMPS]))

    def rounding(self, phase: int) -> float:
        """Relative error of mean traffic that no averaging removes.

        Whole percentages average out only if the reading scatters by itself: with a Gaussian scatter of s steps the
        mean keeps an error of up to exp(-2 pi^2 s^2) / pi steps (the first term of the Fourier series of rounding).
        Without traffic the error is large: nothing can be learned from it.
        """
        rate = self.table[phase, RATE, 0]
        if rate <= 0:
            return 1e3
        if not self.is_whole_percent:
            return 0.0
        steps2 = max(self.facts[phase, TICK_RATE] / PERCENT**2 - 1.0 / 12.0, 0.0)
        return float(min(0.29, 0.32 * np.exp(-2.0 * np.pi**2 * steps2)) * PERCENT / rate)

    def error(self, phase: int) -> type_f64:
        """Relative standard error of the mean traffic at each level.

        Infinite where nothing was measured, and where traffic is lower than any loss explains: those blocks belong to
        another phase.
        """
        count, rate = self.table[phase, COUNT], self.table[phase, RATE]
        own = np.sqrt(self.scatter(phase) ** 2 / np.maximum(count, 1.0) + self.rounding(phase) ** 2 + 1e-6)
        is_possible = rate * (1.0 + STEEPEST * self.bank.stretch) * (1.0 + 3.0 * own) >= rate[0]
        return np.where((count > 0) & is_possible, own, np.inf)

    def ceiling(self, phase: int) -> float:
        """The share of time that a lower GPU clock can stretch: at most the time in which kernels run."""
        return min(1.0, float(self.facts[phase, UTILIZATION]) + 0.02)

    def power(self, phase: int) -> type_f64:
        """Watts at every level: as measured, elsewhere by the common shape scaled to meet the measured levels.

        The shape is 0.35 + 0.65 (f / fmax)^2 (ours, near the mean of the V100 table). Without any measurement the shape
        itself is returned.
        """
        shape = self._power_shape()
        used = np.flatnonzero(self.table[phase, COUNT] > 0)
        if not len(used):
            return shape
        return np.asarray(np.interp(np.arange(LEVELS), used, self.table[phase, WATTS, used] / shape[used]) * shape)

    def strangeness(self, level: int, sight: Sight) -> type_f64:
        """Distance of a sight at ``level`` from each phase, in standard deviations; infinite for free rows.

        A phase that was not yet measured at this clock is judged by the nearest clock where it was: work slows down by
        no more than the clock, and power follows the common shape within the relative change of the clock. At a clock
        where it was measured, both ranges shrink to the mean. The formulas are at the top of this file.
        """
        count, stretch = self.table[:, COUNT], self.bank.stretch
        gap = np.where(count > 0, abs(stretch - stretch[level]), np.inf)
        near = np.argmin(gap, axis=1)
        rows = np.arange(PHASES)
        is_known = np.isfinite(gap[rows, near])
        away = np.where(is_known, stretch[level] - stretch[near], 0.0)
        shape = self._power_shape()
        watts = np.where(is_known, self.table[rows, WATTS, near] * shape[level] / shape[near], 1.0)
        error = np.sqrt(0.012**2 + self.facts[:, TICK_WATTS] / sight.pulses)
        strange = np.maximum(abs(sight.watts / watts - 1.0) - abs(away), 0.0) / error
        if np.isfinite(sight.rate):
            rate = self.table[rows, RATE, near]
            most, least = rate * np.maximum(1.0 - STEEPEST * away, 1.0), rate / np.maximum(1.0 + STEEPEST * away, 1.0)
            jump2 = self.jump2(slice(None)) * max(BLOCK_PULSES / sight.pulses, 1.0)
            error2 = (0.02**2 + jump2) * rate**2 + (0.5 * PERCENT) ** 2
            outside = np.maximum(np.maximum(sight.rate - most, least - sight.rate), 0.0)
            strange = np.maximum(strange, outside / np.sqrt(error2) * np.where(away == 0.0, 1.0, DOUBT))
            strange = np.maximum(strange, self._idleness(level, sight))
        return np.where(is_known, strange, np.inf)

    def _idleness(self, level: int, sight: Sight) -> type_f64:
        """The same for utilisation. A lower clock stretches the time in which kernels run, and no other."""
        busy, stretch = self.facts[:, UTILIZATION], self.bank.stretch[level]
        most = np.where(busy > 0, busy * (1.0 + stretch) / (1.0 + busy * stretch), 0.0)
        outside = np.maximum(np.maximum(sight.utilization - most, busy - sight.utilization), 0.0)
        error = UTILIZATION_ERROR * np.sqrt(max(BLOCK_PULSES / sight.pulses, 1.0))
        return np.where(self.table[:, COUNT, 0] > 0, outside / error, 0.0)

    def shift(self, phase: int, level: int, sight: Sight) -> float:
        """How far the traffic of a block is from the phase's at this clock, in standard errors of a lasting shift."""
        count, rate = self.table[phase, COUNT, level], self.table[phase, RATE, level]
        if count < 2 or self.facts[phase, JUMPS] < KNOWN_JUMPS or min(rate, sight.rate) <= 0:
            return 0.0
        error = np.sqrt(self.jump2(phase) * (1.0 + 1.0 / count) + (0.5 * PERCENT / rate) ** 2 + STEP**2)
        return float(np.clip(np.log(sight.rate / rate) / error, -4.0, 4.0))

    def recognise(self, level: int, sight: Sight, not_this: int, margin: float) -> int:
        """The phase nearest to a sight, if the next one is further away by ``margin``; -1 if none fits or two do.

        ``not_this``: a phase that is excluded, -1 = none.
        """
        strange = self.strangeness(level, sight)
        if not_this >= 0:
            strange[not_this] = np.inf
        best = int(np.argmin(strange))
        least = strange[best]
        strange[best] = np.inf
        return best if least <= STRANGE and strange.min() - least >= margin else -1

    def may_lose(self, level: int, sight: Sight, not_this: int) -> float:
        """The highest assumed loss at ``level`` among the phases that fit the sight; infinite if none fits."""
        strange = self.strangeness(level, sight)
        if not_this >= 0:
            strange[not_this] = np.inf
        may_be = strange <= STRANGE
        return float(self.table[may_be, LOSS, level].max()) if may_be.any() else np.inf

    def _power_shape(self) -> type_f64:
        return 0.35 + 0.65 / (1.0 + self.bank.stretch) ** 2


def lost(table: type_f64) -> type_f64:
    """Seconds lost by the assumed loss, summed over levels, for tables of any leading shape."""
    loss = table[..., LOSS, :]
    return np.asarray((table[..., SECONDS, :] * loss / (1.0 + loss)).sum(axis=-1))


def power_range(variance: type_f64) -> type_f64:
    """How far power may be from its mean within a phase, as a share, from its relative variance among pulses (ours)."""
    return np.asarray(0.05 + 3.5 * np.sqrt(variance))

"""What a GPU's job is like in each of its phases, and which phase it is in.

A phase is known by what it shows at a clock: board power and memory traffic. Several are remembered, with means at
every clock they have been seen at, so that a job which alternates between them is not learned anew each time. All
arrays are rows of one GPU; ``Phases`` writes into them, so it must be given a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from nodectl.policies.gpu_curves import LEVELS, CurveBank
from pmu.readings import type_f64

PHASES: Final = 8
"""Phases remembered per GPU; the one not seen for longest makes room (ours)."""

COUNT, RATE, WATTS, SECONDS, LOSS = range(5)
COLUMNS: Final = 5
"""Columns of the table ``[PHASES, COLUMNS, LEVELS]``: blocks measured, their mean traffic and watts, seconds spent, and
the loss that the account assumes."""

SCATTER, SCATTERS, TICK_RATE, TICK_WATTS, UTILIZATION, SEEN_S = range(6)
FACTS: Final = 6
"""Columns of the facts ``[PHASES, FACTS]``: squared relative scatter of traffic among blocks of one clock and over how
many, mean variance of traffic within a block, mean relative variance of watts within one, GPU utilisation at the
highest clock, and when the phase was last seen (-1 = free row)."""

LAST_BLOCKS: Final = 120.0
"""A mean follows its last 120 blocks or so (ours)."""

BLOCK_PULSES: Final = 5.0
"""Pulses of a usual block, to which ``scatter`` refers."""

PERCENT: Final = 0.01
"""Before GPM, NVML gives shares as whole percentages."""


STRANGE: Final = 4.5
"""Standard deviations beyond which a sight does not belong to a phase (ours; many are compared over a run)."""


DOUBT: Final = 2.0
"""At a clock where a phase was never measured, traffic outside of what is possible counts so much more (ours)."""

STEEPEST: Final = 1.2
"""Traffic falls by no more than the clock, or this much more if it tells more than the truth (ours)."""


class Sight(NamedTuple):
    """Means over some pulses at one clock, and variances among them. ``rate`` is NaN while only power is known."""

    rate: float
    watts: float
    pulses: float
    utilization: float = 0.0
    rate_variance: float = 0.0
    watts_variance: float = 0.0


@dataclass(slots=True)
class Phases:
    """The phases of one GPU. ``noise`` is the relative scatter of a block's traffic expected before any was seen."""

    table: type_f64
    facts: type_f64
    bank: CurveBank
    noise: float
    is_whole_percent: bool

    def learn(self, phase: int, level: int, block: Sight, time_s: float) -> None:
        """Work one block into the means of its phase and clock."""
        row, facts = self.table[phase, :, level], self.facts[phase]
        count = row[COUNT]
        if count > 0 and block.rate > 0 and row[RATE] > 0:
            facts[SCATTER] += np.log(block.rate / row[RATE]) ** 2 * count / (count + 1.0)
            facts[SCATTERS] += 1.0
        blocks = min(self.table[phase, COUNT].sum(), LAST_BLOCKS) + 1.0
        facts[TICK_RATE] += (block.rate_variance - facts[TICK_RATE]) / blocks
        facts[TICK_WATTS] += (block.watts_variance / max(block.watts, 1.0) ** 2 - facts[TICK_WATTS]) / blocks
        row[COUNT] = min(count + 1.0, LAST_BLOCKS)
        row[RATE] += (block.rate - row[RATE]) / row[COUNT]
        row[WATTS] += (block.watts - row[WATTS]) / row[COUNT]
        if level == 0:
            facts[UTILIZATION] += (block.utilization - facts[UTILIZATION]) / row[COUNT]
        facts[SEEN_S] = time_s

    def forget_oldest(self) -> tuple[int, float]:
        """A free row, and the seconds lost that were charged to it."""
        phase = int(np.argmin(self.facts[:, SEEN_S]))
        lost_s = float(lost(self.table[phase]))
        self.table[phase] = 0.0
        self.facts[phase] = 0.0
        return phase, lost_s

    def scatter(self, phase: int) -> float:
        """Relative standard deviation of a block's traffic: what was seen, with the expectation worth four blocks."""
        facts = self.facts[phase]
        return float(np.sqrt((4.0 * self.noise**2 + facts[SCATTER]) / (4.0 + facts[SCATTERS])))

    def rounding(self, phase: int) -> float:
        """Relative error of mean traffic that no averaging removes.

        Whole percentages average out only if the reading scatters by itself: with a Gaussian scatter of s steps the
        mean keeps an error of up to exp(-2 pi^2 s^2) / pi steps (the first term of the Fourier series of rounding).
        No traffic tells nothing.
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

        Infinite where nothing was measured, and where traffic is less than any curve allows: that was another phase.
        """
        count, rate = self.table[phase, COUNT], self.table[phase, RATE]
        own = np.sqrt(self.scatter(phase) ** 2 / np.maximum(count, 1.0) + self.rounding(phase) ** 2 + 1e-6)
        is_possible = rate * (1.0 + STEEPEST * self.bank.stretch) * (1.0 + 3.0 * own) >= rate[0]
        return np.where((count > 0) & is_possible, own, np.inf)

    def ceiling(self, phase: int) -> float:
        """The share of time that a GPU clock can stretch: no more than kernels run."""
        return min(1.0, float(self.facts[phase, UTILIZATION]) + 0.02)

    def power(self, phase: int) -> type_f64:
        """Watts at every level: measured ones, and between and below them the common shape 0.35 + 0.65 (f/fmax)^2
        (ours, near the mean of the V100 table) scaled to meet them."""
        shape = self._power_shape()
        used = np.flatnonzero(self.table[phase, COUNT] > 0)
        if not len(used):
            return shape
        return np.asarray(np.interp(np.arange(LEVELS), used, self.table[phase, WATTS, used] / shape[used]) * shape)

    def strangeness(self, level: int, sight: Sight) -> type_f64:
        """How far a sight at ``level`` lies from each phase, in standard deviations; infinite for free rows.

        Of a phase not yet measured at this clock, what it showed at the nearest one bounds what it may show here: work
        slows down by no more than the clock, and power follows the common shape, give or take as much as the clock.
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
            scatter2 = (4.0 * self.noise**2 + self.facts[:, SCATTER]) / (4.0 + self.facts[:, SCATTERS])
            error2 = (0.02**2 + scatter2 * max(BLOCK_PULSES / sight.pulses, 1.0)) * rate**2 + (0.5 * PERCENT) ** 2
            outside = np.maximum(np.maximum(sight.rate - most, least - sight.rate), 0.0)
            strange = np.maximum(strange, outside / np.sqrt(error2) * np.where(away == 0.0, 1.0, DOUBT))
        return np.where(is_known, strange, np.inf)

    def recognise(self, level: int, sight: Sight, not_this: int, margin: float) -> int:
        """The phase least strange to a sight, if the next is stranger by ``margin``; -1 if none fits or two do."""
        strange = self.strangeness(level, sight)
        if not_this >= 0:
            strange[not_this] = np.inf
        best = int(np.argmin(strange))
        least = strange[best]
        strange[best] = np.inf
        return best if least <= STRANGE and strange.min() - least >= margin else -1

    def may_lose(self, level: int, sight: Sight, not_this: int) -> float:
        """The most that a phase which may be this one is assumed to lose at ``level``; infinite if there is none."""
        strange = self.strangeness(level, sight)
        if not_this >= 0:
            strange[not_this] = np.inf
        may_be = strange <= STRANGE
        return float(self.table[may_be, LOSS, level].max()) if may_be.any() else np.inf

    def _power_shape(self) -> type_f64:
        return 0.35 + 0.65 / (1.0 + self.bank.stretch) ** 2


def lost(table: type_f64) -> type_f64:
    """Seconds lost by the account's assumed loss, summed over levels, for tables of any leading shape."""
    loss = table[..., LOSS, :]
    return np.asarray((table[..., SECONDS, :] * loss / (1.0 + loss)).sum(axis=-1))


def power_range(variance: type_f64) -> type_f64:
    """By which share power may leave its mean within a phase, from its relative variance among pulses (ours)."""
    return np.asarray(0.05 + 3.5 * np.sqrt(variance))

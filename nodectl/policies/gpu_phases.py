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

PERCENT: Final = 0.01
"""Before GPM, NVML gives shares as whole percentages."""


class Block(NamedTuple):
    """Means over about a second at one clock, and variances within it."""

    rate: float
    watts: float
    utilization: float
    rate_variance: float
    watts_variance: float


@dataclass(slots=True)
class Phases:
    """The phases of one GPU. ``noise`` is the relative scatter of a block's traffic expected before any was seen."""

    table: type_f64
    facts: type_f64
    bank: CurveBank
    noise: float
    is_whole_percent: bool

    def learn(self, phase: int, level: int, block: Block, time_s: float) -> None:
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
        """
        rate = self.table[phase, RATE, 0]
        if not self.is_whole_percent or rate <= 0:
            return 0.0
        steps2 = max(self.facts[phase, TICK_RATE] / PERCENT**2 - 1.0 / 12.0, 0.0)
        return float(min(0.29, 0.32 * np.exp(-2.0 * np.pi**2 * steps2)) * PERCENT / rate)

    def error(self, phase: int) -> type_f64:
        """Relative standard error of the mean traffic at each level; infinite where nothing was measured."""
        count = self.table[phase, COUNT]
        own = self.scatter(phase) ** 2 / np.maximum(count, 1.0) + self.rounding(phase) ** 2 + 1e-6
        return np.where(count > 0, np.sqrt(own), np.inf)

    def ceiling(self, phase: int) -> float:
        """The share of time that a GPU clock can stretch: no more than kernels run."""
        return min(1.0, float(self.facts[phase, UTILIZATION]) + 0.02)

    def power(self, phase: int) -> type_f64:
        """Watts at every level: measured ones, and between and below them the common shape 0.35 + 0.65 (f/fmax)^2
        (ours, near the mean of the V100 table) scaled to meet them."""
        shape = 0.35 + 0.65 / (1.0 + self.bank.stretch) ** 2
        used = np.flatnonzero(self.table[phase, COUNT] > 0)
        if not len(used):
            return shape
        return np.asarray(np.interp(np.arange(LEVELS), used, self.table[phase, WATTS, used] / shape[used]) * shape)

    def fits(self, phase: int, level: int, block: Block, slack: float = 1.0) -> bool:
        """Whether a block at ``level`` may belong to the phase."""
        table = self.table[phase]
        rate, watts = table[RATE, level], table[WATTS, level]
        scatter = self.scatter(phase)
        wide_rate = slack * (0.03 + 4.0 * scatter)
        wide_watts = slack * (0.04 + 3.0 * np.sqrt(self.facts[phase, TICK_WATTS] / 3.0))
        if table[COUNT, level] == 0:  # only guessed at: between no loss and all of what the clock allows
            first = int(np.argmax(table[COUNT] > 0))
            rate = table[RATE, first] / (1.0 + 0.5 * self.bank.stretch[level])
            watts = self.power(phase)[level]
            wide_rate += 0.5 * self.bank.stretch[level]
            wide_watts += 0.15
        return bool(
            abs(block.rate - rate) <= wide_rate * rate + PERCENT and abs(block.watts - watts) <= wide_watts * watts
        )

    def recognise(self, level: int, block: Block, not_this: int) -> int:
        """The phase measured at ``level`` that a block fits best; -1 if none does."""
        best, least = -1, np.inf
        for phase in np.flatnonzero(self.table[:, COUNT, level] > 0).tolist():
            if phase == not_this or not self.fits(phase, level, block):
                continue
            row = self.table[phase, :, level]
            distance = abs(block.watts - row[WATTS]) / row[WATTS] + abs(block.rate - row[RATE]) / (row[RATE] + 0.05)
            if distance < least:
                best, least = phase, distance
        return best

    def recall(self, level: int, watts: float, not_this: int) -> int:
        """The only other phase whose power at ``level`` agrees with ``watts``; -1 if there is none or more than one.

        Measured power has to agree within 4 %, power between measured clocks within 6 %, beyond them 15 % (ours).
        """
        found = -1
        for phase in np.flatnonzero(self.facts[:, SEEN_S] >= 0).tolist():
            used = np.flatnonzero(self.table[phase, COUNT] > 0)
            if phase == not_this or not len(used):
                continue
            width = 0.04 if self.table[phase, COUNT, level] > 0 else 0.06 if used[0] < level < used[-1] else 0.15
            if abs(self.power(phase)[level] - watts) <= width * watts:
                if found >= 0:
                    return -1
                found = phase
        return found


def lost(table: type_f64) -> type_f64:
    """Seconds lost by the account's assumed loss, summed over levels, for tables of any leading shape."""
    loss = table[..., LOSS, :]
    return np.asarray((table[..., SECONDS, :] * loss / (1.0 + loss)).sum(axis=-1))

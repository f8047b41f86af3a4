"""Which clock a GPU should run at next: the best one known, or one worth a look.

The best level known has the least energy per unit of work, plus a price on time, among levels whose assumed loss the
slowdown account can bear. Whether to look at another level is an investment: a level that might be better by one
standard deviation is measured if what that knowledge is worth over the time ahead (taken to be as long as the time
behind) exceeds what the visit costs, and if the account can bear the visit too. Since a loss is a ratio, the visit may
as well go to the highest clock. So a new phase is descended in steps as long as nothing is lost, and visits grow rare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from nodectl.policies.gpu_curves import LEVELS
from nodectl.policies.gpu_phases import COUNT, LOSS, Phases
from pmu.readings import type_f64

MISSING, BASELINE, EXPLORE, BEST, TOP, SEARCH, NO_CLOCKS = range(7)
REASONS: Final = (
    "a reading is missing: running free",
    "measuring at the highest clock",
    "looking at a lower clock",
    "least energy within the bound",
    "no lower clock is worth its time",
    "the load has changed: looking from the highest clock",
    "the card names no clocks",
)


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers a choice depends on, from the policy's parameters."""

    allowance: float  # most loss that a level to rest at may have
    room_s: float  # seconds that a visit may lose
    horizon_s: float  # how long a gain is taken to last
    visit_s: float


class Choice(NamedTuple):
    """``level`` for the next ``blocks`` blocks, and why."""

    level: int
    reason: int
    blocks: int


class Taste(NamedTuple):
    """What is preferred: see ``gpu_ladder.Params``."""

    price: float
    least_gain: float
    caution: float
    faith: float
    try_at_most: float
    visit_blocks: int
    base_blocks: int


def choose(taste: Taste, phases: Phases, phase: int, now: int, limits: Limits) -> Choice:
    """The next level of a GPU in ``phase``, now at level ``now``; writes the phase's assumed loss."""
    table, bank = phases.table[phase], phases.bank
    count = table[COUNT]
    mean, deviation = estimate(taste, phases, phase)
    if count[0] < taste.base_blocks:
        return Choice(0, BASELINE, taste.base_blocks - int(count[0]))
    assumed = table[LOSS]
    power = phases.power(phase)
    power = power / power[0]
    usable = np.arange(LEVELS) < bank.n_levels
    cost = power * (1.0 + mean) + taste.price * mean
    safe = usable & (assumed <= limits.allowance)
    best = int(np.argmin(np.where(safe, cost, np.inf)))
    if cost[best] > cost[0] - taste.least_gain:
        best = 0
    hoped = np.maximum(mean - deviation, 0.0)
    hope = power * (1.0 + hoped) + taste.price * hoped
    wanted = int(np.argmin(np.where(usable & (hoped <= limits.allowance), hope, np.inf)))
    gain = float(cost[best] - hope[wanted])
    if wanted > 0 and gain > taste.least_gain:
        visit = _visit(taste, phases, phase, wanted, best, gain, cost, deviation, limits)
        if visit is not None:
            return visit
    if best > 0 and now > 0 and safe[now] and cost[now] < cost[best] + 0.5 * taste.least_gain:
        best = now  # not worth a change
    return Choice(best, BEST if best else TOP, 1)


def estimate(taste: Taste, phases: Phases, phase: int) -> tuple[type_f64, type_f64]:
    """Mean and deviation of the loss at each level; ``table[LOSS]`` becomes what the account shall assume."""
    table, ceiling = phases.table[phase], phases.ceiling(phase)
    mean, deviation = phases.bank.weigh(table[1], phases.error(phase), ceiling)
    most = ceiling * phases.bank.stretch
    table[LOSS] = np.minimum(mean + taste.caution * deviation, most)
    return mean, deviation


def _visit(
    taste: Taste,
    phases: Phases,
    phase: int,
    wanted: int,
    best: int,
    gain: float,
    cost: type_f64,
    deviation: type_f64,
    limits: Limits,
) -> Choice | None:
    table = phases.table[phase]
    count, assumed = table[COUNT], table[LOSS]
    level = wanted
    while assumed[level] > taste.try_at_most:
        level -= 1
    if level == 0:
        return None
    noise2, rounding2 = phases.scatter(phase) ** 2, 2.0 * phases.rounding(phase) ** 2
    here, top, more = float(count[level]), float(count[0]), float(taste.visit_blocks)
    known = 1.0 / (noise2 * (1.0 / here + 1.0 / top) + rounding2) if here else 0.0
    choice, most = None, 0.0
    for place, here_then, top_then in ((level, here + more, top), (0, here, top + more)):
        if not here_then:
            continue
        added = 1.0 / (noise2 * (1.0 / here_then + 1.0 / top_then) + rounding2) - known
        learned = 1.0 - 1.0 / np.sqrt(1.0 + deviation[level] ** 2 * added)
        worth = taste.faith * gain * learned * limits.horizon_s
        net = worth - limits.visit_s * max(cost[place] - cost[best], 0.0)
        if net > most and limits.visit_s * assumed[place] <= limits.room_s:
            choice, most = Choice(place, EXPLORE if place else BASELINE, taste.visit_blocks), net
    return choice

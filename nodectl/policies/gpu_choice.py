"""Which clock a GPU should run at next: the best one known, or one worth a look.

The best level known has the least energy per unit of work, plus a price on time, among levels whose assumed loss the
slowdown account can bear. Whether to look at another level is an investment: a level that might be better by one
standard deviation is measured if what that knowledge is worth over the time ahead (taken to be as long as the time
behind) exceeds what the look costs, and if the account can bear the look too. A phase in which no level has proved to
be better may lose a share of the bound in looks and no more, and the less of it the more is known. One looks from the
level that tells most for its price: the candidate curves say how far the loss at one level goes with that at another,
and since a loss is a ratio, the highest clock may be the place. So a new phase is descended in steps as long as nothing
is lost, and looks grow rare.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import msgspec
import numpy as np

from nodectl.policies.gpu_curves import LEVELS, Beliefs
from nodectl.policies.gpu_phases import COUNT, LOSS, RATE, SECONDS, Phases
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


class Params(msgspec.Struct, frozen=True):
    """Shares are of 1; all defaults are ours, chosen on the V100 table (benchmarks/gpu_savings.py)."""

    bound: float = 0.03  # slowdown over the whole run
    aim: float = 0.9  # share of the bound spent by the estimates
    floor: float = 0.5  # lowest clock, of the highest
    caution: float = 0.5  # standard deviations added to every estimated loss
    price: float = 1.1  # energy share that 1 of time must bring
    least_gain: float = 0.004  # energy share below which nothing is worth a change
    faith: float = 0.3  # share of a hoped-for gain that a look is expected to bring
    try_at_most: float = 0.08  # most assumed loss of a clock that is looked at
    horizon_s: float = 60.0  # the account evens out over this time; shortest time a gain is taken to last
    search: float = 0.1  # share of the bound that a phase may lose while no known lower clock has proved its worth
    search_credit_s: float = 60.0  # the same: counted as if the phase had lasted so much longer
    credit_s: float = 20.0  # looks may spend the account's income of so many seconds in advance
    latency_s: float = 0.2  # until a clock has changed for sure (Velicka et al., arXiv 2502.20075: tens of ms)
    block_s: float = 0.5  # shortest block; never shorter than the window of the readings
    visit_s: float = 3.0  # length of a look at another clock
    base_s: float = 4.0  # a phase is measured for so long at the highest clock first
    noise: float = 0.03  # expected scatter of a block's traffic

    def __post_init__(self) -> None:
        if not 0 < self.bound < 1:
            raise ValueError("bound must be in (0, 1)")
        if not 0 < self.floor <= 1:
            raise ValueError("floor must be in (0, 1]")
        if not 0 < self.aim <= 1:
            raise ValueError("aim must be in (0, 1]")
        if min(self.horizon_s, self.block_s, self.visit_s, self.base_s, self.noise) <= 0:
            raise ValueError("horizon_s, block_s, visit_s, base_s and noise must be above 0")
        if min(self.caution, self.price, self.least_gain, self.faith, self.try_at_most, self.credit_s) < 0:
            raise ValueError("caution, price, least_gain, faith, try_at_most and credit_s must not be negative")
        if min(self.search, self.search_credit_s) < 0:
            raise ValueError("search and search_credit_s must not be negative")
        if self.latency_s < 0:
            raise ValueError("latency_s must not be negative")


CLOCK_BOUND: Final = 1.25
"""Deviations from the mean of all candidates to time that follows the clock (a property of their grid)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers a choice depends on, from the policy's parameters."""

    allowance: float  # most loss that a level to rest at may have
    room_s: float  # seconds that a visit may lose
    horizon_s: float  # how long a gain is taken to last
    settle_s: float  # after a change of clock nothing is learned for so long
    block_s: float  # length of a block now


class Choice(NamedTuple):
    """``level`` for the next ``blocks`` blocks, and why."""

    level: int
    reason: int
    blocks: int


def choose(params: Params, phases: Phases, phase: int, now: int, limits: Limits) -> Choice:
    """The next level of a group in ``phase``, now at level ``now``; writes the phase's assumed loss."""
    table, bank = phases.table[phase], phases.bank
    beliefs = estimate(params, phases, phase)
    if table[COUNT, 0] * limits.block_s < params.base_s:
        return Choice(0, BASELINE, 1)
    power = phases.power(phase)
    power = power / power[0]
    usable = np.arange(LEVELS) < bank.n_levels

    def cost_of(loss: type_f64) -> type_f64:
        return np.asarray(power * (1.0 + loss) + params.price * loss)

    def taken_for(loss: type_f64) -> type_f64:
        return bank.taken_for(loss, phases.ceiling(phase))

    cost = cost_of(taken_for(beliefs.mean))
    safe = usable & (table[LOSS] <= limits.allowance)
    best = int(np.argmin(np.where(safe, cost, np.inf)))
    if cost[best] > cost[0] - params.least_gain:
        best = 0
    hoped = taken_for(np.maximum(beliefs.mean - beliefs.deviation, 0.0))
    hope = np.where(usable & (hoped <= limits.allowance), cost_of(hoped), np.inf)
    wanted = int(np.argmin(hope))
    gain = float(cost[best] - hope[wanted])
    regret = float(cost_of(taken_for(beliefs.mean + beliefs.deviation))[best] - cost[0])
    if best > 0 and regret > gain:  # the highest clock may be better after all
        wanted, gain = best, regret
    if wanted > 0 and gain > params.least_gain and table[RATE, 0] > 0:  # no traffic tells nothing at any clock
        if not (usable & (cost_of(table[LOSS]) < cost[0] - params.least_gain)).any():
            unknown = float(bank.unknown(beliefs)[wanted])
            limits = replace(limits, room_s=min(limits.room_s, _search_room_s(params, phases, phase, unknown, limits)))
        visit = _visit(params, phases, phase, beliefs, wanted, gain, cost - cost[best], limits)
        if visit is not None:
            return visit
    if best > 0 and now > 0 and safe[now] and cost[now] < cost[best] + 0.5 * params.least_gain:
        best = now  # not worth a change
    return Choice(best, BEST if best else TOP, _blocks(params.visit_s, limits))


def estimate(params: Params, phases: Phases, phase: int) -> Beliefs:
    """What to believe of the loss at each level; ``table[LOSS]`` becomes what the account shall assume.

    That is the mean and ``caution`` deviations; the less is known, the more it is the clock-bound case.
    """
    table, ceiling = phases.table[phase], phases.ceiling(phase)
    beliefs = phases.bank.weigh(table[RATE], phases.error(phase), ceiling)
    most = ceiling * phases.bank.stretch
    caution = params.caution + phases.bank.unknown(beliefs) * max(CLOCK_BOUND - params.caution, 0.0)
    table[LOSS] = np.minimum(phases.bank.taken_for(beliefs.mean + caution * beliefs.deviation, ceiling), most)
    return beliefs


def _search_room_s(params: Params, phases: Phases, phase: int, unknown: float, limits: Limits) -> float:
    """Seconds that a phase in which no lower clock has proved its worth may still lose in looking for one.

    Where time follows the clock, looking is all that will ever be lost. At the edge of what is worth its time every
    look seems to pay for itself, and what traffic does not tell truly no number of looks will show: the more is known,
    the fewer may follow. As far as the loss is ``unknown`` (0 to 1), the whole bound may be lost in finding out. Blocks
    are counted as far as they are remembered (``LAST_BLOCKS``).
    """
    share = params.search + unknown * max(1.0 - params.search, 0.0)
    table = phases.table[phase]
    spent_s = table[COUNT] @ (table[LOSS] / (1.0 + table[LOSS])) * limits.block_s
    return float(share * params.bound * (table[SECONDS].sum() + params.search_credit_s) - spent_s)


def _visit(
    params: Params,
    phases: Phases,
    phase: int,
    beliefs: Beliefs,
    wanted: int,
    gain: float,
    extra_cost: type_f64,
    limits: Limits,
) -> Choice | None:
    """The level from which most is learned about the loss at ``wanted`` for what the look costs, if it is worth it."""
    count, assumed = phases.table[phase, COUNT], phases.table[phase, LOSS]
    blocks = _blocks(params.visit_s, limits)
    visit_s = limits.settle_s + blocks * limits.block_s
    noise2, rounding2 = phases.scatter(phase) ** 2, 2.0 * phases.rounding(phase) ** 2
    variance = beliefs.deviation**2
    reading = noise2 * (1.0 / blocks + 1.0 / count[0]) + rounding2
    kept = 1.0 - beliefs.correlation(wanted) ** 2 * variance / (variance + reading)
    top_gain = noise2 * (1.0 / count[0] - 1.0 / (count[0] + blocks))  # every ratio leans on the highest clock
    kept[0] = 1.0 - top_gain / max(variance[wanted], top_gain)
    worth = params.faith * gain * (1.0 - np.sqrt(np.maximum(kept, 0.0))) * limits.horizon_s
    net = worth - visit_s * np.maximum(extra_cost, 0.0)
    allowed = (assumed <= params.try_at_most) & (visit_s * assumed <= limits.room_s)
    allowed &= np.arange(LEVELS) < phases.bank.n_levels
    place = int(np.argmax(np.where(allowed, net, -np.inf)))
    return Choice(place, EXPLORE if place else BASELINE, blocks) if net[place] > 0.0 else None


def _blocks(seconds: float, limits: Limits) -> int:
    return max(round(seconds / limits.block_s), 1)

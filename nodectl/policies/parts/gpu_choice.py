"""The next clock of a GPU group: exploit the best level known, or explore another one.

Problem. The energy of a job at a clock is known only after the job has run there, and running there costs time if the
clock turns out to be too low. So choose when a measurement (a *look*) is worth its cost, within the slowdown bound.

Idea. A phase is first measured at the highest clock. From then on there is a best known level, and looking at another
one is an investment: it is made if the expected value of what it teaches, over the time ahead, exceeds what it costs.

    loss(l)  expected relative extra time at level l; taken as clock-bound where it may be (``taken_for``)
    cost(l)  power(l) * (1 + loss(l)) + price * loss(l)     shares of the power at the highest clock: energy of a unit
                                                            of work, plus a price on time
    best     argmin of cost over levels with assumed loss <= allowance; level 0 unless it gains ``least_gain``
    gain     cost(best) - min over l of cost(l) with loss(l) one standard deviation lower; the level in question is
             that l. Or, if this is more: cost(best) with its loss one deviation higher - cost(0), since the best level
             may be worse than the highest clock; the level in question is then ``best``
    kept(l)  1 - r^2 v / (v + e): share of the variance at the level in question that a look at l leaves. r: correlation
             of the losses at the two levels, v: variance of the loss at l, e: variance of the reading. Level 0 has its
             own formula: a better mean there sharpens every loss, since each is a ratio to the highest clock
    worth(l) faith * gain * (1 - sqrt(kept(l))) * horizon_s     s: gain times the time that it lasts, taken to be as
                                                                long as the run so far (at least ``horizon_s``)
    look     at argmax over l of worth(l) - visit_s * max(cost(l) - cost(best), 0), if that is above 0

Invariant. A look must fit the account (``room_s``) with the assumed loss, so exploring alone does not break the bound.
As long as no lower clock has proved its worth, a phase may lose only a share of the bound in looks, and the less, the
more is known (``_search_room_s``). Each look lowers the variance, and with it the worth of the next one. So a new phase
descends in steps as long as nothing is lost, and looks become rare.

Cost. O(curves * levels) per choice, to weigh 433 candidate curves (``gpu_curves``) at up to 32 levels. A choice is made
when a visit ends or a phase is recalled, not in every interval.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import msgspec
import numpy as np

from nodectl.policies.parts.gpu_curves import LEVELS, Beliefs
from nodectl.policies.parts.gpu_estimators import Reading, progress, sureness, traffic
from nodectl.policies.parts.gpu_phases import COUNT, LOSS, RATE, SECONDS, UNITS, Phases
from pmu.readings import type_f64

MISSING, BASELINE, EXPLORE, BEST, TOP, SEARCH, NO_CLOCKS, REMEMBERED = range(8)
REASONS: Final = (
    "a reading is missing: running free",
    "measuring at the highest clock",
    "looking at a lower clock",
    "least energy within the bound",
    "no lower clock is worth its time",
    "the load has changed: looking from the highest clock",
    "the card names no clocks",
    "least energy within the bound, by phases kept from earlier runs",
)


class Params(msgspec.Struct, frozen=True):
    """Shares are of 1; all defaults are ours, chosen on the V100 table (benchmarks/gpu_savings.py)."""

    bound: float = 0.03  # slowdown over the whole run
    aim: float = 0.9  # share of the bound that the estimates may spend
    floor: float = 0.5  # lowest clock, of the highest
    caution: float = 0.5  # standard deviations added to every estimated loss
    price: float = 1.1  # energy share that must be saved per unit of loss
    least_gain: float = 0.004  # a change of clock must save at least this energy share
    faith: float = 0.3  # share of the possible gain that a look is expected to bring
    try_at_most: float = 0.08  # levels with a higher assumed loss are not looked at
    horizon_s: float = 60.0  # the account evens out over this time; a gain is assumed to last at least as long
    search: float = 0.1  # share of the bound that a phase may lose while no lower clock has proved its worth
    search_credit_s: float = 60.0  # the same: added to the phase's own time, so that the search can begin
    credit_s: float = 20.0  # looks may spend this many seconds of the account's income in advance
    latency_s: float = 0.2  # after this a new clock is in force (Velicka et al., arXiv 2502.20075: tens of ms)
    block_s: float = 0.5  # shortest block; never shorter than the averaging window of the readings
    visit_s: float = 3.0  # duration of a look at another clock
    base_s: float = 4.0  # a new phase is measured for so long at the highest clock
    noise: float = 0.03  # expected relative scatter of a block's traffic
    distrust: float = 0.0  # share of traffic's hidden error that is reckoned with while no progress is reported

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
        if self.latency_s < 0 or not 0 <= self.distrust <= 1:
            raise ValueError("latency_s must not be negative, distrust must be in [0, 1]")


CLOCK_BOUND: Final = 1.25
"""So many standard deviations above the mean of all candidate curves lies clock-bound work (a property of their
grid)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the account and the readings allow now."""

    allowance: float  # highest assumed loss of a level to stay at
    room_s: float  # seconds that a look may lose
    horizon_s: float  # how long a gain is assumed to last
    settle_s: float  # after a change of clock, samples are dropped for so long
    block_s: float  # length of a block now


class Choice(NamedTuple):
    """``level`` for the next ``blocks`` blocks, and the ``reason``."""

    level: int
    reason: int
    blocks: int


def choose(params: Params, phases: Phases, phase: int, now: int, limits: Limits) -> Choice:
    """The next level of a group that is in ``phase`` and at level ``now``. Also updates the phase's assumed loss."""
    table, bank = phases.table[phase], phases.bank
    beliefs, sure = estimate(params, phases, phase)
    if table[COUNT, 0] * limits.block_s < params.base_s:
        return Choice(0, BASELINE, 1)
    power = phases.power(phase)
    power = power / power[0]
    usable = np.arange(LEVELS) < bank.n_levels

    def cost_of(loss: type_f64) -> type_f64:
        return np.asarray(power * (1.0 + loss) + params.price * loss)

    def taken_for(loss: type_f64) -> type_f64:
        return bank.taken_for(loss, phases.ceiling(phase), sure)

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
    if best > 0 and regret > gain:  # the best level may be worse than the highest clock
        wanted, gain = best, regret
    if wanted > 0 and gain > params.least_gain and table[RATE, 0] > 0:  # without traffic no look can teach anything
        if not (usable & (cost_of(table[LOSS]) < cost[0] - params.least_gain)).any():
            unknown = float(bank.unknown(beliefs)[wanted])
            limits = replace(limits, room_s=min(limits.room_s, _search_room_s(params, phases, phase, unknown, limits)))
        visit = _visit(params, phases, phase, beliefs, wanted, gain, cost - cost[best], limits)
        if visit is not None:
            return visit
    if best > 0 and now > 0 and safe[now] and cost[now] < cost[best] + 0.5 * params.least_gain:
        best = now  # not worth a change
    return Choice(best, BEST if best else TOP, _blocks(params.visit_s, limits))


def estimate(params: Params, phases: Phases, phase: int) -> tuple[Beliefs, float]:
    """Beliefs about the loss at each level, and how sure reported progress makes them. Also writes ``table[LOSS]``, the
    loss that the account assumes.

    The assumed loss is the mean plus ``caution`` standard deviations. The less is known, the more deviations are added,
    up to the clock-bound case: an unknown phase is charged as if time followed the clock.
    """
    table, ceiling = phases.table[phase], phases.ceiling(phase)
    reported = progress(phases, phase)
    shown = traffic(phases, phase, params.distrust if reported is None else 1.0)
    beliefs = phases.bank.weigh(shown, ceiling, reported)
    sure = sureness(reported)
    most = ceiling * phases.bank.stretch
    caution = params.caution + phases.bank.unknown(beliefs) * max(CLOCK_BOUND - params.caution, 0.0)
    table[LOSS] = np.minimum(phases.bank.taken_for(beliefs.mean + caution * beliefs.deviation, ceiling, sure), most)
    return beliefs, sure


def _search_room_s(params: Params, phases: Phases, phase: int, unknown: float, limits: Limits) -> float:
    """Seconds that a phase may still lose in looks while no lower clock has proved its worth.

        (search + unknown * (1 - search)) * bound * (seconds in the phase + search_credit_s) - seconds lost

    In a clock-bound phase, looks are all that is ever lost, so they need a limit of their own: close to break-even each
    single look seems to pay for itself, and no number of looks removes the bias of traffic. As far as the loss is
    ``unknown`` (0 to 1), the whole bound may be spent on finding out. The seconds lost are those of the blocks that the
    means remember (``LAST_BLOCKS``).
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
    """The look that is worth most, after its cost, for what it teaches about the loss at ``wanted``; None: none pays.

    ``extra_cost``: cost of each level above that of the best known one. The formulas are at the top of this file.
    """
    assumed = phases.table[phase, LOSS]
    blocks = _blocks(params.visit_s, limits)
    visit_s = limits.settle_s + blocks * limits.block_s
    variance = beliefs.deviation**2
    distrust = 1.0 if phases.table[phase, UNITS, 0] > 0 else params.distrust
    reading = Reading(phases, phase, distrust, float(np.log1p(beliefs.mean[wanted])), blocks, limits.block_s)
    kept = 1.0 - beliefs.correlation(wanted) ** 2 * variance / (variance + reading.below())
    top_gain = reading.at_top_less()  # every loss is a ratio to the highest clock
    kept[0] = 1.0 - top_gain / max(variance[wanted], top_gain)
    worth = params.faith * gain * (1.0 - np.sqrt(np.maximum(kept, 0.0))) * limits.horizon_s
    net = worth - visit_s * np.maximum(extra_cost, 0.0)
    allowed = (assumed <= params.try_at_most) & (visit_s * assumed <= limits.room_s)
    allowed &= np.arange(LEVELS) < phases.bank.n_levels
    place = int(np.argmax(np.where(allowed, net, -np.inf)))
    return Choice(place, EXPLORE if place else BASELINE, blocks) if net[place] > 0.0 else None


def _blocks(seconds: float, limits: Limits) -> int:
    return max(round(seconds / limits.block_s), 1)

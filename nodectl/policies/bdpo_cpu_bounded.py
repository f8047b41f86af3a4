"""bdpo-cpu-bounded: the lowest-energy core clocks that keep a stated slowdown over the whole run. Ours.

Each package is judged by its busy CPUs; packages that look alike are in the same *phase* (``cpu_phases``).

1.  An interval that does not look like its package's phase sends the package to its highest clock. There, a phase
    that was measured before is recognised; three intervals in a row that agree with each other and with no known
    phase open a new one. So the mixture at a boundary opens nothing, and nothing is learned from it. A phase that a
    lasting shift of IPC ended below the highest clock is not recognised there: it is the next nearest, or a new one.
2.  A new phase is measured at the highest clock and, where no stall event exists, a little below it. One that may be
    bound by the clock, counters erring as they do, is taken for it, in choice, promise and account alike.
3.  An account sums the seconds lost so far, each phase's at today's estimate of its loss (raised by a margin), so an
    early error does not last. It may never be overdrawn: ``bound`` holds whenever the run ends.
4.  Over the phases seen so far, weighed by their time, the price of loss is found at which the clocks that minimise
    energy + price * loss spend just the bound and, over ``horizon_s``, what is left on the account. The price makes a
    bound over the whole run optimal over its phases: loss is spent where it buys most.
5.  What the bound would save in all is the *promise*. From ``full_saving`` down to ``least_saving`` the bound sinks
    to ``small_bound``: speed is not given away for next to nothing.
6.  Where the application tells its progress, its units per second at each clock are one more witness of a phase's loss,
    the only one without a bias, and count as much as they are sure. The highest clock is then measured for longer; and
    the more rests on that witness, the larger the promise must be, since it is less often an error.

A package whose signature cannot be read runs free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from nodectl.policies.api import Policy, Request
from nodectl.policies.clocks import ClockLadder
from nodectl.policies.cpu_phases import (
    BETA_ERROR,
    FACTS,
    IPC_N,
    PHASES,
    POWER,
    SHARE_S,
    STALL_N,
    TAKEN_BETA,
    TOLD_SHARE,
    TOP_S,
    PhaseTable,
    agree,
)
from nodectl.policies.cpu_told import TOLD, TOLD_S
from nodectl.policies.cpu_views import View, observe, package_count, package_of, package_sizes
from pmu.layout import Layout
from pmu.readings import Quality, Sample, type_f64, type_i64

REASONS = ("free", "idle", "missing", "unknown", "baseline", "probe", "bounded", "account", "not-worth-it")
FREE, IDLE, MISSING, UNKNOWN, BASELINE, PROBE, BOUNDED, ACCOUNT, NOT_WORTH_IT = range(len(REASONS))

PRICES = np.concatenate(([0.0], np.geomspace(0.02, 40.0, 40)))
"""Prices of loss that are tried, in shares of the mean node energy for each unit of loss."""

STEADY_CLOCK = 0.015
"""An interval belongs to the nearest level if its mean clock is this near (ours: half of the narrowest steps)."""

CALM = 0.001
"""A clock is kept while another would save less than this share of the node's energy (ours)."""

OPENING = 2
"""A phase is opened by an interval that agrees with so many before it (ours)."""

SHIFT, SHIFT_MEMORY = 0.035, 0.35
"""Below the highest clock a lasting shift of IPC by so much is taken for another phase. It is averaged with this weight
of the newest interval, since a single one may differ more (ours)."""

NEXT_BETA = 0.7
"""Assumed of the phase that begins in an odd interval (ours)."""

PLAN_S = 0.5
"""How often the plan is made anew (ours)."""

TOP_SPENT = 0.7
"""A phase goes on at lower clocks until ``told_share`` has sunk to this part of what is asked for (ours)."""

SPEND_S = 2.0
"""What is left on the account is spent over no less than this, so that no interval empties it (ours)."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bound, and how carefully it is kept. All defaults are ours."""

    bound: float = 0.03  # slowdown over the whole run against the highest clock
    small_bound: float = 0.008  # the same where little is to be had:
    least_saving: float = 0.009  # less than this share of the node's energy for the whole bound
    full_saving: float = 0.012  # from here on the whole bound is spent
    margin: float = 0.3  # standard errors added to the loss that the account is charged
    caution: float = 0.6  # energy added to loss squared: spreads loss, since every estimate of it errs in proportion
    horizon_s: float = 30.0  # over which the rest of the account is planned to be spent
    rest_w: float = 60.0  # watts of the node that no zone measures, drawn for as long as the work takes
    step_mhz: int = 100  # step where the driver takes any clock
    floor: float = 0.45  # lowest clock, as a share of the highest
    idle: float = 0.05  # a CPU busier than this share of the interval is judged
    baseline_s: float = 0.3  # measured at the highest clock when a phase is new, and again
    rebaseline_s: float = 20.0  # when it has not been there for so long
    probe_s: float = 0.5  # measured below it, where there is no stall event
    probe_clock: float = 0.85  # of the highest clock
    told_s: float = 1.0  # where the application tells its progress: measured so long at the highest clock,
    told_share: float = 0.1  # and for so much of a phase's time
    told_least_saving: float = 0.014  # and what takes the place of the two savings above, as far as losses rest on it
    told_full_saving: float = 0.0175

    def __post_init__(self) -> None:
        if not 0 < self.bound < 1:
            raise ValueError("bound must be in (0, 1)")
        if not 0 <= self.small_bound <= self.bound:
            raise ValueError("small_bound must be in [0, bound]")
        if not 0 <= self.least_saving < self.full_saving:
            raise ValueError("least_saving must be at least 0 and below full_saving")
        if not 0 <= self.told_least_saving < self.told_full_saving:
            raise ValueError("told_least_saving must be at least 0 and below told_full_saving")
        if not 0 <= self.told_share < 1 or self.told_s < 0:
            raise ValueError("told_share must be in [0, 1) and told_s not negative")
        if not 0 < self.floor <= 1 or not 0 < self.probe_clock < 1:
            raise ValueError("floor must be in (0, 1] and probe_clock in (0, 1)")
        if min(self.margin, self.rest_w, self.probe_s) < 0:
            raise ValueError("margin, rest_w and probe_s must not be negative")
        if min(self.horizon_s, self.baseline_s, self.rebaseline_s) <= 0 or self.step_mhz <= 0:
            raise ValueError("horizon_s, baseline_s, rebaseline_s and step_mhz must be above 0")


@dataclass(frozen=True, slots=True)
class Plan:
    """What ``price`` the bound puts on loss, in shares of the mean node energy."""

    price: float
    promise: float  # saving expected for the whole bound, a share of the node's energy
    bound: float  # how much of it is spent
    mean_w: float  # of a package and its part of the rest, at the highest clock, over the phases


NO_PLAN = Plan(price=0.0, promise=0.0, bound=0.0, mean_w=1.0)
"""Before any phase is known."""


@dataclass(frozen=True, slots=True)
class State:
    """``facts`` and ``curves`` are a ``PhaseTable``. Per package: ``phase`` (-1 = none), the ``level`` asked for and
    the ``reason``; of the last interval ``last_level`` (-1 = none, or more than one clock), ``last_view`` (IPC, clock,
    beta, watts) and with how many before it it ``agreed``; the lasting ``shift`` of IPC at its clock. ``top_clock``:
    the mean clock at level 0 over the ladder's highest. ``closed_s``: seconds lost between phases, and in those
    forgotten."""

    facts: type_f64
    curves: type_f64
    phase: type_i64
    level: type_i64
    reason: type_i64
    last_level: type_i64
    last_view: type_f64
    agreed: type_i64
    shift: type_f64
    plan: Plan
    top_clock: float
    closed_s: float
    time_s: float

    def __post_init__(self) -> None:
        if self.facts.shape != (PHASES, len(FACTS)):
            raise TypeError("it holds phases as another version of bdpo-cpu-bounded knows them")


@dataclass(frozen=True, slots=True)
class ToldState(State):
    """The state while the application tells its progress: ``told`` of the ``PhaseTable``, whose units they are, and
    units and seconds of the last interval."""

    told: type_f64
    source: int
    last_told: tuple[float, float]


NO_VIEW = (math.nan,) * 4
"""Of a package that showed nothing."""


def initial(params: Params, layout: Layout) -> State:
    """No phase known, every package at its highest clock."""
    packages = package_count(layout)
    facts, curves = PhaseTable.empty(ClockLadder.of(layout, params.step_mhz).khz.shape[1])
    return State(
        facts=facts,
        curves=curves,
        phase=np.full(packages, -1, np.int64),
        level=np.zeros(packages, np.int64),
        reason=np.full(packages, FREE, np.int64),
        last_level=np.full(packages, -1, np.int64),
        last_view=np.full((packages, 4), np.nan),
        agreed=np.zeros(packages, np.int64),
        shift=np.zeros(packages),
        plan=NO_PLAN,
        top_clock=1.0,
        closed_s=0.0,
        time_s=0.0,
    )


def decide(params: Params, layout: Layout, state: State, sample: Sample) -> tuple[State, Request]:
    """Learn from the last interval, charge its loss to the account, choose each package's next clock."""
    ladder = ClockLadder.of(layout, params.step_mhz)
    views = observe(layout, ladder, sample, params.idle)
    top_clock = _top_clock(state, views)
    clock = ladder.relative.copy()
    clock[0] = max(top_clock, 1.0)
    told = _told(state, sample, len(clock))
    table = PhaseTable(state.facts.copy(), state.curves.copy(), clock, state.time_s + sample.elapsed_s, told)
    closed_s, changed = state.closed_s, set[int]()
    asked, phase, before_at = state.level.tolist(), state.phase.tolist(), state.last_level.tolist()
    is_known, agreed, shift = [False] * len(views), [0] * len(views), [0.0] * len(views)
    last_level, last_view = [-1] * len(views), [NO_VIEW] * len(views)

    for package, view in enumerate(views):
        if view is None:
            phase[package] = -1
            continue
        level = last_level[package] = _level_of(clock, view, asked[package])
        last_view[package] = (view.ipc, view.clock, view.beta, view.watts)
        before = View(*state.last_view[package].tolist())
        if level >= 0 and level == before_at[package] and agree(view, before):
            agreed[package] = int(state.agreed[package]) + 1
        was = float(state.shift[package])
        has_left = level <= 0 and abs(was) >= SHIFT
        found, is_shown, lost_s = _place(table, view, level, phase[package], agreed[package], has_left)
        if is_shown and level > 0:
            shift[package] = was + SHIFT_MEMORY * (table.shift(found, view, level) - was)
            is_shown = abs(shift[package]) < SHIFT
        elif has_left and not is_shown:
            shift[package] = was
        is_known[package] = is_shown
        phase[package], closed_s = found, closed_s + lost_s
        if is_shown and agreed[package] > 0:
            if agreed[package] == 1:  # the first of the two that agree
                table.learn(found, level, before)
            table.learn(found, level, view)
            changed.add(found)
    for found in sorted(changed):
        table.conclude(found)

    ran_at = [level if level >= 0 else asked[package] for package, level in enumerate(last_level)]
    losses, lost_s, slowest = _charge(table, sample.elapsed_s, phase, ran_at, is_known)
    closed_s += lost_s
    if slowest >= 0 and is_known[slowest]:
        _hear(table, state, sample, phase[slowest], last_level[slowest], agreed[slowest])
    is_due = int(table.time_s / PLAN_S) != int(state.time_s / PLAN_S)
    spent_s = closed_s + float(table.lost_s(params.margin).sum())
    plan = _planned(params, table, len(views), spent_s) if is_due else state.plan
    budget = _Budget(params, table, len(views), plan, spent_s)
    level_next, reason, saved_w = [0] * len(views), [FREE] * len(views), [math.nan] * len(views)
    for package, view in enumerate(views):
        if view is not None and is_known[package]:
            found = phase[package]
            level_next[package], reason[package] = budget.choose(found, asked[package], sample.elapsed_s)
            saved_w[package] = float(table.curves[POWER, found, 0]) - view.watts
        elif view is not None:
            reason[package] = UNKNOWN
    after = _state(
        sample,
        table.told,
        table.facts,
        table.curves,
        np.array(phase, np.int64),
        np.array(level_next, np.int64),
        np.array(reason, np.int64),
        np.array(last_level, np.int64),
        np.array(last_view).reshape(-1, len(NO_VIEW)),
        np.array(agreed, np.int64),
        np.array(shift),
        plan,
        top_clock,
        closed_s,
        table.time_s,
    )
    return after, _request(params, layout, ladder, sample, after, losses, np.array(saved_w))


def _told(state: State, sample: Sample, levels: int) -> type_f64 | None:
    """A working copy of what the application has told; None while it tells nothing that is believed, and what it told
    before is then forgotten."""
    if sample.progress.quality != Quality.MEASURED:
        return None
    before = _told_before(state, sample)
    return before.told.copy() if before else np.zeros((len(TOLD), PHASES, levels))


def _told_before(state: State, sample: Sample) -> ToldState | None:
    """The state, if it is of the program that tells now."""
    return state if isinstance(state, ToldState) and sample.progress.source == state.source else None


def _hear(table: PhaseTable, state: State, sample: Sample, phase: int, level: int, agreed: int) -> None:
    """Count the units of an interval for the phase and clock of the package that holds the others up; at the second
    interval there that agrees, those of the first too."""
    if table.told is None or agreed < 1:
        return
    if agreed == 1 and (before := _told_before(state, sample)):
        table.hear(phase, level, *before.last_told, begins=False)
    table.hear(phase, level, sample.progress.units, sample.elapsed_s, begins=agreed == 1)


def _state(sample: Sample, told: type_f64 | None, *parts: Any) -> State:
    """With what the application tells, if it tells."""
    if told is None:
        return State(*parts)
    progress = sample.progress
    parts = (*parts, told, progress.source, (progress.units, sample.elapsed_s))
    return ToldState(*parts)


def _top_clock(state: State, views: list[View | None]) -> float:
    """The highest clock as it is: above the ladder's in turbo, and then what all loss is counted against."""
    free = [view.clock for package, view in enumerate(views) if view is not None and state.level[package] == 0]
    if not free:
        return state.top_clock
    return max(free) if state.time_s == 0 else state.top_clock + 0.1 * (max(free) - state.top_clock)


def _level_of(clock: type_f64, view: View, asked: int) -> int:
    """The level at which an interval ran; -1 = between levels: it held two clocks, or someone else sets them."""
    if asked == 0 and view.clock > clock[min(1, len(clock) - 1)]:
        return 0
    near = asked if abs(view.clock / clock[asked] - 1.0) < STEADY_CLOCK else int(np.argmin(np.abs(clock - view.clock)))
    return near if abs(view.clock / clock[near] - 1.0) < STEADY_CLOCK else -1


def _place(
    table: PhaseTable, view: View, level: int, phase: int, agreed: int, has_left: bool
) -> tuple[int, bool, float]:
    """The package's phase, whether this interval shows it, and the seconds lost in a phase forgotten for it.
    ``has_left``: below the highest clock it was another phase than ``phase``, however alike they look at it."""
    if level < 0:
        return phase, False, 0.0
    if level > 0:
        return phase, phase >= 0 and table.looks_like(phase, view, level), 0.0
    found = table.recognise(view, other_than=phase if has_left else -1)
    if found >= 0:
        return found, True, 0.0
    if agreed < OPENING:
        return phase, False, 0.0
    opened, closed_s = table.open_row()
    return opened, True, closed_s


def _charge(
    table: PhaseTable, elapsed_s: float, phase: list[int], level: list[int], is_known: list[bool]
) -> tuple[type_f64, float, int]:
    """Charge the interval to the slowest package, which holds a parallel job up: the losses of all packages, the
    seconds that no phase can be charged with because the interval showed none (half of it may be a phase's to come),
    and which package it is, -1 = none."""
    losses, slowest = [0.0] * len(phase), -1
    for package, found in enumerate(phase):
        if found >= 0:
            beta = float(table.facts[found, TAKEN_BETA])
            beta = beta if is_known[package] else 0.5 * (beta + NEXT_BETA)
            losses[package] = beta * float(table.steepness[level[package]])
            slowest = package if slowest < 0 or losses[package] > losses[slowest] else slowest
    if slowest < 0:
        return np.array(losses), 0.0, slowest
    if not is_known[slowest]:
        return np.array(losses), elapsed_s * (losses[slowest] / (1.0 + losses[slowest])), slowest
    table.pass_time(phase[slowest], level[slowest], elapsed_s)
    return np.array(losses), 0.0, slowest


def _energy(params: Params, table: PhaseTable, packages: int, rows: npt.NDArray[np.intp] | int) -> type_f64:
    """Watts at each level times the time a piece of work takes there: one package and its part of the node's rest."""
    loss = table.facts[rows, TAKEN_BETA, None] * table.steepness
    allowed = table.is_step & (table.clock >= params.floor * table.clock[0])
    energy = (table.curves[POWER, rows] + params.rest_w / max(packages, 1)) * (1.0 + loss)
    return np.asarray(np.where(allowed, energy, np.inf))


def _planned(params: Params, table: PhaseTable, packages: int, spent_s: float) -> Plan:
    """The price at which the phases known so far, coming again as often, spend what they may."""
    rows = table.known()
    share = table.facts[rows, SHARE_S]
    if not share.sum() > 0:
        return NO_PLAN
    share = share / share.sum()
    energy = _energy(params, table, packages, rows)
    mean = float(share @ energy[:, 0])
    energy = energy / mean
    loss = table.facts[rows, TAKEN_BETA, None] * table.steepness
    chosen = np.argmin(energy + params.caution * loss**2 + PRICES[:, None, None] * loss, axis=2)
    each = np.arange(len(rows))
    spends = loss[each, chosen] @ share
    saves = 1.0 - energy[each, chosen] @ share
    promise = float(np.interp(params.bound, spends[::-1], saves[::-1]))
    told = float(share @ table.facts[rows, TOLD_SHARE])
    least = params.least_saving + told * (params.told_least_saving - params.least_saving)
    full = params.full_saving + told * (params.told_full_saving - params.full_saving)
    ramp = (promise - least) / (full - least)
    bound = params.small_bound + (params.bound - params.small_bound) * min(max(ramp, 0.0), 1.0)
    room_s = bound * table.time_s - spent_s
    price = float(PRICES[np.argmax(spends <= max(bound + room_s / params.horizon_s, 0.0))])
    return Plan(price, promise, bound, mean)


@dataclass(frozen=True, slots=True)
class _Budget:
    """What the account allows now."""

    params: Params
    table: PhaseTable
    packages: int
    plan: Plan
    spent_s: float

    def choose(self, phase: int, current: int, period_s: float) -> tuple[int, int]:
        """Level and reason of a known phase for the next interval."""
        params, table, plan, facts = self.params, self.table, self.plan, self.table.facts[phase]
        measured = table.curves[IPC_N, phase]
        if measured[0] * period_s < params.baseline_s - period_s / 2:
            return 0, BASELINE
        if self._is_top_too_short(phase, current):
            return 0, BASELINE
        if facts[STALL_N] == 0 and measured[1:].sum() * period_s < params.probe_s - period_s / 2:
            probe = int(np.argmin(np.abs(table.clock / table.clock[0] - params.probe_clock)))
            begun = current == probe
            needed_s = 0.5 * params.probe_s * float(table.steepness[probe])  # half of what the worst phase would lose
            return (probe, PROBE) if begun or params.bound * table.time_s - self.spent_s > needed_s else (0, ACCOUNT)
        loss = facts[TAKEN_BETA] * table.steepness
        energy = _energy(params, table, self.packages, phase) / plan.mean_w
        cost = energy + params.caution * loss**2 + plan.price * loss
        wanted = int(np.argmin(cost))
        if cost[current] <= cost[wanted] + CALM:
            wanted = current
        if wanted == 0:
            return 0, NOT_WORTH_IT
        if table.time_s - facts[TOP_S] > params.rebaseline_s:
            return 0, BASELINE
        room_s = plan.bound * table.time_s - self.spent_s
        charged = min(facts[TAKEN_BETA] + params.margin * facts[BETA_ERROR], 1.0) * table.steepness
        affordable = charged <= (plan.bound + room_s / SPEND_S if room_s > 0 else 0.0)
        if affordable[wanted]:
            return wanted, BOUNDED
        return int(np.argmin(np.where(affordable, cost, np.inf))), ACCOUNT

    def _is_top_too_short(self, phase: int, current: int) -> bool:
        """Whether the application has told too little at the highest clock for the others to be compared with it."""
        if self.table.told is None:
            return False
        seconds = self.table.told[TOLD_S, phase]
        share = self.params.told_share * (1.0 if current == 0 else TOP_SPENT)
        return bool(seconds[0] < max(self.params.told_s, share * seconds.sum()))


def _request(
    params: Params,
    layout: Layout,
    ladder: ClockLadder,
    sample: Sample,
    state: State,
    losses: type_f64,
    saved_w: type_f64,
) -> Request:
    of_cpu = package_of(layout)
    if len(of_cpu) == 0:
        return Request.free(0)
    is_there = np.isfinite(sample.cpu.busy)
    is_busy = sample.cpu.busy >= params.idle
    missing = ~is_there | (is_busy & ~np.isfinite(sample.cpu.ipc))
    idle = is_there & ~is_busy
    level = np.minimum(state.level[of_cpu], ladder.lowest)
    level = ladder.hold_no_domain_up(np.where(missing, 0, level), ~idle)
    reason = state.reason.astype(np.uint8)[of_cpu]
    reason[idle], reason[missing] = IDLE, MISSING
    loss = np.where(idle | missing, np.nan, losses[of_cpu])
    saved = (saved_w / package_sizes(layout))[of_cpu]
    return Request(ladder.target_khz(level), reason, loss, saved)


POLICY = Policy(
    name="bdpo-cpu-bounded",
    domain="cpu",
    summary="least energy within a slowdown bound over the whole run, predicted from stalls and corrected by IPC",
    source="ours, after BDPO (REGALE D2.3 §3.4) and the beta model of frequency scaling",
    reasons=REASONS,
    params=Params,
    initial=initial,
    decide=decide,
)

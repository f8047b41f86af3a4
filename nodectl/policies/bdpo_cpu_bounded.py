"""bdpo-cpu-bounded: the core clocks of least energy within a slowdown bound over the whole run. Ours.

Problem. A lower clock saves energy where a job waits for memory, and costs time where it does not. Which is the case
changes with the phases of the job, and the whole run may become slower by no more than ``bound`` (3 %).

Idea. Each package is judged by its busy CPUs, and intervals that look alike belong to one *phase* (``cpu_phases``).
Slowdown is treated like money: an account receives ``bound`` seconds per second of the run, and each phase pays for
the time that its clocks lose. One price of loss, the same in all phases, decides where to spend: at the margin, a
second lost then saves equally much in every phase.

    loss_l    beta * (f_max / f_l - 1)                          relative extra time at level l; beta: share of the
                                                                phase's time that scales with the clock; f_max: the
                                                                highest clock that the phase reaches
    energy_l  (P_l + rest_w / packages) * (1 + loss_l) / mean   energy of one piece of work; P_l: watts of the package;
                                                                mean: W at the highest clock, over all phases
    level     argmin over l of energy_l + caution * loss_l**2 + price * loss_l
    lost_s    sum of (seconds at l) * loss_l / (1 + loss_l)     s, over phases and levels, beta raised by ``margin``
                                                                standard errors; plus the seconds lost between phases
    room_s    bound * time_s - lost_s                           s, what is left on the account
    price     the lowest at which the phases, weighted by their time, lose at most bound + room_s / horizon_s

Invariant. While ``room_s`` is not positive, no phase gets a clock that is charged a loss (only a probe that has begun
is finished). So a choice can overdraw the account by one misjudged interval or the rest of a probe at most, and
``bound`` is kept whenever the run ends, as far as the estimates are right; its length need not be known. The account is
summed again in every interval with today's estimates, so an early error does not last: if a better estimate finds the
account overdrawn, the highest clocks earn it back.

Cost. O(CPUs + packages * phases * levels) per interval; every ``PLAN_S`` also O(prices * phases * levels), with 12
phases and 41 prices.

The steps in detail:

1.  An interval that does not look like its package's phase sends the package to its highest clock. There, a phase
    that was measured before is recognised. Three intervals in a row that agree, but match no known phase, open a new
    one. So the mixture at a phase boundary opens no phase, and nothing is learned from it. A lasting shift of IPC below
    the highest clock ends a phase; at the highest clock that phase is then excluded, and the next nearest is
    recognised or a new one opened.
2.  A new phase is measured at the highest clock and, where no stall event exists, a little below it. Counters are
    noisy, so a phase that might be compute-bound is treated as compute-bound everywhere: in the choice of the clock,
    in the promise (5) and on the account.
3.  The account charges the loss of the slowest package, because the others wait for it at the next barrier. So a
    lower clock of one package alone costs its loss and saves next to nothing. Packages that do the same are therefore
    judged alike: with watts as their mean would draw them, and all by what was known before the interval.
4.  The price is found over the phases seen so far, as if they came again in the same proportions.
5.  The *promise* is what spending the whole bound would save. Between ``full_saving`` and ``least_saving`` the bound
    falls to ``small_bound``: the job should not be slowed down for a negligible saving.
6.  If the application reports its progress, its units per second at each clock are one more estimate of beta. It is
    the only one without bias; it is weighted by its variance. The highest clock is then measured for longer, because
    the others are compared with it. The more of beta rests on this estimate, the larger the promise must be: the
    estimate is rarely wrong, so a small promise then really is small, and not worth the loss.

A package whose signature cannot be read runs free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from nodectl.journal.state import LATER
from nodectl.policies.api import Policy, Request
from nodectl.policies.parts.clocks import ClockLadder
from nodectl.policies.parts.cpu_phases import (
    BETA_ERROR,
    FACTS,
    IPC_N,
    PHASES,
    POWER,
    PROGRESS_SHARE,
    SHARE_S,
    STALL_N,
    TAKEN_BETA,
    TOP_S,
    PhaseTable,
    agree,
)
from nodectl.policies.parts.cpu_progress import PROGRESS, PROGRESS_S
from nodectl.policies.parts.cpu_views import (
    View,
    as_one_package,
    observe,
    package_count,
    package_draws,
    package_of,
    package_sizes,
)
from pmu.layout import Layout
from pmu.readings import Quality, Sample, type_f64, type_i64

REASONS = ("free", "idle", "missing", "unknown", "baseline", "probe", "bounded", "account", "not-worth-it")
FREE, IDLE, MISSING, UNKNOWN, BASELINE, PROBE, BOUNDED, ACCOUNT, NOT_WORTH_IT = range(len(REASONS))

PRICES = np.concatenate(([0.0], np.geomspace(0.02, 40.0, 40)))
"""Prices of loss that are tried: share of the mean energy per unit of loss."""

STEADY_CLOCK = 0.015
"""An interval ran at the nearest level if its mean clock is within this share of it (ours: half of the narrowest
steps)."""

CALM = 0.001
"""The clock is not changed to lower the cost by less than this share of the mean energy (ours)."""

OPENING = 2
"""A phase is opened by an interval that agrees with at least so many before it (ours)."""

SHIFT, SHIFT_MEMORY = 0.035, 0.35
"""Below the highest clock, a lasting shift of IPC by this much (logarithm) means another phase. The shift is averaged
with this weight for the newest interval, since a single interval may differ by more (ours)."""

NEXT_BETA = 0.7
"""Beta assumed for the unknown half of an interval that matches no phase (ours)."""

PLAN_S = 0.5
"""Seconds from one plan to the next (ours)."""

TOP_SPENT = 0.7
"""Hysteresis of ``told_share``: a phase stays at lower clocks until the share of its time at the highest clock has
fallen to this part of ``told_share`` (ours)."""

SPEND_S = 2.0
"""The rest of the account is spent over at least this time, so that no single interval empties it (ours)."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bound and the safety margins. All defaults are ours."""

    bound: float = 0.03  # slowdown over the whole run against the highest clock
    small_bound: float = 0.008  # the bound where little can be saved:
    least_saving: float = 0.009  # where the whole bound would save less than this share of the node's energy
    full_saving: float = 0.012  # the whole bound is spent if it saves at least this share
    margin: float = 0.3  # standard errors of beta added to the loss that the account is charged
    caution: float = 0.6  # weight of loss squared: spreads loss over phases, since errors of loss grow with it
    horizon_s: float = 30.0  # time over which the plan spends the rest of the account
    rest_w: float = 60.0  # power of the node that no zone measures; a slower job draws it for longer
    step_mhz: int = 100  # clock step where the driver accepts any clock
    floor: float = 0.45  # lowest clock, as a share of the highest
    idle: float = 0.05  # a CPU is judged if it is busy for at least this share of the interval
    baseline_s: float = 0.3  # a new phase is measured for so long at the highest clock
    rebaseline_s: float = 20.0  # a phase returns to the highest clock after so long without it
    probe_s: float = 0.5  # without a stall event: a new phase is measured for so long below the highest clock
    probe_clock: float = 0.85  # clock of that measurement, as a share of the highest
    told_s: float = 1.0  # with reported progress: least time of a phase at the highest clock
    told_share: float = 0.1  # and least share of the phase's time there
    told_least_saving: float = 0.014  # replaces least_saving, as far as the losses rest on reported progress
    told_full_saving: float = 0.0175  # replaces full_saving likewise

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
    """The price of loss that spends the bound, and what that is expected to save."""

    price: float  # share of the mean energy per unit of loss
    promise: float  # expected saving if the whole bound is spent, a share of the node's energy
    bound: float  # slowdown that is spent: from small_bound to the full bound
    mean_w: float  # a package and its part of rest_w at the highest clock, mean over the phases


NO_PLAN = Plan(price=0.0, promise=0.0, bound=0.0, mean_w=1.0)
"""Before any phase is known."""


@dataclass(frozen=True, slots=True)
class State:
    """What the policy remembers between intervals.

    ``facts`` and ``curves`` are a ``PhaseTable``. Per package: ``phase`` (-1 = none), the requested ``level`` and its
    ``reason``. Per package, of the last interval: ``last_level`` (-1 = none, or more than one clock), ``last_view``
    (IPC, clock, beta, watts), and ``agreed``: how many intervals in a row before it agree. ``shift``: the lasting shift
    of IPC at the present clock. ``top_clock``: the mean clock at level 0 over the ladder's highest. ``closed_s``:
    seconds lost that no row of the table carries, between phases and in forgotten ones. ``tops``: that field of the
    ``PhaseTable``. ``draws``: watts of each package over their mean, doing the same (``cpu_views.package_draws``).
    """

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
    tops: type_f64 | None = field(default=None, kw_only=True, metadata={LATER: True})
    draws: type_f64 | None = field(default=None, kw_only=True, metadata={LATER: True})

    def __post_init__(self) -> None:
        if self.facts.shape != (PHASES, len(FACTS)):
            raise TypeError("its phases are of another version of bdpo-cpu-bounded")


@dataclass(frozen=True, slots=True)
class ToldState(State):
    """The state while the application reports its progress.

    ``told``: that table of the ``PhaseTable``. ``source``: the program that reports. ``last_told``: units and seconds
    of the last interval.
    """

    told: type_f64
    source: int
    last_told: tuple[float, float]


NO_VIEW = View(math.nan, math.nan, math.nan, math.nan)
"""The view of a package without a usable reading."""


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
        last_view=np.full((packages, len(NO_VIEW)), np.nan),
        agreed=np.zeros(packages, np.int64),
        shift=np.zeros(packages),
        plan=NO_PLAN,
        top_clock=1.0,
        closed_s=0.0,
        time_s=0.0,
    )


@dataclass(slots=True)
class _Package:
    """A package in the interval that has ended, and what is chosen for the next one."""

    view: View | None  # None: nothing of it can be judged
    requested: int  # level
    before: View  # in the interval before; so for the next three
    before_at: int  # -1 = none, or more than one clock
    before_agreed: int
    before_shift: float
    phase: int  # -1 = none
    ran_at: int = -1
    agreed: int = 0
    shift: float = 0.0
    is_known: bool = False  # the interval shows ``phase``
    loss: float = 0.0  # relative extra time
    level: int = 0  # for the next interval
    reason: int = FREE
    saved_w: float = math.nan


def decide(params: Params, layout: Layout, state: State, sample: Sample) -> tuple[State, Request]:
    """Learn from the last interval, charge its loss to the account, choose the next clock of each package."""
    ladder = ClockLadder.of(layout, params.step_mhz)
    views = observe(layout, ladder, sample, params.idle)
    draws = package_draws(state.draws, views)
    packages = _packages(state, as_one_package(views, draws))
    top_clock = _top_clock(state, packages)
    table = _table(state, sample, ladder, top_clock)
    closed_s = _learn(table, packages, state.closed_s)
    lost_s, slowest = _charge(table, sample.elapsed_s, packages)
    closed_s += lost_s
    if slowest and slowest.is_known:
        _add_progress(table, state, sample, slowest)
    plan = _choose(params, table, state, packages, sample.elapsed_s, closed_s)
    after = _next_state(state, table, sample, packages, plan, top_clock, closed_s, draws)
    return after, _request(params, layout, ladder, sample, after, packages)


def _packages(state: State, views: list[View | None]) -> list[_Package]:
    """What each package did, with what is remembered of it."""
    remembered = zip(
        views,
        state.level.tolist(),
        state.last_view.tolist(),
        state.last_level.tolist(),
        state.agreed.tolist(),
        state.shift.tolist(),
        state.phase.tolist(),
        strict=True,
    )
    return [
        _Package(view, level, View(*before), before_at, agreed, shift, phase if view else -1)
        for view, level, before, before_at, agreed, shift, phase in remembered
    ]


def _table(state: State, sample: Sample, ladder: ClockLadder, top_clock: float) -> PhaseTable:
    """A working copy of the phases, at the end of this interval."""
    clock = ladder.relative.copy()
    clock[0] = max(top_clock, 1.0)
    reported = _reported(state, sample, len(clock))
    tops = None if state.tops is None else state.tops.copy()
    return PhaseTable(state.facts.copy(), state.curves.copy(), clock, state.time_s + sample.elapsed_s, reported, tops)


def _learn(table: PhaseTable, packages: list[_Package], closed_s: float) -> float:
    """Find the phase of each package and add its interval to that phase. Returns ``closed_s`` with what the rows lost
    that had to make room.

    All are recognised by what was known before the interval, so packages that did the same are judged alike. Only the
    row that one of them opens is there for the next.
    """
    seen = []
    for package in packages:
        if package.view is None:
            continue
        closed_s += _recognise(table, package, package.view)
        if not package.is_known or package.agreed == 0:
            continue
        if table.curves[IPC_N, package.phase, 0] == 0:
            table.learn(package.phase, package.ran_at, package.view)
            table.conclude(package.phase)
        else:
            seen.append((package, package.view))
    for package, view in seen:
        if package.agreed == 1:  # the interval before belongs to the phase too
            table.learn(package.phase, package.ran_at, package.before)
        table.learn(package.phase, package.ran_at, view)
    for phase in sorted({package.phase for package, _ in seen}):
        table.conclude(phase)
    return closed_s


def _recognise(table: PhaseTable, package: _Package, view: View) -> float:
    """Where the package ran, which phase it is in, and whether this interval shows it: within the phase's looks, and
    without a lasting shift of IPC. Returns the seconds lost of the phase whose row it takes."""
    level = package.ran_at = _level_of(table, package, view)
    if level >= 0 and level == package.before_at and agree(view, package.before):
        package.agreed = package.before_agreed + 1
    was = package.before_shift
    has_left = level <= 0 and abs(was) >= SHIFT
    package.phase, package.is_known, lost_s = _place(table, view, level, package.phase, package.agreed, has_left)
    if package.is_known and level > 0:
        package.shift = was + SHIFT_MEMORY * (table.shift(package.phase, view, level) - was)
        package.is_known = abs(package.shift) < SHIFT
    elif has_left and not package.is_known:
        package.shift = was
    return lost_s


def _choose(
    params: Params, table: PhaseTable, state: State, packages: list[_Package], elapsed_s: float, closed_s: float
) -> Plan:
    """The next level of each package, within what the account allows. Returns the plan that was followed: every
    ``PLAN_S`` a new one."""
    spent_s = closed_s + float(table.lost_s(params.margin).sum())
    is_due = int(table.time_s / PLAN_S) != int(state.time_s / PLAN_S)
    plan = _planned(params, table, len(packages), spent_s) if is_due else state.plan
    account = _Account(params, table, len(packages), plan, spent_s)
    for package in packages:
        if package.view is None:
            continue
        if package.is_known:
            package.level, package.reason = account.choose(package.phase, package.requested, elapsed_s)
            package.saved_w = float(table.curves[POWER, package.phase, 0]) - package.view.watts
        else:
            package.reason = UNKNOWN
    return plan


def _next_state(
    state: State, table: PhaseTable, sample: Sample, packages: list[_Package], plan: Plan, top_clock: float,
    closed_s: float, draws: type_f64 | None,
) -> State:  # fmt: skip
    """What is remembered of this interval, with the reported progress if there is any."""
    numbers = [(one.phase, one.level, one.reason, one.ran_at, one.agreed) for one in packages]
    phase, level, reason, ran_at, agreed = np.array(numbers, np.int64).reshape(-1, 5).T.copy()
    known = (  # in the order of the fields of ``State``
        table.facts,
        table.curves,
        phase,
        level,
        reason,
        ran_at,
        np.array([package.view or NO_VIEW for package in packages]).reshape(-1, len(NO_VIEW)),
        agreed,
        np.array([package.shift for package in packages]),
        plan,
        top_clock,
        closed_s,
        table.time_s,
    )
    if table.progress is None:
        return State(*known, tops=table.tops, draws=draws)
    progress = sample.progress
    last_told = (progress.units, sample.elapsed_s)
    return ToldState(*known, table.progress, progress.source, last_told, tops=table.tops, draws=draws)


def _reported(state: State, sample: Sample, levels: int) -> type_f64 | None:
    """A working copy of the reported progress per phase and level.

    None while there is no trusted report. What was reported before is then forgotten.
    """
    if sample.progress.quality != Quality.MEASURED:
        return None
    before = _reported_before(state, sample)
    return before.told.copy() if before else np.zeros((len(PROGRESS), PHASES, levels))


def _reported_before(state: State, sample: Sample) -> ToldState | None:
    """The state, if its reports come from the program that reports now."""
    return state if isinstance(state, ToldState) and sample.progress.source == state.source else None


def _add_progress(table: PhaseTable, state: State, sample: Sample, slowest: _Package) -> None:
    """Count the reported units of an interval for the phase and level of the slowest package.

    An interval counts only if the one before agrees with it. So the first of a stretch is counted late, together with
    the second.
    """
    agreed = slowest.agreed
    if table.progress is None or agreed < 1:
        return
    if agreed == 1 and (before := _reported_before(state, sample)):
        table.add_progress(slowest.phase, slowest.ran_at, *before.last_told, begins=False)
    table.add_progress(slowest.phase, slowest.ran_at, sample.progress.units, sample.elapsed_s, begins=agreed == 1)


def _top_clock(state: State, packages: list[_Package]) -> float:
    """The clock that packages reach at level 0, over the ladder's highest; above 1 in turbo. Averaged.

    All loss is counted against this clock.
    """
    free = [package.view.clock for package in packages if package.view is not None and package.requested == 0]
    if not free:
        return state.top_clock
    return max(free) if state.time_s == 0 else state.top_clock + 0.1 * (max(free) - state.top_clock)


def _level_of(table: PhaseTable, package: _Package, view: View) -> int:
    """The level at which an interval ran; -1 = between levels: the clock changed within it, or is set by others.

    Without a request the package has its highest clock. Turbo bins, wide vectors or a power limit may keep that below
    the ladder's; then it counts once it is steady, or as the phase had it before.
    """
    clock, requested = table.clock, package.requested
    if requested == 0:
        known = float(table.clocks[max(package.phase, 0), 0])
        is_steady = any(abs(view.clock / top - 1.0) < STEADY_CLOCK for top in (known, package.before.clock))
        if is_steady or view.clock > clock[min(1, len(clock) - 1)]:
            return 0
        if table.tops is not None:
            return -1  # a clock that limits move, which may be near any level
    near = (
        requested
        if abs(view.clock / clock[requested] - 1.0) < STEADY_CLOCK
        else int(np.argmin(np.abs(clock - view.clock)))
    )
    return near if abs(view.clock / clock[near] - 1.0) < STEADY_CLOCK else -1


def _place(
    table: PhaseTable, view: View, level: int, phase: int, agreed: int, has_left: bool
) -> tuple[int, bool, float]:
    """The package's phase, whether this interval shows it, and the seconds lost of the phase whose row it takes.

    ``has_left``: a shift of IPC below the highest clock has proved that this is not ``phase``, even if the two look
    alike at the highest clock.
    """
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


def _charge(table: PhaseTable, elapsed_s: float, packages: list[_Package]) -> tuple[float, _Package | None]:
    """Charge the interval to the phase of the slowest package, since a parallel job waits for it.

    Sets the loss of each package. Returns the seconds lost that no phase can be charged with, and the slowest package
    (None where no phase is known). If that package's interval shows no phase, half of it may already belong to an
    unknown one, with ``NEXT_BETA``.
    """
    slowest, charged_level = None, 0
    for package in packages:
        if package.phase >= 0:
            beta = float(table.facts[package.phase, TAKEN_BETA])
            beta = beta if package.is_known else 0.5 * (beta + NEXT_BETA)
            level = package.ran_at if package.ran_at >= 0 else package.requested  # -1: between levels
            package.loss = beta * float(table.steepness[package.phase, level])
            if slowest is None or package.loss > slowest.loss:
                slowest, charged_level = package, level
    if slowest is None:
        return 0.0, None
    if not slowest.is_known:
        return elapsed_s * (slowest.loss / (1.0 + slowest.loss)), slowest
    table.pass_time(slowest.phase, charged_level, elapsed_s)
    return 0.0, slowest


def _energy(params: Params, table: PhaseTable, packages: int, rows: npt.NDArray[np.intp] | int) -> type_f64:
    """Energy at each level, in J for the work of one second at the highest clock: a package and its part of ``rest_w``.

    Infinite below ``floor`` and at repeated levels.
    """
    loss = table.facts[rows, TAKEN_BETA, None] * table.steepness[rows]
    clocks = table.clocks[rows]
    allowed = table.is_step[rows] & (clocks >= params.floor * clocks[..., :1])
    energy = (table.curves[POWER, rows] + params.rest_w / max(packages, 1)) * (1.0 + loss)
    return np.asarray(np.where(allowed, energy, np.inf))


def _planned(params: Params, table: PhaseTable, packages: int, spent_s: float) -> Plan:
    """The lowest price at which the phases known so far, weighted by their time, lose no more than they may."""
    rows = table.known()
    share = table.facts[rows, SHARE_S]
    if not share.sum() > 0:
        return NO_PLAN
    share = share / share.sum()
    energy = _energy(params, table, packages, rows)
    mean = float(share @ energy[:, 0])
    energy = energy / mean
    loss = table.facts[rows, TAKEN_BETA, None] * table.steepness[rows]
    chosen = np.argmin(energy + params.caution * loss**2 + PRICES[:, None, None] * loss, axis=2)
    each = np.arange(len(rows))
    spends = loss[each, chosen] @ share
    saves = 1.0 - energy[each, chosen] @ share
    promise = float(np.interp(params.bound, spends[::-1], saves[::-1]))
    reported = float(share @ table.facts[rows, PROGRESS_SHARE])
    least = params.least_saving + reported * (params.told_least_saving - params.least_saving)
    full = params.full_saving + reported * (params.told_full_saving - params.full_saving)
    ramp = (promise - least) / (full - least)
    bound = params.small_bound + (params.bound - params.small_bound) * min(max(ramp, 0.0), 1.0)
    room_s = bound * table.time_s - spent_s
    return Plan(_price(spends, bound + room_s / params.horizon_s), promise, bound, mean)


def _price(spends: type_f64, may_spend: float) -> float:
    """The lowest price that spends no more than ``may_spend``; the highest if all spend more."""
    fits = spends <= max(may_spend, 0.0)
    return float(PRICES[np.argmax(fits)] if fits.any() else PRICES[-1])


@dataclass(frozen=True, slots=True)
class _Account:
    """The account of slowdown at the end of an interval: chooses levels that it can pay for."""

    params: Params
    table: PhaseTable
    packages: int
    plan: Plan
    spent_s: float

    def choose(self, phase: int, current: int, period_s: float) -> tuple[int, int]:
        """Level and reason for the next interval of a package in a known phase.

        In order: measure at the highest clock, probe below it where stalls cannot be read, then the level of least cost
        that the account can pay for.
        """
        params, table, plan, facts = self.params, self.table, self.plan, self.table.facts[phase]
        measured = table.curves[IPC_N, phase]
        if measured[0] * period_s < params.baseline_s - period_s / 2:
            return 0, BASELINE
        if self._is_top_too_short(phase, current):
            return 0, BASELINE
        if facts[STALL_N] == 0 and measured[1:].sum() * period_s < params.probe_s - period_s / 2:
            probe = table.nearest_level(phase, params.probe_clock)
            begun = current == probe
            needed_s = 0.5 * params.probe_s * float(table.steepness[phase, probe])  # half of the most a phase can lose
            return (probe, PROBE) if begun or params.bound * table.time_s - self.spent_s > needed_s else (0, ACCOUNT)
        loss = facts[TAKEN_BETA] * table.steepness[phase]
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
        charged = min(facts[TAKEN_BETA] + params.margin * facts[BETA_ERROR], 1.0) * table.steepness[phase]
        affordable = charged <= (plan.bound + room_s / SPEND_S if room_s > 0 else 0.0)
        if affordable[wanted]:
            return wanted, BOUNDED
        return int(np.argmin(np.where(affordable, cost, np.inf))), ACCOUNT

    def _is_top_too_short(self, phase: int, current: int) -> bool:
        """Whether the progress reported at the highest clock is too short to compare other clocks with."""
        if self.table.progress is None:
            return False
        seconds = self.table.progress[PROGRESS_S, phase]
        share = self.params.told_share * (1.0 if current == 0 else TOP_SPENT)
        return bool(seconds[0] < max(self.params.told_s, share * seconds.sum()))


def _request(
    params: Params,
    layout: Layout,
    ladder: ClockLadder,
    sample: Sample,
    state: State,
    packages: list[_Package],
) -> Request:
    of_cpu = package_of(layout)
    if len(of_cpu) == 0:
        return Request.free(0)
    is_there = np.isfinite(sample.cpu.busy)
    is_busy = sample.cpu.busy >= params.idle
    missing = ~is_there | (is_busy & ~np.isfinite(sample.cpu.ipc))
    idle = is_there & ~is_busy
    level = np.minimum(state.level[of_cpu], ladder.lowest)
    level = ladder.follow_domain(np.where(missing, 0, level), ~idle)
    reason = state.reason.astype(np.uint8)[of_cpu]
    reason[idle], reason[missing] = IDLE, MISSING
    losses = np.array([package.loss for package in packages])
    loss = np.where(idle | missing, np.nan, losses[of_cpu])
    saved_w = np.array([package.saved_w for package in packages])
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
    waits={"baseline_s": "dwell_s", "probe_s": "dwell_s"},
)

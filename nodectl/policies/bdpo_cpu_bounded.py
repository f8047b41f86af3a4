"""bdpo-cpu-bounded: the lowest-energy core clocks that keep a stated slowdown over the whole run. Ours.

What one work item costs is ``beta * f_max / f + (1 - beta)``: a share beta scales with the clock, the rest waits for
memory (Hsu and Kremer's model, also behind REGALE D2.3 §3.4). Beta is not measured anywhere, so two biased witnesses
are heard. The share of stalled cycles gives it at once, at any clock, but counts stalls that overlap. The
IPC per reference cycle at two clocks gives the loss itself, later, and counts instructions that did no work. Their
weighted mean, raised by a margin for their disagreement, predicts the loss of each clock.

Sockets with the same signature (IPC and stall share) are in the same *phase*, whose rates, watts and beta are kept and
recalled when it comes back. Each interval the clock is chosen that minimises

    power(f) * (1 + loss(f)) + price * loss(f)

relative to the highest clock. The price is what makes a bound over the whole run optimal over its phases: it rises
when the account of estimated losses is about to be overdrawn, so that loss is spent in the phases where it buys most.
It never falls below ``least_price``: speed is not given away for less energy than it is worth to the machine. And
where all phases together promise less than ``least_saving`` for the whole bound, only ``small_bound`` of it is spent.

A phase is measured at the highest clock when it is new and now and then after. Where no stall event exists, a new
phase is also probed a little below the highest clock. A socket whose signature cannot be read runs free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import numpy as np
import numpy.typing as npt

from nodectl.policies.api import Policy, Request
from nodectl.policies.clocks import ClockLadder
from pmu.layout import Layout
from pmu.readings import Sample, type_f64, type_i64

REASONS = ("free", "idle", "missing", "baseline", "probe", "bounded", "account", "not-worth-it")
FREE, IDLE, MISSING, BASELINE, PROBE, BOUNDED, ACCOUNT, NOT_WORTH_IT = range(len(REASONS))

PHASES = 12
"""How many phases are remembered; the one longest unseen is forgotten first."""

MEMORY_TICKS = 400.0
"""Means forget with this weight, so that a slowly changing phase is followed (ours)."""

IPC_NOISE = 0.02
"""Relative noise of a package's IPC in one interval (ours)."""

SPEND_S = 2.0
"""Room on the account is spent over about this time, so that no single interval empties it (ours)."""

SHARE_S = 300.0
"""How long a phase's share of the run is remembered (ours)."""

PRICES = np.concatenate(([0.0], np.geomspace(0.1, 60.0, 24)))
"""Prices of loss tried when the promise of a run is worked out."""

GUESS_TICKS = 10.0
"""Weight of the guessed power curve beside measured intervals (ours)."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bound, and how carefully it is kept. All defaults are ours."""

    bound: float = 0.03  # slowdown over the whole run against the highest clock
    small_bound: float = 0.008  # the same where little is to be had
    least_saving: float = 0.02  # "little": less than this share of the node's energy for the whole bound
    margin: float = 0.5  # standard deviations added to the predicted loss
    least_price: float = 0.45  # joules of saving (relative) asked for each unit of loss, at least
    rest_w: float = 60.0  # watts of the node that no zone measures, drawn for as long as the work takes
    static_share: float = 0.45  # of a package's power that does not follow the clock, until measured
    power_exponent: float = 2.2  # of the part that does: between f (V flat) and f^3 (V proportional to f)
    witness_error: float = 0.15  # relative standard error of each witness of beta
    step_mhz: int = 100  # step where the driver takes any clock
    floor: float = 0.45  # lowest clock, as a share of the highest
    idle: float = 0.05  # a CPU busier than this share of the interval is judged
    baseline_s: float = 0.3  # measured at the highest clock when a phase is new, and this long
    rebaseline_s: float = 10.0  # between later looks at the highest clock
    probe_s: float = 1.0  # measured below it, where there is no stall event
    probe_clock: float = 0.9  # of the highest clock

    def __post_init__(self) -> None:
        if not 0 < self.bound < 1:
            raise ValueError("bound must be in (0, 1)")
        if not 0 <= self.small_bound <= self.bound:
            raise ValueError("small_bound must be in [0, bound]")
        if not 0 < self.floor <= 1 or not 0 < self.probe_clock < 1:
            raise ValueError("floor must be in (0, 1] and probe_clock in (0, 1)")
        if not 0 <= self.static_share < 1:
            raise ValueError("static_share must be in [0, 1)")
        if min(self.margin, self.least_price, self.least_saving, self.rest_w, self.probe_s) < 0:
            raise ValueError("margin, least_price, least_saving, rest_w and probe_s must not be negative")
        if min(self.power_exponent, self.witness_error, self.baseline_s, self.rebaseline_s) <= 0 or self.step_mhz <= 0:
            raise ValueError("power_exponent, witness_error, baseline_s, rebaseline_s and step_mhz must be above 0")


@dataclass(frozen=True, slots=True)
class State:
    """What is known of each phase (rows: PHASES) at each level of the ladder, and where each package stands.

    ``ipc``, ``watts`` ``[phase, level]`` are means with weights ``ipc_n``, ``watts_n``; ``stall_beta`` ``[phase]`` with
    ``stall_n``; ``last_s`` when a phase was last seen (-1 = free row), ``top_s`` when it last ran at the highest clock,
    ``top_due_s`` how long it must still be measured there, ``share_s`` its seconds, fading over some minutes.
    Per package: ``phase`` (-1 = none), ``level``, ``settling`` (sweeps to ignore after a change), ``reason``.
    ``spent_s`` is the account: estimated seconds lost so far. ``promise`` is the saving expected for the whole bound.
    """

    ipc: type_f64
    ipc_n: type_f64
    watts: type_f64
    watts_n: type_f64
    stall_beta: type_f64
    stall_n: type_f64
    last_s: type_f64
    top_s: type_f64
    top_due_s: type_f64
    share_s: type_f64
    phase: type_i64
    level: type_i64
    settling: type_i64
    reason: type_i64
    price: float
    promise: float
    spent_s: float
    time_s: float


def initial(params: Params, layout: Layout) -> State:
    """No phase known, every package at its highest clock."""
    levels = ClockLadder.of(layout, params.step_mhz).khz.shape[1]
    packages = _package_count(layout)
    return State(
        ipc=np.zeros((PHASES, levels)),
        ipc_n=np.zeros((PHASES, levels)),
        watts=np.zeros((PHASES, levels)),
        watts_n=np.zeros((PHASES, levels)),
        stall_beta=np.ones(PHASES),
        stall_n=np.zeros(PHASES),
        last_s=np.full(PHASES, -1.0),
        top_s=np.full(PHASES, -1.0),
        top_due_s=np.zeros(PHASES),
        share_s=np.zeros(PHASES),
        phase=np.full(packages, -1, np.int64),
        level=np.zeros(packages, np.int64),
        settling=np.zeros(packages, np.int64),
        reason=np.full(packages, FREE, np.int64),
        price=params.least_price,
        promise=0.0,
        spent_s=0.0,
        time_s=0.0,
    )


def decide(params: Params, layout: Layout, state: State, sample: Sample) -> tuple[State, Request]:
    """Learn from the last interval, charge its loss to the account, choose each package's next clock."""
    ladder = ClockLadder.of(layout, params.step_mhz)
    seen = _observe(params, layout, ladder, sample)
    known = _Knowledge.copy_of(params, ladder, state)
    time_s = state.time_s + sample.elapsed_s
    losses = np.zeros(len(seen))
    next_level = np.zeros(len(seen), np.int64)
    phases = state.phase.copy()
    settling = np.maximum(state.settling - 1, 0)
    reasons = np.full(len(seen), FREE, np.int64)

    for package, view in enumerate(seen):
        if view is None:
            phases[package] = -1
            continue
        level = int(state.level[package])
        if state.settling[package] > 0:  # the interval holds two clocks: charge it, learn nothing
            losses[package] = known.loss(int(phases[package]))[level] if phases[package] >= 0 else 0.0
            next_level[package], reasons[package] = level, state.reason[package]
            continue
        phase = known.recognise(view, level, int(phases[package]), time_s)
        phases[package] = phase
        known.learn(phase, level, view, time_s, sample.elapsed_s)
        losses[package] = known.loss(phase)[level]

    active = [index for index, view in enumerate(seen) if view is not None]
    loss = float(losses[active].max()) if active else 0.0  # the slowest package holds a parallel job up
    spent_s = state.spent_s + sample.elapsed_s * loss / (1.0 + loss)
    promise = known.promise() if int(time_s) != int(state.time_s) else state.promise
    bound = params.bound if promise >= params.least_saving else params.small_bound
    room = bound * time_s - spent_s
    price = state.price
    bound_by_account = False
    choices: dict[int, tuple[int, int]] = {}
    for package in active:
        if state.settling[package] > 0:
            continue
        phase = int(phases[package])
        if phase not in choices:
            choices[phase] = known.choose(phase, price, bound, room, time_s, sample.elapsed_s)
        chosen, why = choices[phase]
        bound_by_account |= why == ACCOUNT
        next_level[package], reasons[package] = chosen, why
        if chosen != state.level[package]:
            settling[package] = 1
    if active:
        price = price * 1.02 if bound_by_account else max(params.least_price, price * (0.98 if room > 0 else 1.0))

    after = replace(
        known.state, phase=phases, level=next_level, settling=settling, reason=reasons, price=price, promise=promise,
        spent_s=spent_s, time_s=time_s,
    )  # fmt: skip
    return after, _request(params, layout, ladder, sample, after, losses)


@dataclass(frozen=True, slots=True)
class _View:
    """One package in one interval: medians over its busy CPUs, and its watts (NaN unknown)."""

    ipc: float
    beta: float  # from the stall share; NaN where the machine has no such event
    watts: float


def _package_count(layout: Layout) -> int:
    return max(layout.package_of, default=-1) + 1


def _observe(params: Params, layout: Layout, ladder: ClockLadder, sample: Sample) -> list[_View | None]:
    package_of = np.asarray(layout.package_of)
    cpu = sample.cpu
    judged = np.isfinite(cpu.ipc) & (cpu.busy >= params.idle) & np.isfinite(cpu.frequency_khz)
    views: list[_View | None] = []
    for package in range(_package_count(layout)):
        members = judged & (package_of == package)
        if not members.any():
            views.append(None)
            continue
        ipc = float(np.median(cpu.ipc[members]))
        stall = float(np.median(cpu.stall[members]))
        relative = float(np.median(cpu.frequency_khz[members] / ladder.khz[members, 0]))
        scaling = relative * (1.0 - stall)
        beta = scaling / (stall + scaling) if 0.0 <= stall <= 1.0 else float("nan")
        watts = sum(
            float(joules) / sample.elapsed_s
            for zone, joules in zip(layout.zones, sample.energy_j, strict=True)
            if zone.package == package and zone.kind in ("package", "dram")
        )
        views.append(_View(ipc, beta, watts if watts > 0 else float("nan")))
    return views


_TABLES = ("ipc", "ipc_n", "watts", "watts_n", "stall_beta", "stall_n", "last_s", "top_s", "top_due_s", "share_s")


@dataclass(slots=True)
class _Knowledge:
    """The phase table while one interval is worked into it; a copy, so that the state given stays as it was."""

    params: Params
    relative: type_f64  # clock of each level over the highest
    allowed: npt.NDArray[np.bool_]  # levels above the floor
    state: State
    losses: dict[int, tuple[type_f64, type_f64]]  # per phase, until it learns something new

    @staticmethod
    def copy_of(params: Params, ladder: ClockLadder, state: State) -> _Knowledge:
        relative = ladder.relative()[0] if len(ladder.khz) else np.ones(1)
        distinct = np.concatenate(([True], np.diff(relative) < 0))
        copied = replace(
            state,
            **{name: getattr(state, name).copy() for name in _TABLES},
        )
        return _Knowledge(params, relative, distinct & (relative >= params.floor), copied, {})

    # -- which phase is this ------------------------------------------------------------------------------------

    def recognise(self, view: _View, level: int, current: int, time_s: float) -> int:
        """The remembered phase that looks like this interval, the current one first; else a fresh row."""
        best, least = -1, 1.0
        for phase in range(PHASES):
            if self.state.last_s[phase] < 0:
                continue
            distance = self._distance(phase, view, level) * (0.7 if phase == current else 1.0)
            if distance < least:
                best, least = phase, distance
        return best if best >= 0 else self._forget_oldest()

    def _distance(self, phase: int, view: _View, level: int) -> float:
        """1 = as far as two intervals of one phase may lie apart (ours: 8 % of IPC, 0.08 of beta)."""
        state = self.state
        if state.ipc_n[phase, level] > 0:
            expected, width = state.ipc[phase, level], 0.08
        else:
            measured = int(np.argmax(state.ipc_n[phase] > 0))
            loss = self.expected_loss(phase)
            expected, width = state.ipc[phase, measured] * (1 + loss[measured]) / (1 + loss[level]), 0.12
        distance = abs(np.log(view.ipc / expected)) / width if min(view.ipc, expected) > 0 else 2.0
        if np.isfinite(view.beta) and state.stall_n[phase] > 0:
            distance = max(distance, abs(view.beta - state.stall_beta[phase]) / 0.08)
        return float(distance)

    def _forget_oldest(self) -> int:
        state = self.state
        phase = int(np.argmin(state.last_s))
        self.losses.pop(phase, None)
        for table in (state.ipc, state.ipc_n, state.watts, state.watts_n):
            table[phase] = 0.0
        state.stall_beta[phase], state.stall_n[phase] = 1.0, 0.0
        state.last_s[phase] = state.top_s[phase] = -1.0
        state.top_due_s[phase], state.share_s[phase] = self.params.baseline_s, 0.0
        return phase

    def learn(self, phase: int, level: int, view: _View, time_s: float, elapsed_s: float) -> None:
        """Work one interval into the means of its phase."""
        state = self.state
        self.losses.pop(phase, None)
        for mean, weight, value in (
            (state.ipc, state.ipc_n, view.ipc),
            (state.watts, state.watts_n, view.watts),
        ):
            if np.isfinite(value):
                weight[phase, level] = min(weight[phase, level] + 1.0, MEMORY_TICKS)
                mean[phase, level] += (value - mean[phase, level]) / weight[phase, level]
        if np.isfinite(view.beta):
            state.stall_n[phase] = min(state.stall_n[phase] + 1.0, MEMORY_TICKS)
            state.stall_beta[phase] += (view.beta - state.stall_beta[phase]) / state.stall_n[phase]
        state.last_s[phase] = time_s
        state.share_s[:] *= 1.0 - elapsed_s / SHARE_S if elapsed_s < SHARE_S else 0.0
        state.share_s[phase] += elapsed_s
        if level == 0:
            state.top_s[phase] = time_s
            state.top_due_s[phase] = max(state.top_due_s[phase] - elapsed_s, 0.0)

    # -- what would each clock cost and save --------------------------------------------------------------------

    def beta(self, phase: int) -> tuple[float, float]:
        """Estimate and standard error of a phase's beta from both witnesses; (1, 0) while there is none."""
        state, error = self.state, self.params.witness_error
        weights, values = [], []
        if state.stall_n[phase] > 0:
            value = min(max(float(state.stall_beta[phase]), 0.0), 1.0)
            values.append(value)
            weights.append(1.0 / ((error * value + 0.02) ** 2))
        steepness = 1.0 / self.relative - 1.0
        below = (state.ipc_n[phase] >= 2) & (steepness > 0)
        if state.ipc_n[phase, 0] >= 2 and below.any():
            count = np.minimum(state.ipc_n[phase], 30.0)[below]
            loss = state.ipc[phase, 0] / state.ipc[phase][below] - 1.0
            slope = steepness[below]
            leverage = float(count @ slope**2)
            value = min(max(float(count @ (loss * slope)) / leverage, 0.0), 1.2)
            noise = IPC_NOISE / leverage**0.5
            values.append(value)
            weights.append(1.0 / ((error * value + 0.01) ** 2 + noise**2))
        if not weights:
            return 1.0, 0.0
        total = sum(weights)
        return sum(w * v for w, v in zip(weights, values, strict=True)) / total, total**-0.5

    def loss(self, phase: int) -> type_f64:
        """Predicted loss at each level, with the margin: what the account is charged."""
        return self._losses(phase)[1]

    def expected_loss(self, phase: int) -> type_f64:
        """Predicted loss at each level, without the margin: what clocks are compared by."""
        return self._losses(phase)[0]

    def _losses(self, phase: int) -> tuple[type_f64, type_f64]:
        if phase not in self.losses:
            beta, error = self.beta(phase)
            steepness = 1.0 / self.relative - 1.0
            self.losses[phase] = (min(beta, 1.0) * steepness, min(beta + self.params.margin * error, 1.0) * steepness)
        return self.losses[phase]

    def power(self, phase: int) -> type_f64:
        """Predicted watts at each level, relative to the highest clock, the unmeasured rest of the node included."""
        state, params = self.state, self.params
        shape = self.relative**params.power_exponent
        count, watts = state.watts_n[phase], state.watts[phase]
        guess = params.static_share + (1.0 - params.static_share) * shape
        if not count.any():
            return np.asarray(guess, np.float64)
        known = int(np.argmax(count))
        guess = guess * watts[known] / guess[known]
        weight = count + GUESS_TICKS / len(shape)  # the guess counts as much as a few measured intervals
        target = (count * watts + (weight - count) * guess) / weight
        weight = weight / weight.sum()
        mean_shape, mean_target = float(weight @ shape), float(weight @ target)
        spread = shape - mean_shape
        variance = float(weight @ spread**2)
        slope = max(float(weight @ (spread * target)) / variance, 0.0) if variance > 0 else 0.0
        watts = mean_target + slope * (shape - mean_shape) + params.rest_w / max(len(state.phase), 1)
        return np.asarray(watts / watts[0], np.float64)

    def choose(
        self, phase: int, price: float, bound: float, room_s: float, time_s: float, period_s: float
    ) -> tuple[int, int]:
        """Level and reason for the next interval, with ``room_s`` seconds of loss left on the account."""
        state, params = self.state, self.params
        if state.top_due_s[phase] > period_s / 2:
            return 0, BASELINE
        steepness = 1.0 / self.relative - 1.0
        if state.stall_n[phase] == 0 and state.ipc_n[phase][1:].sum() * period_s < params.probe_s:
            probe = int(np.argmin(np.abs(self.relative - params.probe_clock)))
            return (probe, PROBE) if room_s > steepness[probe] * period_s else (0, ACCOUNT)
        expected = self.expected_loss(phase)
        cost = self.power(phase) * (1.0 + expected) + price * expected
        cost[~self.allowed] = np.inf
        wanted = int(np.argmin(cost))
        if wanted == 0:
            return 0, NOT_WORTH_IT
        if time_s - state.top_s[phase] > params.rebaseline_s:
            state.top_due_s[phase] = params.baseline_s
            return 0, BASELINE
        affordable = self.loss(phase) <= (bound + room_s / SPEND_S if room_s > 0 else 0.0)
        if affordable[wanted]:
            return wanted, BOUNDED
        cost[~affordable] = np.inf
        return int(np.argmin(cost)), ACCOUNT

    def promise(self) -> float:
        """The saving of the whole run if the bound is spent on one clock per phase, as an oracle would."""
        phases = [phase for phase in range(PHASES) if self.state.last_s[phase] >= 0 and self.state.share_s[phase] > 0]
        if not phases:
            return 0.0
        share = self.state.share_s[phases] / self.state.share_s[phases].sum()
        loss = np.array([self.expected_loss(phase) for phase in phases])
        saving = 1.0 - np.array([self.power(phase) for phase in phases]) * (1.0 + loss)
        saving[:, ~self.allowed] = -np.inf
        level = np.argmax(saving - PRICES[:, None, None] * loss, axis=2)
        rows = np.arange(len(phases))
        total_loss, total_saving = loss[rows, level] @ share, saving[rows, level] @ share
        return float(np.max(total_saving, where=total_loss <= self.params.bound, initial=0.0))


def _request(
    params: Params, layout: Layout, ladder: ClockLadder, sample: Sample, state: State, losses: type_f64
) -> Request:
    package_of = np.asarray(layout.package_of, np.int64)
    if len(package_of) == 0:
        return Request.free(0)
    busy = sample.cpu.busy
    missing = ~np.isfinite(busy) | ((busy >= params.idle) & ~np.isfinite(sample.cpu.ipc))
    idle = np.isfinite(busy) & (busy < params.idle)
    level = np.minimum(state.level[package_of], ladder.levels - 1)
    level = ladder.hold_no_domain_up(np.where(missing, 0, level), ~idle)
    reason = state.reason[package_of].astype(np.uint8)
    reason[idle], reason[missing] = IDLE, MISSING
    loss = np.where(idle | missing, np.nan, losses[package_of])
    return Request(ladder.target_khz(level), reason, loss, np.full(len(package_of), np.nan))


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

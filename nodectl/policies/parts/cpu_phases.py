"""The phases of a CPU job: how one is recognised, and what each clock would cost in it.

At clock f a piece of work takes ``beta * f_max / f + 1 - beta`` times as long as at f_max: a share beta of the time
scales with the clock, the rest waits for memory (Hsu and Kremer's model, also behind REGALE D2.3 §3.4). No instrument
measures beta, so three estimators are combined, each weighed by its standard error:

- the share of stalled cycles: there at once and at any clock, but biased, since it also counts stalls that overlap;
- IPC per reference cycle at two clocks: the slowdown itself, but only after a while, and biased by instructions that
  did no work;
- units of progress per second, where the application reports them: without bias, but slow, since units are few.

A phase is recognised by its signature: IPC, watts and, where the event exists, stalls. At a lower clock all three
change by amounts that are only predicted. So phases are distinguished at the highest clock, where each was measured; at
other clocks the only question is whether an interval still fits the present phase.

Many codes are clock-bound and can save next to nothing. The counters are noisy, so a phase that may be clock-bound is
treated as if it were (``taken_beta``). The more the estimate rests on reported progress, the less this correction is.

Watts are measured at every clock that was used. Elsewhere they follow a curve through those points, whose shape all
phases share, since they run on the same silicon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from nodectl.policies.parts.cpu_progress import progress_beta
from nodectl.policies.parts.cpu_views import View
from pmu.readings import type_f64

PHASES = 12
"""How many phases are remembered; the one that was seen least recently is forgotten first."""

FACTS = ("last_s", "top_s", "share_s", "stall_beta", "stall_n", "beta", "beta_error", "progress_share", "taken_beta")
LAST_S, TOP_S, SHARE_S, STALL_BETA, STALL_N, BETA, BETA_ERROR, PROGRESS_SHARE, TAKEN_BETA = range(len(FACTS))
"""Columns of ``facts``. ``last_s``: when the phase was last seen, -1 = a free row; ``top_s``: when it was last measured
at the highest clock; ``share_s``: its seconds, fading over some minutes; ``beta_error``: standard error of ``beta``;
``progress_share``: 0 to 1, how much of the estimate of beta rests on reported progress; ``taken_beta``: the beta that
losses are computed with."""

CURVES = ("ipc", "ipc_n", "watts", "watts_n", "seconds", "power")
IPC, IPC_N, WATTS, WATTS_N, SECONDS, POWER = range(len(CURVES))
"""Tables of ``curves``, each ``[phase, level]``. Means with their weights (``ipc`` and ``watts`` below the highest
clock: shares of those at it); the seconds charged to the account; ``power``: watts of one package, as measured or
predicted."""

MEMORY_TICKS = 400.0
"""A mean covers about so many of the last ticks, so that it follows a phase that changes slowly (ours)."""

SHARE_MEMORY_S = 300.0
"""How long a phase's share of the run is remembered (ours)."""

TOP_TICKS = 10.0
"""The same for the highest clock that a phase reaches where that is below the ladder's (ours)."""

RECENT_TICKS = 5.0
"""The same as ``MEMORY_TICKS``, for watts at the highest clock. A package warms up for minutes, so watts at other
clocks are stored as shares of what the phase drew at the highest clock shortly before (ours)."""

IPC_WIDTH, WATTS_WIDTH, BETA_WIDTH = 0.10, 0.045, 0.08
"""Two intervals of one phase differ by no more than this, relative (beta: absolute). Ours: counters scatter by one or
two percent; a barrier within an interval adds up to a tenth to a low IPC, since waiting there spins; leakage changes a
package's watts by some percent between cold and warm."""

IPC_WIDTH_AT_TOP = 0.06
"""The same at the highest clock, where phases are distinguished: an odd interval costs nothing there (ours)."""

BETA_SLACK, POWER_SLACK = 0.35, 0.4
"""Where a phase has not been measured: how far beta may be off, and, relative, the watts a lower clock saves (ours)."""

IPC_NOISE = 0.01
"""Relative noise of a package's IPC in one interval (ours)."""

ESTIMATOR_ERROR = 0.15
"""Relative standard error of each estimator of beta (ours)."""

MAYBE_CLOCK_BOUND = (0.55, 0.75)
"""Clock-bound codes have a beta of about 0.9 (Linpack and IMB on Curie), no work has one above 1, and counters err by a
fifth. So an estimate above the second value counts as 1, one below the first is used as it is, and in between the two
are interpolated (ours)."""

POWER_EXPONENT = 2.0
"""The part of a package's power that depends on the clock goes with f to this power: 1 where the voltage is constant, 3
where it is proportional to f (ours)."""

DYNAMIC_SHARE = 0.55
"""That part's share at the highest clock, until measured (ours)."""

GUESS_WEIGHT = 0.1
"""Weight of the guess against measured intervals, each of which has its ``drop`` squared as weight (ours: about three
intervals at nine tenths of the highest clock)."""

UNKNOWN_WATTS = 100.0
"""Of a package at its highest clock where no zone measures it (ours)."""


@dataclass(slots=True)
class PhaseTable:
    """What is known of each phase. It is a working copy: the policy's state is not changed."""

    facts: type_f64  # [PHASES, len(FACTS)]
    curves: type_f64  # [len(CURVES), PHASES, levels]
    clock: type_f64  # [levels] clock over the highest; the first may be above 1: turbo
    time_s: float
    progress: type_f64 | None = None  # [`len(PROGRESS)`, PHASES, levels]; None: the application reports no progress
    tops: type_f64 | None = None  # [PHASES] highest clock reached if below the second level, else 0
    clocks: type_f64 = field(init=False)  # [PHASES, levels] as ``clock``, no higher than the phase reaches
    steepness: type_f64 = field(init=False)  # [PHASES, levels] loss for beta = 1
    drop: type_f64 = field(init=False)  # [PHASES, levels] by how much the clock-dependent part of the power falls
    is_step: npt.NDArray[np.bool_] = field(init=False)  # [PHASES, levels] lower than the level above it

    def __post_init__(self) -> None:
        self._set_clocks()

    def _set_clocks(self) -> None:
        """What each level is worth in each phase. One row for all where all reach the ladder's highest clock."""
        clocks = self.clock[None]
        if self.tops is not None:
            clocks = np.minimum(clocks, np.where(self.tops > 0, self.tops, clocks[0, 0])[:, None])
        top = clocks[:, :1]
        is_step = np.ones(clocks.shape, np.bool_)
        np.less(clocks[:, 1:], clocks[:, :-1], out=is_step[:, 1:])
        shape = (PHASES, len(self.clock))
        self.clocks, self.is_step = np.broadcast_to(clocks, shape), np.broadcast_to(is_step, shape)
        self.steepness = np.broadcast_to(top / clocks - 1.0, shape)
        self.drop = np.broadcast_to(1.0 - (clocks / top) ** POWER_EXPONENT, shape)

    @staticmethod
    def empty(levels: int) -> tuple[type_f64, type_f64]:
        """``facts`` and ``curves`` of a table without phases."""
        facts = np.zeros((PHASES, len(FACTS)))
        facts[:, LAST_S] = facts[:, TOP_S] = -1.0
        facts[:, BETA] = facts[:, TAKEN_BETA] = 1.0
        return facts, np.zeros((len(CURVES), PHASES, levels))

    # -- which phase is this -----------------------------------------------------------------------------------------

    def looks_like(self, phase: int, view: View, level: int) -> bool:
        """Whether an interval at ``level`` may belong to ``phase``."""
        return self._distance(phase, view, level) <= 1.0

    def shift(self, phase: int, view: View, level: int) -> float:
        """How far IPC is above the phase's mean at this clock, relative; 0 where that mean is hardly known."""
        known = self._ipc(phase, level) if self.curves[IPC_N, phase, level] >= 3 else view.ipc
        return float(np.log(view.ipc / known)) if view.ipc > 0 and known > 0 else 0.0

    def recognise(self, view: View, other_than: int = -1) -> int:
        """The phase nearest to an interval at the highest clock, except ``other_than``; -1 = none is near enough."""
        best, least = -1, 1.0
        near = math.expm1(IPC_WIDTH_AT_TOP) * view.ipc
        for phase, ipc in enumerate(self.curves[IPC, :, 0].tolist()):
            if abs(ipc - view.ipc) <= near and phase != other_than:  # a cheap test that excludes most phases
                distance = self._distance(phase, view, 0)
                if distance <= least:
                    best, least = phase, distance
        return best

    def _distance(self, phase: int, view: View, level: int) -> float:
        """Distance of an interval from a phase; 1 = as far apart as two intervals of one phase may be."""
        facts, ipc, watts = self.facts[phase], self._ipc(phase, level), self.curves[POWER, phase]
        slack_w = 0.0
        if self.curves[IPC_N, phase, level] == 0:  # never measured here: any IPC that its range of beta allows fits
            top, steepness = float(self.curves[IPC, phase, 0]), float(self.steepness[phase, level])
            beta, slack = (float(facts[BETA]), BETA_SLACK) if facts[BETA_ERROR] > 0 else (0.5, 0.7)
            slowest, fastest = (
                top / (1.0 + (beta + slack) * steepness),
                top / (1.0 + max(beta - slack, 0.0) * steepness),
            )
            ipc = min(max(view.ipc, slowest), fastest)
            slack_w = POWER_SLACK * float(watts[0] - watts[level])
        distance = apart(view.ipc, ipc) / (IPC_WIDTH_AT_TOP if level == 0 else IPC_WIDTH)
        if view.watts > 0 and self.curves[WATTS_N, phase, 0] > 0:
            expected_w = float(watts[level])
            highest_w = max(expected_w + slack_w, float(watts[0])) if slack_w else expected_w
            expected_w = min(max(view.watts, expected_w - slack_w), highest_w)  # a lower clock may save nothing at all
            distance = max(distance, apart(view.watts, expected_w) / WATTS_WIDTH)
        if math.isfinite(view.beta) and facts[STALL_N] > 0:
            distance = max(distance, abs(view.beta - float(facts[STALL_BETA])) / BETA_WIDTH)
        return distance

    def _ipc(self, phase: int, level: int) -> float:
        ipc = self.curves[IPC, phase]
        return float(ipc[0] if level == 0 else ipc[0] * ipc[level])

    def open_row(self) -> tuple[int, float]:
        """A free row in place of the phase that was seen least recently, and the seconds lost in that phase."""
        phase = int(np.argmin(self.facts[:, LAST_S]))
        lost_s = float(self.lost_s(0.0)[phase])
        facts, curves = PhaseTable.empty(len(self.clock))
        self.facts[phase], self.curves[:, phase] = facts[phase], curves[:, phase]
        if self.progress is not None:
            self.progress[:, phase] = 0.0
        if self.tops is not None:
            self.tops[phase] = 0.0
            self._set_clocks()
        return phase, lost_s

    # -- learning ----------------------------------------------------------------------------------------------------

    def learn(self, phase: int, level: int, view: View) -> None:
        """Add one interval at one clock to the means of its phase. Below the highest clock these are shares of the
        means at it, taken now, so that later measurements there do not change them."""
        ipc, watts = view.ipc, view.watts
        if level > 0:
            ipc /= max(float(self.curves[IPC, phase, 0]), 1e-9)
            watts /= max(float(self.curves[WATTS, phase, 0]), 1e-9)
        memory_ticks = RECENT_TICKS if level == 0 else MEMORY_TICKS
        for mean, weight, value, most in ((IPC, IPC_N, ipc, MEMORY_TICKS), (WATTS, WATTS_N, watts, memory_ticks)):
            if math.isfinite(value) and (level == 0 or self.curves[weight, phase, 0] > 0):
                n = self.curves[weight, phase, level] = min(self.curves[weight, phase, level] + 1.0, most)
                self.curves[mean, phase, level] += (value - self.curves[mean, phase, level]) / n
        facts = self.facts[phase]
        if level == 0:
            facts[TOP_S] = self.time_s
            self._learn_top(phase, view.clock)
        if math.isfinite(view.beta):
            facts[STALL_N] = min(facts[STALL_N] + 1.0, MEMORY_TICKS)
            facts[STALL_BETA] += (view.beta - facts[STALL_BETA]) / facts[STALL_N]

    def _learn_top(self, phase: int, clock: float) -> None:
        """The highest clock of a phase that turbo bins, wide vectors or a power limit keep below the second level."""
        is_below = clock < self.clock[min(1, len(self.clock) - 1)]
        if self.tops is None:
            if not is_below:
                return
            self.tops = np.zeros(PHASES)
        known = self.tops[phase]
        self.tops[phase] = (known + (clock - known) / TOP_TICKS if known > 0 else clock) if is_below else 0.0

    def add_progress(self, phase: int, level: int, units: float, seconds: float, *, begins: bool) -> None:
        """Count the units that the application reported for a stretch of time; ``begins``: a new stretch begins."""
        if self.progress is not None:
            self.progress[:, phase] *= max(1.0 - seconds / SHARE_MEMORY_S, 0.0)
            self.progress[:, phase, level] += (units, seconds, float(begins))

    def conclude(self, phase: int) -> None:
        """Update beta and the power curve of a phase after ``learn``."""
        if self.tops is not None:
            self._set_clocks()
        beta, error, reported = self._beta(phase)
        low, high = MAYBE_CLOCK_BOUND
        doubt = (1.0 - reported) * min(max((beta - low) / (high - low), 0.0), 1.0)
        self.facts[phase, BETA : TAKEN_BETA + 1] = beta, error, reported, beta + doubt * (1.0 - beta)
        self.curves[POWER, phase] = self._power(phase)

    def pass_time(self, phase: int, level: int, elapsed_s: float) -> None:
        """Charge an interval to a phase at a clock, and count it to the phase's share of the run."""
        self.curves[SECONDS, phase, level] += elapsed_s
        self.facts[:, SHARE_S] *= max(1.0 - elapsed_s / SHARE_MEMORY_S, 0.0)
        self.facts[phase, SHARE_S] += elapsed_s / (1.0 + self.facts[phase, TAKEN_BETA] * self.steepness[phase, level])
        self.facts[phase, LAST_S] = self.time_s

    def _beta(self, phase: int) -> tuple[float, float, float]:
        """Beta from all estimators, its standard error, and the share of its weight that reported progress has;
        (1, 0, 0) while there is no estimator."""
        facts, ipc = self.facts[phase], self.curves[IPC, phase]
        total = weighted = reported = 0.0
        if facts[STALL_N] > 0:
            value = min(max(float(facts[STALL_BETA]), 0.0), 1.0)
            weight = (ESTIMATOR_ERROR * value + 0.02) ** -2
            total, weighted = total + weight, weighted + weight * value
        steepness = self.steepness[phase]
        count = np.minimum(self.curves[IPC_N, phase], 30.0) * (steepness > 0)
        leverage = float(count @ steepness**2)
        if leverage > 0 and ipc[0] > 0:
            below = count > 0
            loss = 1.0 / ipc[below] - 1.0
            value = min(max(float((count * steepness)[below] @ loss) / leverage, 0.0), 1.2)
            weight = 1.0 / ((ESTIMATOR_ERROR * value + 0.01) ** 2 + IPC_NOISE**2 / leverage)
            total, weighted = total + weight, weighted + weight * value
        if self.progress is not None:
            value, variance = progress_beta(self.progress[:, phase], steepness)
            reported = 1.0 / variance
            total, weighted = total + reported, weighted + reported * min(max(value, 0.0), 1.2)
        return (min(weighted / total, 1.0), total**-0.5, reported / total) if total > 0 else (1.0, 0.0, 0.0)

    def _power(self, phase: int) -> type_f64:
        """Watts of a package at each level: through the measured points, by the common shape elsewhere."""
        count, watts = self.curves[WATTS_N, phase], self.curves[WATTS, phase]
        top = float(watts[0]) if count[0] > 0 else UNKNOWN_WATTS
        common = self._fall(self.drop, self.curves[WATTS_N], self.curves[WATTS], DYNAMIC_SHARE)
        clock, drop = self.clocks[phase], self.drop[phase]
        curve = 1.0 - self._fall(drop, count[None], watts[None], common) * drop
        known = np.flatnonzero(count > 0)[::-1]  # clocks ascend for interp; the last one is the highest
        if len(known) > 1:
            off = (watts[known] - curve[known]) * count[known] / (count[known] + 2.0)
            off[-1] = 0.0  # at the highest clock watts are absolute and need no correction
            curve = curve + np.interp(clock, clock[known], off)
        return np.asarray(top * np.minimum.accumulate(np.maximum(curve, 0.05)))

    @staticmethod
    def _fall(drop: type_f64, count: type_f64, watts: type_f64, guess: float) -> float:
        """The share of the watts at the highest clock that falls with ``drop``, by least squares from a guess."""
        weight = np.minimum(count, 30.0) * drop  # drop is 0 at the highest clock
        fallen = float((weight * (1.0 - watts)).sum())
        return (fallen + GUESS_WEIGHT * guess) / (float((weight * drop).sum()) + GUESS_WEIGHT)

    def nearest_level(self, phase: int, share: float) -> int:
        """The level whose clock is nearest to this share of the highest that the phase reaches."""
        clocks = self.clocks[phase]
        return int(np.argmin(np.abs(clocks / clocks[0] - share)))

    # -- what each clock costs ---------------------------------------------------------------------------------------

    def loss(self, margin: float = 0.0) -> type_f64:
        """Predicted loss ``[phase, level]``, with ``margin`` standard errors on top."""
        beta = np.minimum(self.facts[:, TAKEN_BETA] + margin * self.facts[:, BETA_ERROR], 1.0)
        return np.asarray(beta[:, None] * self.steepness)

    def lost_s(self, margin: float) -> type_f64:
        """Seconds lost so far in each phase, by the present estimate of its beta."""
        loss = self.loss(margin)
        return np.asarray((self.curves[SECONDS] * loss / (1.0 + loss)).sum(axis=1))

    def known(self) -> npt.NDArray[np.intp]:
        """Rows in use."""
        return np.flatnonzero(self.facts[:, LAST_S] >= 0)


def apart(one: float, other: float) -> float:
    """Distance of two positive readings on a logarithmic scale; infinite where one is not positive."""
    return abs(float(np.log(one / other))) if one > 0 and other > 0 else float("inf")


def agree(one: View, other: View) -> bool:
    """Whether two intervals at one clock look like the same phase. A reading that neither has does not count."""
    return (
        apart(one.ipc, other.ipc) <= IPC_WIDTH
        and not apart(one.watts, other.watts) > WATTS_WIDTH * (1.0 if one.watts > 0 and other.watts > 0 else np.inf)
        and not abs(one.beta - other.beta) > BETA_WIDTH
    )

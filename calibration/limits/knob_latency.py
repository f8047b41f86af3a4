"""How long a knob takes from the request to its effect, up and down, as a distribution.

The knob goes back and forth between two values, at random moments, since firmware may take requests on a grid of
instants (AMD since Zen 2: each millisecond; Schoene et al., "Energy Efficiency Aspects of the AMD Zen 2 Architecture").
After each request the quantity that shows the effect is read every ``poll_s`` until it has made 90 % of its way:

    value  old ────────┐ a mean over an interval in which it jumped is between the two: that says when it jumped
                       └──────── new
    time   request ·····^ effect

What the reading itself costs, and on a power knob the sensor's own averaging, is part of the latency: an agent sees no
effect sooner.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import numpy as np

from calibration.limits.probes import EffectPort, LimitsError, type_shows
from nodectl.knobs.timing import KnobLatency, Spread
from pmu.ports import Clock

ARRIVED: Final = 0.9
"""Share of the way at which an effect is there; the rest may be the controller's overshoot or noise."""

LEVEL_READINGS: Final = 40
"""Ours: readings at rest at each of the two values, for the way between them and its noise."""

CLEAR: Final = 4.0
"""Ours: the way must be this many standard deviations of one reading, so that noise does not look like an effect."""


class LatencyPlan(msgspec.Struct, frozen=True):
    """``repeats``: up and down each. ``settle_s``: after an effect, before the next request; ``apart_s``: up to so much
    longer, at random. ``give_up_s``: a request without effect until then counts as missing. Where readings are too
    noisy for the way between the values, ``poll_s`` is doubled, up to ``longest_poll_s``."""

    poll_s: float
    settle_s: float
    apart_s: float
    give_up_s: float
    repeats: int = 60
    longest_poll_s: float = 0.0


CPU_CLOCK: Final = LatencyPlan(poll_s=0.0002, settle_s=0.05, apart_s=0.01, give_up_s=0.5)
UNCORE_CLOCK: Final = LatencyPlan(poll_s=0.0005, settle_s=0.05, apart_s=0.02, give_up_s=0.5)
"""The hardware looks at its limits about every 10 ms."""
GPU_CLOCK: Final = LatencyPlan(poll_s=0.0002, settle_s=0.3, apart_s=0.1, give_up_s=2.0)
PACKAGE_POWER: Final = LatencyPlan(
    poll_s=0.004, settle_s=3.0, apart_s=0.1, give_up_s=10.0, repeats=8, longest_poll_s=0.064
)
"""Ours: polls well below what is measured."""


def measure_latency(
    effect: EffectPort,
    clock: Clock,
    values: tuple[float, float],
    plan: LatencyPlan,
    random: np.random.Generator,
    note: Callable[[int], None] = lambda done: None,
) -> KnobLatency:
    """Move the knob between the low and the high value. ``LimitsError`` where no effect is seen."""
    try:
        return _Run(effect, clock, plan).all(*values, random, note)
    finally:
        with contextlib.suppress(LimitsError):  # refused: it is put back, and reported, when the writer ends
            effect.release()


def _spread(seconds: list[float]) -> Spread:
    sound = np.asarray(seconds)[np.isfinite(seconds)]
    return Spread(len(sound), float(np.median(sound)), float(np.percentile(sound, 95)))


class _Run:
    def __init__(self, effect: EffectPort, clock: Clock, plan: LatencyPlan) -> None:
        self._effect, self._clock, self._plan = effect, clock, plan

    def all(self, low: float, high: float, random: np.random.Generator, note: Callable[[int], None]) -> KnobLatency:
        """Both levels, then every request."""
        effect, plan = self._effect, self._plan
        high_seen, low_seen, noise = self.levels(low, high)
        while high_seen - low_seen < CLEAR * noise and self._plan.poll_s * 2 <= self._plan.longest_poll_s:
            plan = self._plan = msgspec.structs.replace(self._plan, poll_s=self._plan.poll_s * 2)
            high_seen, low_seen, noise = self.levels(low, high)
        if not high_seen - low_seen > max(CLEAR * noise, 1e-9):
            raise LimitsError(
                f"{effect.knob}: {low_seen:.6g} {effect.unit} at {low:g} and {high_seen:.6g} at {high:g}, noise"
                f" {noise:.2g}: no effect to measure; is the load running?"
            )
        up: list[float] = []
        down: list[float] = []
        for number in range(plan.repeats):
            for value, old, new, found in ((high, low_seen, high_seen, up), (low, high_seen, low_seen, down)):
                self.rest(plan.settle_s + plan.apart_s * float(random.random()))
                found.append(self.once(value, old, new))
            note(number + 1)
        missing = int(np.isnan(up).sum() + np.isnan(down).sum())
        if min(np.isfinite(up).sum(), np.isfinite(down).sum()) == 0:
            raise LimitsError(f"{effect.knob}: no effect within {plan.give_up_s:g} s of any request")
        relative = noise / max(abs(high_seen), 1e-9)
        return KnobLatency(effect.knob, _spread(up), _spread(down), relative, effect.unit, plan.poll_s, missing)

    def rest(self, seconds: float) -> None:
        self._clock.sleep_until_ns(self._clock.now_ns() + round(seconds * 1e9))

    def levels(self, low: float, high: float) -> tuple[float, float, float]:
        """What is seen at rest at both values, and its noise."""
        high_seen, high_noise = self.level(high)
        low_seen, low_noise = self.level(low)
        return high_seen, low_seen, max(high_noise, low_noise)

    def level(self, value: float) -> tuple[float, float]:
        """Mean and standard deviation of a reading at rest."""
        self._effect.request(value)
        self.rest(self._plan.give_up_s)
        self._effect.observe()
        seen = []
        for _ in range(LEVEL_READINGS):
            self.rest(self._plan.poll_s)
            seen.append(self._effect.observe())
        if np.isnan(seen).all():
            raise LimitsError(f"{self._effect.knob}: what would show its effect cannot be read")
        return float(np.nanmean(seen)), float(np.nanstd(seen))

    def once(self, value: float, old: float, new: float) -> float:
        """Seconds from this request to its effect; NaN if there was none in time."""
        plan, clock = self._plan, self._clock
        self._effect.observe()
        begin_ns = before_ns = clock.now_ns()
        earlier = _Interval(0.0, 0.0, 0.0)
        self._effect.request(value)
        while before_ns < begin_ns + plan.give_up_s * 1e9:
            clock.sleep_until_ns(clock.now_ns() + round(plan.poll_s * 1e9))
            now_ns, share = clock.now_ns(), (self._effect.observe() - old) / (new - old)
            if math.isnan(share):
                continue
            interval = _Interval((before_ns - begin_ns) / 1e9, (now_ns - begin_ns) / 1e9, share)
            if share >= ARRIVED:
                return max(_ARRIVALS[self._effect.shows](earlier, interval), 0.0)
            earlier, before_ns = interval, now_ns
        return math.nan


class _Interval(NamedTuple):
    """From one reading to the next, seconds since the request. ``share``: of the way, as read at its end."""

    begin_s: float
    end_s: float
    share: float

    @property
    def middle_s(self) -> float:
        return (self.begin_s + self.end_s) / 2


def _of_level(earlier: _Interval, last: _Interval) -> float:
    """Between the two readings."""
    return last.middle_s


def _of_jump(earlier: _Interval, last: _Interval) -> float:
    """What of both intervals lies after the jump, their means show."""
    after_s = sum(min(max(one.share, 0.0), 1.0) * (one.end_s - one.begin_s) for one in (earlier, last))
    return last.end_s - after_s


def _of_ramp(earlier: _Interval, last: _Interval) -> float:
    """A line through the two means, each at the middle of its interval."""
    way = max(last.share - earlier.share, 1e-9)
    return last.middle_s - (last.middle_s - earlier.middle_s) * min((last.share - ARRIVED) / way, 1.0)


_ARRIVALS: Final[dict[type_shows, Callable[[_Interval, _Interval], float]]] = {
    "level": _of_level,
    "mean of a jump": _of_jump,
    "mean of a ramp": _of_ramp,
}

"""How long a knob takes from the request to its effect, up and down, as a distribution.

The knob goes back and forth between two values, at random moments, since firmware may take requests on a grid of
instants (AMD since Zen 2: each millisecond; Schoene et al., "Energy Efficiency Aspects of the AMD Zen 2 Architecture").
After each request the quantity that shows the effect is read every ``poll_s`` until it has made 90 % of its way:

    value  old ────────┐ a mean over an interval in which it jumped is between the two: that says when it jumped
                       └──────── new
    time   request ·····^ effect

What the reading itself costs is part of the latency: an agent sees no effect sooner.

Energy counters move in steps of about 1 ms, so a reading shows power up to a moment that is not its own. Watts are
therefore means from one step of the counters to another, which is looked for every ``look_s`` (Haehnel et al.,
"Measuring Energy Consumption for Short Code Paths Using RAPL", SIGMETRICS PER 40(3), 2012). A capped package switches
between two clocks, which lasts longer than a step: power is the running mean over ``poll_s``, at its middle.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
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


LOOK_S: Final = 0.0001
"""Ours: a tenth of a step of energy counters."""


class LatencyPlan(msgspec.Struct, frozen=True):
    """``repeats``: up and down each. ``settle_s``: after an effect, before the next request; ``apart_s``: up to so much
    longer, at random. ``give_up_s``: a request without effect until then counts as missing. Where readings are too
    noisy for the way between the values, ``poll_s`` is doubled, up to ``longest_poll_s``. ``look_s``: how often a mean
    over ``poll_s`` is looked at (0: once)."""

    poll_s: float
    settle_s: float
    apart_s: float
    give_up_s: float
    repeats: int = 60
    longest_poll_s: float = 0.0
    look_s: float = 0.0

    @property
    def step_s(self) -> float:
        """From one look to the next."""
        return self.look_s or self.poll_s


CPU_CLOCK: Final = LatencyPlan(poll_s=0.0002, settle_s=0.05, apart_s=0.01, give_up_s=0.5)
UNCORE_CLOCK: Final = LatencyPlan(poll_s=0.0005, settle_s=0.05, apart_s=0.02, give_up_s=0.5)
"""The hardware looks at its limits about every 10 ms."""
GPU_CLOCK: Final = LatencyPlan(poll_s=0.0002, settle_s=0.3, apart_s=0.1, give_up_s=2.0)
PACKAGE_POWER: Final = LatencyPlan(
    poll_s=0.004, settle_s=3.0, apart_s=0.1, give_up_s=10.0, repeats=8, longest_poll_s=0.064, look_s=LOOK_S
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
        return _Run(effect, clock, plan, random).all(*values, note)
    finally:
        with contextlib.suppress(LimitsError):  # refused: it is put back, and reported, when the writer ends
            effect.release()


def spread_of(seconds: list[float]) -> Spread:
    """Of those that had an effect. The percentile is what a later request exceeds in 5 of 100 cases at the mean
    (Hyndman and Fan, Sample Quantiles in Statistical Packages, type 6); of fewer than 19 the highest, which is less."""
    sound = np.asarray(seconds)[np.isfinite(seconds)]
    return Spread(len(sound), float(np.median(sound)), float(np.percentile(sound, 95, method="weibull")))


class _Run:
    def __init__(self, effect: EffectPort, clock: Clock, plan: LatencyPlan, random: np.random.Generator) -> None:
        self._effect, self._clock, self._plan, self._random = effect, clock, plan, random

    def all(self, low: float, high: float, note: Callable[[int], None]) -> KnobLatency:
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
                self.rest(plan.settle_s + plan.apart_s * float(self._random.random()))
                found.append(self.once(value, old, new))
            note(number + 1)
        missing = int(np.isnan(up).sum() + np.isnan(down).sum())
        if min(np.isfinite(up).sum(), np.isfinite(down).sum()) == 0:
            raise LimitsError(f"{effect.knob}: no effect within {plan.give_up_s:g} s of any request")
        relative = noise / max(abs(high_seen), 1e-9)
        return KnobLatency(effect.knob, spread_of(up), spread_of(down), relative, effect.unit, plan.poll_s, missing)

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
        seen = [self.reading() for _ in range(LEVEL_READINGS)]
        if np.isnan(seen).all():
            raise LimitsError(f"{self._effect.knob}: what would show its effect cannot be read")
        return float(np.nanmean(seen)), float(np.nanstd(seen))

    def reading(self) -> float:
        """A mean over ``poll_s``, or one reading; NaN where nothing was read."""
        begin_ns = before_ns = self._clock.now_ns()
        end_ns, total = begin_ns + self._plan.poll_s * 1e9, 0.0
        while before_ns < end_ns:
            now_ns, value = self.look()
            if not math.isnan(value):
                total, before_ns = total + value * (now_ns - before_ns), now_ns
            elif now_ns >= end_ns + self._plan.poll_s * 1e9 or not self._plan.look_s:
                return math.nan
        return total / (before_ns - begin_ns)

    def look(self) -> tuple[int, float]:
        """The next reading, and when it was; NaN where nothing was read, or no counter has moved. A step of a counter
        was before its reading ends, a level may be of its begin."""
        self.rest(self._plan.step_s)
        now_ns, value = self._clock.now_ns(), self._effect.observe()
        return self._clock.now_ns() if self._plan.look_s else now_ns, value

    def ready(self) -> int:
        """When the last reading before a request was. Counters are watched until a moment that is not one of theirs."""
        self._effect.observe()
        before_ns = self._clock.now_ns()
        end_ns = before_ns + self._plan.poll_s * (1 + float(self._random.random())) * 1e9 if self._plan.look_s else 0
        while self._clock.now_ns() < end_ns:
            now_ns, value = self.look()
            before_ns = before_ns if math.isnan(value) else now_ns
        return before_ns

    def once(self, value: float, old: float, new: float) -> float:
        """Seconds from this request to its effect; NaN if there was none in time."""
        plan, before_ns = self._plan, self.ready()
        begin_ns = now_ns = self._clock.now_ns()
        before_s = (before_ns - begin_ns) / 1e9
        earlier = _Interval(before_s - plan.poll_s, before_s, 0.0) if plan.look_s else _Interval(0.0, 0.0, 0.0)
        seen = deque([earlier])
        self._effect.request(value)
        while now_ns < begin_ns + plan.give_up_s * 1e9:
            now_ns, found = self.look()
            if math.isnan(found):
                continue
            seen.append(_Interval(seen[-1].end_s, (now_ns - begin_ns) / 1e9, (found - old) / (new - old)))
            last = _mean_over(seen, plan.poll_s) if plan.look_s else seen[-1]
            if last.share >= ARRIVED:
                return max(_ARRIVALS[self._effect.shows](earlier, last), 0.0)
            earlier = last
        return math.nan


class _Interval(NamedTuple):
    """From one reading to the next, seconds since the request. ``share``: of the way, as read at its end."""

    begin_s: float
    end_s: float
    share: float

    @property
    def middle_s(self) -> float:
        return (self.begin_s + self.end_s) / 2


def _mean_over(seen: deque[_Interval], seconds: float) -> _Interval:
    """The last so many seconds as one interval; what is older is dropped."""
    end_s = seen[-1].end_s
    begin_s = end_s - seconds
    while seen[0].end_s <= begin_s:
        seen.popleft()
    total = sum(one.share * (one.end_s - max(one.begin_s, begin_s)) for one in seen)
    return _Interval(begin_s, end_s, total / seconds)


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

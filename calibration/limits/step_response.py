"""How well a cap is kept: overshoot, settling time and steady error, from one step of it under load.

                     ___ overshoot: highest mean over ``WINDOW_S`` after the cap was reached, above the steady power
    old ─┐    /\\  /
         │   /  \\/‾‾‾‾‾‾‾ steady power; its distance from the cap is the steady error
         └──/
         |  |    | settling: from here on within ``BAND`` of the steady power
         |  reach: power has made 90 % of its way
         request

RAPL keeps a running average over its window, so after a step down a package may first fall below the new limit, until
the average has (Intel SDM vol. 3B 15.10.3). A step up is the same upside down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from calibration.limits.probes import LimitsError
from nodectl.knobs.timing import KnobLatency
from pmu.ports import Clock
from pmu.readings import type_f64

BAND: Final = 0.03
"""Ours: of the steady power; energy counters with steps of 1 ms are good to 1 % over ``WINDOW_S``, firmware's
regulation to 2 %."""

WINDOW_S: Final = 0.1
"""Ours: a cap is about means; single polls show the switching between two clocks."""

STEADY_SHARE: Final = 0.25
"""Ours: the last part of a response, which has settled."""

REACHED: Final = 0.9


class StepResponse(msgspec.Struct, frozen=True):
    """One step of a cap. Shares are of the new cap: ``overshoot`` (beyond the steady power, in the direction of the
    step), ``above`` (the highest mean over ``WINDOW_S`` above the cap once it was reached; what a breaker sees),
    ``steady_error`` (negative: below the cap). ``noise_w``: standard deviation of one poll at rest."""

    knob: str
    from_w: float
    to_w: float
    reach_s: float
    settle_s: float
    overshoot: float
    above: float
    steady_error: float
    noise_w: float
    poll_s: float


def judge_step(
    knob: str, caps_w: tuple[float, float], before_w: float, at_s: Sequence[float], watts: Sequence[float]
) -> StepResponse:
    """From means of power over consecutive intervals that end ``at_s`` after the request. ``caps_w``: old and new;
    ``before_w``: power before. ``LimitsError`` if the response never settles or power did not move."""
    ends, power = np.asarray(at_s, np.float64), np.asarray(watts, np.float64)
    sound = ~np.isnan(power)
    ends, power = ends[sound], power[sound]
    if len(power) < 8:
        raise LimitsError(f"{knob}: power was read {len(power)} times in the step response: too few")
    last = ends >= ends[-1] * (1 - STEADY_SHARE)
    steady_w, noise_w, cap_w = float(power[last].mean()), float(power[last].std()), caps_w[1]
    way_w = steady_w - before_w
    if abs(way_w) < max(2 * noise_w, BAND * steady_w):
        raise LimitsError(
            f"{knob}: power went from {before_w:.1f} to {steady_w:.1f} W when the cap went from {caps_w[0]:g} to"
            f" {cap_w:g} W: the cap does not bind; is the load running?"
        )
    poll_s = float(np.median(np.diff(ends)))
    means = _means(power, min(max(round(WINDOW_S / poll_s), 1), len(power) // 4))
    reached = np.flatnonzero((power - before_w) / way_w >= REACHED)
    outside = np.flatnonzero(np.abs(means - steady_w) > BAND * steady_w)
    settled = 0 if not len(outside) else int(outside[-1]) + 1
    if settled >= len(means):
        raise LimitsError(f"{knob}: power has not settled {ends[-1]:.1f} s after the step to {cap_w:g} W")
    after = means[min(int(reached[0]), len(means) - 1) :]
    beyond_w = (after - steady_w) * np.sign(way_w)
    return StepResponse(
        knob=knob,
        from_w=caps_w[0],
        to_w=cap_w,
        reach_s=float(ends[reached[0]]),
        settle_s=float(ends[settled]),
        overshoot=max(float(beyond_w.max()), 0.0) / cap_w,
        above=max(float(after.max()) - cap_w, 0.0) / cap_w,
        steady_error=(steady_w - cap_w) / cap_w,
        noise_w=noise_w,
        poll_s=poll_s,
    )


def with_settling(latency: KnobLatency, steps: Sequence[StepResponse]) -> KnobLatency:
    """The latency of a power limit, and until when power keeps it: the slowest of its steps."""
    own = [step.settle_s for step in steps if step.knob == latency.knob]
    return msgspec.structs.replace(latency, settle_s=max(own, default=0.0))


def _means(power: type_f64, width: int) -> type_f64:
    """Means over ``width`` intervals, from each on that has so many."""
    sums = np.concatenate(([0.0], np.cumsum(power)))
    return np.asarray((sums[width:] - sums[:-width]) / width)


def measure_step(
    knob: str,
    request: Callable[[float], object],
    watts: Callable[[], float],
    clock: Clock,
    caps_w: tuple[float, float],
    seconds: float,
    poll_s: float = 0.01,
) -> StepResponse:
    """Set the old cap, let it settle for ``seconds``, set the new one and watch for as long. ``request`` sets a cap in
    watts; ``watts``: mean since the call before."""
    old_w, new_w = caps_w
    request(old_w)
    clock.sleep_until_ns(clock.now_ns() + round(seconds * 1e9 * (1 - STEADY_SHARE)))
    watts()
    clock.sleep_until_ns(clock.now_ns() + round(seconds * 1e9 * STEADY_SHARE))
    before_w = watts()
    begin_ns = clock.now_ns()
    request(new_w)
    at_s: list[float] = []
    seen: list[float] = []
    while (now_ns := clock.now_ns()) < begin_ns + seconds * 1e9:
        clock.sleep_until_ns(now_ns + round(poll_s * 1e9))
        seen.append(watts())
        at_s.append((clock.now_ns() - begin_ns) / 1e9)
    return judge_step(knob, caps_w, before_w, at_s, seen)

"""Latencies of knobs against effects whose instant is known, and the deadlines that follow."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.calibration_limits import rapl
from calibration.limits.knob_latency import CPU_CLOCK, LOOK_S, LatencyPlan, measure_latency, spread_of
from calibration.limits.probes import LimitsError, type_shows
from calibration.limits.session_probes import ClockEffect
from foundation.shell.settings import ConfigError
from nodectl.config import Budget
from nodectl.knobs import EffectWatch
from nodectl.knobs.timing import KnobLatency, Spread, checked_deadlines, deadline_of, deadlines, least_period_s
from nodectl.loop.pace import Pace
from tests.calibration.limited_node import loaded_node
from tests.calibration.test_minimal_power import Steps
from twin.machine import load_machine

PLAN = LatencyPlan(poll_s=0.001, settle_s=0.05, apart_s=0.01, give_up_s=0.2, repeats=30)


@pytest.mark.parametrize(("count", "covered"), [(8, 8 / 9), (60, 0.95), (199, 0.95)])
def test_a_later_request_exceeds_the_95th_percentile_in_5_of_100_cases_where_there_are_enough(
    count: int, covered: float
) -> None:
    """Latencies that are equally likely from 0 to 1: a percentile at p has a later one with probability p."""
    random = np.random.default_rng(1)
    at = [spread_of(random.uniform(0.0, 1.0, count).tolist()).p95_s for _ in range(8000)]
    assert np.mean(at) == pytest.approx(covered, abs=0.004)


class Knob:
    """An effect that comes ``late_s`` after the request, at once or over ``ramp_s``, with noise."""

    knob, unit = "cpu/*/max_khz", "kHz"

    def __init__(self, clock: Steps, shows: type_shows, late_s: float, ramp_s: float = 0.0, noise: float = 0.0) -> None:
        self.shows = shows
        self._clock, self._late_s, self._ramp_s, self._noise = clock, late_s, ramp_s, noise
        self._random = np.random.default_rng(3)
        self._moves = [(-(10**12), 1.0), (-(10**12), 1.0)]
        self._before_ns = 0
        self.is_released = False

    def request(self, value: float) -> None:
        self._moves.append((self._clock.ns, value))

    def observe(self) -> float:
        begin_ns, end_ns = self._before_ns, self._clock.ns
        self._before_ns = end_ns
        times = [end_ns] if self.shows == "level" else np.linspace(begin_ns, end_ns, 201)[1:]
        return float(np.mean([self._at(ns) for ns in times])) + self._noise * float(self._random.standard_normal())

    def release(self) -> None:
        self.is_released = True

    def _at(self, ns: float) -> float:
        (_, old), (asked_ns, new) = self._moves[-2], self._moves[-1]
        into_s = (ns - asked_ns) / 1e9 - self._late_s
        share = 1.0 if self._ramp_s == 0 and into_s >= 0 else into_s / self._ramp_s if self._ramp_s else 0.0
        return old + (new - old) * min(max(share, 0.0), 1.0)


@pytest.mark.parametrize("late_s", [0.0003, 0.0021, 0.0248])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_jump_is_found_within_the_interval_that_it_falls_into(late_s: float, noise: float) -> None:
    clock = Steps()
    knob = Knob(clock, "mean of a jump", late_s, noise=noise)
    found = measure_latency(knob, clock, (1.0, 2.0), PLAN, np.random.default_rng(1))
    assert found.up.median_s == pytest.approx(late_s, abs=2e-5)
    assert found.down.median_s == pytest.approx(late_s, abs=2e-5)
    assert (found.up.n, found.down.n, found.missing) == (30, 30, 0)
    assert found.noise == pytest.approx(noise / 2, rel=0.5)
    assert knob.is_released


def test_a_level_is_found_to_half_a_poll_and_a_ramp_where_it_has_made_its_way() -> None:
    clock = Steps()
    level = measure_latency(Knob(clock, "level", 0.0206), clock, (1.0, 2.0), PLAN, np.random.default_rng(1))
    assert level.up.median_s == pytest.approx(0.0206, abs=PLAN.poll_s / 2)
    ramp = measure_latency(
        Knob(clock, "mean of a ramp", 0.004, ramp_s=0.02), clock, (1.0, 2.0), PLAN, np.random.default_rng(1)
    )
    assert ramp.up.median_s == pytest.approx(0.004 + 0.9 * 0.02, abs=2e-4)


class SteppedKnob(Knob):
    """Its counter moves each millisecond only, and power switches between two levels every two."""

    def observe(self) -> float:
        begin_ns, end_ns = self._before_ns, self._clock.ns // 10**6 * 10**6
        if end_ns <= begin_ns:
            return math.nan
        self._before_ns = end_ns
        times = np.linspace(begin_ns, end_ns, 201)[1:]
        return float(np.mean([self._at(ns) + (0.1 if ns // 2_000_000 % 2 else -0.1) for ns in times]))


def test_what_a_counter_in_steps_shows_is_timed_by_its_steps() -> None:
    clock = Steps()
    plan = msgspec.structs.replace(PLAN, poll_s=0.004, look_s=LOOK_S)
    knob = SteppedKnob(clock, "mean of a ramp", 0.004, ramp_s=0.02)
    found = measure_latency(knob, clock, (1.0, 2.0), plan, np.random.default_rng(1))
    assert found.up.median_s == pytest.approx(0.004 + 0.9 * 0.02, abs=2e-4)
    assert found.up.p95_s - found.up.median_s < 2e-4, "requests come at any moment of a step"
    assert found.noise < 0.01, "the switching lasts as long as a mean"


def test_a_counter_that_stands_still_is_one_line_and_no_endless_wait() -> None:
    clock = Steps()
    plan = msgspec.structs.replace(PLAN, look_s=LOOK_S)
    knob = SteppedKnob(clock, "mean of a ramp", 0.004)
    knob.observe = lambda: math.nan  # type: ignore[method-assign]
    with pytest.raises(LimitsError, match="what would show its effect cannot be read"):
        measure_latency(knob, clock, (1.0, 2.0), plan, np.random.default_rng(1))


def test_the_latency_of_a_rapl_limit_is_that_of_true_power() -> None:
    row, _ = rapl(load_machine("skylake-6146"), repeats=4)
    assert row.is_near and max(map(abs, row.errors_pct)) < 5.0


def test_what_has_no_effect_is_refused_in_one_line() -> None:
    clock = Steps()
    with pytest.raises(LimitsError, match=r"^cpu/\*/max_khz: 1 kHz at 1 and 1 at 1, noise 0: no effect .*running\?$"):
        measure_latency(Knob(clock, "level", 0.001), clock, (1.0, 1.0), PLAN, np.random.default_rng(1))
    slow = Knob(clock, "level", 0.25)
    plan = msgspec.structs.replace(PLAN, give_up_s=0.19)
    with pytest.raises(LimitsError, match=r"no effect"):
        measure_latency(slow, clock, (1.0, 2.0), plan, np.random.default_rng(1))
    assert slow.is_released


@pytest.mark.parametrize(("name", "low_s", "high_s"), [("genoa-h100", 0.001, 0.001), ("xh2415", 0.00045, 0.00145)])
def test_the_clock_limit_of_an_emulated_node_takes_as_long_as_its_machine_says(
    tmp_path: Path, name: str, low_s: float, high_s: float
) -> None:
    machine = load_machine(name)
    with loaded_node(machine, tmp_path) as node:
        effect = ClockEffect(node.knobs, node.inside.ports, node.found.layout)
        values = float(machine.min_khz), float(machine.base_khz)
        plan = msgspec.structs.replace(CPU_CLOCK, repeats=20)
        found = measure_latency(effect, node.knobs, values, plan, np.random.default_rng(1))
        assert low_s * 0.95 <= found.down.median_s <= high_s * 1.05
        assert found.down.p95_s <= high_s * 1.05
        request = [node.twin.policy_request(policy)[1] for policy in machine.domains[0].policies]
        assert request == [machine.max_khz] * len(request)  # released


FOUND = (
    KnobLatency("cpu/*/max_khz", Spread(60, 0.034, 0.039), Spread(60, 0.0005, 0.001)),
    KnobLatency("rapl/*/long_term_uw", Spread(8, 0.007, 0.009), Spread(8, 0.006, 0.008), settle_s=1.3),
)


def test_deadlines_follow_the_slower_direction_and_a_limit_is_kept_once_power_has_settled() -> None:
    clock, power = deadlines(FOUND)
    assert (clock.gap_s, clock.effect_s) == (0.039, 0.078)
    assert (power.gap_s, power.effect_s) == (0.009, 2.6)
    assert deadline_of("cpu/policy7/max_khz", (clock, power)) is clock
    assert deadline_of("gpu/0/sm_clock_mhz", (clock, power)) is None
    assert least_period_s(["cpu/policy7/max_khz", "gpu/0/sm_clock_mhz"], (clock,)) == {"cpu/policy7/max_khz": 0.039}


def test_the_effect_watch_takes_measured_times_and_keeps_its_own_without(tmp_path: Path) -> None:
    with loaded_node(load_machine("skylake-6146"), tmp_path) as node:
        knobs = node.found.knobs
        own = EffectWatch(knobs, node.found.layout)._latency_ns
        measured = EffectWatch(knobs, node.found.layout, deadlines(FOUND))._latency_ns
        for knob, before, after in zip(knobs, own, measured, strict=True):
            assert before == int(knob.latency_s * 1e9)
            expected_s = {"cpu": 0.078, "rapl": 2.6}.get(knob.name.split("/")[0], knob.latency_s)
            if knob.name.endswith("short_term_uw"):
                expected_s = knob.latency_s
            assert after == int(expected_s * 1e9)


def test_no_period_is_shorter_than_the_knobs_take_to_follow() -> None:
    clock = Steps()
    assert Pace(clock, 10.0, Budget()).period_ns == 10_000_000
    pace = Pace(clock, 10.0, Budget(), least_s=0.039)
    assert pace.period_ns == 39_000_000
    for _ in range(200):
        pace.spent(0)
    assert pace.period_ns == 39_000_000
    assert Pace(clock, 100.0, Budget(), least_s=0.039).period_ns == 100_000_000


def test_a_time_that_cannot_be_is_one_line() -> None:
    wrong = KnobLatency("cpu/*", Spread(1, 1.0, -1.0), Spread(1, 1.0, 0.0))
    with pytest.raises(ConfigError, match=r"limits.toml: latency of cpu/\*: p95_s must be above 0"):
        checked_deadlines([*FOUND, wrong], "limits.toml")
    assert checked_deadlines(FOUND, "limits.toml") == deadlines(FOUND)

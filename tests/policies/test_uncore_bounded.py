"""uncore-bounded by itself: what it charges, what it leaves alone, and that the bound is kept."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodectl.policies.uncore_bounded import (
    ACCOUNT,
    BOUNDED,
    DWELL,
    IDLE,
    MEMORY,
    MISSING,
    NO_GAIN,
    Params,
    State,
    decide,
    initial,
)
from pmu.layout import KnobRange, Layout
from pmu.readings import Sample
from tests.policies import cpu_nodes
from tests.policies.cpu_nodes import MAX_KHZ

LOW, HIGH = 800_000, 2_400_000


def node(packages: int = 1) -> Layout:
    bare = cpu_nodes.layout(cpus=4 * packages, packages=packages)
    ranges = tuple(
        KnobRange(
            f"uncore/package_{at:02d}_die_00/max_khz",
            "uncore",
            LOW,
            HIGH,
            tuple(range(LOW, HIGH + 1, 100_000)),
            tuple(range(4 * at, 4 * at + 4)),
        )
        for at in range(packages)
    )
    return msgspec.structs.replace(bare, ranges=ranges)


def see(layout: Layout, waits: float, clock: float = 1.0, uncore: float = 1.0, busy: float = 1.0) -> Sample:
    """An interval of a job that waits for ``waits`` of its time at the highest clocks, at clocks relative to those."""
    work, wait = (1.0 - waits) / clock, waits / uncore
    count = len(layout.cpus)
    seen = cpu_nodes.sample(layout, np.full(count, clock * MAX_KHZ), 1.0, busy=busy)
    return replace(seen, cpu=replace(seen.cpu, stall=np.full(count, wait / (work + wait))))


def drive(layout: Layout, state: State, waits: float, seconds: float, clock: float = 1.0, params: Params | None = None):
    """The job in a closed loop: true to its limits, with an uncore that always runs at its own."""
    reasons, true_s, lost_s = [], 0.0, 0.0
    for _ in range(round(seconds / 0.1)):
        uncore = state.requested_khz[0] / HIGH
        slower = (1.0 - waits) / clock + waits / uncore
        true_s, lost_s = true_s + 0.1, lost_s + 0.1 * (1.0 - 1.0 / slower)
        state, request = decide(params or Params(), layout, state, see(layout, waits, clock, uncore))
        reasons.append(int(request.reason[0]))
    return state, reasons, lost_s / (true_s - lost_s)


def warm(layout: Layout, waits: float = 0.05) -> State:
    return decide(Params(), layout, initial(Params(), layout), see(layout, waits))[0]


def test_a_phase_that_hardly_waits_gets_the_lowest_uncore_that_the_bound_affords():
    state, reasons, slowdown = drive(node(), warm(node()), 0.05, 5.0)
    assert state.requested_khz.tolist() == [1_500_000]  # 2.4 GHz / (1 + 0.03 / 0.05), at the next step up
    assert reasons[-1] == BOUNDED and 0.02 < slowdown <= 0.03


def test_a_phase_that_never_waits_stops_at_the_floor():
    assert drive(node(), warm(node()), 0.0, 5.0)[0].requested_khz.tolist() == [1_200_000]


def test_a_phase_that_waits_keeps_the_highest_uncore():
    state, reasons, _ = drive(node(), warm(node()), 0.4, 5.0)
    assert state.requested_khz.tolist() == [HIGH] and set(reasons) == {MEMORY}


def test_the_uncore_falls_after_a_dwell_and_rises_at_once():
    layout = node()
    state, reasons, _ = drive(layout, warm(layout), 0.05, 0.3)
    assert set(reasons) == {DWELL} and state.requested_khz.tolist() == [HIGH]
    state, _, _ = drive(layout, state, 0.05, 1.0)
    assert state.requested_khz.tolist() < [HIGH]
    state, request = decide(Params(), layout, state, see(layout, 0.5, uncore=state.requested_khz[0] / HIGH))
    assert state.requested_khz.tolist() == [HIGH] and request.target.tolist() == [0]


def test_what_lower_core_clocks_cost_is_charged_to_the_same_bound():
    layout = node()
    state, _, alone = drive(layout, warm(layout), 0.05, 10.0)
    state, reasons, together = drive(layout, warm(layout), 0.05, 10.0, clock=0.98)
    assert HIGH > state.requested_khz[0] > 1_500_000  # the core's 2 % leave 1 %
    assert alone <= 0.03 and together <= 0.03
    state, reasons, _ = drive(layout, warm(layout), 0.05, 10.0, clock=0.9)  # a CPU policy that spends it all
    assert state.requested_khz.tolist() == [HIGH] and set(reasons) == {ACCOUNT}


def test_an_overdrawn_account_is_earned_back_at_the_highest_uncore():
    layout = node()
    state = replace(warm(layout), lost_s=0.2, time_s=1.0)
    state, reasons, _ = drive(layout, state, 0.05, 2.0)
    assert set(reasons) == {ACCOUNT} and state.requested_khz.tolist() == [HIGH]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(3, 40)), min_size=1, max_size=8))
def test_the_bound_is_kept_over_phases_of_any_kind(phases):
    """But for the one interval of each phase that begins to wait while the uncore is slow."""
    layout, state = node(), warm(node())
    time_s, lost_s = 0.1, 0.0
    for waits, ticks in phases:
        for _ in range(ticks):
            uncore = state.requested_khz[0] / HIGH
            slower = 1.0 - waits + waits / uncore
            time_s, lost_s = time_s + 0.1, lost_s + 0.1 * (1.0 - 1.0 / slower)
            state, _ = decide(Params(), layout, state, see(layout, waits, uncore=uncore))
    surprises_s = 0.1 * (1.0 - Params().floor) * len(phases)
    assert state.lost_s == pytest.approx(lost_s, abs=1e-6)
    assert lost_s <= Params().bound * time_s + surprises_s


def test_without_a_stall_event_only_a_high_ipc_qualifies():
    layout = node()
    for ipc, expected in ((3.9, BOUNDED), (1.0, MEMORY)):
        state = warm(layout)
        for _ in range(10):
            seen = see(layout, 0.0)
            cpu = replace(seen.cpu, stall=np.full(4, np.nan), instructions=ipc * seen.cpu.cycles)
            state, request = decide(Params(), layout, state, replace(seen, cpu=cpu))
        assert request.reason.tolist() == [expected]


def test_idle_and_unreadable_packages_run_free():
    layout = node(packages=2)
    lowered = replace(warm(layout), requested_khz=np.array([1_500_000, 1_500_000]))
    seen = see(layout, 0.05)
    busy, ipc = seen.cpu.busy.copy(), seen.cpu.ipc.copy()
    busy[:4], ipc[4:] = 0.01, np.nan
    _, request = decide(Params(), layout, lowered, replace(seen, cpu=replace(seen.cpu, busy=busy, ipc=ipc)))
    assert request.reason.tolist() == [IDLE, MISSING] and request.target.tolist() == [0, 0]
    assert np.isnan(request.loss).all()


def test_each_package_has_its_own_uncore():
    layout = node(packages=2)
    state = warm(layout)
    for _ in range(20):
        one, other = see(layout, 0.02, uncore=state.requested_khz[0] / HIGH), see(layout, 0.5)
        stall = np.concatenate((one.cpu.stall[:4], other.cpu.stall[4:]))
        state, request = decide(Params(), layout, state, replace(one, cpu=replace(one.cpu, stall=stall)))
    assert request.reason.tolist() == [BOUNDED, MEMORY] and request.target.tolist() == [1_200_000, 0]


def test_less_of_the_waiting_that_follows_the_uncore_affords_a_lower_clock():
    params = Params(share=0.6, dwell_s=0.0)
    state, request = decide(params, node(), initial(params, node()), see(node(), 0.1))
    assert state.requested_khz.tolist() == [1_600_000]  # 2.4 GHz / (1 + 0.03 / (0.1 * 0.6)), else 1.9 GHz
    assert request.reason.tolist() == [BOUNDED]
    state, reasons, _ = drive(node(), warm(node()), 0.4, 5.0, params=Params(share=0.6))
    assert MEMORY not in reasons and state.requested_khz.tolist() < [HIGH]


def watts_seen(waits: float, watts: float) -> Sample:
    layout = node()
    seen = see(layout, waits)
    return replace(seen, energy_j=np.full(len(layout.zones), watts * seen.elapsed_s / len(layout.zones)))


@pytest.mark.parametrize(
    ("waits", "clock_w", "khz"), [(0.1, 0.0, 1_900_000), (0.15, 30.0, HIGH), (0.02, 30.0, 1_300_000)]
)
def test_with_known_watts_the_clock_of_the_greatest_gain_is_chosen_or_none(waits: float, clock_w: float, khz: int):
    params = Params(clock_w=clock_w, rest_w=100.0, dwell_s=0.0)
    state, request = decide(params, node(), initial(params, node()), watts_seen(waits, 400.0))
    assert state.requested_khz.tolist() == [khz]
    assert request.reason.tolist() == [NO_GAIN if khz == HIGH else BOUNDED]
    saved = clock_w / 500.0
    gains = {u: saved * (1 - (u / HIGH) ** 2) - waits * (HIGH / u - 1) for u in range(1_200_000, HIGH + 1, 100_000)}
    assert not clock_w or khz == max(gains, key=lambda u: gains[u])


def test_without_energy_the_watts_are_not_looked_at():
    params = Params(clock_w=30.0, dwell_s=0.0)
    seen = replace(watts_seen(0.1, 400.0), energy_j=np.full(len(node().zones), np.nan))
    assert decide(params, node(), initial(params, node()), seen)[0].requested_khz.tolist() == [1_900_000]


@pytest.mark.parametrize(
    "given_w", [{"clock_w": math.nan}, {"clock_w": math.inf}, {"rest_w": math.nan}, {"rest_w": -1.0}]
)
def test_watts_that_are_none_are_refused(given_w: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="clock_w and rest_w must be watts"):
        Params(**given_w)

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nodectl.decide.arbiter import (
    CAP,
    FREE,
    MISSING,
    POLICY,
    THERMAL,
    ClockTable,
    SharedClocks,
    arbitrate,
    clocks_of,
)
from nodectl.knobs.registry import DOMAINS
from tests.nodectl.small_node import layout

LADDER = (1005, 1110, 1215, 1305, 1410)
clock = st.one_of(st.just(0), st.integers(1, 2000))


def table(n: int = 1, steps: tuple[int, ...] = LADDER) -> ClockTable:
    return ClockTable([1005] * n, [1410] * n, [steps] * n)


def settle(wish: int, cap: int = 0, thermal: int = 0, missing: bool = False, steps: tuple[int, ...] = LADDER):
    clocks, bounds = arbitrate(
        table(steps=steps), np.array([wish]), np.array([cap]), np.array([thermal]), np.array([missing])
    )
    return int(clocks[0]), int(bounds[0])


def test_without_a_request_a_clock_runs_free():
    assert settle(0) == (0, FREE)


def test_a_request_is_rounded_up_so_that_its_slowdown_bound_is_kept():
    assert settle(1111) == (1215, POLICY)
    assert settle(1215) == (1215, POLICY)


def test_a_cap_is_rounded_down_so_that_its_watts_are_kept():
    assert settle(0, cap=1214) == (1110, CAP)
    assert settle(1410, cap=1214) == (1110, CAP)


def test_the_least_opinion_wins_and_is_named():
    assert settle(1410, cap=1305, thermal=1215) == (1215, THERMAL)
    assert settle(1110, cap=1305, thermal=1215) == (1110, POLICY)
    assert settle(1305, cap=1110, thermal=1215) == (1110, CAP)


def test_when_two_opinions_agree_the_policy_is_named():
    assert settle(1215, cap=1215, thermal=1215) == (1215, POLICY)


def test_a_missing_sensor_voids_the_request_but_not_the_cap():
    assert settle(1005, missing=True) == (0, MISSING)
    assert settle(1005, cap=1305, missing=True) == (1305, CAP)


def test_a_limit_below_the_lowest_clock_asks_for_the_lowest():
    assert settle(0, cap=300) == (1005, CAP)


@given(wish=clock, cap=clock, thermal=clock, missing=st.booleans(), stepped=st.booleans())
def test_no_limit_is_exceeded_and_every_clock_is_one_the_hardware_has(wish, cap, thermal, missing, stepped):
    value, bound = settle(wish, cap, thermal, missing, LADDER if stepped else ())
    if value == 0:
        assert bound in (FREE, MISSING)
        assert cap == thermal == 0 and (wish == 0 or missing)
        return
    assert 1005 <= value <= 1410
    assert value in LADDER or not stepped
    for limit in (cap, thermal):
        assert limit == 0 or value <= max(limit, 1005)
    assert bound in (POLICY, CAP, THERMAL)


@given(wish=st.integers(1, 2000), cap=clock)
def test_a_policy_is_slowed_below_its_request_only_by_a_limit(wish, cap):
    value, bound = settle(wish, cap)
    assert value >= min(wish, 1410) or bound == CAP


@given(st.lists(st.tuples(clock, clock, clock, st.booleans()), min_size=1, max_size=8))
def test_knobs_do_not_influence_each_other(knobs):
    columns = [np.array(column) for column in zip(*knobs, strict=True)]
    together = arbitrate(table(len(knobs)), *columns)
    alone = [settle(*knob) for knob in knobs]
    assert list(zip(together[0].tolist(), together[1].tolist(), strict=True)) == alone


def shared_clocks() -> SharedClocks:
    return SharedClocks([row.cpus for row in DOMAINS["cpu"].rows(layout())], n_cpus=4)


@given(st.lists(st.integers(1, 3000), min_size=4, max_size=4))
def test_a_shared_clock_follows_the_fastest_request_of_its_cpus(khz):
    shared = shared_clocks()
    assert shared.fastest(np.array(khz)).tolist() == [max(khz[0], khz[1]), max(khz[2], khz[3])]


def test_a_cpu_without_a_request_frees_the_clock_it_shares():
    assert shared_clocks().fastest(np.array([0, 1200, 1300, 1400])).tolist() == [0, 1400]


def test_domains_of_a_node_may_have_different_steps():
    clocks = ClockTable([100, 100, 100], [500, 300, 900], [(100, 500), (100, 200, 300), ()])
    assert clocks.up(np.array([101, 101, 101])).tolist() == [500, 200, 101]
    assert clocks.down(np.array([499, 299, 950])).tolist() == [100, 200, 900]


def test_a_domain_without_steps_takes_any_clock_in_its_range():
    assert clocks_of(DOMAINS["cpu"].rows(layout(steps_khz=()))).up(np.array([1_234_567, 9_000_000])).tolist() == [
        1_234_567,
        2_800_000,
    ]


def test_steps_outside_the_present_range_are_not_used():
    clocks = ClockTable([100], [300], [(50, 100, 200, 300, 400)])
    assert clocks.up(np.array([350])).tolist() == [300]
    assert clocks.down(np.array([60])).tolist() == [100]


def test_a_node_without_clock_domains_has_nothing_to_settle():
    none = np.zeros(0, np.int64)
    clocks, bounds = arbitrate(ClockTable([], [], []), none, none, none, np.zeros(0, bool))
    assert clocks.size == bounds.size == 0

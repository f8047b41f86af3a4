import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodectl.config import Budget
from nodectl.loop.histogram import Histogram
from nodectl.loop.pace import TICKS_JUDGED, Pace

MS = 1_000_000


class SteppedClock:
    """A clock that moves when it is slept on or moved; it wakes ``late_ns`` after the deadline."""

    def __init__(self) -> None:
        self.time_ns = 5 * MS
        self.late_ns = 0

    def now_ns(self) -> int:
        return self.time_ns

    def sleep_until_ns(self, deadline_ns: int) -> None:
        self.time_ns = max(self.time_ns, deadline_ns + self.late_ns)


def pace(clock: SteppedClock, period_ms: float = 10.0, core_share: float = 0.25) -> Pace:
    return Pace(clock, period_ms, Budget(core_share=core_share, max_period_ms=80.0))


def test_a_late_tick_does_not_delay_those_after_it():
    clock = SteppedClock()
    beat = pace(clock)
    clock.late_ns = 3 * MS
    assert beat.sleep() == 3 * MS
    clock.late_ns = 0
    beat.sleep()
    assert clock.time_ns == (5 + 20) * MS
    assert beat.missed == 0


def test_a_period_that_has_passed_is_skipped_and_counted():
    clock = SteppedClock()
    beat = pace(clock)
    beat.sleep()
    clock.time_ns += 34 * MS
    beat.sleep()
    beat.sleep()
    assert clock.time_ns == (5 + 10 + 40) * MS
    assert beat.missed == 2


def test_the_last_period_ends_when_the_run_does():
    clock = SteppedClock()
    beat = pace(clock)
    beat.sleep(until_ns=9 * MS)
    assert clock.time_ns == 9 * MS


def test_an_agent_that_costs_too_much_doubles_its_period_says_so_and_comes_back():
    clock = SteppedClock()
    beat = pace(clock)
    said = [beat.spent(3 * MS) for _ in range(TICKS_JUDGED)]
    assert said[:-1] == [None] * (TICKS_JUDGED - 1)
    assert said[-1] == "a tick costs 3.00 ms of CPU time, the budget is 2.50 ms: period now 20 ms"
    assert beat.period_ns == 20 * MS
    assert [beat.spent(3 * MS) for _ in range(TICKS_JUDGED)] == [None] * TICKS_JUDGED  # 3 of 5 ms: neither up nor down
    for _ in range(TICKS_JUDGED):
        beat.spent(MS)
    assert beat.period_ns == 10 * MS


def test_the_period_never_backs_off_beyond_its_longest_nor_comes_back_below_the_setting():
    beat = pace(SteppedClock())
    for _ in range(10 * TICKS_JUDGED):
        beat.spent(1000 * MS)
    assert beat.period_ns == 80 * MS
    for _ in range(10 * TICKS_JUDGED):
        beat.spent(0)
    assert beat.period_ns == 10 * MS


def test_a_budget_of_nothing_is_no_budget():
    beat = pace(SteppedClock(), core_share=0.0)
    assert [beat.spent(1000 * MS) for _ in range(2 * TICKS_JUDGED)] == [None] * 2 * TICKS_JUDGED


@given(st.integers(0, 1 << 62))
def test_a_duration_is_kept_within_seven_percent(duration_ns):
    histogram = Histogram()
    histogram.add(duration_ns)
    assert histogram.quantile_ns(0.5) == pytest.approx(duration_ns, rel=0.0626)


@given(st.lists(st.integers(0, 1 << 40), min_size=1))
def test_quantiles_follow_the_order_of_the_durations(durations):
    histogram = Histogram()
    for duration_ns in durations:
        histogram.add(duration_ns)
    median = sorted(durations)[(len(durations) - 1) // 2]
    assert histogram.quantile_ns(0.5) == pytest.approx(median, rel=0.0626)
    assert histogram.quantile_ns(1.0) == pytest.approx(max(durations), rel=0.0626)

"""``easy-capped``: the head reserves nodes and watts, and a cap that will fall is kept before it falls."""

from __future__ import annotations

from cluster_agent.scheduler.power_cap import PowerCap, constant
from tests.cluster_agent.node_traces import FOUR_NODES, Row, starts, trace_of

EASY = "easy-capped:rule=est"


def plain(submit_s: int, run_s: int, watts: float, units: int = 1, cores: int = 1) -> Row:
    return (submit_s, run_s, run_s, units, cores, 0, 0, watts)


def test_a_job_may_not_take_the_watts_that_the_head_will_need() -> None:
    rows = [plain(0, 10, 60.0), plain(1, 10, 80.0), plain(2, 20, 30.0), plain(2, 8, 30.0), plain(2, 20, 10.0)]
    # 80 W have to wait until 10; 30 W for 20 s would delay them, 30 W for 8 s would not, 10 W leave room at 10 too
    start_s = starts(EASY, trace_of(rows), FOUR_NODES, constant(100.0))
    assert start_s == [0, 10, 20, 2, 2]


def test_a_job_may_not_take_the_node_that_the_head_will_need() -> None:
    gpu_head: Row = (1, 10, 10, 2, 32, 4, 0, 1.0)
    rows: list[Row] = [(0, 10, 10, 1, 16, 2, 0, 1.0), gpu_head, (2, 20, 20, 2, 20, 0, 0, 1.0), plain(2, 20, 1.0, 1, 16)]
    # the third job fits twice 10 cores on n3 and n4, next to the head's nodes; then only n2 is free for the fourth
    start_s = starts(EASY, trace_of(rows))
    assert start_s == [0, 10, 2, 20]


def test_a_cap_that_will_fall_is_kept_before_it_falls() -> None:
    cap = PowerCap((0, 100, 200), (100.0, 50.0, 100.0))
    rows = [plain(0, 150, 40.0), plain(0, 150, 40.0), plain(0, 100, 60.0), plain(0, 30, 60.0)]
    # two jobs of 40 W would be too much from 100 on, and so would 60 W that run from 30 to 130
    assert starts("prb", trace_of(rows), FOUR_NODES, cap) == [0, 150, 200, 0]


def test_jobs_that_fit_a_cap_to_the_last_microwatt_start() -> None:
    """As doubles 0.1 W and 0.2 W are more than 0.3 W."""
    rows = [plain(0, 10, 0.1), plain(0, 10, 0.2)]
    assert starts(EASY, trace_of(rows), FOUR_NODES, constant(0.3)) == [0, 0]
    assert sorted(starts(EASY, trace_of(rows), FOUR_NODES, constant(0.299999))) == [0, 10]


def test_a_waiting_job_starts_when_the_cap_rises_without_any_other_event() -> None:
    cap = PowerCap((0, 77), (10.0, 100.0))
    assert starts(EASY, trace_of([plain(0, 5, 50.0)]), FOUR_NODES, cap) == [77]


def test_nobody_waits_for_ever_behind_small_jobs() -> None:
    large = plain(0, 20, 90.0)
    small = [plain(at, 10, 20.0) for at in range(0, 600, 5)]
    start_s = starts("easy-capped", trace_of([plain(0, 10, 20.0), large, *small]), FOUR_NODES, constant(100.0))
    assert start_s[1] < 300
    assert starts("prb:rule=energy", trace_of([large, *small]), FOUR_NODES, constant(100.0))[0] > 590

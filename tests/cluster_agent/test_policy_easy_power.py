"""``easy-power``: admitted by predicted watts, which are those of full load until like jobs have ended."""

from __future__ import annotations

import pytest

from cluster_agent.errors import WrongUseError
from cluster_agent.replay.drawn import power_over_time
from cluster_agent.replay.world_run import Result
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.power_cap import constant
from cluster_agent.scheduler.unlike_nodes.node_jobs import Nodes
from cluster_agent.workloads.node_power import PredictedPower
from tests.cluster_agent.node_traces import FOUR_NODES, Row, trace_of
from tests.cluster_agent.worlds import replay_nodes

NODES = Nodes(FOUR_NODES.has, unit_w=100.0, gpu_w=50.0)


def replayed(policy: str, rows: list[Row], cap_w: float) -> Result:
    cap = constant(cap_w)
    trace = trace_of(rows).on(NODES, cap)
    composition = choose(policy).on_nodes
    power = PredictedPower(trace, NODES, composition.admitted)
    return replay_nodes(trace, composition, NODES, cap, power)


def alike(submit_s: int, watts: float, gpus: int = 0) -> Row:
    return (submit_s, 10, 10, 1, 1, gpus, 0, watts)


def test_jobs_start_together_only_once_it_is_known_that_they_draw_little() -> None:
    rows = [alike(0, 40.0), alike(0, 40.0), alike(10, 40.0), alike(10, 40.0)]
    assert replayed("easy-power:rule=est", rows, 120.0).start_s.tolist() == [0, 10, 10, 10]


def test_a_prediction_that_is_too_low_breaks_the_cap_and_the_replay_says_by_how_much() -> None:
    rows = [alike(0, 40.0), alike(20, 100.0), alike(20, 100.0)]
    result = replayed("easy-power:rule=est", rows, 120.0)
    assert result.start_s.tolist() == [0, 20, 20]
    assert power_over_time(result).over_j == 10 * 80.0
    safer = replayed("easy-power:rule=est,margin=2", rows, 120.0)
    assert power_over_time(safer).over_j == 0.0


def test_a_running_job_counts_with_what_it_is_metered_to_draw() -> None:
    rows = [alike(0, 40.0), (20, 100, 100, 1, 1, 0, 0, 100.0), alike(30, 10.0)]
    # the second job is admitted as 40 W and draws 100: a third of 40 W is too much on top of what it draws
    assert replayed("easy-power:rule=est", rows, 120.0).start_s.tolist() == [0, 20, 120]
    assert replayed("easy-power:rule=est,meter=end", rows, 120.0).start_s.tolist() == [0, 20, 30]


def test_a_job_whose_watts_the_trace_does_not_know_teaches_nothing() -> None:
    unknown: Row = (0, 10, 10, 1, 1, 0, 0, None)
    rows = [unknown, (20, 10, 10, 1, 1, 0, 0, None), (20, 10, 10, 1, 1, 0, 0, None)]
    assert replayed("easy-power:rule=est", rows, 120.0).start_s.tolist() == [0, 20, 30]


def test_a_prediction_beyond_every_cap_does_not_delay_a_job_for_ever() -> None:
    assert replayed("easy-power", [alike(0, 40.0, gpus=2)], 120.0).start_s.tolist() == [0]


def test_a_margin_has_to_be_above_zero() -> None:
    with pytest.raises(WrongUseError, match=r"--policy easy-power:margin=0: margin=0 must be above 0"):
        choose("easy-power:margin=0")

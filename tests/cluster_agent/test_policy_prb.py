"""``prb``: Bridi's worked examples, and what strictness and the cap change in them."""

from __future__ import annotations

from cluster_agent.scheduler.power_cap import constant
from tests.cluster_agent.node_traces import FOUR_NODES, Row, starts, trace_of


def asked(submit_s: int, run_s: int, nodes: int, cores: int, gpus: int, mics: int, watts: float = 1.0) -> Row:
    return (submit_s, run_s, run_s, nodes, cores, gpus, mics, watts)


FIXTURE_A = [
    asked(0, 600, 2, 32, 0, 4), asked(0, 60, 1, 1, 2, 0), asked(5, 720, 2, 32, 4, 0), asked(5, 600, 2, 32, 2, 0),
]  # fmt: skip
FIXTURE_B = [
    asked(0, 70, 2, 32, 0, 4), asked(0, 60, 1, 1, 2, 0), asked(5, 480, 2, 32, 0, 0), asked(5, 600, 2, 32, 2, 0),
]  # fmt: skip


def test_on_bridis_fixture_a_the_walltime_rule_is_the_optimum_and_the_gpu_rule_is_not() -> None:
    by_gpus = starts("prb:rule=gpus", trace_of(FIXTURE_A))
    assert (by_gpus, sum(by_gpus)) == ([0, 0, 60, 780], 840)
    by_walltime = starts("prb:rule=walltime", trace_of(FIXTURE_A))
    assert (by_walltime, sum(by_walltime)) == ([0, 0, 660, 60], 720)
    for start_s in (by_gpus, by_walltime):  # the thesis prints 1320, which its own starts contradict
        assert max(start + row[1] for start, row in zip(start_s, FIXTURE_A, strict=True)) == 1380


def test_on_bridis_fixture_b_it_is_the_other_way_round() -> None:
    by_gpus = starts("prb:rule=gpus", trace_of(FIXTURE_B))
    assert (by_gpus, sum(by_gpus)) == ([0, 0, 70, 60], 130)
    by_walltime = starts("prb:rule=walltime", trace_of(FIXTURE_B))
    assert (by_walltime, sum(by_walltime)) == ([0, 0, 60, 540], 600)
    makespans = [
        max(start + row[1] for start, row in zip(start_s, FIXTURE_B, strict=True)) for start_s in (by_gpus, by_walltime)
    ]
    assert makespans == [660, 1140]


def test_strict_rules_let_nobody_overtake() -> None:
    wide, narrow = asked(1, 10, 4, 64, 0, 0), asked(1, 20, 1, 1, 0, 0)
    rows = [asked(0, 5, 1, 16, 0, 0), wide, narrow]
    assert starts("prb", trace_of(rows)) == [0, 21, 1]
    assert starts("prb:miss=strict", trace_of(rows)) == [0, 5, 15]


def test_a_job_waits_for_watts_as_it_waits_for_nodes() -> None:
    rows = [asked(0, 10, 1, 1, 0, 0, 60.0), asked(0, 10, 1, 1, 0, 0, 50.0), asked(0, 10, 1, 1, 0, 0, 40.0)]
    assert starts("prb", trace_of(rows), FOUR_NODES, constant(100.0)) == [0, 10, 0]

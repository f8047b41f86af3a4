"""``rmap`` on the paper's worked example, and what holds for it on generated tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.errors import WrongUseError
from cluster_agent.replay.drawn import power_over_time
from cluster_agent.scheduler.configurations.cab_table import APPLICATIONS, cab_table
from cluster_agent.scheduler.configurations.table import Configuration, best
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import constant
from tests.cluster_agent.traces import jobs_of
from tests.cluster_agent.worlds import Moldable, replay_moldable, with_ways
from tests.oracle.moldable_scheduler import choice_of

SP_MZ = (
    Configuration(6, 16, 115, 447.9, 796.4),
    Configuration(8, 12, 65, 415.3, 783.8),
    Configuration(8, 10, 80, 439.2, 738.2),
)
"""C1, C2 and C3 of the paper's example (Patki et al., HPDC 2015, §3)."""

NODES, CLUSTER_W = 64, 800 * 64 / 6
"""A job that asks for 6 of 64 nodes has a share of 800 W."""
RUNNING = Configuration(NODES - 10, 16, 115, 1000, CLUSTER_W - 750)
"""Job A: it leaves 10 nodes and 750 W, and ends in 1000 s. It asks for all nodes, so that its share allows that."""


def worked_example(policy: str) -> tuple[Configuration | None, int, int]:
    """Configuration, start and turnaround of SP-MZ, in whole seconds."""
    rows = [(0, 1, 2000, NODES, 0), (0, 1, 450, 6, 1)]
    world = with_ways(jobs_of(rows), ((RUNNING,), SP_MZ), NODES, constant(CLUSTER_W))
    result = replay_moldable(choose(policy).composed, world)
    return result.chosen[1], int(result.start_s[1]), int(result.end_s[1])


@pytest.mark.parametrize(
    ("policy", "picked", "start_s", "turnaround_s"),
    [
        ("rmap:policy=traditional", 0, 1000, 1447.9),
        ("rmap:policy=naive", 1, 1000, 1415.3),
        ("rmap:policy=adaptive,th=0", 2, 0, 439.2),
        ("rmap:policy=adaptive,th=inf", 2, 0, 439.2),
    ],
)
def test_the_worked_example_of_sp_mz(policy: str, picked: int, start_s: int, turnaround_s: float) -> None:
    chosen, started_s, ended_s = worked_example(policy)
    assert (chosen, started_s) == (SP_MZ[picked], start_s)
    assert 0 <= ended_s - turnaround_s < 1, "rounded up to whole seconds"


def test_adaptive_waits_if_what_fits_now_is_too_slow() -> None:
    """C3 takes 439.2 s: with 400 s requested it is beyond th = 0, and within 10 %."""
    jobs = jobs_of([(0, 1, 2000, NODES, 0), (0, 1, 400, 6, 1)])
    late = with_ways(jobs, ((RUNNING,), SP_MZ), NODES, constant(CLUSTER_W))
    starts_s = [int(replay_moldable(choose(f"rmap:th={th}").composed, late).start_s[1]) for th in (0, 0.1)]
    assert starts_s == [1000, 0]


def test_the_head_keeps_its_watts_as_well_as_its_nodes() -> None:
    """Nodes are plenty. The second job waits for watts until 100 s; the third would take them for longer than that."""
    rows = [
        (Configuration(2, 16, 115, 100, 600),),
        (Configuration(2, 16, 115, 50, 700),),
        (Configuration(1, 16, 115, 200, 350),),
        (Configuration(1, 16, 115, 80, 350),),
    ]
    jobs = jobs_of([(0, 1, 100, 2, 0), (1, 1, 50, 2, 0), (2, 1, 200, 1, 0), (3, 1, 80, 1, 0)])
    world = with_ways(jobs, rows, 64, constant(1000.0))
    result = replay_moldable(choose("rmap:policy=traditional").composed, world)
    assert result.start_s.tolist() == [0, 100, 150, 3]


def test_who_overtakes_the_head_for_longer_leaves_less_to_the_next() -> None:
    """The head waits for 700 W until 100 s, and 300 W are left over: enough for one that runs beyond that, not for two.
    The last ends in time and may have what is there now."""
    rows = [
        (Configuration(2, 16, 115, 100, 500),),
        (Configuration(2, 16, 115, 50, 700),),
        *[(Configuration(1, 16, 115, 200, 200),)] * 2,
        (Configuration(1, 16, 115, 90, 200),),
    ]
    jobs = jobs_of([(at, 1, int(row[0].time_s), row[0].nodes, 0) for at, row in enumerate(rows)])
    world = with_ways(jobs, rows, 64, constant(1000.0))
    policy = "rmap:policy=traditional"
    for composition in (choose(policy).composed, Composition(choose=choice_of(policy))):
        assert replay_moldable(composition, world).start_s.tolist() == [0, 100, 2, 150, 4]


def test_nobody_overtakes_a_head_that_waits_for_another_row_than_its_share_pays_for() -> None:
    """Its share of 600 W, of 400, pays for a row that never has room; the other row has it at 10 s. The last job would
    run on next to both, until then."""
    rows = [
        (Configuration(3, 16, 115, 10, 300),),
        (Configuration(4, 16, 115, 20, 500), Configuration(2, 16, 115, 100, 200)),
        (Configuration(1, 16, 115, 50, 100),),
    ]
    world = with_ways(jobs_of([(0, 1, 10, 4, 0), (1, 1, 100, 4, 0), (2, 1, 50, 4, 0)]), rows, 4, constant(400.0))
    policy = "rmap:priority=1.5,th=inf"
    for composition in (choose(policy).composed, Composition(choose=choice_of(policy))):
        assert replay_moldable(composition, world).start_s.tolist() == [0, 10, 10]


def test_near_takes_the_fewest_watts_among_rows_as_fast() -> None:
    """The paper's naive takes many nodes for less than a hundredth of the time."""
    rows = (Configuration(8, 16, 80, 100.0, 900), Configuration(6, 16, 80, 100.9, 700))
    assert best(rows, 1000, 64) == rows[0]
    assert best(rows, 1000, 64, 0.01) == rows[1]


def test_the_generated_table_has_the_published_grid_and_watts() -> None:
    """75 settings of nodes and cores at five caps; 66.1 to 92.6 W, on average 81.0, with all of everything."""
    table = cab_table(seed=3)
    assert {len(rows) for rows in table.values()} == {375}
    full = {
        name: next(row for row in rows if (row.nodes, row.cores, row.cap_w) == (64, 16, 115))
        for name, rows in table.items()
    }
    sockets = np.array([full[one.name].watts / 128 for one in APPLICATIONS])
    assert sockets == pytest.approx([one.socket_w for one in APPLICATIONS], rel=0.08)
    assert np.mean([one.socket_w for one in APPLICATIONS]) == pytest.approx(81.0, abs=0.05)
    assert all(row.watts <= 2 * row.nodes * row.cap_w for rows in table.values() for row in rows)
    assert cab_table(seed=3) == table != cab_table(seed=4)


TABLE = cab_table()


def replayed(policy: str, seed: int, watts: float) -> Moldable:
    rng, table = np.random.default_rng(seed), TABLE
    names = [APPLICATIONS[i].name for i in rng.integers(0, len(APPLICATIONS), 12)]
    rows = [
        (int(at_s), 1, int(rng.integers(60, 900)), int(rng.integers(2, 16)) * 4, 0) for at_s in rng.integers(0, 900, 12)
    ]
    world = with_ways(jobs_of(rows), [table[name] for name in names], NODES, constant(watts))
    return replay_moldable(choose(policy).composed, world)


@settings(max_examples=12)
@given(
    policy=st.sampled_from(
        ["rmap:policy=traditional", "rmap:policy=naive", "rmap", "rmap:th=0.2,near=0.01", "rmap:th=inf", "moldable",
         "moldable:rule=cores-endtime", "moldable:rule=energy"]
    ),
    seed=st.integers(0, 1000),
    watts=st.sampled_from([500.0, 3000.0, 6500.0, 14000.0]),
)  # fmt: skip
def test_nodes_and_watts_are_never_exceeded_and_no_job_is_lost(policy: str, seed: int, watts: float) -> None:
    result = replayed(policy, seed, watts)
    assert power_over_time(result.result).watts.max(initial=0.0) <= watts + 1e-6
    for job, start_s in enumerate(result.start_s):
        if job in result.impossible:
            assert (start_s, result.chosen[job]) == (-1, None)
            continue
        assert result.end_s[job] > start_s >= result.jobs.submit_s[job]
        runs = (result.start_s <= start_s) & (start_s < result.end_s)
        assert sum(row.nodes for row, does in zip(result.chosen, runs, strict=True) if row and does) <= NODES


def test_a_trace_without_configurations_is_refused() -> None:
    with pytest.raises(WrongUseError, match="needs a table of configurations, and a trace with nodes has none"):
        _ = choose("rmap").on_nodes
    assert not choose("easy").has_configurations
    with pytest.raises(WrongUseError, match="th must be 0 or more"):
        choose("rmap:th=-1")

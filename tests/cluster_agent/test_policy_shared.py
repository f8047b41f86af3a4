"""Two jobs on a node: how fast they run, who may be next to whom, what the command says of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent import library
from cluster_agent.cli import main
from cluster_agent.errors import WrongUseError
from cluster_agent.replay.world_run import Result, run
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.power_cap import UNCAPPED
from cluster_agent.scheduler.unlike_nodes.shared_nodes import Shared
from cluster_agent.scheduler.world import World
from tests.cluster_agent.node_traces import Row, trace_of
from tests.oracle import shared_nodes as oracle

SAMPLES = Path(__file__).parents[2] / "cluster_agent" / "samples"
GPU_JOBS, GPU_PAIRS = SAMPLES / "gpu-jobs.csv", SAMPLES / "gpu-pairs-v100.csv"
RULES = ("compact", "spread", "no_preference", "matched")

type_f64 = npt.NDArray[np.float64]
COMPUTE, MEMORY = 0, 1
SPEED = np.array([[1.0, 1.0, 1.0], [1.6, 1.0, 2.0]])
"""Of a program that computes, and one that waits for memory: next to each other, itself, and nobody."""


def one(submit_s: int, run_s: int, units: int, over: int = 1) -> Row:
    return submit_s, run_s, run_s * over, units, units, 0, 0, None


def replayed(
    rows: Sequence[Row],
    kind: Sequence[int],
    policy: str,
    nodes: int,
    speed: type_f64 = SPEED,
    floor: Sequence[float] | None = None,
    are_halves: bool = True,
) -> Result:
    names = tuple(map(str, range(len(speed))))
    floors = np.full(len(rows), np.nan) if floor is None else np.array(floor)
    shared = Shared(names, np.array(kind, np.int32), speed, speed, floors, are_halves)
    machine = shared.nodes(nodes)
    world = World(trace_of(rows).on(machine, UNCAPPED), nodes=machine, shared=shared)
    return run(world, choose(policy).on_nodes)


def on(result: Result, job: int) -> dict[int, int]:
    placed = result.schedule.placed(job)
    return dict(zip(placed.node.tolist(), placed.count.tolist(), strict=True))


def test_a_job_goes_on_at_another_speed_when_its_partner_comes_and_when_it_ends() -> None:
    rows = [one(0, 200, 2), one(50, 50, 2)]
    result = replayed(rows, [MEMORY, COMPUTE], "shared:rule=spread", 2)
    # until 50 s next to nobody: 100 s of its work; then 50 s next to the other: 80 s; then the rest at twice its speed
    assert result.start_s.tolist() == [0, 50]
    assert result.schedule.end_s.tolist() == [110, 100]


@pytest.mark.parametrize(
    ("rule", "first", "second"),
    [
        ("compact", {0: 2}, {1: 2}),
        ("spread", {0: 1, 1: 1}, {2: 1, 3: 1}),  # empty nodes first
        ("no_preference", {0: 2}, {1: 2}),
        ("matched", {0: 1, 1: 1}, {0: 1, 1: 1}),
    ],
)
def test_each_rule_has_its_places(rule: str, first: dict[int, int], second: dict[int, int]) -> None:
    result = replayed([one(0, 9, 2), one(0, 9, 2)], [MEMORY, COMPUTE], f"shared:rule={rule}", 4)
    assert [on(result, 0), on(result, 1)] == [first, second]


def test_without_twice_the_nodes_a_job_is_compact() -> None:
    result = replayed([one(0, 9, 4)], [MEMORY], "shared:rule=spread", 2)
    assert on(result, 0) == {0: 2, 1: 2}
    assert result.schedule.end_s.tolist() == [9]


def test_half_a_node_that_is_left_over_is_taken_first_without_a_preference() -> None:
    rows = [one(0, 9, 1), one(0, 9, 3)]
    assert on(replayed(rows, [COMPUTE] * 2, "shared:rule=no_preference", 3), 1) == {0: 1, 1: 2}
    assert on(replayed(rows, [COMPUTE] * 2, "shared:rule=compact", 3), 1) == {1: 2, 2: 1}


def test_jobs_that_share_with_nobody_and_those_that_nobody_measured_run_alone() -> None:
    rows = [one(0, 9, 2), one(0, 9, 2)]
    for rule in ("matched", "spread", "no_preference"):
        result = replayed(rows, [MEMORY, COMPUTE], f"shared:rule={rule}", 2, floor=[np.nan, np.inf])
        assert on(result, 1)[max(on(result, 1))] == 2, rule
        assert not on(result, 0).keys() & on(result, 1).keys() or result.start_s[0] != result.start_s[1], rule
    unknown = np.full((2, 3), np.nan)
    unknown[COMPUTE] = SPEED[COMPUTE]
    result = replayed(rows, [MEMORY, COMPUTE], "shared:rule=matched", 2, unknown)
    assert [on(result, 0), on(result, 1)] == [{0: 2}, {1: 2}]


def test_a_pair_is_matched_so_that_the_most_is_saved() -> None:
    kind = [MEMORY, COMPUTE, COMPUTE, MEMORY]
    result = replayed([one(0, 100, 2) for _ in kind], kind, "shared:rule=matched", 4)
    nodes = [frozenset(on(result, job)) for job in range(4)]
    assert nodes[0] != nodes[3]
    assert {nodes[0], nodes[3]} == {nodes[1], nodes[2]}


def test_the_head_of_the_queue_keeps_its_reservation() -> None:
    # the wide job waits for both nodes; a short one ends before that, a long one would not
    rows = [one(0, 50, 2), one(1, 10, 4), one(2, 90, 2), one(3, 40, 2)]
    result = replayed(rows, [COMPUTE] * 4, "shared:rule=compact", 2)
    assert result.start_s.tolist() == [0, 50, 60, 3]


@pytest.mark.parametrize("rule", RULES)
def test_jobs_next_to_running_ones_do_not_delay_the_head_of_the_queue_for_ever(rule: str) -> None:
    # the second waits for the whole node; of the others one after the other could be next to the one before it
    rows = [one(0, 100, 1), one(1, 100, 2), *(one(2, 60 + 9 * at, 1) for at in range(6))]
    speed, floor = np.array([[0.99, 1.0]]), [np.nan, np.inf, *[np.nan] * 6]
    result = replayed(rows, [0] * 8, f"shared:floor=0.9,rule={rule}", 1, speed, floor)
    assert result.start_s[1] < 110


@pytest.mark.parametrize("rule", RULES)
def test_what_starts_before_the_head_counts_with_its_speed_on_half_a_node(rule: str) -> None:
    # on half of the second node the third job would take twice its 80 s, beyond the 100 s that the head waits
    rows = [one(0, 100, 2), one(1, 50, 4), one(2, 80, 1), one(3, 40, 1)]
    floor = [np.inf, np.inf, np.nan, np.nan]
    result = replayed(rows, [0] * 4, f"shared:floor=0.9,rule={rule}", 2, np.array([[0.1, 0.5]]), floor)
    assert result.start_s.tolist()[1:] == [100, 150, 3]


kinds = st.integers(0, 2)
one_job = st.tuples(
    st.integers(0, 6),
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(1, 3),
    kinds,
    st.sampled_from(["", "no", "any"]),
)
jobs = st.lists(one_job, min_size=1, max_size=12)
FLOORS = {"": np.nan, "no": np.inf, "any": 0.0}


@settings(max_examples=25, deadline=None)
@given(jobs, st.sampled_from(RULES), st.booleans(), st.integers(0, 2**32 - 1))
def test_jobs_end_when_their_speeds_say_so_and_nobody_is_slower_than_its_floor(
    drawn: list[tuple[int, int, int, int, int, str]], rule: str, are_halves: bool, seed: int
) -> None:
    drawn = sorted(drawn)
    rows = [one(submit_s, run_s, units, over) for submit_s, run_s, units, over, _, _ in drawn]
    kind, floor = [job[4] for job in drawn], [FLOORS[job[5]] for job in drawn]
    random = np.random.default_rng(seed)
    speed = random.choice([0.5, 0.7, 0.9, 1.0] + [1.3] * are_halves, (3, 4))
    speed[:, 3] = 1.7 if are_halves else 1.0
    result = replayed(rows, kind, f"shared:rule={rule},floor=0.8", 4, speed, floor, are_halves)
    assert not result.unstarted
    assert {one.decided_by for one in result.outcomes} <= {"planner"}
    start_s, end_s, placed = (
        result.start_s.tolist(),
        result.schedule.end_s.tolist(),
        [on(result, job) for job in range(len(rows))],
    )
    assert end_s == oracle.ends(start_s, [row[1] for row in rows], placed, kind, speed)
    for job, nodes in enumerate(placed):
        assert sum(nodes.values()) == rows[job][3]
        for other, others in enumerate(placed):
            together = nodes.keys() & others.keys() and start_s[job] < end_s[other] and start_s[other] < end_s[job]
            if job == other or not together:
                continue
            assert "no" not in (drawn[job][5], drawn[other][5])
            if rule != "compact" and drawn[job][5] == "":
                assert speed[kind[job], kind[other]] >= 0.8


# --- files and the command


def test_measured_gpus_are_shared_in_a_replay_and_its_files_say_with_whom(tmp_path: Path) -> None:
    world = library.World(str(GPU_JOBS), machine=2, pairs=str(GPU_PAIRS))
    alone, shared = (library.replay(world, f"shared:floor=0.7,rule={rule}") for rule in ("compact", "matched"))
    assert np.array_equal(alone.run_s, alone.jobs.run_s)
    assert shared.end_s.max() < alone.end_s.max()
    slowed = shared.jobs.run_s / shared.run_s
    assert slowed.min() >= 0.7 - 1e-3
    shared.write(str(tmp_path / "out"))
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["pairs"] == str(GPU_PAIRS)
    assert len(manifest["pairs_sha256"]) == 64
    columns = shared.columns()
    by_name = dict(zip(shared.jobs.name, columns["partners"], strict=True))
    assert by_name["109"] is None  # exclusive
    first = next(name for name, partners in by_name.items() if partners)
    assert first in by_name[by_name[first].split()[0]].split()
    assert all(columns["why"])
    plan = str(tmp_path / "out" / "plan.jsonl")
    world = library.World(str(GPU_JOBS), machine=2, pairs=str(GPU_PAIRS), plan_from=plan)
    again = library.replay(world, "shared:floor=0.7,rule=matched")
    assert np.array_equal(again.end_s, shared.end_s)


HALVES = """application,batch_size,partner,partner_batch_size,steps_per_s,partner_steps_per_s
sp,,,,10,
sp,,free,,20,
ep,,,,5,
ep,,free,,5,
sp,,ep,,15,5
"""
JOBS = "job,application,batch_size,hours,nodes,share\n1,sp,,1,1,\n2,ep,,0.66,1.5,\n"


def test_a_table_of_halves_is_read_with_its_free_halves(tmp_path: Path) -> None:
    pairs, table = tmp_path / "pairs.csv", tmp_path / "jobs.csv"
    pairs.write_text(HALVES)
    table.write_text(JOBS)
    result = library.replay(library.World(str(table), machine=3, pairs=str(pairs)), "shared")
    assert result.jobs.units.tolist() == [2, 3]
    assert result.run_s.tolist() == [2394, 2376]  # at 1.5 times its speed alone, then at twice, and unharmed


GOOD = ["--pairs", "PAIRS", "--machine", "3", "--policy", "shared"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--policy", "shared"], "its jobs share nodes; give --pairs FILE.csv, too"),
        (["--pairs", "PAIRS", "--policy", "shared"], "its jobs share nodes; give --machine NODES, too"),
        (["--pairs", "PAIRS", "--machine", "3"], "has jobs that share nodes; choose shared"),
        (["--pairs", "PAIRS", "--machine", "curie", "--policy", "shared"], "give a number of nodes, or of cards"),
        ([*GOOD, "--cap", "9"], "--cap 9: not with jobs that share nodes"),
        (["--pairs", "PAIRS", "--machine", "1", "--policy", "shared"], "job 2 needs 3 halves of nodes"),
        (["--pairs", "PAIRS", "--machine", "3", "--policy", "shared:floor=2"], "floor=2: give 0 to 1"),
        ([*GOOD, "--log", "x"], "pairs are not in an event log"),
        ([*GOOD, "--state-out", "x", "--state-at", "9"], "--state-out x: not with jobs that share nodes"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, table = tmp_path / "pairs.csv", tmp_path / "jobs.csv"
    pairs.write_text(HALVES)
    table.write_text(JOBS)
    given = [str(pairs) if option == "PAIRS" else option for option in options]
    assert main(["replay", str(table), *given]) == 2
    assert says in capsys.readouterr().err


def test_the_policy_is_for_jobs_that_share_nodes_alone() -> None:
    with pytest.raises(WrongUseError, match="it is for a table of jobs that share nodes"):
        library.replay(library.World(str(SAMPLES / "eurora-100.csv")), "shared")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("sp,,free,,0,", "sp runs at 0.00 times its speed alone: correct the row"),
        ("sp,,free,,50,", "sp runs at 5.00 times its speed alone"),
        ("lu,,free,,5,", "lu has no speed alone"),
        ("sp,,,,10,\nft,,,,1,\nsp,,free,,10,", "ft has no row with the partner free, and others have: add it"),
    ],
)
def test_a_wrong_row_of_halves_is_named(row: str, says: str, tmp_path: Path) -> None:
    pairs, table = tmp_path / "pairs.csv", tmp_path / "jobs.csv"
    head = HALVES.splitlines()[0]
    pairs.write_text(f"{head}\n{'' if ',,,,10' in row else 'sp,,,,10,' + chr(10)}{row}\n")
    table.write_text(JOBS)
    with pytest.raises(WrongUseError, match=says):
        library.replay(library.World(str(table), machine=3, pairs=str(pairs)), "shared")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("1,sp,,1,0.7,", "nodes cannot be 0.7: give 0.5, 1, 1.5, or more"),
        ("1,sp,,1,0,", "nodes cannot be 0"),
    ],
)
def test_a_wrong_job_is_named(row: str, says: str, tmp_path: Path) -> None:
    pairs, table = tmp_path / "pairs.csv", tmp_path / "jobs.csv"
    pairs.write_text(HALVES)
    table.write_text(f"{JOBS.splitlines()[0]}\n{row}\n")
    with pytest.raises(WrongUseError, match=says):
        library.replay(library.World(str(table), machine=3, pairs=str(pairs)), "shared")

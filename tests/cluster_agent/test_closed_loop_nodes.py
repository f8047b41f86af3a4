"""Submissions that answer to the schedule, on nodes that differ."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.cli import main
from cluster_agent.replay.closed_loop import closed_loop
from cluster_agent.replay.world_run import Result
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.power_cap import UNCAPPED, PowerCap, constant
from cluster_agent.workloads.node_trace import NodeTrace
from tests.cluster_agent.node_traces import FOUR_NODES, Row, caps, node_rows, trace_of
from tests.cluster_agent.test_closed_loop import came_as_promised, loops
from tests.cluster_agent.test_node_engines_agree import POLICIES, looped, power_of, traced
from tests.cluster_agent.worlds import replay_nodes
from tests.oracle.node_scheduler import NodeScheduler

SAMPLES = Path(__file__).parents[2] / "cluster_agent" / "samples"
EURORA = SAMPLES / "eurora-100.csv"
WHOLE = 16
"""Cores of a node."""


def of_users(trace: NodeTrace, users: Sequence[int]) -> NodeTrace:
    """With these users in turn, and waits, promised waits and knowledge of watts that differ from job to job."""
    n = len(trace.jobs)
    user = np.resize(np.array(users, np.int64), n)
    numbers = np.unique(user, return_inverse=True)[1].astype(np.int32)
    number = trace.jobs.number
    jobs = replace(trace.jobs, user=numbers, max_wait_s=number % 3 * 40)
    jobs = replace(jobs, knows_watts=number % 4 > 0)
    return replace(trace, user=tuple(f"u{one}" for one in user), wait_s=number % 5 * 2, jobs=jobs)


def answered(trace: NodeTrace, policy: str, text: str, cap: PowerCap = UNCAPPED) -> Result:
    composition = choose(policy).on_nodes
    return replay_nodes(trace, composition, FOUR_NODES, cap, power_of(policy, trace), loop=closed_loop(text, 0))


def whole_nodes(rows: Sequence[tuple[int, int, int, int]], waits: Sequence[int] = ()) -> NodeTrace:
    """Jobs as (submit, run, nodes, user)."""
    trace = trace_of([(at, run, run, nodes, nodes * WHOLE, 0, 0, 10.0) for at, run, nodes, _ in rows])
    trace = of_users(trace, [user for *_, user in rows])
    return replace(trace, wait_s=np.array(waits or [0] * len(rows), np.int64))


def test_a_user_thinks_after_the_last_end_as_long_as_in_the_table() -> None:
    """User 0 submitted the second job 3 s after the first, which had waited for 2 s, had ended; user 1 has the nodes
    until 50 s here."""
    trace = whole_nodes([(0, 50, 4, 1), (1, 10, 1, 0), (16, 10, 1, 0)], [0, 2, 0])
    result = answered(trace, "prb:rule=est", "think=log")
    assert result.world.node_trace.jobs.submit_s.tolist() == [0, 1, 63]
    assert result.start_s.tolist() == [0, 50, 63]
    assert result.world.node_trace.user == ("u1", "u0", "u0")


def test_a_regulated_queue_is_filled_a_second_after_a_job_has_left_it() -> None:
    trace = whole_nodes([(100 * at, 10, 4, 0) for at in range(4)])
    result = answered(trace, "easy-capped", "queue=2")
    assert result.world.node_trace.jobs.submit_s.tolist() == [0, 0, 1, 11]
    assert result.start_s.tolist() == [0, 10, 20, 30]


def overtaken(last: Row, third: Row) -> NodeTrace:
    """Under 100 W three jobs run one after the other until 40 s. The third job of the table comes after the fourth,
    since its user waits for the second one; it and the last one wait at 40 s."""
    rows: list[Row] = [(0, 10, 10, 1, 1, 0, 0, 100.0), (1, 10, 10, 1, 1, 0, 0, 100.0), third]
    return of_users(trace_of([*rows, (13, 20, 20, 1, 1, 0, 0, 100.0), last]), [0, 1, 1, 2, 2])


def test_what_a_rule_goes_by_follows_the_job() -> None:
    """Most GPUs first: both jobs need the two nodes that have some."""
    trace = overtaken(last=(24, 10, 10, 2, 2, 2, 0, 50.0), third=(12, 10, 10, 2, 2, 4, 0, 50.0))
    trace = replace(trace, wait_s=np.zeros(5, np.int64))
    result = answered(trace, "prb:rule=gpus", "think=log", constant(100.0))
    assert result.world.node_trace.jobs.name == ("1", "2", "4", "3", "5")
    assert result.start_s.tolist() == [0, 10, 20, 40, 50]


def test_nodes_that_a_plan_chooses_are_those_of_the_job() -> None:
    """Two jobs of two whole nodes each start together."""
    trace = overtaken(last=(24, 10, 10, 2, 32, 0, 0, 50.0), third=(12, 10, 10, 2, 32, 0, 0, 50.0))
    result = answered(replace(trace, wait_s=np.zeros(5, np.int64)), "planned", "think=log", constant(100.0))
    assert result.world.node_trace.jobs.name == ("1", "2", "4", "3", "5")
    assert result.start_s.tolist() == [0, 10, 20, 40, 40]
    assert sorted([*result.schedule.placed(3).node, *result.schedule.placed(4).node]) == [0, 1, 2, 3]


@pytest.mark.parametrize("policy", POLICIES)
@given(
    rows=node_rows(),
    users=st.lists(st.integers(0, 3), min_size=20, max_size=20),
    text=loops,
    cap=caps(),
    overdue_s=st.sampled_from([0, 0, 7]),
)
@settings(max_examples=25)
def test_the_plain_scheduler_decides_the_same_about_what_was_submitted(
    policy: str, rows: list[Row], users: list[int], text: str, cap: PowerCap, overdue_s: int
) -> None:
    trace = of_users(traced(rows, cap, overdue_s), users)
    result = answered(trace, policy, text, cap)
    found, row = (
        result.world.node_trace,
        np.array([trace.jobs.name.index(name) for name in result.world.node_trace.jobs.name]),
    )
    came_as_promised(trace.jobs, text, found.jobs, row, result.schedule, trace.wait_s)
    asked = trace.only(row)
    for column in ("units", "need", "watts", "knows_watts", "max_wait_s"):
        assert getattr(found.jobs, column).tolist() == getattr(asked.jobs, column).tolist(), column
    assert (found.user, found.line.tolist()) == (asked.user, asked.line.tolist())

    composition = choose(policy).on_nodes
    plain = NodeScheduler(composition, found.jobs, FOUR_NODES, cap, power_of(policy, found))
    expected = looped(plain, found)
    assert result.start_s.tolist() == [expected.get(job, -1) for job in range(len(found.jobs))]
    assert result.admitted_w.tolist() == plain.admitted_w.tolist()
    for job, placed in plain.placed.items():
        on = result.schedule.placed(job)
        assert (on.node.tolist(), on.count.tolist()) == (placed.node.tolist(), placed.count.tolist())


@given(rows=node_rows(), users=st.lists(st.integers(0, 3), min_size=20, max_size=20), text=loops, cap=caps())
@settings(max_examples=20)
def test_a_plan_in_a_closed_loop_is_that_of_what_was_submitted_and_is_repeated_by_its_record(
    rows: list[Row], users: list[int], text: str, cap: PowerCap
) -> None:
    trace, policy = of_users(traced(rows, cap, 0), users), "planned:iterations=10"
    composition, loop = choose(policy).on_nodes, closed_loop(text, 0)
    result = answered(trace, policy, text, cap)
    again = replay_nodes(trace, composition, FOUR_NODES, cap, recorded=result.outcomes, loop=loop)
    assert again.start_s.tolist() == result.start_s.tolist() and not again.plan_s
    assert (
        replay_nodes(result.world.node_trace, composition, FOUR_NODES, cap).start_s.tolist() == result.start_s.tolist()
    )


# --- the command

HEADER = "JobID|User|Partition|Submit|Start|End|Timelimit|NNodes|NCPUS|ConsumedEnergyRaw"


def history(path: Path, users: Sequence[str] = ("ada", "bo", "cy"), node_w: int = 50) -> Path:
    """Thirty jobs of 30 s on 32 to 64 nodes, each submitted 20 s after the one before and started at once."""
    lines = [HEADER]
    for at in range(30):
        submit, end = (f"2026-03-01T{s // 3600:02}:{s // 60 % 60:02}:{s % 60:02}" for s in (20 * at, 20 * at + 30))
        nodes = 32 + 8 * (at % 5)
        user = users[at % len(users)]
        lines.append(
            f"{at + 1}|{user}|batch|{submit}|{submit}|{end}|00:01:00|{nodes}|{nodes * 16}|{30 * node_w * nodes}"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "jobs.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_files_have_the_new_submissions_and_say_what_they_are_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["replay", str(history(tmp_path / "sacct.txt")), "--machine", "eurora", "--policy", "prb"]
    command += ["--closed-loop", "think=60", "--seed", "3", "--out", str(tmp_path / "out"), "--json"]
    assert main(command) == 0
    rows, metrics = rows_of(tmp_path / "out"), json.loads(capsys.readouterr().out)
    submit_s, start_s = ([int(row[key]) for row in rows] for key in ("submission_time", "starting_time"))
    assert submit_s == sorted(submit_s) != list(range(0, 600, 20))
    assert sorted(int(row["job_id"]) for row in rows) == [*range(1, 31)]
    waits_s = [start - submit for start, submit in zip(start_s, submit_s, strict=True)]
    assert [int(row["waiting_time"]) for row in rows] == waits_s
    assert metrics["wait_s"]["mean"] == pytest.approx(np.mean(waits_s))
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["closed_loop"], manifest["seed"]) == ("think=60", 3)
    assert main(["report", str(tmp_path / "out")]) == 0
    assert "closed loop think=60" in capsys.readouterr().out


@pytest.mark.parametrize(
    "policy", ["prb", "easy-capped", "easy-power", "planned:iterations=20", "easy-power:violation=0.1"]
)
@pytest.mark.parametrize("text", ["think=log", "think=100", "queue=3"])
def test_a_scheduler_that_gets_the_events_decides_the_same(policy: str, text: str, tmp_path: Path) -> None:
    trace, log = history(tmp_path / "sacct.txt"), tmp_path / "log"
    command = ["replay", str(trace), "--machine", "eurora", "--policy", policy, "--cap", "3500", "--log", str(log)]
    assert main([*command, "--closed-loop", text, "--seed", "2"]) == 0
    assert main(["check-log", str(log)]) == 0


def test_a_plan_with_a_deadline_is_repeated_with_its_closed_loop_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    command = ["replay", str(EURORA), "--policy", "planned:iterations=1000000,time_s=0.004", "--cap", "1000"]
    assert main([*command, "--closed-loop", "queue=20", "--out", str(first)]) == 0
    command += ["--plan-from", str(first / "plan.jsonl")]
    given = [*command, "--closed-loop", "queue=20", "--out", str(again), "--log", str(tmp_path / "log")]
    assert main(given) == 0
    for name in ("jobs.csv", "metrics.json", "plan.jsonl"):
        assert (first / name).read_bytes() == (again / name).read_bytes()
    assert main(["check-log", str(tmp_path / "log")]) == 0
    capsys.readouterr()
    assert main(command) == 2
    said = capsys.readouterr().err.splitlines()
    assert "recorded with closed loop queue=20, seed 0, and here it is (none)" in said[-1] and len(said) == 1


@pytest.mark.parametrize("text", ["think=log", "think=60"])
def test_who_thinks_has_to_be_known(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(EURORA), "--policy", "prb", "--closed-loop", text]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.endswith("does not say whose the jobs are; give queue=JOBS\n")
    trace = history(tmp_path / "sacct.txt", users=[""])
    assert main(["replay", str(trace), "--machine", "eurora", "--policy", "prb", "--closed-loop", text]) == 2
    assert "give queue=JOBS, or export the column User\n" in capsys.readouterr().err


def test_jobs_that_never_come_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The cap falls at 200 s: eight jobs could have run alone before. Here they run one after the other, and the sixth
    comes too late to end before that, with the queue of one for itself."""
    trace, caps_file = history(tmp_path / "sacct.txt", node_w=100), tmp_path / "caps.csv"
    caps_file.write_text("from_s,watts\n0,100000\n200,1000\n")
    command = ["replay", str(trace), "--machine", "eurora", "--policy", "easy-capped", "--cap", str(caps_file)]
    assert main([*command, "--closed-loop", "queue=1", "--json"]) == 1
    said = capsys.readouterr()
    assert "jobs that never came, as those before them never started: 2 taken as submitted at the end" in said.err
    found = json.loads(said.out)
    assert (found["ended"], found["unstarted"], found["dropped"]) == (5, 3, 22)

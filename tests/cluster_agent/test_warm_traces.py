"""Replays that start in the middle: in closed loops, on nodes that differ, with configurations."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.cli import main
from cluster_agent.replay.closed_loop import ClosedLoop
from cluster_agent.replay.log_run import replay
from cluster_agent.replay.state_at import departure, past_of, state_at
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.warm_log import Start, in_order
from tests.cluster_agent.test_state_files import SAMPLE, log_of
from tests.cluster_agent.traces import PROCESSORS, compositions, traces

SAMPLES = SAMPLE.parent
NODES = str(SAMPLES / "eurora-100.csv"), "--cap", "1500"
WAYS = str(SAMPLES / "cab-30.swf"), "--machine", "cab64"
LOOP = "--closed-loop", "think=300", "--seed", "3"

loops = st.sampled_from([ClosedLoop(), ClosedLoop(think_s=4.0, seed=2), ClosedLoop(queue=3)])


@settings(max_examples=200)
@given(jobs=traces().filter(len), before=compositions(), after=compositions(), until_s=st.integers(1, 90), loop=loops)
def test_in_a_closed_loop_another_policy_starts_from_the_same_submissions(
    jobs: Jobs, before: Composition, after: Composition, until_s: int, loop: ClosedLoop
) -> None:
    """What is submitted before the state follows from its starts, and what is later from the policy's own."""
    workload = prepare(log_of(jobs), PROCESSORS)
    cold = replay(workload, before, loop=loop, at_s=[until_s])
    state = state_at(until_s, cold, "of this test", None)
    recorded = in_order(Start("state.json", "", state), len(jobs))
    warmed = replay(workload, after, loop=loop, recorded=recorded, at_s=[until_s])
    assert departure(state, past_of(warmed, warmed.moments[until_s])) is None
    again = replay(warmed.workload, after, recorded=recorded)
    assert again.schedule.start_s.tolist() == warmed.schedule.start_s.tolist()


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("world", "policy", "at_s"),
    [
        ((str(SAMPLE), *LOOP, "--machine", "32"), "easy-sjbf:estimate=mean2", 40000),
        ((str(SAMPLE), *LOOP, "--machine", "taurus:nodes=32,cores=1"), "powercap:idle_off_s=600", 40000),
        ((str(SAMPLE), "--closed-loop", "queue=20", "--machine", "32"), "fcfs", 40000),
        (NODES, "prb", 30000),
        (NODES, "easy-capped", 30000),
        (NODES, "easy-power", 30000),
        (NODES, "planned", 30000),
        ((*NODES, "--closed-loop", "queue=20"), "prb", 15000),
        (WAYS, "rmap", 5000),
        (WAYS, "moldable", 5000),
        ((*WAYS, *LOOP), "rmap", 5000),
    ],
)
def test_what_follows_from_more_than_jobs_goes_on_from_the_state_of_its_middle(
    world: tuple[str, ...], policy: str, at_s: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every row of jobs.csv and power.csv from there on; a second state is the same."""
    given = ["replay", *world, "--policy", policy]
    states = [str(tmp_path / name) for name in ("state", "cold-later", "warm-later")]
    cold, warmed, later = tmp_path / "cold", tmp_path / "warm", ["--state-at", str(at_s + 2000), "--state-out"]
    assert main([*given, "--state-at", str(at_s), "--state-out", states[0]]) == 0
    assert main([*given, *later, states[1], "--out", str(cold)]) == 0
    from_there = [*given, "--state", states[0], "--out", str(warmed), "--log", str(tmp_path / "log")]
    assert main([*from_there, *later, states[2]]) == 0
    assert "does not lead to this state" not in capsys.readouterr().err
    assert main(["check-log", str(tmp_path / "log")]) == 0
    found, whole = rows(warmed / "jobs.csv"), rows(cold / "jobs.csv")
    assert found == [row for row in whole if int(row["finish_time"]) >= at_s] and 0 < len(found) < len(whole)
    assert Path(states[1]).read_bytes() == Path(states[2]).read_bytes()
    if (warmed / "power.csv").exists():
        power = rows(warmed / "power.csv")
        assert power[1:] == [row for row in rows(cold / "power.csv") if int(row["time"]) > at_s]
        assert power[0]["time"] == str(at_s)
        times_s = [int(row["time"]) for row in power]
        drawn_j = sum(float(row["watts"]) * (b - a) for row, a, b in zip(power, times_s, times_s[1:], strict=False))
        assert json.loads((warmed / "metrics.json").read_text())["energy_j"] == pytest.approx(drawn_j, rel=1e-4)
    capsys.readouterr()


@pytest.mark.parametrize(
    ("world", "policy", "at_s", "other", "words"),
    [
        (NODES, "prb", 30000, ["--policy", "easy-capped"], "with nodes that differ only --policy prb goes on from it"),
        (WAYS, "rmap", 5000, ["--policy", "moldable"], "with configurations only --policy rmap goes on from it"),
        (NODES, "prb", 30000, ["--cap", "700"], "prb does not lead to it here (first: job "),
        (
            (str(SAMPLE), *LOOP, "--machine", "32"),
            "easy",
            40000,
            ["--seed", "4"],
            "easy does not lead to it here: give the",
        ),
    ],
)
def test_a_state_of_another_past_is_refused_where_no_policy_can_start_from_its_jobs(
    world: tuple[str, ...], policy: str, at_s: int, other: list[str], words: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = str(tmp_path / "state")
    assert main(["replay", *world, "--policy", policy, "--state-at", str(at_s), "--state-out", path]) == 0
    capsys.readouterr()
    assert main(["replay", *world, "--policy", policy, *other, "--state", path]) == 2
    assert words in capsys.readouterr().err


def test_nodes_that_a_running_job_did_not_have_are_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "state"
    given = ["replay", *NODES, "--policy", "prb"]
    assert main([*given, "--state-at", "30000", "--state-out", str(path)]) == 0
    state: dict[str, Any] = json.loads(path.read_text())
    [job, *_] = [job for job in state["jobs"] if "start_s" in job and "end_s" not in job]
    job["nodes"] = ["63"]
    path.write_text(json.dumps(state))
    capsys.readouterr()
    assert main([*given, "--state", str(path)]) == 2
    assert f"(first: job {job['job']})" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "rmap", "--machine", "cab64"], "rmap chooses configurations, which are of a trace"),
        (["--policy", "prb"], "prb places jobs on nodes, and this trace has processors only"),
        (["--closed-loop", "think=log"], "--closed-loop needs all that users did: give the TRACE"),
    ],
)
def test_what_the_jobs_of_a_state_alone_do_not_say_is_refused_by_its_name(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state.json"
    assert main(["replay", str(SAMPLE), "--machine", "32", "--state-at", "40000", "--state-out", str(path)]) == 0
    capsys.readouterr()
    assert main(["replay", "--state", str(path), *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1

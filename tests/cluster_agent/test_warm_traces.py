"""Replays that start in the middle: in closed loops, on nodes that differ, with configurations."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.cli import main
from cluster_agent.replay.closed_loop import ClosedLoop
from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.replay.state_at import departure, past_of, state_at
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.native.native_unlike import CUnlike
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import PowerCap
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.state_file import MachineState, encode, problem_of
from cluster_agent.workloads.warm_log import Start, in_order
from cluster_agent.workloads.warm_nodes import warm_on
from tests.cluster_agent.node_traces import FOUR_NODES, Row, caps, node_rows
from tests.cluster_agent.test_node_engines_agree import POLICIES as NODE_POLICIES
from tests.cluster_agent.test_node_engines_agree import power_of, traced
from tests.cluster_agent.test_state_files import SAMPLE, log_of
from tests.cluster_agent.traces import PROCESSORS, compositions, traces
from tests.cluster_agent.worlds import replay, replay_nodes

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
    recorded = in_order(Start("state.json", "", state), workload)
    warmed = replay(workload, after, loop=loop, recorded=recorded, at_s=[until_s])
    assert departure(state, past_of(warmed, warmed.moments[until_s])) is None
    again = replay(warmed.world.workload, after, recorded=recorded)
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
        (NODES, "easy-capped:idle_off_s=300", 30000),
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
        (NODES, "prb", 30000, ["--policy", "prb:idle_off_s=60"], "with idle_off_s on nodes only --policy prb goes on"),
        (NODES, "prb", 30000, ["--policy", "planned"], "with a plan only --policy prb goes on from it, not planned"),
        (NODES, "planned", 30000, ["--cap", "700"], "planned does not lead to it here (first: job "),
        (
            (*NODES, "--closed-loop", "queue=20"),
            "prb",
            15000,
            ["--policy", "easy-capped"],
            "with a closed loop on nodes only --policy prb goes on",
        ),
        (WAYS, "rmap", 5000, ["--policy", "moldable"], "with configurations only --policy rmap goes on from it"),
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodes": ["64"]}, "has 1 units: give nodes, from 0 to 63, for each"),
        ({"nodes": []}, "has 1 units: give nodes"),
        ({"nodes": ["2"]}, "has no room on node 2 at "),
        ({"submit_s": 1}, "with its submit_s and width: give its trace"),
    ],
)
def test_nodes_that_a_job_cannot_have_had_are_refused_in_one_line(
    change: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state"
    given = ["replay", *NODES, "--policy", "easy-capped"]
    assert main([*given, "--state-at", "20000", "--state-out", str(path)]) == 0
    state: dict[str, Any] = json.loads(path.read_text())
    for job in [job for job in state["jobs"] if "start_s" in job and "end_s" not in job and job["width"] == 1]:
        job |= change
    path.write_text(json.dumps(state | {"policy": "prb"}))
    capsys.readouterr()
    assert main([*given, "--state", str(path)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("after", [*NODE_POLICIES])
@settings(max_examples=60)
@given(rows=node_rows(), cap=caps(), later=caps(), until_s=st.integers(1, 60), before=st.sampled_from(NODE_POLICIES))
def test_on_nodes_another_policy_starts_from_where_the_jobs_are_and_both_engines_go_on_alike(
    after: str, rows: list[Row], cap: PowerCap, later: PowerCap, until_s: int, before: str
) -> None:
    trace = traced(rows, cap, 0)
    cold = replay_nodes(trace, choose(before).on_nodes, FOUR_NODES, cap, power_of(before, trace), at_s=[until_s])
    past = past_of(cold, cold.moments[until_s])
    state = MachineState(1, "replay", before, until_s, len(FOUR_NODES), past)
    assert msgspec.json.decode(encode(state), type=MachineState) == state and problem_of(state) is None
    given_trace, start = warm_on(FOUR_NODES, "state.json", state, trace)
    composition = choose(after).on_nodes
    warmed = replay_nodes(
        given_trace, composition, FOUR_NODES, later, power_of(after, given_trace), at_s=[until_s], start=start
    )
    assert departure(state, past_of(warmed, warmed.moments[until_s])) is None
    started = warmed.start_s[warmed.start_s >= 0]
    assert (started[~np.isin(np.flatnonzero(warmed.start_s >= 0), list(start.on))] >= until_s).all()
    unlike = CUnlike(composition, given_trace.jobs, FOUR_NODES, later, power_of(after, given_trace), on=start.on)
    jobs = given_trace.jobs
    stepped = NativeScheduler(unlike.phases, jobs, unlike.processors, unlike=unlike, recorded=start.recorded)
    machine = SimulatedMachine(jobs, "instant", recorded=start.recorded)
    run(stepped, JumpingClock(), machine)
    assert warmed.start_s.tolist() == [machine.start_s.get(job, -1) for job in range(len(jobs))]


def test_a_policy_on_nodes_starts_from_the_state_of_another_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = str(tmp_path / "state"), tmp_path / "out"
    assert main(["replay", *NODES, "--policy", "prb", "--state-at", "20000", "--state-out", path]) == 0
    given = ["replay", *NODES, "--policy", "easy-power", "--state", path, "--out", str(out)]
    assert main([*given, "--log", str(tmp_path / "log")]) == 0
    assert main(["check-log", str(tmp_path / "log")]) == 0
    running = {
        str(job["job"]): str(job["start_s"])
        for job in json.loads(Path(path).read_text())["jobs"]
        if "start_s" in job and "end_s" not in job
    }
    of = {row["job_id"]: row["starting_time"] for row in rows(out / "jobs.csv")}
    assert len(running) > 10 and running.items() <= of.items()
    assert all(int(start_s) >= 20000 for job, start_s in of.items() if job not in running)
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "rmap", "--machine", "cab64"], "rmap chooses configurations, which are of a trace"),
        (["--policy", "prb"], "placing=first needs nodes, and a log of processors has none"),
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

"""States as files: what one has, how it joins a log, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.cli import main
from cluster_agent.replay.state_at import departure, past_of, state_at
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.state_file import MachineState, StateJob, encode, problem_of, read_state
from cluster_agent.workloads.swf import NUMBER, REQUEST, RUN, SUBMIT, USER, WANTED, Log
from cluster_agent.workloads.warm_log import Start, again, without_room
from tests.cluster_agent.traces import PROCESSORS, compositions, traces
from tests.cluster_agent.worlds import replay

SAMPLE = Path(__file__).parents[2] / "cluster_agent" / "samples" / "generated-500.swf"


def log_of(jobs: Jobs) -> Log:
    columns = np.full((18, len(jobs)), -1, np.int64)
    names = {NUMBER: "number", SUBMIT: "submit_s", RUN: "run_s", REQUEST: "request_s", WANTED: "width", USER: "user"}
    for column, name in names.items():
        columns[column] = getattr(jobs, name)
    return Log("log.swf", "", {}, columns, np.arange(1, len(jobs) + 1), ())


def rows_of(log: Log, kept: Any) -> Log:
    return Log(log.path, "", {}, log.columns[:, kept], log.lines[kept], ())


@settings(max_examples=200)
@given(jobs=traces().filter(len), composition=compositions(), until_s=st.integers(1, 90))
def test_a_replay_goes_on_from_a_file_as_if_it_had_not_been_cut(
    jobs: Jobs, composition: Composition, until_s: int
) -> None:
    """With the whole log, and with its later jobs alone, where the state says for how long the others run."""
    log = log_of(jobs)
    cold = replay(prepare(log, PROCESSORS), composition, at_s=[until_s])
    state = state_at(until_s, cold, "easy", None)
    assert msgspec.json.decode(encode(state), type=MachineState) == state and problem_of(state) is None
    runs = [
        msgspec.structs.replace(job, run_s=None if job.what == "ended" else int(jobs.run_s[job.job - 1]))
        for job in state.jobs
    ]
    later = rows_of(log, jobs.submit_s >= until_s)
    for given_jobs, rest in ((state.jobs, log), (runs, later)):
        start = Start("state.json", "", msgspec.structs.replace(state, jobs=given_jobs))
        found = again(start, rest, PROCESSORS)
        warmed = replay(found.workload, composition, at_s=[until_s])
        assert departure(state, past_of(warmed, warmed.moments[until_s])) is None
        assert found.workload.findings == ()
        assert found.workload.jobs.number.tolist() == jobs.number.tolist()
        for name in ("start_s", "end_s", "first_estimate_s", "corrections", "overtook"):
            assert getattr(warmed.schedule, name).tolist() == getattr(cold.schedule, name).tolist()


POLICIES = ("easy", "easy-sjbf:estimate=learned", "conservative:ends=compress", "multifactor:age=0.3", "wfp3:guard=3")


@pytest.mark.parametrize("policy", POLICIES)
def test_the_second_half_of_a_log_has_the_same_rows_from_the_state_of_its_middle(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every row of jobs.csv, processors too; a second state from the warm replay is that of the cold one."""
    base = ["replay", str(SAMPLE), "--machine", "32", "--policy", policy]
    states = [str(tmp_path / name) for name in ("state", "cold-later", "warm-later")]
    cold, warmed = tmp_path / "cold", tmp_path / "warm"
    assert main([*base, "--state-at", "40000", "--state-out", states[0]]) == 0
    assert main([*base, "--state-at", "90000", "--state-out", states[1], "--out", str(cold)]) == 0
    from_there = ["replay", str(SAMPLE), "--state", states[0], "--policy", policy, "--out", str(warmed)]
    assert main([*from_there, "--state-at", "90000", "--state-out", states[2], "--log", str(tmp_path / "log")]) == 0
    assert main(["check-log", str(tmp_path / "log")]) == 0
    rows = (warmed / "jobs.csv").read_text().splitlines()
    assert set(rows) < set((cold / "jobs.csv").read_text().splitlines()) and len(rows) > 200
    assert Path(states[1]).read_bytes() == Path(states[2]).read_bytes()
    passes = [json.loads((out / "metrics.json").read_text())["passes"] for out in (cold, warmed)]
    assert passes[0] == passes[1], "none is added where this policy has made all that were due"
    capsys.readouterr()


def test_manifest_and_report_name_the_state_and_metrics_count_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two jobs of 4 processors: one runs since 0, one waits for it; the state is taken at 40."""
    path, out = tmp_path / "today.json", tmp_path / "out"
    rows = [
        {"job": 1, "submit_s": 0, "width": 4, "request_s": 20, "start_s": 0, "end_s": 20},
        {"job": 2, "submit_s": 10, "width": 4, "request_s": 60, "start_s": 20},
        {"job": 3, "submit_s": 30, "width": 4, "request_s": 50, "run_s": 10},
    ]
    path.write_text(json.dumps(of(rows, t0_s=40, processors=4)))
    assert main(["replay", "--state", str(path), "--out", str(out), "--json"]) == 0
    said = capsys.readouterr()
    assert "at 40 s 1 jobs wait, 1 run, 1 have ended; 2 that wait or run are in no log" in said.err
    found = json.loads(said.out)
    assert (found["jobs"], found["makespan_s"], found["utilisation"]) == (2, 50, 1.0)  # job 2 until 80, job 3 until 90
    assert found["wait_s"]["max"] == 50
    manifest = json.loads((out / "manifest.json").read_text())
    digest = read_state(str(path))[1]
    assert manifest["state"] == {
        "path": str(path), "sha256": digest, "t0_s": 40, "source": "replay", "policy": "easy",
        "jobs": {"queued": 1, "running": 1, "ended": 1},
    }  # fmt: skip
    assert main(["report", str(out)]) == 0
    assert f"state today.json {digest[:8]}" in capsys.readouterr().out


def test_jobs_that_end_with_the_state_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A live job may run a little beyond its walltime; then it ends as the state is taken."""
    path = tmp_path / "today.json"
    rows = [{"job": 1, "submit_s": 0, "width": 4, "request_s": 20, "start_s": 0}]
    path.write_text(json.dumps(of(rows, t0_s=40, processors=4)))
    assert main(["replay", "--state", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ended"], found["makespan_s"], found["utilisation"]) == (1, 1, 0.0)


@pytest.mark.parametrize("policy", ["easy", "conservative:ends=compress"])
def test_a_job_that_somebody_has_added_to_the_state_of_an_idle_machine_starts(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state"
    base = ["replay", str(SAMPLE), "--machine", "32", "--policy", policy, "--state-at", "1", "--state-out", str(path)]
    assert main(base) == 0
    state = json.loads(path.read_text())
    path.write_text(json.dumps(state | {"t0_s": 9, "jobs": [{"job": 1, "submit_s": 8, "width": 4, "request_s": 20}]}))
    assert main(["replay", "--state", str(path), "--policy", policy]) == 0
    assert "1 of 1 jobs ended" in capsys.readouterr().out


def test_the_start_of_a_log_that_no_clock_can_show_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, log = tmp_path / "state", tmp_path / "log.swf"
    path.write_text(json.dumps(of([{"job": 999, "submit_s": 0, "width": 4, "request_s": 20}], t0_s=40, zero_unix_s=0)))
    log.write_text("; UnixStartTime: 99999999999999999999\n" + SAMPLE.read_text())
    assert main(["replay", str(log), "--state", str(path)]) == 0
    path.write_text(path.read_text().replace('"zero_unix_s": 0', '"zero_unix_s": 99999999999999999999'))
    capsys.readouterr()
    assert main(["replay", str(log), "--state", str(path)]) == 2
    assert "no state: " in capsys.readouterr().err


def test_a_policy_other_than_the_states_decides_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """First come, first served left the second job behind the first, which does not fit; EASY starts it at 40."""
    path, out = tmp_path / "state", tmp_path / "out"
    rows = [
        {"job": 1, "submit_s": 0, "width": 3, "request_s": 100, "start_s": 0},
        {"job": 2, "submit_s": 10, "width": 4, "request_s": 100},
        {"job": 3, "submit_s": 20, "width": 1, "request_s": 30},
    ]
    path.write_text(json.dumps(of(rows, t0_s=40, processors=4, policy="fcfs")))
    for policy, start_s in (("easy", 40), ("fcfs", 200)):
        assert main(["replay", "--state", str(path), "--policy", policy, "--out", str(out)]) == 0
        assert (out / "jobs.csv").read_text().splitlines()[3].split(",")[8] == str(start_s)
    capsys.readouterr()


def of(jobs: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    given = {"version": 1, "source": "replay", "policy": "easy", "t0_s": 100, "processors": 8, "jobs": jobs}
    return given | more


RUNS = {"job": 1, "submit_s": 0, "width": 4, "request_s": 500, "start_s": 10}
WAITS = {"job": 2, "submit_s": 50, "width": 8, "request_s": 500}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "version": (of([RUNS], version=2), "a state of version 2, and this reads 1"),
    "no version": ({"jobs": []}, "Missing key `version`"),
    "unknown key": (of([RUNS | {"nodes_": 1}]), "Unknown key `nodes_`"),
    "negative": (of([RUNS | {"width": 0}]), "Expected a whole number >= 1"),
    "twice": (of([RUNS, WAITS, RUNS]), "job 1 is in it 2 times: leave one"),
    "wide": (of([RUNS, WAITS], processors=7), "job 2 needs 8 processors of 7: give a larger --machine"),
    "full": (of([RUNS, RUNS | {"job": 3, "width": 5}]), "the jobs that run have 9 processors of 8"),
    "starts late": (of([RUNS | {"start_s": 100}]), "job 1 starts at 100 s, and the state is of 100 s"),
    "starts early": (of([RUNS | {"submit_s": 11}]), "job 1 starts at 10 s, before it is submitted at 11 s"),
    "comes late": (of([WAITS | {"submit_s": 100}]), "job 2 is submitted at 100 s, and the state is of 100 s"),
    "ends late": (of([RUNS | {"end_s": 101}]), "job 1 ends at 101 s, not between its start and the state's 100 s"),
    "no start": (of([WAITS | {"end_s": 60}]), "job 2 has an end_s and no start_s"),
    "no time": (of([{"job": 1, "submit_s": 0, "width": 4}]), "job 1 has neither request_s nor run_s: give one"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_state_that_does_not_fit_together_is_refused_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, words = REFUSED[name]
    path = tmp_path / "state.json"
    path.write_text(json.dumps(content))
    assert main(["replay", "--state", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{path}: {words}" in said.replace(": no state: ", ": ")


def test_a_state_that_is_cut_short_or_missing_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state.json"
    text = json.dumps(of([RUNS, WAITS]))
    for content in (text[:-20], "", "; MaxProcs: 4\n"):
        path.write_text(content)
        assert main(["replay", "--state", str(path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert main(["replay", "--state", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err


def swf(*rows: str) -> str:
    line = "{} -1 -1 {} 500 -1 1 -1 -1 -1 -1 -1 -1 -1\n"
    return "; MaxProcs: 8\n" + "".join(line.format(" ".join(row.split()[:5]), row.split()[4]) for row in rows)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (swf("1 0 -1 200 4", "1 0 -1 200 4"), "job 1 is in it twice, and once in "),
        (swf("1 0 -1 200 2"), "job 1 is submitted at 0 s for 2 processors, and in "),
        (swf("1 200 -1 200 4"), "renumber it if it is another job"),
        (swf("7 5 -1 200 4", "8 200 -1 10 4"), "jobs submitted before the state that it does not have: 1 dropped"),
        (swf("1 0 -1 20 4", "8 200 -1 10 4"), "jobs that run in the state and had ended in the log: 1 taken as"),
    ],
)
def test_jobs_that_are_in_both_are_matched_by_number_and_what_does_not_fit_is_said(
    log: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, trace = tmp_path / "state.json", tmp_path / "log.swf"
    path.write_text(json.dumps(of([RUNS, WAITS])))
    trace.write_text(log)
    status = main(["replay", str(trace), "--state", str(path), "--json"])
    said = capsys.readouterr()
    assert words in said.err
    assert status == 0 if ("dropped" in words or "taken as" in words) else (status == 2 and said.err.count("\n") == 1)


def test_a_job_that_runs_in_the_state_and_ended_in_the_log_ends_with_the_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, trace, out = tmp_path / "state.json", tmp_path / "log.swf", tmp_path / "out"
    path.write_text(json.dumps(of([RUNS, WAITS])))
    trace.write_text(swf("1 0 -1 20 4"))
    assert main(["replay", str(trace), "--state", str(path), "--out", str(out)]) == 0
    rows = [line.split(",") for line in (out / "jobs.csv").read_text().splitlines()[1:]]
    assert [(row[8], row[10]) for row in rows] == [("10", "100"), ("100", "600")]
    capsys.readouterr()


def test_the_times_of_a_live_state_and_of_a_log_meet_by_the_logs_unix_start_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The state is of 2000 s, the log begins at 1990: its second job comes at 2010 and starts when the first ends."""
    path, trace, out = tmp_path / "state.json", tmp_path / "log.swf", tmp_path / "out"
    runs = {"job": 1, "submit_s": 1990, "width": 8, "request_s": 60, "start_s": 1990}
    path.write_text(json.dumps(of([runs], source="partition", t0_s=2000, zero_unix_s=0)))
    rows = swf("1 0 -1 30 8", "2 20 -1 10 8")
    trace.write_text(rows)
    assert main(["replay", str(trace), "--state", str(path)]) == 2
    assert "its header has no UnixStartTime" in capsys.readouterr().err
    trace.write_text("; UnixStartTime: 1990\n" + rows)
    assert main(["replay", str(trace), "--state", str(path), "--out", str(out)]) == 0
    found = [line.split(",") for line in (out / "jobs.csv").read_text().splitlines()[1:]]
    assert [(row[3], row[8], row[10]) for row in found] == [("1990", "1990", "2020"), ("2010", "2020", "2030")]
    capsys.readouterr()


def test_options_that_belong_together_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(SAMPLE), "--state-at", "5"]) == 2
    assert "--state-out FILE and --state-at SECONDS go together" in capsys.readouterr().err
    # a file that nothing could read
    assert main(["replay", str(SAMPLE), "--state-at", str(2**40 + 1), "--state-out", "never"]) == 2
    assert "is not in the range 0<=x<=1099511627776" in capsys.readouterr().err
    assert main(["replay"]) == 2
    assert "give a TRACE, or --state FILE" in capsys.readouterr().err


def test_an_ended_job_that_a_live_partition_had_in_the_same_second_as_another_is_left_out() -> None:
    jobs = [
        StateJob(1, 0, 8, 9, start_s=5, end_s=5),  # less than a second, which counts as one
        StateJob(2, 0, 8, 9, start_s=5),
        StateJob(3, 0, 8, 9, start_s=1, end_s=4),
    ]
    assert without_room(jobs, 8) == {1}
    assert without_room(jobs, 16) == set()

"""``clusterctl replay --policy rmap|moldable``: a log of processors and a table of configurations."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from cluster_agent.cli import main
from cluster_agent.scheduler.configurations.cab_table import cab_table
from cluster_agent.scheduler.configurations.configuration_model import predicted
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.moldable_trace import moldable, read_tables
from cluster_agent.workloads.swf import ALLOCATED, RUN, SUBMIT, WAIT, read_swf

SAMPLE = str(Path(__file__).parents[2] / "cluster_agent" / "samples" / "cab-30.swf")
TABLE = """\
application,nodes,cores,cap_w,time_s,watts
7,1,4,100,100,150
7,2,4,100,60,300
7,2,4,50,90,180
"""
LOG = """\
; MaxProcs: 16
1 0 -1 200 8 -1 -1 8 300 -1 1 1 -1 7 -1 -1 -1 -1
2 5 -1 50 4 -1 -1 4 60 -1 1 2 -1 7 -1 -1 -1 -1
3 6 -1 50 4 -1 -1 4 60 -1 1 2 -1 8 -1 -1 -1 -1
"""
MACHINE = """\
name = "four"
summary = "4 nodes of 4 cores"
[[nodes]]
count = 4
cores = 4
idle_w = 20
frequency_mhz = [2000]
busy_w = [160]
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("table.csv", TABLE), ("log.swf", LOG), ("four.toml", MACHINE)):
        (tmp_path / name).write_text(text)
    return tmp_path


def replay(*arguments: str, policy: str = "rmap:policy=traditional", table: str = "table.csv") -> int:
    given = ["--machine", "four.toml", "--policy", policy, "--configurations", table]
    return main(["replay", "log.swf", *given, *arguments])


def test_a_log_run_time_is_that_on_the_nodes_requested_and_other_rows_follow_the_table(small: Path) -> None:
    what = "jobs of an application without configurations"
    workload = prepare(read_swf("log.swf"), 16)
    jobs, ways, kept, findings = moldable(workload, read_tables("table.csv"), cores=4)
    assert kept == [0, 1] and jobs.width.tolist() == [2, 1]
    assert [(row.nodes, row.cap_w, round(row.time_s, 6)) for row in ways.rows[0]] == [
        (2, 100, 200),
        (2, 50, 300),
        (1, 100, round(200 * 100 / 60, 6)),
    ]
    assert [round(row.time_s) for row in ways.rows[1] if row.nodes == 1] == [50]
    assert [str(one) for one in findings] == [f"{what}: 1 dropped (first: line 4)"]


def test_the_files_say_what_was_chosen_and_what_it_drew(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four nodes, 330 W: the first job takes 300 W, so that the second (150 W) waits for its end."""
    assert replay("--cap", "330", "--out", "out") == 0
    assert "jobs of an application without configurations: 1 dropped" in capsys.readouterr().err
    with Path("out/jobs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["job_id"], row["starting_time"], row["finish_time"]) for row in rows] == [
        ("1", "0", "200"),
        ("2", "200", "250"),
    ]
    assert [float(row["consumed_energy"]) for row in rows] == [60_000, 7_500]
    assert Path("out/power.csv").read_text().splitlines()[1:] == [
        *("0,300.000000,330.000000", "200,150.000000,330.000000", "250,0.000000,330.000000")
    ]
    metrics = json.loads(Path("out/metrics.json").read_text())
    assert (metrics["peak_w"], metrics["over_cap_ws"], metrics["energy_j"]) == (300, 0, 67_500)
    manifest = json.loads(Path("out/manifest.json").read_text())
    assert manifest["configurations"]["given"] == "table.csv" and manifest["configurations"]["sha256"]


def test_a_cap_that_is_known_to_drop_is_kept_over_each_job_s_whole_run(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From 100 s on there are 200 W: the first job (300 W for 200 s on two nodes) waits, and then gets one of 150 W."""
    Path("caps.csv").write_text("from_s,to_s,watts\n100,400,200\n")
    assert replay("--cap", "caps.csv", "--out", "out", "--log", "events.log") == 0
    with Path("out/jobs.csv").open(newline="") as file:
        assert [row["starting_time"] for row in csv.DictReader(file)] == ["100", "5"]
    power = Path("out/power.csv").read_text().splitlines()[1:]
    assert power == [
        *("5,150.000000,640.000000", "55,0.000000,640.000000", "100,150.000000,200.000000"),
        *("400,150.000000,640.000000", "434,0.000000,640.000000"),
    ]
    assert json.loads(Path("out/metrics.json").read_text())["over_cap_ws"] == 0
    assert json.loads(Path("out/manifest.json").read_text())["cap"] == "caps.csv"
    assert main(["check-log", "events.log"]) == 0


def test_moldable_takes_the_row_of_fewest_joules_on_request(small: Path) -> None:
    """60 s x 300 W = 18 kJ, 90 s x 180 W = 16.2 kJ, and 100 s x 150 W = 15 kJ, which is beyond 1.6 x 60 s."""
    assert replay("--out", "out", policy="moldable:rule=energy,slowdown=1.6") == 0
    with Path("out/jobs.csv").open(newline="") as file:
        assert [row["execution_time"] for row in csv.DictReader(file)] == ["300", "45"]


def test_an_event_log_of_chosen_configurations_is_decided_again(small: Path) -> None:
    assert replay("--cap", "330", "--log", "events.log") == 0
    assert main(["check-log", "events.log"]) == 0


def test_the_sample_keeps_its_bound_under_every_choice(capsys: pytest.CaptureFixture[str]) -> None:
    turnaround_s = {}
    for policy in ("traditional", "naive", "adaptive"):
        given = ["--machine", "cab64", "--cap", "6500", "--json", "--policy", f"rmap:policy={policy}"]
        assert main(["replay", SAMPLE, *given]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["ended"] == 30 and found["over_cap_ws"] == 0
        turnaround_s[policy] = found["turnaround_s"]["mean"]
    assert turnaround_s["adaptive"] < turnaround_s["naive"] < turnaround_s["traditional"]


def test_a_model_of_a_tenth_of_the_table_is_about_as_wrong_as_published() -> None:
    """Published: below 10 % on average for time and power, time below 33 % at most, watts at most 15 % too low."""
    errors = predicted(cab_table(), 0.1, 1)[1]
    assert errors.time_mean < 0.1 and errors.time_max < 0.33
    assert errors.watts_mean < 0.1


def test_jobs_run_as_the_table_says_not_as_the_model_thinks(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--machine", "cab64", "--cap", "6500", "--json", "--configurations", "cab:model=regression"]
    assert main(["replay", SAMPLE, "--policy", "rmap", *given]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["ended"] == 30
    assert found["over_cap_ws"] > 0, "watts that are predicted too low break the bound, and it is said"
    assert "the model's times are wrong by" in printed.err


@pytest.mark.parametrize("policy", ["rmap", "rmap:policy=naive", "moldable"])
def test_in_a_closed_loop_jobs_come_as_others_leave_and_a_scheduler_that_gets_the_events_decides_the_same(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, swf = tmp_path / "out", tmp_path / "out.swf"
    given = ["--machine", "cab64", "--cap", "6500", "--closed-loop", "queue=4", "--log", str(tmp_path / "log")]
    given += ["--configurations", "cab:model=regression,share=0.2", "--out", str(out), "--swf", str(swf)]
    assert main(["replay", SAMPLE, "--policy", policy, *given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ended"] == 30
    rows = [line.split(",") for line in (out / "jobs.csv").read_text().splitlines()[1:]]
    submit_s, start_s, end_s = (np.array([int(row[at]) for row in rows]) for at in (3, 8, 10))
    assert set(submit_s[4:].tolist()) <= set((start_s + 1).tolist()), "each a second after another has started"
    assert all(((submit_s <= at_s) & (start_s > at_s)).sum() <= 4 for at_s in submit_s)
    assert main(["check-log", str(tmp_path / "log")]) == 0
    columns = read_swf(str(swf)).columns
    assert (columns[SUBMIT] == submit_s).all() and (columns[SUBMIT] + columns[WAIT] == start_s).all()
    assert (columns[RUN] == end_s - start_s).all() and (columns[ALLOCATED] % 16 == 0).all(), "whole nodes"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--machine", "100"], "nodes are needed; give a machine that has them"),
        (["--machine", "eurora"], "eurora: configurations are for machines of one kind of nodes"),
        (["--machine", "four.toml", "--cap", "nought"], "nought: No such file or directory"),
        (["--machine", "four.toml", "--job-watts", "generated"], "--job-watts generated: not with rmap"),
        (["--machine", "four.toml", "--configurations", "cap"], "there is no such file (nearest: cab)"),
        (["--machine", "four.toml", "--configurations", "table.csv:model=regression"], "application 7 has 3"),
        (["--machine", "four.toml", "--configurations", "table.csv:seeds=1"], "has no parameter 'seeds'"),
        (["--machine", "four.toml", "--configurations", "bad.csv"], "bad.csv:3: every value must be a number"),
        (["--machine", "four.toml", "--configurations", "twice.csv"],
         "twice.csv:5: 1 nodes, 4 cores, 100 W occur twice"),
        (["--machine", "four.toml", "--configurations", "many.csv"], "many.csv:3: no job is like that"),
        (["--machine", "four.toml", "--configurations", "short.csv"], "short.csv:3: no job is like that"),
        (["--machine", "four.toml", "--configurations", "log.swf"], "log.swf:1: no column application"),
        (["--machine", "four.toml", "--configurations", "table.csv", "--cap", "100"], "share of the watts is"),
        (["--machine", "four.toml", "--configurations", "table.csv", "--strict"], "without configurations"),
        (["--machine", "four.toml"], "log.swf:2: jobs that ask for fewer nodes than any"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_in_one_line(
    small: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    Path("bad.csv").write_text(TABLE.replace("2,4,100,60", "two,4,100,60"))
    Path("many.csv").write_text(TABLE.replace("2,4,100,60", "99999999999,4,100,60"))
    Path("short.csv").write_text(TABLE.replace("2,4,100,60", "2,4,100,1e-300"))
    Path("twice.csv").write_text(TABLE + "7,1,4,100,90,150\n")
    assert main(["replay", "log.swf", "--policy", "rmap", *arguments]) in (1, 2)
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_other_policies_take_no_configurations(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "log.swf", "--configurations", "table.csv"]) == 2
    assert "easy runs jobs as requested" in capsys.readouterr().err

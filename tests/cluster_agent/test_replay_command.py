"""``clusterctl replay`` and ``clusterctl policies`` as a user runs them."""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from cluster_agent.budget.sharers import registry as sharers
from cluster_agent.cli import main
from cluster_agent.scheduler.policies import registry
from cluster_agent.workloads.swf import read_swf

LOG = """\
; MaxProcs: 10
1 0 -1 100 6 -1 -1 6 100 -1 1 3 -1 -1 -1 -1 -1 -1
2 1 -1 10 8 -1 -1 8 10 -1 1 4 -1 -1 -1 -1 -1 -1
3 2 -1 400 2 -1 -1 2 300 -1 1 3 -1 -1 -1 -1 -1 -1
4 3 -1 20 11 -1 -1 11 20 -1 1 3 -1 -1 -1 -1 -1 -1
"""
BATSIM_COLUMNS = [
    "job_id", "workload_name", "profile", "submission_time", "requested_number_of_resources", "requested_time",
    "success", "final_state", "starting_time", "execution_time", "finish_time", "waiting_time", "turnaround_time",
    "stretch", "allocated_resources", "consumed_energy", "metadata",
]  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "small.swf"
    path.write_text(LOG)
    return path


def clusterctl(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cluster_agent.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_replay_prints_metrics_and_says_what_it_left_out(log: Path) -> None:
    done = clusterctl("replay", log, "--json")
    assert done.returncode == 0
    metrics = json.loads(done.stdout)
    assert (metrics["jobs"], metrics["ended"], metrics["dropped"], metrics["ended_at_request"]) == (3, 3, 1, 1)
    assert metrics["overtook"] == 1
    assert metrics["wait_s"]["max"] == 99
    assert metrics["AVEbsld"] == pytest.approx((1 + 10.9 + 1) / 3)
    assert metrics["makespan_s"] == 302
    assert metrics["utilisation"] == pytest.approx((600 + 80 + 600) / 3020)
    assert metrics["energy_j"] is None
    assert done.stderr.splitlines() == [
        f"{log}: jobs wider than the machine: 1 dropped (first: line 5)",
        f"{log}: jobs that ran beyond their request: 1 ended at the request (first: line 4)",
    ]


def test_a_cap_or_budget_outside_of_all_jobs_is_said_to_limit_nothing(log: Path, tmp_path: Path) -> None:
    early, late = tmp_path / "early.csv", tmp_path / "late.csv"
    early.write_text("from_s,to_s,watts\n100,200,150000\n")
    late.write_text("from_s,to_s,watts\n5000,6000,150000\n")
    common = ("replay", log, "--machine", "curie")
    assert "limits nothing" not in clusterctl(*common, "--policy", "powercap", "--cap", early).stderr
    outside = clusterctl(*common, "--policy", "powercap", "--cap", late)
    assert outside.returncode == 0
    assert "the cap from 5000 to 6000 s limits nothing: jobs come and run from 0 to 302 s" in outside.stderr
    budget = clusterctl(*common, "--policy", "energy-budget:joules=1e12,from_s=5000,to_s=6000")
    assert "the budget from 5000 to 6000 s limits nothing" in budget.stderr


def test_jobs_csv_has_batsims_columns_and_is_empty_where_nothing_is_known(log: Path, tmp_path: Path) -> None:
    assert clusterctl("replay", log, "--out", tmp_path / "out").returncode == 0
    with (tmp_path / "out" / "jobs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == BATSIM_COLUMNS
    assert [row["job_id"] for row in rows] == ["1", "2", "3"]
    second, third = rows[1], rows[2]
    assert (second["starting_time"], second["waiting_time"], second["turnaround_time"]) == ("100", "99", "109")
    assert (second["stretch"], second["allocated_resources"]) == ("10.900000", "0-5 8-9")
    assert (third["success"], third["final_state"]) == ("0", "COMPLETED_WALLTIME_REACHED")
    assert (third["execution_time"], third["finish_time"]) == ("300", "302")
    assert {row[unknown] for row in rows for unknown in ("profile", "consumed_energy", "metadata")} == {""}


def test_jobs_parquet_has_the_same_rows(log: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is missing: install pyarrow")
    assert clusterctl("replay", log, "--out", tmp_path / "out").returncode == 0
    rows = parquet.read_table(tmp_path / "out" / "jobs.parquet").to_pylist()
    with (tmp_path / "out" / "jobs.csv").open() as file:
        for row, text in zip(rows, csv.DictReader(file), strict=True):
            for column, value in text.items():
                if column == "success":
                    assert row[column] is (value == "1")
                elif column == "stretch":
                    assert row[column] == pytest.approx(float(value))
                else:
                    assert ("" if row[column] is None else str(row[column])) == value
    assert [row["reason"] for row in rows] == ["in turn", "in turn", "backfilled"]
    assert [row["user"] for row in rows] == [3, 4, 3]


def test_equal_replays_write_equal_files_and_the_manifest_says_from_what(log: Path, tmp_path: Path) -> None:
    policy = "easy-sjbf:estimate=mean2,correct=incremental"
    written = []
    for _ in range(2):
        assert clusterctl("replay", log, "--policy", policy, "--out", tmp_path / "out").returncode == 0
        written.append({path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()})
    assert written[0] == written[1]
    manifest = json.loads(written[0]["manifest.json"])
    assert manifest["trace"]["sha256"] == hashlib.sha256(LOG.encode()).hexdigest()
    assert manifest["machine"] == {"processors": 10, "given_by": "MaxProcs"}
    assert manifest["policy"] == {
        "name": "easy-sjbf",
        "parameters": {"estimate": "mean2", "correct": "incremental", "ties": "instant"},
    }
    assert [finding["count"] for finding in manifest["trace"]["findings"]] == [1, 1]
    assert manifest["trace"]["not_modelled"] == {}


def test_what_jobs_state_and_no_replay_looks_at_is_counted_and_said_in_the_report(tmp_path: Path) -> None:
    """Queue, partition, memory, preceding job: of four jobs that are replayed and one that is dropped."""
    lines = ["1 0 -1 9 2 -1 -1 2 9 -1 1 3 -1 -1 1 1 -1 -1", "2 1 -1 9 2 -1 -1 2 9 -1 1 3 -1 -1 1 1 -1 -1"]
    lines += ["3 2 -1 9 2 -1 -1 2 9 64 1 3 -1 -1 2 1 1 60", "4 3 -1 9 2 -1 -1 2 9 64 1 3 -1 -1 -1 -1 2 -1"]
    lines += ["5 4 -1 9 99 -1 -1 99 9 64 1 3 -1 -1 7 7 1 -1"]
    log = tmp_path / "site.swf"
    log.write_text("; MaxProcs: 10\n" + "\n".join(lines) + "\n")
    assert clusterctl("replay", log, "--out", tmp_path / "out").returncode == 0
    assert json.loads((tmp_path / "out/manifest.json").read_text())["trace"]["not_modelled"] == {
        "are in another queue than most": 1,
        "request memory": 2,
        "wait for a preceding job": 2,
    }
    said = clusterctl("report", tmp_path / "out").stdout
    assert (
        "Not modelled: jobs that are in another queue than most (1), request memory (2), wait for a preceding job (2)."
        in said
    )


def test_the_schedule_as_a_log_replays_to_itself(log: Path, tmp_path: Path) -> None:
    schedule = tmp_path / "schedule.swf.gz"
    first = clusterctl("replay", log, "--swf", schedule, "--json")
    again = clusterctl("replay", schedule, "--json", "--strict")
    assert (again.returncode, again.stderr) == (0, "")
    assert json.loads(again.stdout)["wait_s"] == json.loads(first.stdout)["wait_s"]
    wait_s, status = read_swf(str(schedule)).columns[[2, 10]].tolist()
    assert (wait_s, status) == ([0, 99, 0], [1, 1, 0])
    assert gzip.decompress(schedule.read_bytes()).startswith(b"; Version: 2.2\n")


def test_a_machine_given_by_number_replaces_that_of_the_log(log: Path) -> None:
    done = clusterctl("replay", log, "--machine", 11, "--json")
    assert json.loads(done.stdout)["dropped"] == 0
    assert "wider" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["{log}", "--strict"], 1, "small.swf:4: jobs that ran beyond their request (first of 1): lower column 4"),
        (["{log}", "--policy", "esy"], 2, "no policy is called 'esy' (nearest: easy)"),
        (["{log}", "--policy", "easy:ties=x"], 2, "ties cannot be 'x': one of instant, sc15"),
        (["{log}", "--machine", "cury"], 2, "no machine is called 'cury' (nearest: curie)"),
        (["{log}", "--cap", "900"], 2, "--cap 900: watts are needed; give a machine that has them"),
        (["{log}", "--policy", "powercap"], 2, "needs watts, and a number of processors has none: give a machine"),
        (["{log}", "--machine", "0"], 2, "--machine 0: give a number of processors"),
        (["{log}", "--machine", "1"], 1, "no job is left for a machine of 1 processors"),
        (["{log}", "--out", "{log}"], 1, "small.swf: File exists; choose another --out"),
        (["{log}", "--swf", "{log}/x.swf"], 1, "x.swf: Not a directory; choose another --swf"),
        (["nosuch.swf"], 1, "nosuch.swf: No such file or directory"),
        (["{log}", "--polcy", "easy"], 2, "No such option"),
        ([], 2, "give a TRACE, or --state FILE"),
    ],
)
def test_wrong_input_is_answered_in_one_line(
    log: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, message: str
) -> None:
    assert main(["replay", *(argument.format(log=log) for argument in arguments)]) == status
    said = capsys.readouterr()
    *findings, last = said.err.splitlines()
    assert last.startswith("clusterctl replay: ")
    assert message in last
    assert all(str(log) in finding for finding in findings)
    assert said.out == ""


def test_a_log_that_states_no_machine_needs_one(tmp_path: Path) -> None:
    path = tmp_path / "bare.swf"
    path.write_text(LOG.partition("\n")[2])
    done = clusterctl("replay", path)
    assert (done.returncode, done.stderr) == (
        2,
        f"clusterctl replay: {path}: its header states no MaxProcs; give the processors with --machine NUMBER\n",
    )


@pytest.mark.parametrize("stated", ["1,152", "8 (4 nodes of 2)", "-1", "0"])
def test_processors_that_a_header_states_oddly_are_quoted(
    tmp_path: Path, stated: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.swf"
    path.write_text(f"; MaxProcs: {stated}\n" + LOG.partition("\n")[2])
    assert main(["replay", str(path)]) == 2
    assert f"its header states MaxProcs {stated!r}, which is no number of processors" in capsys.readouterr().err


def test_unknown_requests_stay_unknown_in_every_table(tmp_path: Path) -> None:
    path = tmp_path / "interactive.swf"
    path.write_text("; MaxProcs: 4\n1 0 -1 0 4 -1 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1\n")
    schedule = tmp_path / "schedule.swf"
    done = clusterctl("replay", path, "--policy", "fcfs", "--out", tmp_path / "out", "--swf", schedule)
    assert (done.returncode, done.stderr) == (0, f"{path}: jobs with a run time of 0: 1 taken as 1 s (first: line 2)\n")
    with (tmp_path / "out" / "jobs.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["requested_time"], row["execution_time"]) == ("", "1")
    assert read_swf(str(schedule)).columns[8].tolist() == [-1]


def test_a_machine_that_needs_more_memory_than_there_is_ends_in_one_line(log: Path) -> None:
    command = [sys.executable, "-m", "cluster_agent.cli", "replay", str(log), "--machine", "2147483647"]
    few = 2 << 30  # bytes of address space; the free processors of such a machine take twenty times as much
    done = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (few, few))
    )
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert done.stderr.endswith("clusterctl replay: not enough memory: give it less to do at once, or more memory\n")


def test_progress_is_shown_on_a_terminal_and_not_in_a_pipe(log: Path) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "cluster_agent.cli", "replay", str(log), "--machine", "11"]
    with subprocess.Popen(command, stderr=theirs, stdout=subprocess.PIPE) as process:
        os.close(theirs)
        process.communicate()
    shown = b""
    with contextlib.suppress(OSError), open(ours, "rb", buffering=0) as screen:  # EIO: all has been read
        while part := screen.read(1 << 16):  # what was written at once may come in parts
            shown += part
    assert b"replaying" in shown
    assert "replaying" not in clusterctl("replay", log).stderr


def test_policies_lists_names_parameters_and_papers() -> None:
    listed = {row["name"]: row for row in json.loads(clusterctl("policies", "--json").stdout)}
    assert list(listed) == [*registry.names(), *sharers.names(), "estimate"]
    assert (listed["easy"]["parameters"], listed["easy"]["groups"]) == ({}, ["estimate"])
    assert listed["estimate"]["parameters"]["estimate"] == ["requested", "clairvoyant", "mean2", "learned"]
    switches = {"ties", "model", "loss", "weight"}  # that only repeat a paper, but for the model of a site's own
    having = {name for name, row in listed.items() if row["kind"] != "sharer" and row["parameters"].keys() & switches}
    assert having == {"easy-power"} and listed["easy-power"]["parameters"].keys() & switches == {"model"}
    assert "Lifka" in listed["easy"]["source"]
    assert (listed["aapc"]["kind"], listed["easy"]["kind"]) == ("sharer", "policy")
    replayed = [name for name, row in listed.items() if row["kind"] == "policy" and not row["live"]]
    assert replayed == []
    assert (listed["eco"]["owns_watts"], listed["easy"]["owns_watts"]) == (True, False)
    assert "live" not in listed["aapc"]
    assert "easy-sjbf: EASY whose backfilling" in clusterctl("policies").stdout
    assert "aapc (sharer of a budget): " in clusterctl("policies").stdout


def test_an_unknown_command_is_answered_with_the_nearest() -> None:
    done = clusterctl("relpay")
    assert (done.returncode, done.stderr) == (
        2,
        "clusterctl: no command 'relpay' (nearest: replay) (see `clusterctl --help`)\n",
    )
    assert clusterctl("--help").returncode == 0


def test_a_replay_on_a_machine_with_watts_accounts_for_every_joule(log: Path, tmp_path: Path) -> None:
    cap = tmp_path / "cap.csv"
    cap.write_text("from_s,to_s,watts\n100,200,2000\n")
    out = tmp_path / "out"
    chosen = ["--policy", "powercap:mode=shut", "--machine", "nodes=5,cores=2", "--cap", cap]
    done = clusterctl("replay", log, *chosen, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout)
    rows = list(csv.DictReader((out / "jobs.csv").open()))
    parts = sum(float(row["consumed_energy"]) for row in rows) + sum(
        metrics[f"{k}_j"] for k in ("idle", "off", "switching")
    )
    assert parts == pytest.approx(metrics["energy_j"], rel=1e-6), "the table has millijoules"
    power = list(csv.DictReader((out / "power.csv").open()))
    assert max(float(row["watts"]) for row in power) == metrics["peak_w"] <= 2000
    assert {row["cap"] for row in power} == {"", "2000.000000"}
    assert metrics["over_cap_ws"] == 0
    assert json.loads((out / "manifest.json").read_text())["cap"] == str(cap)


def test_a_policy_that_knows_no_watts_is_measured_against_the_cap(log: Path) -> None:
    done = clusterctl("replay", log, "--machine", "nodes=5,cores=2", "--cap", "1000", "--json")
    assert "easy does not know watts: the cap is only measured" in done.stderr
    assert json.loads(done.stdout)["over_cap_ws"] > 0


@pytest.mark.parametrize("cap", ["nan", "inf", "-5", "0"])
def test_a_cap_that_is_no_amount_of_watts_is_said(log: Path, cap: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--machine", "generic", "--policy", "powercap", "--cap", cap]
    assert main(["replay", str(log), *given]) == 2
    assert capsys.readouterr().err == f"clusterctl replay: --cap {cap}: give watts above 0, or a file\n"


def test_a_cap_under_which_nobody_can_ever_start_is_said(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--machine", "generic", "--policy", "powercap:mode=idle", "--cap", "1000"]
    assert main(["replay", str(log), *given]) == 1
    error = capsys.readouterr().err
    assert "jobs was ever started under powercap:mode=idle: the allowed watts or joules" in error.splitlines()[-1]

"""``clusterctl dardis``: what it prints and writes, and its errors, in one line each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster_agent.cli import main

LOG = str(Path(__file__).parents[2] / "cluster_agent" / "samples" / "generated-500.swf")
SMALL = ["--machine", "curie-fat:nodes=10", "--days", "3"]


def test_it_prints_the_measures_of_a_replay_and_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = str(tmp_path / "found.json")
    assert main(["dardis", LOG, *SMALL, "--json", found]) == 0
    printed = capsys.readouterr().out
    written = json.loads(Path(found).read_text())
    measures = written["measures"]
    assert f"{measures['ended']} of {measures['jobs']} jobs ended" in printed and "EMULATED" in printed
    assert written["emulated"] is True and written["never"] == 0
    assert f"{written['lateness']['late']} jobs late" in printed
    assert main(["dardis", LOG, *SMALL, "--json", found, "--setup", "rule-df"]) == 0
    assert json.loads(Path(found).read_text())["measures"]["ended"] == measures["ended"]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--from-day", "900"], "no job on days 900 to 902"),
        (["--machine", "eurora"], "--machine eurora: one kind of nodes with watts is needed, such as curie-fat"),
        (["--cap", "900"], "--cap 900: the idle machine draws 1170 W: no core can be busy"),
        (["--cap", "-1"], "--cap -1: give watts above 0"),
        (["--profile", "none.csv"], "none.csv: cannot read the steps"),
    ],
)
def test_what_cannot_be_is_one_line(options: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dardis", LOG, *SMALL, *options]) == 2
    error = capsys.readouterr().err
    assert line in error and len(error.splitlines()) == 1


def test_a_job_that_no_node_is_granted_the_watts_for_is_named_and_the_rest_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "three.swf"
    columns = "{0} 0 -1 60 {1} -1 -1 {1} 120 -1 1 1 1 -1 -1 -1 -1 -1"
    rows = [columns.format(number, width) for number, width in enumerate((1, 32, 2), 1)]
    log.write_text("\n".join(rows) + "\n")
    assert main(["dardis", str(log), *SMALL, "--cap", "1230"]) == 1
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        "job 1 can never run: 1 nodes with 32 cores and 238 W each are needed, and 0 have them",
        "1 jobs were never started, and are in no measure",
    ]
    assert "2 of 2 jobs ended" in printed.out


def test_a_profile_that_desires_nothing_has_no_shape_and_the_rule_starts_nothing_within_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, found = tmp_path / "profile.csv", tmp_path / "found.json"
    profile.write_text("from_s,watts\n0,0\n")
    assert main(["dardis", LOG, *SMALL, "--profile", str(profile), "--json", str(found)]) == 0
    assert json.loads(found.read_text())["lateness"]["dissimilarity"] is None
    assert "dissimilarity unknown" in capsys.readouterr().out
    assert main(["dardis", LOG, *SMALL, "--profile", str(profile), "--setup", "rule-fcfs"]) == 1
    error = capsys.readouterr().err
    assert "was ever started: give a higher --profile" in error and len(error.splitlines()) == 1

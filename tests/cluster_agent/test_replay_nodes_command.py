"""``clusterctl replay`` of tables with nodes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from cluster_agent.cli import main
from tests.cluster_agent.test_eurora_tables import TABLE
from tests.cluster_agent.test_replay_command import BATSIM_COLUMNS

HISTORY = """\
JobID|User|Submit|Start|End|Timelimit|NNodes|NCPUS
1|ada|2026-03-01T10:00:00|2026-03-01T10:00:00|2026-03-01T10:10:00|01:00:00|16|192
2|ada|2026-03-01T10:00:00|2026-03-01T10:00:00|2026-03-01T10:10:00|01:00:00|1|12
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(TABLE)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["replay", *map(str, arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_a_capped_replay_prints_metrics_and_stays_within_the_cap(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, table, "--policy", "easy-capped", "--cap", "160", "--json")
    metrics = json.loads(out)
    assert status == 0
    assert (metrics["jobs"], metrics["ended"], metrics["dropped"]) == (3, 3, 4)
    assert metrics["peak_w"] <= 160
    assert metrics["over_cap_ws"] == 0
    assert metrics["wait_s"]["max"] == 1800 - 60  # 90 W and 155 W is too much; the third job draws 40 W
    assert len(err.splitlines()) == 6
    assert "above the cap 0 W s" in run(capsys, table, "--policy", "prb", "--cap", "200")[1]


def test_the_files_of_a_replay_on_nodes(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (table, "--policy", "easy-capped", "--machine", "eurora", "--out", tmp_path / "out")
    written = []
    for _ in range(2):
        assert run(capsys, *arguments)[0] == 0
        written.append({path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()})
    assert written[0] == written[1], "equal input gives equal bytes"
    with (tmp_path / "out" / "jobs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == BATSIM_COLUMNS
    mic, gpu = rows[0], rows[1]
    assert (mic["job_id"], mic["allocated_resources"], mic["final_state"]) == ("12", "0", "COMPLETED_WALLTIME_REACHED")
    assert (gpu["allocated_resources"], gpu["consumed_energy"], mic["consumed_energy"]) == ("32-33", "5400.0", "")
    manifest = json.loads(written[0]["manifest.json"])
    assert manifest["policy"]["parameters"] == {"rule": "aged-energy", "placing": "pack"}
    assert len(manifest["trace"]["findings"]) == 6


def test_power_over_time_is_written_with_its_cap(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is missing: install pyarrow")
    caps = tmp_path / "caps.csv"
    caps.write_text("from_s,watts\n0,300\n100,160\n")
    assert run(capsys, table, "--policy", "prb", "--cap", caps, "--out", tmp_path / "out")[0] == 0
    power = parquet.read_table(tmp_path / "out" / "power.parquet").to_pylist()
    assert {row["time"]: row["cap"] for row in power}[100] == 160
    assert all(row["watts"] <= row["cap"] for row in power)
    jobs = parquet.read_table(tmp_path / "out" / "jobs.parquet").to_pylist()
    assert [(row["drawn_w"], row["drawn_w_known"]) for row in jobs] == [(155, False), (90, True), (40, False)]


def test_the_text_of_sacct_is_replayed_on_the_machine_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = tmp_path / "history.txt"
    history.write_text(HISTORY)
    status, out, _ = run(capsys, history, "--policy", "easy-capped:rule=est", "--machine", "taurus", "--json")
    assert (status, json.loads(out)["wait_s"]["max"]) == (0, 600)
    status, _, err = run(capsys, history, "--policy", "prb")
    assert (status, err) == (
        2,
        f"clusterctl replay: {history}: sacct's text does not describe the machine; give --machine NAME or FILE.toml\n",
    )


def test_the_shipped_sample_is_replayed_as_its_readme_says(capsys: pytest.CaptureFixture[str]) -> None:
    samples = Path(__file__).parents[2] / "cluster_agent" / "samples"
    cap = samples / "falling-cap.csv"
    status, out, _ = run(capsys, samples / "eurora-100.csv", "--policy", "easy-capped", "--cap", cap, "--json")
    metrics = json.loads(out)
    assert (status, metrics["ended"], metrics["over_cap_ws"]) == (0, 100, 0)
    assert 1000 < metrics["peak_w"] <= 1500
    assert metrics["AVEbsld"] > 1


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            ["{table}", "--policy", "conservative"],
            2,
            "--policy conservative: backfill=conservative needs a number of processors, and a trace with nodes has"
            " nodes that differ: choose another policy, or a log of processors",
        ),
        (["{table}", "--policy", "easy:estimate=mean2"], 2, "estimate=mean2 needs estimates of its own, and a trace"),
        (["{table}", "--policy", "prb", "--cap", "0"], 2, "--cap 0: give watts above 0, or a file"),
        (["{table}", "--policy", "prb", "--cap", "no.csv"], 1, "no.csv: No such file or directory"),
        (["{table}", "--policy", "prb", "--cap", "{log}"], 2, "the first line must be from_s,to_s,watts"),
        (["{table}", "--policy", "prb", "--swf", "x.swf"], 2, "a schedule on nodes does not fit that format"),
        (["{table}", "--policy", "prb", "--instance", "a"], 1, "no instances.csv or instances.csv.gz next to it"),
        (["{table}", "--policy", "prb", "--machine", "eurra"], 2, "no machine is called 'eurra' (nearest: eurora)"),
        (["{table}", "--policy", "prb", "--strict"], 1, "jobs.csv:3: jobs that ran beyond their request"),
        (["{log}", "--policy", "prb"], 2, "--policy prb: placing=first needs nodes, and a log of processors has none"),
        (["{log}", "--instance", "a"], 2, "--instance a: only for traces with nodes"),
    ],
)
def test_wrong_use_with_nodes_is_answered_in_one_line(
    table: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, message: str
) -> None:
    log = table.parent / "small.swf"
    log.write_text("; MaxProcs: 4\n1 0 -1 10 1 -1 -1 1 10 -1 1 1 -1 -1 -1 -1 -1 -1\n")
    found, out, err = run(capsys, *(argument.format(table=table, log=log) for argument in arguments))
    assert (found, out) == (status, "")
    assert message in err.splitlines()[-1]
    assert len(err.splitlines()) == 1


def test_what_jobs_state_and_no_replay_models_is_counted_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = "2026-03-01T10:00:00|2026-03-01T10:00:00|2026-03-01T10:10:00|1|12"
    rows = [("7_1", "a", "", ""), ("7_2", "a", "", ""), ("8", "b", "maint", "afterok:7"), ("8", "a", "", "(null)")]
    lines = [f"{job}|{partition}|{held}|{after}|{times}" for job, partition, held, after in rows]
    text = tmp_path / "sacct.txt"
    text.write_text("\n".join(["JobID|Partition|Reservation|Dependency|Submit|Start|End|NNodes|NCPUS", *lines]) + "\n")
    expected = {
        "are in another queue or partition than most": 1,
        "are tasks of an array": 2,
        "belong to a reservation": 1,
        "wait for a preceding job": 1,
        "are later runs of a requeued job": 1,
    }
    assert run(capsys, text, "--machine", "eurora", "--policy", "prb", "--out", tmp_path / "out")[0] == 0
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["trace"]["not_modelled"] == expected
    assert main(["report", str(tmp_path / "out")]) == 0
    assert "Not modelled: jobs that are in another queue or partition than most (1)" in capsys.readouterr().out
    sample = Path(__file__).parents[2] / "cluster_agent" / "samples" / "eurora-100.csv"
    assert run(capsys, sample, "--policy", "prb", "--out", tmp_path / "eurora")[0] == 0
    found = json.loads((tmp_path / "eurora" / "manifest.json").read_text())["trace"]["not_modelled"]
    with sample.open(newline="") as file:
        queues = [row["queue"] for row in csv.DictReader(file)]
    assert found["belong to a reservation"] == queues.count("R") > 0
    most = max(queues.count(queue) for queue in queues)
    assert found["are in another queue or partition than most"] == len(queues) - most

"""``clusterctl predict``: evaluations of any log, and what is said of jobs and hours of a live partition."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from cluster_agent.cli import main
from cluster_agent.commands.learning import predict
from cluster_agent.commands.learning.past_jobs import PastJob, request
from cluster_agent.library.given import World
from cluster_agent.library.power_logs import read_power_log

SAMPLES = Path(__file__).parents[2] / "cluster_agent" / "samples"

PM100 = (
    "job_id", "user_id", "submit_time", "start_time", "end_time", "run_time", "time_limit", "num_nodes_alloc",
    "num_cores_req", "num_gpus_req", "mem_req", "partition", "qos", "node_power_consumption", "cpu_power_consumption",
)  # fmt: skip


@pytest.fixture
def pm100(tmp_path: Path) -> Path:
    """Twenty rows made by hand: two users, a job without samples, one that ends before it starts."""
    path = tmp_path / "job_table.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(PM100)
        for at in range(20):
            minute = f"2020-05-01 {8 + at // 6:02}:{at % 6}0:00"
            ends = f"2020-05-01 {8 + at // 6:02}:{at % 6}8:00" if at != 7 else "2020-04-30 00:00:00"
            samples = "[500.0 600.0 700.0]" if at != 3 else "[]"
            writer.writerow(
                (
                    at,
                    at % 2,
                    minute,
                    minute,
                    ends,
                    480,
                    60,
                    1 + at % 2,
                    32,
                    4,
                    60,
                    1,
                    "normal",
                    samples,
                    "[100 nan 140]",
                )
            )
    return path


def test_pm100s_columns_are_read_and_what_cannot_be_is_counted(pm100: Path) -> None:
    read = read_power_log(World(str(pm100)), 2000.0, is_pm100=True)
    first = read.jobs[0]
    assert len(read.jobs) == 18
    assert read.findings == ["jobs with times that cannot be: 1 left out", "jobs without watts: 1 left out"]
    assert (first.watts, first.maximum_w, first.end_s - first.start_s) == (600.0, 700.0, 480.0)
    assert first.submission.user == "0" and first.submission.text == "1 normal"
    assert (first.submission.gpus, first.submission.request_s, first.submission.memory_kib) == (4, 3600, 60 << 20)
    assert read.tdp_w(read.jobs[1].submission) == 4000.0
    assert read_power_log(World(str(pm100)), 2000.0, True, "cpu").jobs[0].watts == 120.0


def test_an_evaluation_prints_the_three_errors_the_sums_and_the_bands(
    pm100: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "evaluate", str(pm100), "--format", "pm100", "--node-w", "2000", "--from", "0"]) == 0
    printed = capsys.readouterr()
    assert "18 of 18 jobs judged" in printed.out and "a job's maximum" in printed.out
    assert "MAPE %" in printed.out and "cold starts" in printed.out
    assert "without watts: 1 left out" in printed.err


@pytest.mark.parametrize(
    "arguments",
    (
        [str(SAMPLES / "eurora-100.csv")],
        [str(SAMPLES / "generated-500.swf"), "--machine", "curie", "--job-watts", "generated"],
    ),
    ids=("eurora", "swf"),
)
def test_any_log_with_watts_can_be_evaluated(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "evaluate", *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["evaluation"]["judged"] > 20
    assert found["evaluation"]["average"]["median_pct"] < 60


def test_what_cannot_be_evaluated_is_refused_in_one_line(
    pm100: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text(",".join(PM100) + "\n")
    for arguments, said in (
        ([str(pm100), "--format", "pm100"], "give --node-w WATTS"),
        ([str(pm100), "--format", "pm100", "--node-w", "nan"], "--node-w nan"),
        ([str(pm100), "--format", "pm100", "--node-w", "9", "--part", "memory"], "no column mem_power_consumption"),
        ([str(empty), "--format", "pm100", "--node-w", "9"], "not PM100's job table"),
        ([str(SAMPLES / "cab-30.swf")], "give --machine NAME and --job-watts"),
        ([str(SAMPLES / "eurora-100.csv"), "--part", "cpu"], "watts of whole nodes only"),
        ([str(tmp_path / "none.swf")], "none.swf"),
    ):
        assert main(["predict", "evaluate", *arguments]) != 0
        printed = capsys.readouterr().err.strip()
        assert said in printed and "\n" not in printed, (arguments, printed)


def past(number: int, user: str = "ada", watts: float | None = 300.0) -> PastJob:
    began_s = NOW_S - 90_000.0 + 1800.0 * number
    return PastJob(began_s, began_s, began_s + 3600.0, request(user, "cfd", 2, 7200), watts)


NOW_S = 1_800_000_000.0


@pytest.fixture
def partition(monkeypatch: pytest.MonkeyPatch) -> list[PastJob]:
    """Forty jobs that ended within a day; the test may change them. One runs, and one waits."""
    jobs = [past(number) for number in range(40)]
    alive = [
        PastJob(NOW_S - 600.0, NOW_S - 600.0, math.inf, request("ada", "cfd", 2, 7200), 310.0),
        PastJob(NOW_S - 60.0, math.inf, math.inf, request("bob", "new", 1, 7200), None),
    ]
    monkeypatch.setattr(predict, "past_jobs", lambda place: jobs)
    monkeypatch.setattr(predict, "waiting_and_running", lambda place: (alive, ["some are left out"]))
    monkeypatch.setattr(predict.time, "time", lambda: NOW_S)
    return jobs


def test_a_job_gets_its_watts_and_kilowatt_hours_and_what_they_rest_on(
    partition: list[PastJob], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["predict", "job", "--nodes", "2", "--time", "2h", "--name", "cfd", "--user", "ada", "--price", "0.5"]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "draws about 301 W, at most about 310 W", "one of 310 W runs"
    assert lines[1] == "nine of ten such jobs draw between 301 and 301 W"
    assert "0.302 kWh (0.15 at 0.5 a kWh), if it runs as long as ada's jobs mostly do (01:00:00)" in lines[2]
    assert "0.604 kWh (0.30 at 0.5 a kWh), if it runs for all of its 02:00:00" in lines[3]
    assert lines[4] == "from 16 similar jobs, ada's own; ada has 40 jobs with metered watts here"
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["most_kwh"] == pytest.approx(0.604, rel=1e-3)


def test_where_nodes_have_meters_for_parts_each_has_its_watts(
    partition: list[PastJob], capsys: pytest.CaptureFixture[str]
) -> None:
    parts = {"cpu": (200.0, 240.0), "gpu": (60.0, 90.0)}
    partition[:] = [replace(job, parts=parts if at % 2 else {}) for at, job in enumerate(partition)]
    arguments = ["predict", "job", "--nodes", "2", "--time", "2h", "--name", "cfd", "--user", "ada"]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "of these watts about: processors 200 (at most 240), GPUs 60 (at most 90)"
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["parts"]
    assert set(found) == {"cpu", "gpu"} and found["gpu"]["maximum_w"] == pytest.approx(90.0)


def test_a_job_that_runs_and_is_metered_teaches_before_it_ends(
    partition: list[PastJob], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def expected_w() -> float:
        assert main(["predict", "job", "--user", "eve", "-J", "first", "-N", "3", "--time", "2h", "--json"]) == 0
        return float(json.loads(capsys.readouterr().out).get("expected_w", math.nan))

    assert math.isnan(expected_w())
    running = PastJob(NOW_S - 600.0, NOW_S - 600.0, math.inf, request("eve", "first", 3, 7200), 800.0)
    monkeypatch.setattr(predict, "waiting_and_running", lambda place: ([running], []))
    assert expected_w() == pytest.approx(800.0)


def test_a_user_with_one_job_has_its_watts_and_no_band(
    partition: list[PastJob], capsys: pytest.CaptureFixture[str]
) -> None:
    partition[:] = [past(0, "eve", 120.0)]
    arguments = ["predict", "job", "--nodes", "2", "--time", "2h", "--name", "\udcff" + "計" * 10_000, "--user", "eve"]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "draws about 120 W, at most about 120 W" and not any("nine of ten" in line for line in lines)
    assert lines[-1] == "from 1 similar jobs, eve's own; eve has 1 jobs with metered watts here"


def test_of_a_job_of_which_nothing_is_known_that_is_said_and_no_watts(
    partition: list[PastJob], capsys: pytest.CaptureFixture[str]
) -> None:
    partition[:] = [past(number, watts=None) for number in range(3)]
    assert main(["predict", "job", "--user", "eve"]) == 0
    assert "nothing is known of such a job" in capsys.readouterr().out
    assert main(["predict", "job", "--user", "eve", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"own_jobs": 0, "similar": 0}


def test_the_next_hours_have_a_band_and_say_how_many_bands_were_right(
    partition: list[PastJob], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "system", "--hours", "2", "--json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert printed.err.strip() == "some are left out"
    assert [one["now_w"] for one in found["hours"]] == [310.0, 310.0]
    assert all(one["low_w"] <= one["expected_w"] <= one["high_w"] for one in found["hours"])
    assert main(["predict", "system", "--hours", "2"]) == 0
    assert "bands of the past" in capsys.readouterr().out


def test_a_job_without_any_time_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "job", "--time", "0s"]) == 2
    assert "a job needs some time" in capsys.readouterr().err

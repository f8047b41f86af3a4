"""Reservations of processors: the option of a replay. The engine is compared with a plain machine together with windows
of queues (``test_queue_windows.py``)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.switches.limits import Limits
from cluster_agent.scheduler.switches.reservations import FOREVER_S, Reserved
from tests.cluster_agent.replay_by_command import replayed
from tests.cluster_agent.traces import PROCESSORS, plain_compositions

COMPOSITIONS = plain_compositions("none", "easy", "list", "conservative")


@st.composite
def reservations(draw: st.DrawFn) -> list[Reserved]:
    """Two at most, of half of the processors each at most, so that both can be had."""
    found = []
    for _ in range(draw(st.integers(0, 2))):
        from_s, length_s = draw(st.integers(0, 40)), draw(st.integers(1, 30))
        every_s = draw(st.sampled_from([0, length_s + 30, length_s + 50]))
        made_s = draw(st.integers(0, 20))
        gone_s = draw(st.sampled_from([FOREVER_S, made_s + 60])) if not every_s else 150
        found.append(
            Reserved(from_s, from_s + length_s, every_s, made_s, gone_s, draw(st.integers(1, PROCESSORS // 2)))
        )
    return found


def limits_of(jobs: Jobs, reserved: list[Reserved], pool: list[int]) -> Limits:
    none, nothing = np.zeros((0, 2), np.int64), np.zeros(len(jobs), np.int64)
    no_limits = np.zeros(0, np.int64), np.zeros(0, np.bool_), np.zeros((len(jobs), 0), np.int32)
    places = np.zeros(len(jobs), np.int32), nothing
    return Limits(("reservations",), none, *places, *no_limits, reserved, np.array(pool, np.int32))


# --- the option

SAMPLE = Path(__file__).parents[2] / "cluster_agent" / "samples" / "generated-500.swf"
COLUMNS = "from_s,to_s,every_s,made_s,gone_s,processors,jobs\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three jobs of 60 s, of six, four and two of ten processors."""
    path, text = tmp_path / "site.swf", "; MaxProcs: 10\n"
    for number, width in ((1, 6), (2, 4), (3, 2)):
        text += f"{number} 0 -1 60 {width} -1 -1 {width} 100 -1 1 1 1 -1 1 1 -1 -1\n"
    path.write_text(text)
    return path


def starts(folder: Path) -> dict[str, str]:
    rows = [row.split(",") for row in (folder / "jobs.csv").read_text().splitlines()[1:]]
    return {row[0]: row[8] for row in rows}


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative", "rule-based"])
def test_a_file_keeps_processors_for_its_jobs(
    policy: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the four processors that are left when six are reserved, job 2 has all, and nobody has the six before."""
    table, out = tmp_path / "reserved.csv", tmp_path / "out"
    table.write_text(COLUMNS + "90,300,,,,6,3\n")
    for machine in ([], ["--machine", "generic:nodes=10,cores=1"]):
        given = log, *machine, "--policy", policy, "--reservations", table, "--out", out
        status, found, _ = replayed(capsys, *given)
        assert (status, starts(out)) == (0, {"1": "300", "2": "300" if policy == "fcfs" else "0", "3": "90"})
        assert found["switches"] == {"reservations": 2}
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["reservations"], len(manifest["reservations_sha256"])) == (str(table), 64)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("90,300,,,,x,3\n", ":2: a line has whole numbers from_s,to_s,every_s,made_s,gone_s,processors,jobs"),
        ("90,90,,,,6,3\n", ":2: to_s must be later than from_s, and by no more than every_s"),
        ("90,90000,86400,,,6,3\n", ":2: to_s must be later than from_s, and by no more than every_s"),
        ("90,300,1000,,,6,3\n", ":2: every_s must be 0, 86400 or 604800"),
        ("90,300,,1{},,6,3\n".format("0" * 30), ":2: no time may be beyond 1099511627776 s"),
        ("90,300,,,,11,3\n", ":2: processors must be from 1 to 10"),
        ("90,300,,,,6,3\n200,400,,,,5,\n", ": reservation 2 and those before it are more than 10 processors"),
        ("", ": has no reservation; leave it out"),
    ],
)
def test_a_file_that_is_wrong_is_one_line(
    rows: str, problem: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "reserved.csv"
    table.write_text(COLUMNS + rows)
    status, _, err = replayed(capsys, log, "--reservations", table)
    assert status and f"{table}{problem}" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--policy", "conservative:ends=compress"], "backfill=compress does not go with reservations"),
        (["--policy", "planned"], ""),
        (["--memory", "1"], "does not go with --partitions and --memory"),
        (["--log", "events.jsonl"], "reservations are not in an event log; leave one of them out"),
    ],
)
def test_what_does_not_go_with_reservations_is_refused(
    more: list[str], problem: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "reserved.csv"
    table.write_text(COLUMNS + "90,300,,,,6,3\n")
    status, _, err = replayed(capsys, log, "--reservations", table, *more)
    assert status == 2 and problem in err and len(err.splitlines()) == 1


def test_jobs_that_their_reservation_can_never_run_are_dropped_and_one_that_comes_again_ends(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = tmp_path / "reserved.csv", tmp_path / "out"
    table.write_text(COLUMNS + "90,180,86400,,,6,3\n")
    status, found, err = replayed(capsys, log, "--reservations", table, "--out", out)
    assert (status, found["ended"]) == (0, 2) and "wider or longer than their reservation: 1 dropped" in err
    table.write_text(COLUMNS + "50,86440,86400,,,5,\n")
    status, found, err = replayed(capsys, log, "--reservations", table, "--out", out)
    assert (status, starts(out)["1"]) == (0, str(30 * 86_400)), "30 days after the last submission it ends"


def test_a_state_goes_on_with_its_reservations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, state = tmp_path / "reserved.csv", tmp_path / "state.json"
    table.write_text(COLUMNS + "40000,50000,86400,,,200,\n60500,64000,,,,100,400 401\n")
    given = SAMPLE, "--reservations", table
    cut = "--state-at", 60_000, "--state-out", state
    status, whole, _ = replayed(capsys, *given, "--out", tmp_path / "whole", *cut)
    assert status == 0 and whole["switches"]["reservations"] > 5
    assert replayed(capsys, *given, "--state", state, "--out", tmp_path / "rest")[0] == 0
    rest, all_ = starts(tmp_path / "rest"), starts(tmp_path / "whole")
    assert rest and rest.items() <= all_.items()


def test_with_a_machine_too_jobs_backfill_as_before_once_a_reservation_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Jobs 4 and 5 are alike to job 1, which started while there was a reservation, and pass job 3."""
    log, table, text = tmp_path / "site.swf", tmp_path / "reserved.csv", "; MaxProcs: 10\n"
    rows = (0, 60, 2), (200, 1000, 6), (210, 100, 10), (220, 60, 2), (230, 60, 2)
    for number, (submit_s, run_s, width) in enumerate(rows, 1):
        text += f"{number} {submit_s} -1 {run_s} {width} -1 -1 {width} {run_s} -1 1 1 1 -1 1 1 -1 -1\n"
    log.write_text(text)
    table.write_text(COLUMNS + "10,90,,,,2,\n")
    for machine in ([], ["--machine", "generic:nodes=10,cores=1"]):
        given = log, *machine, "--policy", "easy", "--reservations", table, "--out", tmp_path / "out"
        assert replayed(capsys, *given)[0] == 0
        assert starts(tmp_path / "out") == {"1": "0", "2": "200", "3": "1200", "4": "220", "5": "230"}

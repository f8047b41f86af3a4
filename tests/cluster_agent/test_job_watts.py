"""Watts of single jobs on logs of processors: ``--job-watts``, and EASY with power prediction."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster_agent.cli import main

SAMPLE = str(Path(__file__).parents[2] / "cluster_agent" / "samples" / "generated-500.swf")
MACHINE = "generic:nodes=16,cores=16"  # 100 W idle and 400 W busy a node: 6.25 and 25 W a processor
LOG = """\
; MaxProcs: 256
11 0 -1 100 128 -1 -1 128 100 -1 1 1 -1 1 -1 -1 -1 -1
12 0 -1 100 128 -1 -1 128 100 -1 1 1 -1 1 -1 -1 -1 -1
13 0 -1 100 128 -1 -1 128 100 -1 1 1 -1 1 -1 -1 -1 -1
"""

Replay = Callable[..., dict[str, Any]]


@pytest.fixture
def replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Replay:
    monkeypatch.chdir(tmp_path)
    Path("log.swf").write_text(LOG)
    Path("watts.csv").write_text("job,watts\n11,2000\n12,1600\n13,1200\n")

    def run(*arguments: str, log: str = "log.swf") -> dict[str, Any]:
        assert main(["replay", log, "--machine", MACHINE, "--json", *arguments]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return run


def test_jobs_draw_what_the_table_says(replay: Replay) -> None:
    """Two run at once, then the third next to an idle half: (2000 + 1600) x 100 + (1200 + 800) x 100 J."""
    found = replay("--job-watts", "watts.csv")
    assert (found["energy_j"], found["peak_w"]) == (560_000, 3600)


def test_a_table_may_be_parquet(replay: Replay) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is missing: install pyarrow")
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is missing: install pyarrow")
    pq.write_table(pa.table({"job_id": [11, 12, 13], "watts": [2000.0, 1600.0, 1200.0]}), "watts.parquet")
    assert replay("--job-watts", "watts.parquet") == replay("--job-watts", "watts.csv")


def test_with_watts_that_are_given_more_jobs_fit_under_a_cap_that_is_never_broken(replay: Replay) -> None:
    """At the machine's 3200 W each no two fit under 4000 W; by their own watts the first two do."""
    given = "--job-watts", "watts.csv", "--cap", "4000"
    by_machine = replay("--policy", "powercap:mode=idle", *given)
    by_job = replay("--policy", "easy-power:of=given", *given)
    assert (by_machine["makespan_s"], by_job["makespan_s"]) == (300, 200)
    assert by_machine["over_cap_ws"] == by_job["over_cap_ws"] == 0


def test_a_prediction_is_the_machine_s_watts_until_the_first_job_has_ended(replay: Replay) -> None:
    """Nothing is known of the first three when they are submitted, so that they run one after the other."""
    found = replay("--policy", "easy-power", "--job-watts", "watts.csv", "--cap", "4000")
    assert (found["makespan_s"], found["over_cap_ws"]) == (300, 0)


def test_a_prediction_beyond_every_cap_does_not_delay_a_job_for_ever(replay: Replay) -> None:
    """A job at the machine's 3200 W next to an idle half would draw 4000; ``--log`` runs the other engine, too."""
    found = replay("--policy", "easy-power", "--job-watts", "watts.csv", "--cap", "3900", "--log", "events.log")
    assert (found["ended"], found["makespan_s"], found["over_cap_ws"]) == (3, 300, 0)


def test_predictions_let_more_jobs_run_and_what_they_miss_is_counted(replay: Replay) -> None:
    given = "--job-watts", "generated", "--cap", "3000"
    by_machine = replay("--policy", "powercap:mode=idle", *given, log=SAMPLE)
    predicted = replay("--policy", "easy-power", *given, log=SAMPLE)
    safer = replay("--policy", "easy-power:of=maximum,margin=1.2", *given, log=SAMPLE)
    assert predicted["ended"] == 500 and predicted["AVEbsld"] < by_machine["AVEbsld"] / 2
    assert by_machine["over_cap_ws"] == 0
    assert safer["over_cap_ws"] <= predicted["over_cap_ws"]


def test_the_loop_that_hears_of_every_event_predicts_what_the_native_replay_does(
    replay: Replay, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--log`` compares every start of the two; check-log then decides all of it again."""
    replay("--policy", "easy-power", "--job-watts", "generated", "--cap", "3000", "--log", "events.log", log=SAMPLE)
    assert main(["check-log", "events.log"]) == 0
    assert "all the same" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("job,watts\n11,2000\n11,2000\n", "bad.csv:3: job 11 occurs twice"),
        ("job,watts\n11,-5\n", "bad.csv:2: -5 W: give watts above 0"),
        ("job,watts\n11\n", "bad.csv:2: job and watts must be numbers"),
        ("number,watts\n11,5\n", "bad.csv:1: the first line must name the columns job and watts"),
        ("job,watts\n99,5\n", "bad.csv: no job of log.swf in it"),
        ("", "bad.csv: it is empty"),
    ],
)
def test_a_damaged_table_is_said_in_one_line(
    replay: Replay, capsys: pytest.CaptureFixture[str], content: str, said: str
) -> None:
    Path("bad.csv").write_text(content)
    assert main(["replay", "log.swf", "--machine", MACHINE, "--job-watts", "bad.csv"]) == 1
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--machine", MACHINE, "--policy", "easy-power"], "give them with --job-watts FILE|generated"),
        (["--machine", MACHINE, "--policy", "easy-power:rule=profit"], "a log of processors is served as submitted"),
        (["--job-watts", "generated"], "needs a machine that has watts"),
        (["--machine", MACHINE, "--job-watts", "generated:spread=2"], "spread at least 0 and below 1"),
        (["--machine", MACHINE, "--job-watts", "nowhere.csv"], "nowhere.csv: No such file"),
    ],
)
def test_what_does_not_go_together_is_said(
    replay: Replay, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["replay", "log.swf", *arguments]) in (1, 2)
    assert said in capsys.readouterr().err

"""``clusterctl plan``: who runs at an instant, who is planned when and where, and which promises are kept."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cluster_agent.cli import main
from cluster_agent.replay.plan_in_force import Line, Promises, plan_at
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.power_cap import UNCAPPED
from cluster_agent.scheduler.world import World
from tests.cluster_agent.node_traces import FOUR_NODES, Row, trace_of

TRACE = str(Path(__file__).parents[2] / "cluster_agent" / "samples" / "eurora-100.csv")
POLICY = "planned:decoder=serial,iterations=9"


def whole(submit_s: int, run_s: int, request_s: int) -> Row:
    """A job of all four nodes."""
    return (submit_s, run_s, request_s, 4, 64, 0, 0, 1.0)


def world(rows: list[Row]) -> World:
    return World(trace_of(rows).on(FOUR_NODES, UNCAPPED), nodes=FOUR_NODES)


def test_the_plan_says_who_runs_until_when_and_who_starts_where() -> None:
    found = plan_at(world([whole(0, 30, 100), whole(1, 10, 50)]), choose(POLICY).on_nodes, 20)
    assert (found.at_s, found.made_s) == (20, 1)
    assert found.lines == (
        Line("1", "runs", 0, 100, 0, "0-3"),
        Line("2", "planned", 100, 150, 100, "0-3"),
    )
    assert found.promises == Promises(jobs=2, on_time=2, late_mean_s=0.0, late_max_s=0)  # it started at 30


def test_a_promise_that_a_later_job_breaks_is_counted() -> None:
    """The third job weighs more for its short estimate, and comes before the start of the second is due."""
    rows = [whole(0, 100, 100), whole(1, 500, 500), whole(2, 10, 10)]
    found = plan_at(world(rows), choose("planned:decoder=serial,objective=slowdown,rule=est").on_nodes, 50)
    assert [(line.job, line.start_s, line.promised_s) for line in found.lines[1:]] == [("3", 100, 100), ("2", 110, 100)]
    assert found.promises == Promises(jobs=3, on_time=2, late_mean_s=10.0, late_max_s=10)


def test_the_command_prints_a_table_and_writes_csv_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is missing: pip install matplotlib")
    files = tmp_path / "plan.csv", tmp_path / "plan.svg"
    given = ["plan", TRACE, "--at", "15000", "--policy", POLICY, "--cap", "1000"]
    assert main([*given, "--csv", str(files[0]), "--svg", str(files[1])]) == 0
    said = capsys.readouterr().out
    assert said.startswith("at 15000 s; the plan was made at ") and "started by the time first promised" in said
    rows = list(csv.DictReader(files[0].open()))
    assert {row["state"] for row in rows} == {"runs", "planned"}
    assert all(int(row["start_s"]) <= 15000 for row in rows if row["state"] == "runs")
    assert all(row["nodes"] for row in rows)
    assert ElementTree.parse(files[1]).getroot().tag.endswith("svg")
    assert main([*given, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["lines"]) == len(rows)


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("--policy", "prb", "--at", "0"), 2, "this policy makes no plan"),
        ((), 2, "--at"),
        (("--at", "999999999"), 1, "the replay is over at "),
        (("--at", "0", "--csv", "{folder}/no/a.csv"), 1, "choose another --csv"),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], status: int, said: str
) -> None:
    given = [one.replace("{folder}", str(tmp_path)) for one in options]
    policy = [] if "--policy" in given else ["--policy", POLICY]
    assert main(["plan", TRACE, *given, *policy]) == status
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("clusterctl")]
    assert len(lines) == 1 and said in lines[0]

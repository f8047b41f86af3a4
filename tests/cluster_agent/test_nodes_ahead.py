"""Profiles made a day ahead: what they look at, what counts when there is none in time, and the command."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from cluster_agent.cli import main
from cluster_agent.cluster import Machine, NodeGroup, Topology
from cluster_agent.commands.replays import nodes_ahead as command
from cluster_agent.kept_on import cores_of
from cluster_agent.prices.cooling import our_table, our_temperatures
from cluster_agent.prices.node_forecast import Past, expected, extracted, kept_profile, spares
from cluster_agent.prices.profit_days import DAY_S
from cluster_agent.prices.profit_model import HOUR_S, Site, Tariff
from cluster_agent.scheduler.job_columns import Jobs

SAMPLE = Path(__file__).parents[2] / "cluster_agent" / "samples" / "generated-500.swf"
MACHINE = Machine(
    name="small",
    topology=Topology(),
    degradation={},
    groups=(NodeGroup(10, 8, 10.0, 100.0, (2000,), (200.0,), boot_s=120.0, boot_j=5000.0),),
)
SITE = Site(Tariff(), our_table("air", 2000.0), our_temperatures("summer", DAY_S))
WEEK_S = 7 * DAY_S


def past_of(rows: list[tuple[int, int, int]], **given: float) -> Past:
    """(Submission, run time, cores); each job started at once."""
    submit, run, width = np.array(sorted(rows), np.int64).T
    jobs = Jobs(np.arange(len(rows)), submit, run, run, width.astype(np.int32), np.zeros(len(rows), np.int32))
    return replace(Past(jobs, submit, MACHINE), **given)


def at(day: int, hour: float) -> int:
    return day * DAY_S + round(hour * HOUR_S)


def test_spares_are_what_was_taken_within_a_boot_in_the_same_hour_of_the_week() -> None:
    """Of two weeks: at Monday 8:30 three nodes within a minute; on other days one."""
    days = [(at(day, 0), 60, 1) for day in range(14)]
    mondays = [(at(day, 8.5) + s, 1800, 8) for day in (0, 7) for s in (0, 30, 60)]
    past = past_of(days + mondays, quantile=1.0)
    found = dict(spares(past, 14 * DAY_S, 2))
    assert found[at(14, 8)] == 3 and found[at(14, 9)] == 0
    assert at(15, 8) not in found  # on the next day it is that of the hour before, 0
    assert dict(spares(replace(past, quantile=0.5), 14 * DAY_S, 1)) == {at(14, 0): 0}


def test_nothing_after_a_midnight_is_looked_at() -> None:
    known = [(at(0, 8.5), 1800, 40), (at(7, 8.5), 1800, 40)]
    later = [*known, (at(14, 8.5), 3600, 80)]
    before, after = (spares(past_of(rows, quantile=1.0), 14 * DAY_S, 1) for rows in (known, later))
    assert before == after and max(nodes for _, nodes in before) == 5
    rows, _ = expected(past_of(later, quantile=1.0), 14 * DAY_S) or ([], [])
    assert list(rows) == [0]  # of equal weeks the one longest ago, and not that of the day itself


def test_the_jobs_of_an_hour_come_again_from_the_week_of_the_quantile() -> None:
    past = past_of([(at(0, 3), 100, 8), (at(7, 3.5), 200, 8), (at(14, 3.25), 50, 8)])
    for quantile, job, later_s in ((1.0, 1, 3.5), (0.5, 0, 3.0), (0.0, 2, 3.25)):
        rows, submit_s = expected(replace(past, quantile=quantile), 21 * DAY_S) or ([], [])
        assert (list(rows), list(submit_s)) == ([job], [later_s * HOUR_S])


def test_without_a_past_week_the_day_before_comes_again_and_without_that_nothing_is_known() -> None:
    rows, submit_s = expected(past_of([(at(0, 3), 100, 8), (at(1, 5), 100, 8)]), 2 * DAY_S) or ([], [])
    assert (list(rows), list(submit_s)) == ([1], [5 * HOUR_S])
    assert expected(past_of([(at(0, 3), 100, 8)]), 3 * DAY_S) is None


def test_a_profile_is_extracted_from_the_plan_of_the_forecast() -> None:
    """A tenth in use all the time, of the day before and expected: 1 + 0.7 x 9 nodes, rounded up."""
    day_long = past_of([(at(day, 0), DAY_S, 8) for day in range(8)])
    assert extracted(day_long, SITE, 8 * DAY_S, 0.7) == [8] * 24
    full = past_of([(at(day, 0), DAY_S, 80) for day in range(8)])
    assert extracted(full, SITE, 8 * DAY_S, 0.7) == [10] * 24
    assert extracted(past_of([(at(0, 3), 100, 8)]), SITE, 4 * DAY_S, 0.7) is None


@pytest.mark.parametrize(
    ("made", "took_s", "last", "found", "reason"),
    [
        ([3] * 24, 5, [4] * 24, 3, ""),
        ([3] * 24, 11, [4] * 24, 4, "the plan took 11.0 s: the profile of the day before counts"),
        (None, 0, [4] * 24, 4, "no forecast: the profile of the day before counts"),
        (None, 0, None, 10, "no forecast: all nodes stay on"),
        ([3] * 24, 11, None, 10, "the plan took 11.0 s: all nodes stay on"),
    ],
)
def test_what_counts_when_there_is_no_profile_in_time(
    made: list[int] | None, took_s: int, last: list[int] | None, found: int, reason: str
) -> None:
    times = iter((100.0, 100.0 + took_s))
    assert kept_profile(lambda: made, last, 10, 10.0, lambda: next(times)) == ([found] * 24, reason)


def test_the_command_writes_a_profile_that_a_replay_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "nodes.csv"
    given = ["nodes-ahead", str(SAMPLE), "--machine", "taurus", "--out", str(file)]
    assert not main([*given, "--from-day", "1", "--days", "2"])
    assert cores_of(str(file), file.read_bytes())[0][0] == DAY_S
    assert "without a job" in file.read_text().splitlines()[0]
    assert not main([*given, "--offset", "70", "--begin", "2030-01-01T00:00:00+00:00"])
    from_s, cores = cores_of(str(file), file.read_bytes())[0]
    assert from_s > 1_893_456_000 and 0 < cores <= 16 * 12
    policy = f"easy:idle_off_s=300,keep_on={file}"
    assert not main(["replay", str(SAMPLE), "--machine", "taurus", "--policy", policy, "--out", str(tmp_path / "out")])
    assert f'"{file}"' in (tmp_path / "out" / "manifest.json").read_text()


def test_where_the_plan_is_late_the_command_says_what_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "LATE_S", 0.0)
    file = tmp_path / "nodes.csv"
    given = ["--machine", "taurus:nodes=10", "--from-day", "1", "--offset", "70", "--out", str(file)]
    assert not main(["nodes-ahead", str(SAMPLE), *given])
    assert re.search(r"day 1: the plan took \S+ s: all nodes stay on\n", capsys.readouterr().err)
    assert cores_of(str(file), file.read_bytes()) == ((DAY_S, 120),)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["--machine", "eurora"], "one kind of nodes with watts is needed"),
        (["--machine", "taurus", "--from-day", "0"], "has nothing before it; choose a later day"),
    ],
)
def test_what_cannot_be_is_one_line(
    given: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nodes-ahead", str(SAMPLE), *given, "--out", str(tmp_path / "p.csv")])
    error = capsys.readouterr().err
    assert problem in error and "Traceback" not in error

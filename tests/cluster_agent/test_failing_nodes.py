"""Nodes fail, and their jobs wait again: the engine against a plain machine, and the option."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.cap_steps import Cap
from cluster_agent.cli import main
from cluster_agent.cluster import UW, load_machine
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.switches.failures import CFailures, Failure
from tests.cluster_agent.power_traces import cap_lists, machine
from tests.cluster_agent.replay_by_command import replayed
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, SCORES, plain_compositions, traces
from tests.oracle.failing_nodes import FailingMachine

COMPOSITIONS = plain_compositions("none", "easy", "list")


@st.composite
def failures(draw: st.DrawFn) -> list[Failure]:
    """Of nodes of two processors."""
    found = []
    for first in range(0, PROCESSORS, 2):
        at_s = 0
        for _ in range(draw(st.integers(0, 2))):
            at_s += draw(st.integers(0, 20))
            back_s = at_s + draw(st.integers(0, 15))
            found.append(Failure(at_s, back_s, first, first + 1))
            at_s = back_s
    return sorted(found)


@settings(max_examples=150, deadline=None)
@given(jobs=traces(), composition=COMPOSITIONS, found=failures())
def test_the_native_replay_and_the_plain_machine_lose_and_start_the_same_jobs(
    jobs: Jobs, composition: Composition, found: list[Failure]
) -> None:
    if composition.priority is not None:
        composition = Composition(backfill=composition.backfill, score=SCORES[0])
    plain = FailingMachine(composition, jobs, PROCESSORS)
    plain.replay(found)
    c_failures = CFailures(found)
    replay, free = (
        NativeReplay(composition, jobs, PROCESSORS, failures=c_failures),
        NativeReplay(composition, jobs, PROCESSORS),
    )
    assert not replay.run(EVERYTHING_ENDED)
    assert dict(enumerate(replay.start_s.tolist())) == plain.start_s
    assert (replay.kills.tolist(), replay.lost.tolist()) == (plain.kills, plain.lost)
    free.run(EVERYTHING_ENDED)
    if c_failures.switches["failures"] == 0:
        assert free.start_s.tolist() == replay.start_s.tolist(), "what counts 0 has changed nothing"


@settings(max_examples=100, deadline=None)
@given(jobs=traces(), composition=COMPOSITIONS, found=failures(), caps=cap_lists())
def test_on_a_machine_with_watts_the_same_runs_are_lost_and_their_joules_are_counted(
    jobs: Jobs, composition: Composition, found: list[Failure], caps: list[Cap]
) -> None:
    if composition.order is not None or composition.priority is not None:
        composition = Composition(backfill=composition.backfill, score=SCORES[0])
    watts = Watts.of(machine(0.0, has_racks=True), None)
    plain, metered = (
        NativeReplay(composition, jobs, PROCESSORS, **given, failures=CFailures(found))
        for given in ({}, {"watts": watts, "caps": caps})
    )
    for replay in (plain, metered):
        assert not replay.run(EVERYTHING_ENDED)
    for name in ("start_s", "end_s", "kills", "lost"):
        assert getattr(plain, name).tolist() == getattr(metered, name).tolist()
    assert [plain.processors(job) for job in range(len(jobs))] == [metered.processors(job) for job in range(len(jobs))]
    busy_w = watts.busy_uw[0] / UW
    assert metered.lost_j.tolist() == pytest.approx((metered.lost * busy_w).tolist())
    useful = jobs.width * np.where(metered.end_s < 0, 0, metered.end_s - metered.start_s)
    assert metered.job_j.sum() == pytest.approx(((useful + metered.lost) * busy_w).sum())


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two jobs of 100 s, next to each other on four processors."""
    path = tmp_path / "site.swf"
    rows = "".join(f"{number} 0 -1 100 2 -1 -1 2 100 -1 1 1 1 -1 1 1 -1 -1\n" for number in (1, 2))
    path.write_text("; MaxProcs: 4\n; MaxNodes: 2\n" + rows)
    return path


def test_a_job_on_a_node_that_fails_waits_again(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "failures.csv"
    table.write_text("at_s,back_s,first,last\n40,50,2,3\n500,501,0,3\n")
    _, found, _ = replayed(capsys, log, "--failures", table)
    assert (found["kills"], found["lost_processor_s"], found["switches"]) == (1, 80, {"failures": 1})
    assert found["makespan_s"] == 150
    replayed(capsys, log, "--failures", table, "--out", tmp_path / "before")
    table.write_text("at_s,back_s,first,last\n400,500,2,3\n")
    assert replayed(capsys, log, "--failures", table)[1]["switches"] == {"failures": 0}
    replayed(capsys, log, "--failures", table, "--policy", "fcfs", "--out", tmp_path / "after")
    marks = [
        json.loads((tmp_path / name / "manifest.json").read_text())["failures_sha256"] for name in ("before", "after")
    ]
    assert marks[1] == hashlib.sha256(table.read_bytes()).hexdigest() != marks[0]
    assert main(["report", str(tmp_path / "before"), str(tmp_path / "after")]) == 0
    text = capsys.readouterr().out
    for mark in marks:
        assert f", failures failures.csv {mark[:8]}\n" in text, "two tables of one path are two conditions"


def test_the_energy_of_lost_runs_is_measured_and_reported(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "failures.csv"
    table.write_text("at_s,back_s,first,last\n40,50,2,3\n")
    given = (log, "--machine", "generic:nodes=2,cores=2", "--failures", table, "--out", tmp_path / "out")
    _, found, _ = replayed(capsys, *given)
    node_w = load_machine("generic").node.busy_w[0]
    assert (found["kills"], found["lost_processor_s"], found["wasted_j"]) == (1, 80, pytest.approx(40 * node_w))
    assert main(["report", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "| kills | lost kWh |" in text and text.count(f" | 1 | {40 * node_w / 3.6e6:.4g} |") == 1


def test_failures_are_drawn_from_a_seed(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "mtbf=0.02,repair=0.001"
    found = [replayed(capsys, log, "--failures", text, "--seed", seed)[1] for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
    assert found[0]["ended"] == 2
    assert found[0]["kills"] > 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mtbf=1", "--failures mtbf=1: give repair=HOURS, too"),
        ("repair=1", "--failures repair=1: give mtbf=HOURS, too"),
        ("mtbf=1,repair=1,mtbf=2", "--failures mtbf=1,repair=1,mtbf=2: mtbf is there twice"),
        ("mtbf=-1,repair=1", "'mtbf=-1' is none of mtbf=HOURS, repair=HOURS, processors=N"),
        ("mtbf=1,repair=1,nodes=2", "'nodes=2' is none of mtbf=HOURS"),
        ("at_s,back_s,first,last\n1,x,0,0\n", "failures.csv:2: a line has whole numbers at_s,back_s,first,last"),
        ("at_s,back_s,first,last\n5,4,0,0\n", "failures.csv:2: back_s must not be earlier than at_s"),
        ("at_s,back_s,first,last\n5,6,0,4\n", "failures.csv:2: first to last must be processors from 0 to 3"),
        ("at_s,back_s,first,last\n5,9,0,1\n8,9,1,1\n", "failures.csv:3: these processors are still away from 5 s on"),
        (
            "at_s,back_s,first,last\n5,9,0,1\n6,7,2,2\n8,9,1,1\n",
            "failures.csv:4: these processors are still away from 5 s",
        ),
    ],
)
def test_failures_that_cannot_be_are_one_line(
    text: str, problem: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "\n" in text:
        (tmp_path / "failures.csv").write_text(text)
        text = str(tmp_path / "failures.csv")
    status, _, err = replayed(capsys, log, "--failures", text)
    assert status != 0
    assert problem in err
    assert len(err.splitlines()) == 1


def test_a_table_of_many_failures_is_read_at_once(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is compared with those that are still away, and not with all before: that took ten seconds."""
    rows = [f"{20 * at},{20 * at + 15},{at % 4},{at % 4}" for at in range(20_000)]
    (tmp_path / "failures.csv").write_text("\n".join(["at_s,back_s,first,last", *rows]))
    begun = time.process_time()
    assert replayed(capsys, log, "--failures", tmp_path / "failures.csv")[0] == 0
    assert time.process_time() - begun < 4


def test_what_does_not_go_with_failures_says_so(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = (log, "--failures", "mtbf=1,repair=1")
    capped = ("--policy", "easy-power", "--machine", "curie")
    assert "a policy that knows watts does not go with failures" in replayed(capsys, *given, *capped)[2]
    assert "does not go with --partitions" in replayed(capsys, *given, "--partitions", "1=4")[2]
    assert "not in an event log" in replayed(capsys, *given, "--log", tmp_path / "log")[2]

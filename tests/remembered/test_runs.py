"""Runs of the real agent on one emulated node that find what the run before has left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from foundation.phase_files import PhaseFiles
from foundation.program_name import program_name
from nodectl.cli import main
from nodectl.config import Config, build_config
from nodectl.journal import open_journal
from nodectl.journal.decide_again import replay
from nodectl.loop.agent import Agent
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

SOLVER = "/opt/solver"


def settings(state_dir: Path, **given: object) -> Config:
    both = {"mode": "optimize", "state_dir": str(state_dir), "budget": {"core_share": 0.0}, **given}
    return build_config({**both, "gpu": {"locked_clock_mhz": 0}, "cpu_policy": {"name": "none"}}, ".".join)


def run(config: Config, seconds: float = 40.0, program: Callable[[], str | None] = lambda: SOLVER) -> list[str]:
    """EasyWave on an emulated A100 node; what the agent said of phases."""
    machine, said = load_machine("xh2415"), []
    twin = Twin(machine, load_workload("easywave", machine, seed=3), seed=3)
    with InProcess(twin) as inside, Agent.open(inside.ports, config, said.append, program=program) as agent:
        agent.run(until_ns=twin.time_ns + round(seconds * 1e9))
    return [line for line in said if "phases" in line]


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], list[str]]:
    """The state directory after a run with a name and one that nobody names, and what each said."""
    state_dir = tmp_path_factory.mktemp("state")
    return state_dir, run(settings(state_dir)), run(settings(state_dir), 40.0, lambda: None)


def test_a_run_finds_what_the_one_before_left_even_without_a_name(two_runs) -> None:
    _, first, second = two_runs
    assert first == []
    assert len(second) == 1
    assert f"of {SOLVER} on NVIDIA A100" in second[0] and "recognised after" in second[0]


def test_a_run_in_which_phases_were_recalled_replays_to_the_same_bytes(two_runs) -> None:
    state_dir, _, _ = two_runs
    report = replay(open_journal(state_dir / "journal"))
    assert report.is_equal and not report.problems
    assert report.decided > 700


def test_the_command_lists_shows_and_forgets(two_runs, capsys) -> None:
    state_dir, _, _ = two_runs
    (one,) = PhaseFiles.below(str(state_dir)).all()[0]
    assert one.tables[0].runs == 2
    where = ["phases", "--state-dir", str(state_dir)]
    assert main([*where, "list"]) == 0
    assert SOLVER in capsys.readouterr().out
    assert main([*where, "show", one.key.digest]) == 0
    assert "1410 MHz" in capsys.readouterr().out
    assert main([*where, "show", "/opt/solvr"]) == 1
    assert "nearest: /opt/solver" in capsys.readouterr().err
    copy = PhaseFiles.below(str(state_dir))
    assert main([*where, "forget", SOLVER]) == 0
    assert copy.all() == ([], [])
    copy.write(one)


def test_why_says_what_each_policy_requested_last(two_runs, capsys) -> None:
    state_dir, _, _ = two_runs
    assert main(["why", "--state-dir", str(state_dir)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("gpu-ladder")]
    assert len(lines) == 1 and "gpu0..3" in lines[0] and "MHz" in lines[0]
    assert main(["why", "--state-dir", str(state_dir / "none")]) == 1


def test_a_run_that_writes_nothing_or_must_not_remember_leaves_nothing(tmp_path: Path) -> None:
    for given in ({"dry_run": True}, {"remember": False}, {"mode": "monitor"}):
        run(settings(tmp_path, **given), 3.0)
        assert not (tmp_path / "phases").exists()


def test_a_folder_that_cannot_be_written_is_said_and_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "phases").write_text("in the way")
    said = run(settings(tmp_path), 33.0)
    assert len(said) == 2 and "cannot be read" in said[0] and "not kept" in said[1]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["/opt/solver", "-n", "4"], "/opt/solver"),
        (["./solver"], "/data/solver"),
        (["mpirun", "-np", "4", "/opt/solver", "in.dat"], "mpirun /opt/solver"),
        (["env", "OMP_NUM_THREADS=4", "python3.11", "-u", "train.py", "--lr", "1"], "env python3.11 train.py"),
    ],
)
def test_a_program_is_named_by_the_file_that_is_run(command: list[str], name: str) -> None:
    assert program_name(command, "/data") == name


def test_scripts_are_named_by_their_text() -> None:
    assert program_name(["a"], script="#!/bin/sh\n./x\n") == program_name(["b"], script="#!/bin/sh\n./x\n")
    assert program_name(["a"], script="#!/bin/sh\n./x\n") != program_name(["a"], script="#!/bin/sh\n./y\n")
    assert len(program_name(["/" + "x" * 5000])) < 250

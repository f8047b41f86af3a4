"""``clusterctl replay --plan-from``: the record of a plan repeats its replay byte for byte, and starts no planner."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster_agent.cli import main

SAMPLES = Path(__file__).parents[2] / "cluster_agent" / "samples"
TRACE, LOG = str(SAMPLES / "eurora-100.csv"), str(SAMPLES / "generated-500.swf")
EQUAL = ("jobs.csv", "jobs.parquet", "power.csv", "power.parquet", "metrics.json", "plan.jsonl")

PLANNER = '''
"""Everything at once, in reverse; raises if the file `forbidden` is there."""

from pathlib import Path

from cluster_agent.scheduler.plans.plan_phase import PlanBudget, Start
from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_phases import Power
from cluster_agent.scheduler.rules import RULES
import msgspec


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None."""


def plan(situation, budget):
    if Path("{forbidden}").exists():
        raise RuntimeError("the planner was called")
    return [Start(job, situation.now_s) for job in reversed(situation.queue.job.tolist())]


POLICY = Policy(
    name="reversed",
    summary="In reverse.",
    source="an example",
    params=Params,
    compose=lambda params: Composition(order=RULES["est"], backfill="list", power=Power(), placing="pack", plan=plan),
)
'''


def run(*arguments: object) -> int:
    return main(["replay", *map(str, arguments)])


@pytest.mark.parametrize("policy", ["planned:iterations=50", "planned:iterations=1000000,time_s=0.004"])
def test_a_record_repeats_the_outputs_byte_for_byte(tmp_path: Path, policy: str) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    options = (TRACE, "--policy", policy, "--cap", 1000)
    assert run(*options, "--out", first) == 0
    assert run(*options, "--out", again, "--plan-from", first / "plan.jsonl", "--log", tmp_path / "a.log") == 0
    assert {name: (again / name).read_bytes() == (first / name).read_bytes() for name in EQUAL} == dict.fromkeys(
        EQUAL, True
    )
    assert json.loads((again / "manifest.json").read_bytes())["plan_from"] == str(first / "plan.jsonl")
    assert main(["check-log", str(tmp_path / "a.log")]) == 0


def test_a_planner_of_a_file_is_not_called_where_its_plan_is_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forbidden, file = tmp_path / "forbidden", tmp_path / "backwards.py"
    file.write_text(PLANNER.replace("{forbidden}", str(forbidden)))
    options = (TRACE, "--policy", file, "--cap", 1000)
    assert run(*options, "--out", tmp_path / "a") == 0
    forbidden.touch()
    assert run(*options, "--out", tmp_path / "b", "--plan-from", tmp_path / "a" / "plan.jsonl") == 0
    assert (tmp_path / "a" / "jobs.csv").read_bytes() == (tmp_path / "b" / "jobs.csv").read_bytes()
    capsys.readouterr()
    assert run(*options, "--out", tmp_path / "c") == 0  # now it is called, and the list schedule decides
    assert " 0 passes by the planner" in (out := capsys.readouterr().out) and "raised: " in out
    assert "backwards.py:" in (tmp_path / "c" / "plan.jsonl").read_text()
    assert (tmp_path / "a" / "jobs.csv").read_bytes() != (tmp_path / "c" / "jobs.csv").read_bytes()


def test_a_log_with_a_plan_is_checked_by_planning_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "a.log"
    assert run(TRACE, "--policy", "planned:iterations=20", "--cap", 1000, "--log", log) == 0
    assert main(["check-log", str(log)]) == 0
    assert "all the same" in capsys.readouterr().out


def test_equal_seeds_give_equal_plans(tmp_path: Path) -> None:
    sums = []
    for name in ("a", "b"):
        assert run(TRACE, "--policy", "planned:iterations=50", "--cap", 800, "--out", tmp_path / name) == 0
        sums.append(hashlib.sha256((tmp_path / name / "plan.jsonl").read_bytes()).hexdigest())
    assert sums[0] == sums[1]


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        ((TRACE, "--policy", "prb", "--plan-from", "{plan}"), 2, "prb makes no plan; leave it out, or choose a policy"),
        ((LOG, "--policy", "easy", "--plan-from", "{plan}"), 2, "easy makes no plan"),
        ((LOG, "--policy", "planned"), 2, "placing=first needs nodes, and a log of processors has none"),
        ((TRACE, "--policy", "planned", "--plan-from", "{plan}"), 2, "recorded with policy planned:iterations=0, and"),
        ((TRACE, "--policy", "planned:iterations=0", "--plan-from", "{plan}"), 2, "recorded with cap 1000, and"),
        ((TRACE, "--policy", "planned", "--plan-from", TRACE), 2, "no record of a plan; `clusterctl replay"),
        ((TRACE, "--policy", "planned", "--plan-from", "no.jsonl"), 1, "no.jsonl: cannot read it: No such file"),
        ((TRACE, "--policy", "planned", "--plan-from", ""), 2, "--plan-from is empty: give a path, or leave it out"),
        ((TRACE, "--policy", "planned:time_s=1", "--log", "x"), 2, "with time_s a plan depends on the machine's speed"),
        ((TRACE, "--policy", "planned:time_s=0"), 2, "time_s=0: give seconds above 0"),
        ((TRACE, "--policy", "planned:iterations=-1"), 2, "iterations=-1: give 0 or more"),
    ],
)
def test_what_cannot_be_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], status: int, said: str
) -> None:
    assert run(TRACE, "--policy", "planned:iterations=0", "--cap", 1000, "--out", tmp_path) == 0
    capsys.readouterr()
    assert run(*(one.replace("{plan}", str(tmp_path / "plan.jsonl")) for one in options)) == status
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("clusterctl")]
    assert len(lines) == 1 and said in lines[0]


def test_a_damaged_record_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = (TRACE, "--policy", "planned:iterations=0", "--cap", 1000)
    assert run(*options, "--out", tmp_path) == 0
    plan = tmp_path / "plan.jsonl"
    whole = plan.read_bytes().splitlines(keepends=True)
    for content, said in (
        ([*whole[:5], b"[1,\n"], f"{plan}:6: damaged line; record the plan again"),
        (whole[:5], "the recorded plan is not of this replay"),
    ):
        plan.write_bytes(b"".join(content))
        capsys.readouterr()
        assert run(*options, "--plan-from", plan) == 1
        assert said in capsys.readouterr().err


Lines = list[list[Any]]


def put(line: int, place: int, value: Any) -> Callable[[Lines], Any]:
    return lambda lines: lines[line].__setitem__(place, value)


def on(*nodes: tuple[int, int]) -> Callable[[Lines], Any]:
    return lambda lines: lines[1][3][0].__setitem__(1, nodes)


def start_none(lines: Lines) -> None:
    for line in lines[1:]:
        line[1:] = ["list", "late", []]


LIES: dict[str, tuple[Callable[[Lines], Any], str]] = {
    "a node that the machine does not have": (on((1_000_000, 1)), "does not say what starts"),
    "a node below 0": (on((-1, 1)), ":2: damaged line"),
    "a node beyond 64 bits": (on((10**25, 1)), ":2: damaged line"),
    "a job beyond 64 bits": (put(1, 3, [[10**25, [[0, 1]]]]), ":2: damaged line"),
    "a time below 0": (put(1, 0, -1), ":2: damaged line"),
    "fewer units than the job has": (on((0, 0)), "does not say what starts"),
    "more units than the job has": (on((0, 1), (1, 1)), "does not say what starts"),
    "more nodes than the job can have": (on(*((node, 1) for node in range(64))), "does not say what starts"),
    "a node twice": (on((0, 1), (0, 0)), "does not say what starts"),
    "no node": (on(), "does not say what starts"),
    "a job twice in a pass": (lambda lines: lines[1][3].append(lines[1][3][0]), "does not say what starts"),
    "a job again later": (lambda lines: lines[2][3].append(lines[1][3][0]), "does not say what starts"),
    "a job before its submission": (lambda lines: lines[1][3].append(lines[-1][3][0]), "does not say what starts"),
    "an idle machine that is left idle": (put(1, 3, []), "does not say what starts"),
    "a list schedule without a reason": (put(1, 1, "list"), ":2: damaged line"),
    "nothing": (start_none, "its record starts none"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_record_with_starts_that_cannot_be_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, said = LIES[name]
    options = (TRACE, "--policy", "planned:iterations=0", "--cap", 1000)
    assert run(*options, "--out", tmp_path) == 0
    plan, out = tmp_path / "plan.jsonl", tmp_path / "out"
    lines = [json.loads(line) for line in plan.read_text().splitlines()]
    assert [one for _, places in lines[1][3] for _, one in places] == [1], "one job of one unit"
    change(lines)
    plan.write_text("".join(json.dumps(line) + "\n" for line in lines))
    capsys.readouterr()
    assert run(*options, "--plan-from", plan, "--out", out) == 1
    assert said in capsys.readouterr().err and not out.exists()

"""A live partition whose policy owns the watts decides as the replay of what it exports: starts, frequencies and kills,
one by one, through its ledger, in virtual time, with 200 jobs and 20 steps of the budget for each policy."""

from __future__ import annotations

import ast
import csv
import json
import random
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pytest

import cluster_agent
from cluster_agent.budget.ledger import Terms
from cluster_agent.cli import main
from cluster_agent.jobs.exported_replay import _zone, files_of
from cluster_agent.replay.replay_files import arguments
from cluster_agent.scheduler.policies import registry
from cluster_agent.serve.config import JobSettings
from cluster_agent.serve.policy_watts import kept_of
from foundation.wire.power_messages import Declaration
from tests.live.budgeted import Budgeted, Decision

NODES: Final = 8
JOBS, STEPS = 200, 20
FROM_S: Final = 1_001_000
SITE: Final = """name = "site"
summary = ""
[[nodes]]
count = 1
cores = 4
idle_w = 30
rest_w = 5
frequency_mhz = [2000, 1500, 1000]
busy_w = [100, 80, 65]
[topology]
nodes_per_chassis = 4
chassis_w = 50
"""
TABLE: Final = """application,nodes,cores,cap_w,time_s,watts
solve,1,4,90,20,80
solve,2,4,90,11,160
solve,4,4,90,6,320
solve,2,4,60,14,110
solve,4,2,60,10,170
"""
DECLARED: Final = Declaration(120_000, 40_000, 45_000, 60_000, "hw", settle_ms=500)
TERMS: Final = Terms(fixed_mw=50_000, failing_together=2, lease_s=4.0)

REPLAYED: Final = {
    "powercap:mode=dvfs": "",
    "powercap:mode=idle": "",
    "powercap:mode=dvfs,kill=true,floor_mhz=1500": "",
    "fcfs-killer": "",
    "fcfs-killer:killed=lost,queue=easy": "",
    "eco": "eco:volunteers=1",
    f"energy-budget:joules=70000,from_s={FROM_S + 20},to_s={FROM_S + 150},tick_s=7": "",
    "easy-power": "",
    "prb": "",
    "easy-capped": "",
    "planned": "",
    "rmap": "",
    "moldable": "",
}
"""Policies that own watts, live; and as a replay says the same, where that differs."""


def submissions(policy: str, seed: int) -> list[tuple[int, dict[str, Any]]]:
    """Jobs of which many come at once, and whose ends meet those of others."""
    rng, at_s, found = random.Random(seed), 0, list[tuple[int, dict[str, Any]]]()
    for _ in range(JOBS):
        at_s += rng.choice([0, 0, 1, 1, 2, 3])
        run_s, more = rng.randint(1, 6), rng.choice([0, 0, 1, 5, 20])
        job: dict[str, Any] = {
            "nodes": rng.choice([1, 1, 1, 2, 2, 3, 4, 6]),
            "walltime_s": run_s + more,
            "name": "solve",
        }
        if policy in ("rmap", "moldable"):  # how long they run is then that of their configuration
            run_s = 10**6
        if rng.random() < 0.2:
            job["begin_s"] = FROM_S + at_s + rng.randint(1, 9)
        if policy == "eco":
            job["eco"] = rng.random() < 0.5
        found.append((at_s, job | {"run_s": run_s, "uid": 1000 + rng.randrange(4)}))
    return found


def budgets(seed: int) -> list[tuple[int, float]]:
    rng, at_s = random.Random(seed + 1), 0
    steps = [(0, 850.0)]
    for _ in range(STEPS):
        at_s += rng.randint(5, 25)
        steps.append((at_s, rng.choice([540.0, 600.0, 660.0, 720.0, 780.0, 900.0])))
    return [*steps[:-1], (at_s, 900.0)]  # at last every job can start


def live(directory: Path, policy: str, seed: int = 2, steps: Sequence[tuple[int, float]] = ()) -> Budgeted:
    (directory / "site.toml").write_text(SITE)
    (directory / "table.csv").write_text(TABLE)
    ways = str(directory / "table.csv") if policy in ("rmap", "moldable") else ""
    settings = JobSettings(policy, str(directory / "site.toml"), ways)
    made = Budgeted(NODES, settings, steps or budgets(seed), lambda name: DECLARED, TERMS, FROM_S)
    made.play(submissions(policy, seed), most_s=3000)
    return made


def exported(made: Budgeted, directory: Path) -> dict[str, str]:
    """What ``state export --replay`` writes."""
    machine = made.partition.watts.as_planned(NODES)
    assert machine is not None
    kept = kept_of(made.budget.ledger, made.here_s, machine)
    budget = [(FROM_S + at_s, watts) for at_s, watts in made.steps]
    files = files_of(made.partition, made.store, kept, budget, made.now_s)
    for name, text in files.items():
        (directory / name).write_text(text)
    return files


def replayed(directory: Path, files: dict[str, str], policy: str) -> list[Decision]:
    """The decisions of ``clusterctl replay`` of these files, in seconds of the log."""
    log, out = directory / "events", directory / "out"
    given = arguments(str(directory), files)
    assert main(["replay", *given, "--policy", policy, "--log", str(log), "--out", str(out)]) == 0
    with (out / "jobs.csv").open(newline="") as file:
        numbers = [int(row["job_id"]) for row in csv.DictReader(file)]
    found: list[Decision] = []
    for line in log.read_text().splitlines()[1:]:
        what, at_s, *rest = json.loads(line)
        if what == "pass":
            found += [(at_s, "start", numbers[job], level) for job, level, _ in rest[0]]
        elif what == "react":
            found += [(at_s, "kill", numbers[job], 0) for job in rest[0]]
            found += [(at_s, "level", numbers[job], level) for job, level in rest[1]]
    return found


def alike(decisions: Sequence[Decision], zero_s: int) -> list[list[Decision]]:
    """By second, since of what a policy does at once the order says nothing."""
    moved = [(at_s - zero_s, *rest) for at_s, *rest in decisions]
    return [sorted(found) for _, found in groupby(moved, key=lambda one: one[0])]  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", REPLAYED)
def test_the_replay_of_what_a_partition_exports_decides_as_it_did(policy: str, tmp_path: Path) -> None:
    made = live(tmp_path, policy)
    files = exported(made, tmp_path)
    zero_s = int(min(job.queued_s for job in made.store.ended(JOBS)))
    as_replay = (REPLAYED[policy] or policy).replace(f"from_s={FROM_S + 20},to_s={FROM_S + 150}", "from_s=20,to_s=150")
    expected = alike(made.decisions, zero_s)
    assert alike(replayed(tmp_path, files, as_replay), 0) == expected
    assert sum(map(len, expected)) >= JOBS
    assert made.most_over_mw <= 0, "the caps in force never add up to more than the budget"


def test_every_policy_that_owns_watts_is_tried() -> None:
    names = [name for name in registry.names() if registry.runs_live(registry.policy(name))]
    owning = {name for name in names if registry.choose(name).composed.owns_watts}
    assert {policy.partition(":")[0] for policy in REPLAYED} == owning


def test_live_partitions_and_replays_get_their_engine_from_one_place() -> None:
    """What a native engine is made of is not put together twice, so that the two cannot come to differ."""
    made_by: dict[str, set[str]] = {"CUnlike": set(), "CMoldable": set(), "Engine": set()}
    for source in Path(cluster_agent.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in made_by:
                made_by[node.func.id].add(source.name)
    assert made_by == {
        "CUnlike": {"native_replay.py", "native_unlike.py"},  # there it only says whether a job could ever run
        "CMoldable": {"native_replay.py"},
        "Engine": {"world_run.py", "live_counts.py", "steps.py"},
    }


@pytest.mark.parametrize(
    ("name", "line"), [("UTC0", "; TimeZone: 0"), ("Europe/Rome", "; TimeZoneString: Europe/Rome")]
)
def test_a_time_zone_without_a_name_is_exported_by_its_offset(
    name: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", name)
        time.tzset()
        found = _zone(FROM_S)
    time.tzset()
    assert found == line

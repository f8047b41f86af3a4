"""A live partition that admits by predicted watts is replayed from what it exports: decisions, models, byte by byte."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from msgspec.structs import replace

from cluster_agent.cli import main
from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.jobs.owned_watts import live_levels
from cluster_agent.jobs.owned_watts.live_levels import LONGEST_TEXT, submission
from cluster_agent.jobs.owned_watts.live_owner import Owner
from cluster_agent.prediction.admitted_power import AdmittedPower, Guard
from cluster_agent.prediction.job_power import Submission
from cluster_agent.prediction.models import PATIENCE_S
from cluster_agent.prediction.node_watts import NodeWatts
from cluster_agent.replay.replay_files import JOB_WATTS, arguments
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.serve.config import JobSettings
from tests.live import test_live_as_replay as as_replay
from tests.live.budgeted import Budgeted
from tests.live.test_owned_watts import MACHINE

NODES, JOBS, PAUSE_S = 8, 120, 60
BY_TITLE: Final = """
from cluster_agent.prediction.models import Model, Quantiles

class ByTitle:
    def __init__(self):
        self.seen = {}
    def learn(self, ended):
        for one in ended:
            job = one.submission
            self.seen.setdefault((job.login, job.title), []).append(one.average_w / job.units)
    def predict(self, submissions):
        return [self.one(job) for job in submissions]
    def one(self, job):
        watts = self.seen.get((job.login, job.title), [97.0])
        return Quantiles(*(job.units * each for each in (min(watts), sum(watts) / len(watts), max(watts))))

MODEL = Model("by-title", "what jobs of that name drew", ByTitle)
"""
TITLES: Final = ("cfd", "lammps, wide", "Wärme\tstrom", 'say "go"', "train")


class Different(Budgeted):
    """Jobs of one user that draw what their titles say, with some noise, and end as they please."""

    def submit(self, run_s: int, **given: Any) -> Job:
        given.pop("uid")
        title = given["name"]
        spec = JobSpec(["run", title, str(run_s)], given.pop("walltime_s"), "/", env={"RUN_S": str(run_s)}, **given)
        return self.partition.submit(1000 + TITLES.index(title) % 2, "someone", spec)

    def _drawn_mw(self, name: str) -> int:
        one = next(iter(self.partition.runs.on(self.partition.nodes[name])), None)
        if one is None or one.parts[name].last is None:
            return self.declared(name).mop_mw
        drawn_mw = 68_000 + 6_000 * TITLES.index(one.job.title) + 337 * (one.job.id % 11)
        return min(drawn_mw, self.partition.watts.counts.busy_mw(one.job, name))


def played(directory: Path, policy: str, jobs: int = JOBS) -> Different:
    (directory / "site.toml").write_text(as_replay.SITE)
    settings = JobSettings(policy, str(directory / "site.toml"), "")
    steps = as_replay.budgets(seed=5)
    made = Different(NODES, settings, steps, lambda name: as_replay.DECLARED, as_replay.TERMS, as_replay.FROM_S)
    rng = random.Random(7)
    made.play(
        [
            (at_s + PAUSE_S * (at_s > 90), job | {"name": rng.choice(TITLES)})
            for at_s, job in as_replay.submissions("", seed=3)[:jobs]
        ],
        most_s=3000,
    )
    return made


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Submission, float]]:
    """All that is predicted and learned, live and in a replay."""
    calls: list[tuple[str, Submission, float]] = []
    admit, learn = AdmittedPower.admit, AdmittedPower.learn

    def admits(power: AdmittedPower, job: int, of: Submission, without_model: bool = False) -> float:
        calls.append(("admit", of, found := admit(power, job, of, without_model)))
        return found

    def learns(power: AdmittedPower, job: int, of: Submission, watts: float) -> None:
        calls.append(("learn", of, watts))
        learn(power, job, of, watts)

    monkeypatch.setattr(AdmittedPower, "admit", admits)
    monkeypatch.setattr(AdmittedPower, "learn", learns)
    return calls


def model_of(directory: Path) -> Path:
    path = directory / "by_title.py"
    path.write_text(BY_TITLE)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("policy", ("violation=0.1", "of=expected,model="))
def test_predicted_watts_are_those_of_the_replay_byte_for_byte(
    policy: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, times = recorded(monkeypatch), itertools.count()
    late = SimpleNamespace(monotonic=lambda: next(times) * (2 * PATIENCE_S if next(times) % 7 < 3 else 0.0))
    monkeypatch.setattr(live_levels, "time", late)
    model = model_of(tmp_path)
    policy = f"easy-power:levels=highest,{policy}" + (str(model) if policy.endswith("=") else "")
    made = played(tmp_path, policy)
    files, live, calls[:] = as_replay.exported(made, tmp_path), calls[:], []
    zero_s = int(min(job.queued_s for job in made.store.ended(JOBS)))
    assert as_replay.alike(as_replay.replayed(tmp_path, files, policy), 0) == as_replay.alike(made.decisions, zero_s)
    assert calls[: len(live)] == live, "the same is learned, in the same order, and the same predicted"
    assert len({job.planned_uw for job in made.store.ended(JOBS)}) > 20, "predictions differ from job to job"
    assert made.most_over_mw <= 0
    if policy.endswith(".py"):
        failed = [job.without_model for job in made.store.ended(JOBS)]
        assert 10 < sum(failed) < JOBS - 10, "the model was late for some"
        _is_repeated_with_its_model_alone(tmp_path, files, policy, model, capsys)


def _is_repeated_with_its_model_alone(
    directory: Path, files: dict[str, str], policy: str, model: Path, capsys: Any
) -> None:
    first, log, again = (directory / name for name in ("events", "again.jsonl", "again"))
    given = arguments(str(directory), files)
    assert main(["replay", *given, "--policy", policy, "--log", str(log), "--out", str(again)]) == 0
    assert log.read_bytes() == first.read_bytes()
    sha256 = hashlib.sha256(model.read_bytes()).hexdigest()
    assert sha256 in (again / "manifest.json").read_text() and sha256 in log.read_text()
    other = directory / "other.py"
    other.write_text(BY_TITLE.replace("job.units * each", "job.units * 75.0"))
    other.chmod(0o600)
    assert main(["check-log", str(log), "--model", str(model)]) == 0
    capsys.readouterr()
    assert main(["check-log", str(log), "--model", str(other)]) == 1
    assert "made with other code" in capsys.readouterr().err


def test_what_a_prediction_knows_of_a_job_is_exported_and_a_job_without_watts_teaches_nothing(tmp_path: Path) -> None:
    made = played(tmp_path, "easy-power:of=expected", jobs=10)
    job = made.submit(run_s=50, uid=0, nodes=1, walltime_s=60, name='say "go"')
    made.settle()
    rows = list(csv.DictReader(io.StringIO(as_replay.exported(made, tmp_path)[JOB_WATTS])))
    assert rows[-1] == {"job": str(job.id), "watts": "", "user": "someone", "title": 'say "go"', "model": "",
                        "text": 'say "go" run say "go" 50'}  # fmt: skip
    assert {row["title"] for row in rows} <= {" ".join(title.split()) for title in TITLES}
    files = as_replay.exported(made, tmp_path)
    as_replay.replayed(tmp_path, files, "easy-power:of=expected")


def test_of_a_long_text_its_beginning_counts() -> None:
    spec = JobSpec(["x" * 10_000], 60, "/", name="名" * 10_000)
    found = submission(Job(id=1, uid=1, user="a", spec=spec, submitted_s=0, queued_s=0, on=[]))
    assert len(found.text) == LONGEST_TEXT


def test_a_table_of_cores_is_refused_where_nodes_are_counted_whole() -> None:
    composition = choose("easy-power:violation=0.1").live
    assert composition is not None and composition.power is not None
    guard = Guard(0.1, NodeWatts(1.0, 2.0))
    with pytest.raises(WrongUseError, match="whole nodes: leave it out"):
        Owner(replace(composition, power=replace(composition.power, guard=guard)), MACHINE)

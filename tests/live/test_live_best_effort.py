"""Best-effort jobs, live: who is preempted for whom, through kills and named nodes, and as a replay has it."""

from __future__ import annotations

import csv
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from cluster_agent.cli import main
from cluster_agent.cluster import Kept
from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.exported_replay import files_of
from cluster_agent.jobs.job import PREEMPTED, Job, JobSpec
from cluster_agent.replay.replay_files import arguments
from cluster_agent.scheduler.policies import registry
from tests.live.fakes import Fake


def best_effort(made: Fake, run_s: int, nodes: int = 1, **given: Any) -> Job:
    return made.submit(run_s, nodes, best_effort=True, **given)


def test_it_gets_what_no_other_job_can_use_and_gives_it_back() -> None:
    made = Fake(4)
    wide, cheap = made.submit(50, 3), best_effort(made, 200)
    head = made.submit(10, 4)
    made.settle()
    assert (wide.nodes, cheap.nodes, head.state) == (["n00", "n01", "n02"], ["n03"], "queued")
    late = best_effort(made, 5)
    made.settle()
    assert "until there are enough nodes that no other job can use" in made.partition.why_waiting()[late.id]
    made.partition.cancel(late)
    made.until(lambda: head.state == "running")
    assert made.now_s - 1_000.0 == 50, "when it would start without it"
    assert (cheap.state, cheap.reason, cheap.attempt) == ("queued", f"queued again: {PREEMPTED}", 1)
    made.until(lambda: cheap.state == "done")
    assert (cheap.attempt, cheap.losses) == (2, 0)
    assert made.now_s - 1_000.0 == 60 + 200, "from its start"


def test_the_newest_is_preempted_and_no_more_than_needed() -> None:
    made = Fake(4)
    first = best_effort(made, 500)
    made.step()
    second = best_effort(made, 500, 2)
    made.step()
    third = best_effort(made, 500)
    made.step()
    made.submit(10, 2)
    made.settle()
    assert [job.state for job in (first, second, third)] == ["running", "queued", "running"]


def test_a_start_waits_until_the_last_process_of_the_preempted_job_has_ended() -> None:
    made = Fake(2)
    cheap = best_effort(made, 500, 2)
    made.settle()
    for node in made.nodes.values():
        node.is_deaf = True
    job = made.submit(10, 2)
    made.settle()
    for _ in range(3):
        made.step()
    assert (cheap.state, job.state) == ("ending", "starting")
    assert [node.runs for node in made.nodes.values()] == [[(cheap.id, 1)]] * 2
    assert signal.SIGTERM in made.nodes["n00"].signals
    for name in made.nodes:
        made.end(made.nodes[name], (cheap.id, 1), -15, "told")
        made.report_of(made.nodes[name])
        made.settle()
    assert [node.runs[-1] for node in made.nodes.values()] == [(job.id, 1)] * 2
    made.until(lambda: job.state == "done")
    made.until(lambda: cheap.state == "done")
    assert made.partition.alarm == ""


def test_an_agent_that_is_killed_meanwhile_finds_both_jobs_and_starts_the_other_one_after_the_first() -> None:
    made = Fake(2)
    best_effort(made, 500, 2)
    made.settle()
    for node in made.nodes.values():
        node.is_deaf = True
    made.submit(10, 2)
    made.partition.turn()
    for _ in range(3):
        made.kill_and_restart()
        made.step()
    cheap, job = made.partition.jobs[1], made.partition.jobs[2]
    assert (cheap.state, job.state) == ("ending", "starting")
    assert [node.runs for node in made.nodes.values()] == [[(1, 1)]] * 2
    for node in made.nodes.values():
        node.is_deaf = False
        made.end(node, (1, 1), -15, "told")
    made.step()
    assert [node.runs for node in made.nodes.values()] == [[(1, 1), (2, 1)]] * 2
    assert (cheap.state, cheap.attempt, job.state) == ("queued", 1, "running")
    made.until(lambda: not made.partition.jobs)
    assert [(one.state, one.attempt, one.losses) for one in made.store.find()] == [("done", 2, 0), ("done", 1, 0)]


def test_one_that_has_ended_by_itself_is_not_run_again() -> None:
    made = Fake(1)
    cheap = best_effort(made, 500)
    made.settle()
    made.nodes["n00"].is_deaf = True
    job = made.submit(10)
    made.partition.turn()
    made.end(made.nodes["n00"], (cheap.id, 1))
    made.step()
    assert cheap.state == "done"
    made.until(lambda: job.state == "done")
    assert made.nodes["n00"].runs == [(cheap.id, 1), (job.id, 1)]


@pytest.mark.parametrize(
    ("cause", "status", "over"),
    [("walltime", -15, ("timeout", "its walltime of 100 s was over")), ("", 1, ("failed", ""))],
)
def test_one_that_fails_or_has_no_time_left_while_it_is_preempted_is_over(
    cause: str, status: int, over: tuple[str, str]
) -> None:
    made = Fake(2)
    cheap = best_effort(made, 500, 2, walltime_s=100)
    made.settle()
    for node in made.nodes.values():
        node.is_deaf = True
    job = made.submit(10, 2)
    made.partition.turn()
    made.end(made.nodes["n00"], (cheap.id, 1), status, cause)
    made.end(made.nodes["n01"], (cheap.id, 1), -15, "told")
    made.step()
    assert (cheap.state, cheap.reason, cheap.attempt) == (*over, 1)
    made.until(lambda: job.state == "done")


def test_one_that_is_cancelled_before_it_is_preempted_is_cancelled_and_says_nothing_of_the_other() -> None:
    made = Fake(1)
    cheap = best_effort(made, 500)
    made.settle()
    made.nodes["n00"].is_deaf = True
    made.partition.cancel(cheap)
    job = made.submit(10)
    made.partition.turn()
    made.end(made.nodes["n00"], (cheap.id, 1), -15, "told")
    made.step()
    assert (cheap.state, cheap.reason) == ("cancelled", "")
    made.until(lambda: job.state == "done")


def test_on_a_node_that_gets_no_job_it_goes_on_and_nobody_starts_there() -> None:
    made = Fake(3)
    kept, cheap = best_effort(made, 100), best_effort(made, 500)
    made.settle()
    made.partition.drain(kept.nodes[0], "fan")
    made.step()
    wide, jobs = made.submit(10, 3), [made.submit(10) for _ in range(2)]
    made.step()
    assert (kept.state, cheap.state, wide.state) == ("running", "queued", "queued")
    assert sorted(name for job in jobs for name in job.nodes) == ["n01", "n02"]
    made.partition.resume("n00")
    made.step()
    third = made.submit(5, walltime_s=5)
    made.settle()
    assert (kept.state, third.nodes) == ("queued", ["n00"]), "it can be preempted again"
    made.until(lambda: not made.partition.jobs)
    assert {job.state for job in made.store.find()} == {"done"}


def test_on_a_node_that_falls_silent_it_is_not_preempted_but_lost() -> None:
    made = Fake(1)
    cheap = best_effort(made, 500)
    made.settle()
    made.nodes["n00"].is_cut = True
    made.until(lambda: not made.partition.nodes["n00"].is_up)
    job = made.submit(10)
    made.step()
    assert (cheap.state, job.state) == ("running", "queued")
    made.until(lambda: cheap.state == "queued")
    assert (cheap.losses, cheap.attempt) == (1, 1)
    made.nodes["n00"].reboot()
    made.nodes["n00"].is_cut = False
    made.until(lambda: not made.partition.jobs)
    assert [(one.state, one.attempt) for one in made.store.find()] == [("done", 2), ("done", 1)]


def test_a_start_that_waits_for_a_preempted_job_is_not_lost_when_the_node_restarts() -> None:
    made = Fake(1)
    cheap = best_effort(made, 50)
    made.settle()
    made.nodes["n00"].is_deaf = True
    job = made.submit(10, requeue=False)
    made.settle()
    made.nodes["n00"].reboot()
    made.nodes["n00"].is_deaf = False
    made.until(lambda: not made.partition.jobs)
    assert [(one.state, one.losses) for one in (cheap, job)] == [("done", 0), ("done", 0)]


def test_a_job_that_names_its_node_preempts_there() -> None:
    made = Fake(3)
    moved, stays = (best_effort(made, 500) for _ in range(2))
    made.settle()
    assert (moved.nodes, stays.nodes) == (["n00"], ["n01"])
    named = made.partition.submit(1000, "someone", JobSpec(["run", "10"], 100, "/"), on=["n00"])
    made.settle()
    assert (named.nodes, moved.nodes, stays.nodes) == (["n00"], ["n02"], ["n01"])
    assert (moved.attempt, stays.attempt) == (2, 1)
    made.until(lambda: not made.partition.jobs)
    assert [job.state for job in (named, moved, stays)] == ["done"] * 3


def test_what_it_cannot_be_is_one_line() -> None:
    made = Fake(2)
    for given, words in (
        ({"reservation": "course"}, "--best-effort and --reservation course"),
        ({"grace_s": 31}, "--grace 31s: a best-effort job has 30 s at most"),
    ):
        with pytest.raises(WrongUseError, match=words):
            best_effort(made, 5, **given)
    other = Fake(2, registry.choose("portfolio").composed)
    with pytest.raises(WrongUseError, match="--best-effort: not with the partition's policy"):
        best_effort(other, 5)


def played(made: Fake, seed: int, jobs: int, kills: float = 0.0) -> None:
    rng = random.Random(seed)
    while jobs:
        made.now_s += 1
        for _ in range(min(rng.choice([0, 0, 0, 1, 1, 2]), jobs)):
            jobs -= 1
            run_s = rng.randint(1, 20)
            walltime_s = run_s + rng.choice([0, 1, 5, 40])
            made.submit(run_s, rng.choice([1, 1, 2, 3, 5]), walltime_s, best_effort=rng.random() < 0.4)
        if rng.random() < kills:
            made.kill_and_restart()
        made.end_due()  # in one pass with what has come, as in a replay
        made.report()
        made.settle()
    made.until(lambda: not made.partition.jobs, most_s=5000)


def test_no_job_is_lost_or_run_twice_at_once_through_kills_of_the_agent() -> None:
    made = Fake(6)
    played(made, 3, 80, kills=0.3)
    found = made.store.find()
    assert [job.state for job in found] == ["done"] * 80
    assert all(job.losses == 0 for job in found)
    assert sum(job.attempt - 1 for job in found if job.spec.best_effort) > 10
    assert all(job.attempt == 1 for job in found if not job.spec.best_effort)
    for node in made.nodes.values():
        assert len(node.runs) == len(set(node.runs))


@pytest.mark.parametrize("policy", ["fcfs", "easy", "score:lowest=sjf", "conservative"])
def test_the_replay_of_what_a_partition_exports_starts_and_preempts_the_same(policy: str, tmp_path: Path) -> None:
    made = Fake(6, registry.choose(policy).composed)
    played(made, 5, 120)
    files = files_of(made.partition, made.store, Kept(), [], made.now_s)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    given = arguments(str(tmp_path), files)
    assert given[given.index("--best-effort") + 1] == "queue=2"
    assert main(["replay", *given, "--policy", policy, "--out", str(tmp_path / "out")]) == 0
    with (tmp_path / "out" / "jobs.csv").open(newline="") as file:
        found = {int(row["job_id"]): int(row["starting_time"]) for row in csv.DictReader(file)}
    jobs = made.store.find()
    zero_s = min(job.queued_s for job in jobs)
    assert found == {job.id: round((job.started_s or 0) - zero_s) for job in jobs}
    preempted = sum(job.attempt - 1 for job in jobs)
    assert preempted > 10

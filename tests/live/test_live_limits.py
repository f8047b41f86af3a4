"""What users may run at once on a live partition: as in a replay, after restarts, and what people see of it."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cluster_agent.cli import main
from cluster_agent.cluster import Kept
from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.admission import check_live
from cluster_agent.jobs.exported_replay import files_of
from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.jobs.power_switching import PowerTimes
from cluster_agent.replay.replay_files import arguments
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.switches.limits import CLimits, Limits
from cluster_agent.scheduler.switches.live_limits import LiveSwitches, queues_of
from cluster_agent.serve.config import JobSettings
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, compositions, traces
from tests.live.fakes import EASY, Fake
from tests.live.test_partition import is_live, with_all_users

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
COMPOSITIONS = st.sampled_from(["none", "easy", "list"]).flatmap(
    lambda backfill: compositions(backfill=backfill, ties="instant", guard=None).filter(is_live)
)


def limited(text: str, queues: str = "") -> LiveSwitches:
    return JobSettings(limits=text, queues=queues).switches


def limits_of(jobs: Jobs, own: dict[int, int], most_jobs: int, most_nodes: int) -> Limits:
    """As a replay has them: ``own`` are the limits of jobs of single users."""
    users = jobs.n_users
    most = [own.get(user, most_jobs) for user in range(users)] + [most_nodes] * users
    none = np.zeros((0, 2), np.int64), np.zeros(len(jobs), np.int32), np.zeros(len(jobs), np.int64)
    counts_jobs = np.repeat([True, False], users)
    counter = np.stack([jobs.user, jobs.user + users], axis=1).astype(np.int32)
    return Limits(("limits",), *none, np.array(most, np.int64), counts_jobs, counter)


@settings(max_examples=40, phases=UNSHRUNK, deadline=None)
@given(
    jobs=traces(most=20),
    composition=COMPOSITIONS,
    most_jobs=st.integers(1, 3),
    most_nodes=st.integers(1, PROCESSORS),
    own=st.integers(1, 3),
)
def test_a_live_partition_keeps_limits_as_a_replay_does(
    jobs: Jobs, composition: Composition, most_jobs: int, most_nodes: int, own: int
) -> None:
    jobs = jobs.only(jobs.width <= most_nodes)
    if not len(jobs):
        return
    composition = with_all_users(composition, jobs)
    c_limits = CLimits(limits_of(jobs, {0: own}, most_jobs, most_nodes))
    replay = NativeReplay(composition, jobs, PROCESSORS, users=range(jobs.n_users), limits=c_limits)
    replay.run(EVERYTHING_ENDED)
    switches = limited(f"user:jobs={most_jobs},nodes={most_nodes} user=u0:jobs={own}")
    fake = Fake(PROCESSORS, composition, now_s=0.0, switches=switches)
    submitted: list[Job] = []
    starts: dict[int, int] = {}
    fake.settle()
    while len(starts) < len(jobs):
        fake.end_due()
        fake.report()
        while len(submitted) < len(jobs) and jobs.submit_s[len(submitted)] <= fake.now_s:
            row = len(submitted)
            columns = int(jobs.run_s[row]), int(jobs.width[row]), int(jobs.request_s[row]), int(jobs.user[row])
            submitted.append(fake.submit(*columns, user=f"u{jobs.user[row]}"))
        fake.settle()
        for row, job in enumerate(submitted):
            if row not in starts and job.started_s is not None:
                starts[row] = int(job.started_s)
        fake.now_s += 1
        assert fake.now_s < 2_000
    assert starts == dict(enumerate(replay.start_s.tolist()))
    assert fake.partition.watts.switched == c_limits.switches


def running(fake: Fake, *jobs: Job) -> list[bool]:
    fake.settle()
    return [fake.partition.jobs[job.id].state == "running" for job in jobs]


def test_a_restart_and_a_full_table_forget_no_limit_and_people_see_why_a_job_waits() -> None:
    fake = Fake(4, EASY, switches=limited("user:jobs=1 user=bob:nodes=2"), capacity=8)
    first, second = fake.submit(100, user="ada"), fake.submit(100, user="ada")
    wide, narrow = (fake.submit(100, nodes=nodes, uid=1001, user="bob") for nodes in (2, 1))
    assert running(fake, first, second, wide, narrow) == [True, False, True, False]
    why = fake.partition.why_waiting()
    assert why[second.id] == "ada has 1 of at most 1 jobs at once"
    assert why[narrow.id] == "bob has 2 of at most 2 nodes at once, and it needs 1"
    assert fake.partition.watts.switched == {"limits": 2}
    fake.kill_and_restart()
    fake.report()
    assert running(fake, second, narrow) == [False, False]
    assert fake.partition.why_waiting() == why
    for _ in range(30):  # rows of the table
        fake.partition.cancel(fake.submit(100, uid=1002, user="eve"))
    assert running(fake, second, narrow) == [False, False]
    fake.partition.cancel(fake.partition.jobs[first.id])
    assert running(fake, second, narrow) == [True, False]
    with pytest.raises(WrongUseError, match="3 nodes requested, and bob may have 2 at once"):
        fake.submit(1, nodes=3, uid=1001, user="bob")


def test_nodes_are_not_switched_on_for_a_job_that_may_not_start() -> None:
    fake = Fake(3, EASY, power=PowerTimes(idle_off_s=30), switches=limited("user:jobs=1"))
    job, held = fake.submit(1000, user="ada"), fake.submit(1000, user="ada")
    assert running(fake, job, held) == [True, False]
    for _ in range(40):
        fake.now_s += 1
        fake.report()
        fake.settle()
    off = [node.name for node in fake.partition.nodes.values() if node.switched is not None]
    assert len(off) == 2, "nobody may start on them"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("user:jobs=0", "user:jobs=0: 'jobs=0' is neither nodes=NUMBER nor jobs=NUMBER, from 1"),
        ("host:jobs=1", "host:jobs=1: give user:nodes=NUMBER, queue=NAME:jobs=NUMBER or the like"),
        ("queue:jobs=1", "a limit of queues, and the partition has none ([jobs] queues)"),
        ("queue=night:jobs=1", "no queue is called 'night': the partition has none ([jobs] queues)"),
        ("user:processors=1", "user:processors=1: 'processors=1' is neither nodes=NUMBER nor jobs=NUMBER"),
    ],
)
def test_a_limit_that_is_none_is_said(given: str, problem: str) -> None:
    with pytest.raises(WrongUseError) as error:
        limited(given)
    assert str(error.value).startswith(problem)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("batch=n[1-", "queue batch: 'n[1-' is no list of nodes such as n[0-3,7]"),
        ("=n1", "=n1: give NAME or NAME=NODES, such as batch=n[01-12]"),
        ("batch=", "batch=: give NAME or NAME=NODES, such as batch=n[01-12]"),
        ("day day", "day: queue day is there twice"),
        ("day batch=n1", "batch=n1: either all queues have nodes of their own, or none has"),
        ("batch=n[1-3] debug=n3", "debug=n3: n3 is a node of queue batch already"),
    ],
)
def test_queues_that_are_none_are_said(given: str, problem: str) -> None:
    with pytest.raises(WrongUseError) as error:
        limited("", given)
    assert str(error.value) == problem


def test_a_job_waits_for_the_nodes_of_its_queue_alone() -> None:
    fake = Fake(5, EASY, power=PowerTimes(idle_off_s=30), switches=limited("", "batch=n[00-01] debug=n[02-03]"))
    batch, late = fake.submit(100, nodes=2), fake.submit(100)
    debug = fake.submit(100, queue="debug")
    assert running(fake, batch, late, debug) == [True, False, True], "the first queue is that of jobs that name none"
    assert [batch.nodes, debug.nodes, late.spec.queue] == [["n00", "n01"], ["n02"], "batch"]
    assert fake.partition.why_waiting()[late.id].startswith("first in the queue: needs 1 node, and 0 are idle; enough")
    assert fake.partition.watts.switched == {"partitions": 2}, "one waits, and one has started past it"
    assert fake.partition.nodes["n04"].gets_none == "a node of no queue"
    for _ in range(40):
        fake.step()
    assert fake.partition.nodes["n03"].switched is not None, "who waits may not start there"
    fake.kill_and_restart()
    fake.report()
    assert running(fake, late, debug) == [False, True]
    fake.nodes["n00"].is_cut = True
    fake.until(lambda: fake.partition.nodes["n00"].state == "down")
    fake.partition.cancel(fake.partition.jobs[batch.id])
    wide = fake.submit(1, nodes=2)
    fake.until(lambda: fake.partition.jobs[late.id].state == "running")
    assert fake.partition.jobs[late.id].nodes == ["n01"]
    assert running(fake, wide) == [False], "a node of its queue is down"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"queue": "dbg"}, "no queue is called 'dbg' (nearest: debug)"),
        ({"nodes": 2, "queue": "debug"}, "2 nodes requested, but queue debug has 1"),
    ],
)
def test_a_job_that_its_queue_can_never_run_is_refused(given: dict[str, Any], problem: str) -> None:
    fake = Fake(4, EASY, switches=limited("", "batch=n[00-01] debug=n02"))
    with pytest.raises(WrongUseError) as error:
        fake.submit(1, **given)
    assert str(error.value) == problem
    spec = JobSpec(["run", "1"], 10, "/")
    assert fake.partition.submit(0, "root", spec, on=["n02"]).spec.queue == "debug", "a node's own queue"
    with pytest.raises(WrongUseError, match="n03 is a node of no queue, so it gets no job"):
        fake.partition.submit(0, "root", spec, on=["n03"])


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ("conservative", "backfill=conservative does not go with limits"),
        ("easy-power", "a policy that knows watts does not go with limits"),
        ("rmap", "a policy that owns watts does not go with limits"),
    ],
)
def test_a_policy_that_does_not_go_with_limits_is_refused(policy: str, problem: str) -> None:
    with pytest.raises(WrongUseError, match=problem):
        check_live(choose(policy).live, True, True, True, ("limits",))


@pytest.mark.parametrize("policy", ["fcfs", "easy", "easy-sjbf:estimate=mean2,correct=incremental"])
@pytest.mark.parametrize(
    ("queues", "limits"),
    [
        ("batch=n[00-04] debug=n[05-07]", ""),
        ("batch=n[00-04] debug=n[05-07]", "user:jobs=3 group=staff:nodes=3 queue=debug:jobs=2"),
        ("day night", "queue=night:nodes=3,jobs=2 user=u1:nodes=5 group:jobs=4"),
    ],
)
def test_the_replay_of_what_a_partition_exports_has_its_queues_and_limits(
    policy: str, queues: str, limits: str, tmp_path: Path
) -> None:
    rng, at_s = random.Random(7), 0
    fake = Fake(8, choose(policy).live, now_s=1000.0, switches=limited(limits, queues))
    for _ in range(80):
        for _ in range(rng.choice([0, 0, 1, 1, 2, 4])):  # seconds
            fake.end_due()
            fake.report()
            fake.settle()
            fake.now_s += 1
            at_s += 1
        run_s, who = rng.randint(1, 12), rng.randrange(4)
        queue = rng.choice(["", *queues_of(queues)])
        spec = JobSpec(["run", str(run_s)], run_s + rng.choice([0, 1, 9]), "/", nodes=rng.randint(1, 3), queue=queue)
        fake.partition.submit(1000 + who, f"u{who}", spec, group=rng.choice(["staff", "guests", ""]))
    jobs = dict(fake.partition.jobs)
    fake.until(lambda: not fake.partition.jobs)
    started = {job.id: int(job.started_s or 0) for job in fake.store.ended(1000)}
    assert len(started) == 80 and jobs
    found, metrics = replayed(fake, policy, tmp_path)
    assert found == started
    switches = fake.partition.watts.switched
    assert metrics["switches"].items() >= switches.items() and all(switches.values())


def replayed(fake: Fake, policy: str, directory: Path) -> tuple[dict[int, int], dict[str, Any]]:
    """When each job starts in the replay of what the partition exports, by its clock, and the metrics."""
    files = files_of(fake.partition, fake.store, Kept(), [], fake.now_s)
    for name, text in files.items():
        (directory / name).write_text(text)
    out = directory / "out"
    assert main(["replay", *arguments(str(directory), files), "--policy", policy, "--out", str(out)]) == 0
    zero_s = int(min(job.queued_s for job in fake.store.ended(1000)))
    with (out / "jobs.csv").open(newline="") as file:
        found = {int(row["job_id"]): zero_s + int(row["starting_time"]) for row in csv.DictReader(file)}
    return found, json.loads((out / "metrics.json").read_text())


@pytest.mark.parametrize("policy", ["fcfs", "easy", "easy-sjbf:estimate=mean2,correct=incremental"])
def test_nodes_that_fail_do_to_a_partition_what_they_do_in_the_replay_of_its_export(
    policy: str, tmp_path: Path
) -> None:
    """No job is lost twice, since it is not run again then, nor so late that it would have ended: a replay, which knows
    of one run time alone, would have it end."""
    rng = random.Random(3)
    fake = Fake(6, choose(policy).live, now_s=1000.0)
    fake.step()
    back_s: dict[str, float] = {}
    for _ in range(60):
        run_s = rng.randint(40, 160)
        fake.submit(run_s, rng.choice([1, 1, 2, 3]), run_s + rng.choice([40, 200]), 1000 + rng.randrange(3))
        fake.settle()
        for _ in range(rng.choice([0, 5, 20, 60])):
            for name in [name for name, at_s in back_s.items() if at_s <= fake.now_s]:
                fake.nodes[name].is_cut = False
                del back_s[name]
            if rng.random() < 0.03:
                once = {name for job in fake.partition.jobs.values() if job.losses for name in job.nodes}
                late = {
                    node.name
                    for node in fake.nodes.values()
                    for at_s, _ in node.ends_s.values()
                    if at_s < fake.now_s + 32
                }
                others = [node for name, node in fake.nodes.items() if name not in once | late]
                if back_s or not others:
                    continue
                node = rng.choice(others)
                if rng.random() < 0.7:
                    node.reboot()
                node.is_cut = True
                back_s[node.name] = fake.now_s + rng.randint(2, 30)
            fake.step()
    for node in fake.nodes.values():
        node.is_cut = False
    fake.until(lambda: not fake.partition.jobs, most_s=5000)
    jobs = fake.store.ended(1000)
    assert sum(job.losses for job in jobs) > 5 and max(job.losses for job in jobs) == 1
    found, metrics = replayed(fake, policy, tmp_path)
    assert found == {job.id: int(job.started_s or 0) for job in jobs}
    assert metrics["kills"] == sum(job.losses for job in jobs)
    assert metrics["switches"] == fake.partition.switched

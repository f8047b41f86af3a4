"""What users may run at once on a live partition: as in a replay, after restarts, and what people see of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.admission import check_live
from cluster_agent.jobs.job import Job
from cluster_agent.jobs.power_switching import PowerTimes
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.switches.limit_rules import rules_of
from cluster_agent.scheduler.switches.limits import CLimits, Limits
from cluster_agent.serve.config import JobSettings
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, compositions, traces
from tests.live.fakes import EASY, Fake
from tests.live.test_partition import is_live, with_all_users

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
COMPOSITIONS = st.sampled_from(["none", "easy", "list"]).flatmap(
    lambda backfill: compositions(backfill=backfill, ties="instant", guard=None).filter(is_live)
)


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
    rules = rules_of(f"user:jobs={most_jobs},nodes={most_nodes} user=u0:jobs={own}", "nodes", ("user",))
    fake = Fake(PROCESSORS, composition, now_s=0.0, limits=rules)
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
    assert fake.partition.watts.passed_over == c_limits.switches["limits"]


def running(fake: Fake, *jobs: Job) -> list[bool]:
    fake.settle()
    return [fake.partition.jobs[job.id].state == "running" for job in jobs]


def test_a_restart_and_a_full_table_forget_no_limit_and_people_see_why_a_job_waits() -> None:
    fake = Fake(4, EASY, limits=rules_of("user:jobs=1 user=bob:nodes=2", "nodes", ("user",)), capacity=8)
    first, second = fake.submit(100, user="ada"), fake.submit(100, user="ada")
    wide, narrow = (fake.submit(100, nodes=nodes, uid=1001, user="bob") for nodes in (2, 1))
    assert running(fake, first, second, wide, narrow) == [True, False, True, False]
    why = fake.partition.why_waiting()
    assert why[second.id] == "ada has 1 of at most 1 jobs at once"
    assert why[narrow.id] == "bob has 2 of at most 2 nodes at once, and it needs 1"
    assert fake.partition.watts.passed_over == 2
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
    fake = Fake(3, EASY, power=PowerTimes(idle_off_s=30), limits=rules_of("user:jobs=1", "nodes", ("user",)))
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
        ("queue:jobs=1", "queue:jobs=1: give user:nodes=NUMBER, user=NAME:jobs=NUMBER or the like"),
        ("user:processors=1", "user:processors=1: 'processors=1' is neither nodes=NUMBER nor jobs=NUMBER"),
    ],
)
def test_a_limit_that_is_none_is_said(given: str, problem: str) -> None:
    with pytest.raises(WrongUseError) as error:
        _ = JobSettings(limits=given).rules
    assert str(error.value).startswith(problem)


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
        check_live(choose(policy).live, True, True, True, has_limits=True)

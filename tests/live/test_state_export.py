"""The state of a partition as a file, and the replay that goes on from it."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.cli import main
from cluster_agent.jobs.exported_state import state_of
from cluster_agent.jobs.job import Job
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.workloads.state_file import MachineState, encode, problem_of
from tests.cluster_agent.traces import PROCESSORS, traces
from tests.live.fakes import Fake
from tests.live.test_owned_configurations import FULL_W, live
from tests.live.test_owned_watts import WINDOW, stored_j, under

POLICIES = ["fcfs", "easy", "easy-sjbf", "conservative", "rule-based", "score:lowest=saf", "easy:estimate=mean2"]


def exported(fake: Fake, policy: str, past: int = 1000) -> MachineState:
    state = state_of(fake.partition, fake.store, policy, fake.now_s, past)
    assert problem_of(state) is None
    return state


def replayed_starts(state: MachineState, policy: str) -> dict[int, int]:
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "state.json", Path(folder) / "out"
        path.write_bytes(encode(state))
        assert main(["replay", "--state", str(path), "--policy", policy, "--out", str(out)]) == 0
        with (out / "jobs.csv").open(newline="") as file:
            return {int(row["job_id"]): int(row["starting_time"]) for row in csv.DictReader(file)}


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=15)
@given(jobs=traces(most=20), cut_s=st.integers(1, 60))
def test_a_replay_of_the_state_starts_the_queue_when_and_in_the_order_in_which_the_partition_does(
    policy: str, jobs: Jobs, cut_s: int
) -> None:
    """Jobs that run for their requested time, which is what a replay knows without a log."""
    fake = Fake(PROCESSORS, choose(policy).composition)
    first_s, submitted = int(fake.now_s), list[Job]()
    while fake.now_s - first_s < cut_s:
        for row in range(len(submitted), len(jobs)):
            if jobs.submit_s[row] <= fake.now_s - first_s:
                run_s, nodes = int(jobs.run_s[row]), int(jobs.width[row])
                submitted.append(fake.submit(run_s, nodes, walltime_s=run_s, uid=1000 + int(jobs.user[row])))
        fake.settle()
        fake.step()
    state = exported(fake, policy)
    alive = [job for job in submitted if job.id in fake.partition.jobs]
    assert sum(state.count().values()) == len(submitted) and state.processors == PROCESSORS
    if not alive:
        return
    expected = replayed_starts(state, policy)
    fake.until(lambda: not fake.partition.jobs)
    found = {job.id: int(job.started_s) for job in alive if job.started_s is not None}
    assert {job: start_s for job, start_s in expected.items() if job in found} == found


def test_a_state_has_what_is_known_of_each_job_and_how_many_nodes_are_away() -> None:
    fake = Fake(4)
    done, runs, waits = fake.submit(5, nodes=2), fake.submit(500, nodes=3, uid=7, tag="memory"), fake.submit(9, nodes=4)
    fake.settle()
    for _ in range(9):
        fake.step()
    fake.partition.drain("n03", "fan", 0)
    fake.step()
    state = exported(fake, "easy")
    assert (state.source, state.policy, state.t0_s, state.away) == ("partition", "easy", int(fake.now_s) + 1, 1)
    assert [job.what for job in state.jobs] == ["ended", "running", "queued"]
    found = {job.job: job for job in state.jobs}
    assert (found[done.id].start_s, found[done.id].end_s) == (1000, 1005)
    running = found[runs.id]
    assert (running.submit_s, running.start_s, running.width, running.request_s, running.user, running.tag) == (
        1000, 1005, 3, 1000, 7, "MEMORY",
    )  # fmt: skip
    assert running.nodes == ["n00", "n01", "n02"] and found[waits.id].start_s is None
    assert exported(fake, "easy", past=0).count() == {"queued": 1, "running": 1, "ended": 0}


def test_a_job_to_which_the_policy_gave_other_nodes_than_it_requests_has_these() -> None:
    fake = live("rmap:th=0", (1000.0, FULL_W))
    job = fake.submit(run_s=50, nodes=2, walltime_s=210, name="lu")
    fake.step(2)
    assert job.configured is not None and len(job.nodes) == 4
    [found] = exported(fake, "rmap:th=0").jobs
    assert (found.width, found.nodes) == (4, job.nodes)
    assert found.request_s == max(210, job.configured.length_s)


def test_the_replay_says_how_many_nodes_are_away(capsys: pytest.CaptureFixture[str]) -> None:
    fake = Fake(3)
    fake.submit(50, nodes=1, walltime_s=50)
    fake.settle()
    fake.partition.drain("n02", "fan", 0)
    fake.step()
    replayed_starts(exported(fake, "easy"), "easy")
    assert "1 of 3 nodes were down or drained, and here they get jobs: plan without them by --machine 2" in (
        capsys.readouterr().err
    )


def test_what_a_budget_has_stored_and_the_frequencies_are_in_the_state() -> None:
    fake = under(WINDOW, (1000.0, 400.0))
    fake.submit(run_s=60, nodes=1)
    fake.step(7)
    now_j = stored_j(fake)
    state = exported(fake, WINDOW)
    assert state.stored_j is not None and state.stored_j - now_j == pytest.approx(400 - 120 - 70)
    assert exported(Fake(2), "easy").stored_j is None
    slowed = under("powercap:mode=dvfs", (1000.0, 250.0))
    slowed.submit(run_s=60, nodes=2)
    slowed.step(2)
    [job] = exported(slowed, "powercap:mode=dvfs").jobs
    assert job.level > 0

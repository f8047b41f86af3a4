"""The native engine against the plain-Python one, on random traces and every composition."""

from __future__ import annotations

from hypothesis import given, settings

from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policy_phases import Composition
from tests.cluster_agent.traces import (
    EVERYTHING_ENDED,
    PROCESSORS,
    compositions,
    looped_starts,
    native_starts,
    traces,
)
from tests.oracle.scheduler import ReferenceScheduler


@settings(max_examples=400)
@given(jobs=traces(), composition=compositions())
def test_the_native_replay_and_the_plain_python_engine_give_the_same_schedule(
    jobs: Jobs, composition: Composition
) -> None:
    reference = ReferenceScheduler(composition, jobs, PROCESSORS)
    expected = looped_starts(reference, composition, jobs)
    replay = NativeReplay(composition, jobs, PROCESSORS)
    replay.run(EVERYTHING_ENDED)
    assert dict(enumerate(replay.start_s.tolist())) == {job: expected.get(job, -1) for job in range(len(jobs))}
    assert dict(enumerate(replay.first_estimate_s.tolist())) == reference.first_estimate_s
    assert replay.corrections.tolist() == [reference.corrections[job] for job in range(len(jobs))]


@settings(max_examples=100)
@given(jobs=traces(), composition=compositions())
def test_the_native_scheduler_decides_alike_in_the_python_loop_and_in_the_native_one(
    jobs: Jobs, composition: Composition
) -> None:
    scheduler = NativeScheduler(composition, jobs, PROCESSORS)
    assert looped_starts(scheduler, composition, jobs) == native_starts(composition, jobs)


@settings(max_examples=50)
@given(jobs=traces(), composition=compositions())
def test_a_replay_paused_after_every_job_ends_like_one_run_at_once(jobs: Jobs, composition: Composition) -> None:
    replay = NativeReplay(composition, jobs, PROCESSORS)
    ended = 1
    while replay.run(ended):
        ended = replay.ended + 1
    assert dict(enumerate(replay.start_s.tolist())) == {
        job: native_starts(composition, jobs).get(job, -1) for job in range(len(jobs))
    }

"""A replay that starts in the middle: what happened before is carried out, and the policy decides from there on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.scheduler.interfaces import Scheduler
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policies import registry
from cluster_agent.scheduler.policies.api import EstimateParams
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.recorded import Recorded
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, compositions, traces
from tests.oracle.scheduler import ReferenceScheduler

ESTIMATES = ("", "estimate=clairvoyant", "estimate=mean2,correct=incremental", "estimate=learned,correct=doubling")
ON_PROCESSORS = [
    name
    for name in registry.names()
    if isinstance(composed := registry.choose(name).composed, Composition) and composed.power is None
]
CHOICES = [
    *(
        f"{name}:{estimate}".rstrip(":")
        for name in ON_PROCESSORS
        for estimate in ESTIMATES
        if not estimate or issubclass(registry.policy(name).params, EstimateParams)
    ),
    "easy:ties=sc15",
    "easy-sjbf:estimate=mean2,correct=incremental,ties=sc15",
    "easy-sjbf:estimate=mean2,history=similar,fixed=start,shadow=inf,guard=3",
    "wfp3:estimate=mean2,history=similar,fixed=start,guard=1.5",
    "conservative:ends=compress,estimate=mean2,correct=doubling-capped",
    "multifactor:age=0.4,size=0.2,half_life_s=20",
    "score:lowest=unicep,guard=2",
    "score:lowest=f1,estimate=mean2",
    "rule-based:rule=profit",
    "rule-based:rule=walltime,miss=strict",
]


def replayed(composition: Composition, jobs: Jobs, recorded: Recorded | None = None) -> NativeReplay:
    replay = NativeReplay(composition, jobs, PROCESSORS, recorded=recorded)
    assert not replay.run(EVERYTHING_ENDED)
    return replay


def cut(cold: NativeReplay, until_s: int, passes_at_once: bool = False) -> Recorded:
    """What had been started by then."""
    start_s = cold.start_s
    return Recorded(np.where((start_s >= 0) & (start_s < until_s), start_s, -1), until_s, passes_at_once)


def looped(scheduler: Scheduler, composition: Composition, jobs: Jobs, recorded: Recorded) -> dict[int, int]:
    machine = SimulatedMachine(jobs, composition.ties, recorded=recorded)
    run(scheduler, JumpingClock(), machine)
    return machine.start_s


def check_same(warm: NativeReplay, cold: NativeReplay) -> None:
    for name in ("start_s", "end_s", "first_estimate_s", "corrections", "overtook"):
        assert getattr(warm, name).tolist() == getattr(cold, name).tolist(), name
    assert warm.passes == cold.passes
    started = [job for job, start_s in enumerate(cold.start_s) if start_s >= 0]
    assert [warm.processors(job) for job in started] == [cold.processors(job) for job in started]


@settings(max_examples=400)
@given(jobs=traces(), composition=compositions(), until_s=st.integers(0, 90))
def test_a_replay_cut_anywhere_goes_on_as_if_it_had_not_been_cut(
    jobs: Jobs, composition: Composition, until_s: int
) -> None:
    cold = replayed(composition, jobs)
    check_same(replayed(composition, jobs, cut(cold, until_s)), cold)


@pytest.mark.parametrize("text", CHOICES)
@settings(max_examples=25)
@given(jobs=traces(), until_s=st.integers(0, 90))
def test_so_it_does_under_every_policy_for_logs_of_processors(text: str, jobs: Jobs, until_s: int) -> None:
    composition = registry.choose(text).composition
    cold = replayed(composition, jobs)
    check_same(replayed(composition, jobs, cut(cold, until_s)), cold)


@settings(max_examples=300)
@given(jobs=traces(), before=compositions(), after=compositions(), until_s=st.integers(0, 90), passes=st.booleans())
def test_after_another_policy_both_engines_carry_out_its_starts_and_go_on_alike(
    jobs: Jobs, before: Composition, after: Composition, until_s: int, passes: bool
) -> None:
    recorded = cut(replayed(before, jobs), until_s, passes)
    warm = replayed(after, jobs, recorded)
    was = recorded.start_s >= 0
    assert warm.start_s[was].tolist() == recorded.start_s[was].tolist()
    assert (warm.start_s[~was & (warm.start_s >= 0)] >= until_s).all()
    expected = {job: int(start_s) for job, start_s in enumerate(warm.start_s) if start_s >= 0}
    reference = ReferenceScheduler(after, jobs, PROCESSORS, recorded)
    in_order = looped(reference, after, jobs, recorded)
    assert in_order == expected
    assert warm.first_estimate_s.tolist() == [reference.first_estimate_s[job] for job in range(len(jobs))]
    native = NativeScheduler(after, jobs, PROCESSORS, recorded=recorded)
    assert list(looped(native, after, jobs, recorded)) == list(in_order)


@given(jobs=traces(), composition=compositions(), until_s=st.integers(0, 60))
def test_a_policy_that_takes_over_decides_at_once(jobs: Jobs, composition: Composition, until_s: int) -> None:
    """The record has started nobody, and at the cut there is room for the first jobs of the queue."""
    nobody = Recorded(np.full(len(jobs), -1), until_s, True)
    warm = replayed(composition, jobs, nobody)
    if (jobs.submit_s <= until_s).any():
        assert (warm.start_s == until_s).any()
    assert (warm.start_s >= until_s).all()

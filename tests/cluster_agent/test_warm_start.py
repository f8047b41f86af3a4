"""A replay that starts in the middle of what another policy did: its starts are carried out, and this one decides from
there on. (``test_state_files``: a policy that goes on from its own state.)"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.scheduler.interfaces import Scheduler
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.recorded import Recorded, Start
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, compositions, traces
from tests.oracle.scheduler import ReferenceScheduler


def replayed(composition: Composition, jobs: Jobs, recorded: Recorded | None = None) -> NativeReplay:
    replay = NativeReplay(composition, jobs, PROCESSORS, recorded=recorded)
    assert not replay.run(EVERYTHING_ENDED)
    return replay


def cut(cold: NativeReplay, until_s: int) -> Recorded:
    """What had been started by then."""
    starts = [Start(start_s, job) for job, start_s in enumerate(cold.start_s.tolist()) if 0 <= start_s < until_s]
    return Recorded(sorted(starts), until_s)


def looped(scheduler: Scheduler, composition: Composition, jobs: Jobs, recorded: Recorded) -> dict[int, int]:
    machine = SimulatedMachine(jobs, composition.ties, recorded=recorded)
    run(scheduler, JumpingClock(), machine)
    return machine.start_s


@settings(max_examples=400)
@given(jobs=traces(), before=compositions(), after=compositions(), until_s=st.integers(0, 90))
def test_after_another_policy_both_engines_carry_out_its_starts_and_go_on_alike(
    jobs: Jobs, before: Composition, after: Composition, until_s: int
) -> None:
    recorded = cut(replayed(before, jobs), until_s)
    warm = replayed(after, jobs, recorded)
    expected = {job: start_s for job, start_s in enumerate(warm.start_s.tolist()) if start_s >= 0}
    assert [expected[one.job] for one in recorded.starts] == [one.start_s for one in recorded.starts]
    started = {one.job for one in recorded.starts}
    assert all(start_s >= until_s for job, start_s in expected.items() if job not in started)
    reference = ReferenceScheduler(after, jobs, PROCESSORS, recorded)
    in_order = looped(reference, after, jobs, recorded)
    assert in_order == expected
    assert warm.first_estimate_s.tolist() == [reference.first_estimate_s[job] for job in range(len(jobs))]
    native = NativeScheduler(after, jobs, PROCESSORS, recorded=recorded)
    assert list(looped(native, after, jobs, recorded)) == list(in_order)


@given(jobs=traces(), composition=compositions(), until_s=st.integers(0, 60))
def test_a_policy_that_takes_over_decides_at_once(jobs: Jobs, composition: Composition, until_s: int) -> None:
    """The record has started nobody, and at the cut there is room for the first jobs of the queue."""
    warm = replayed(composition, jobs, Recorded([], until_s))
    if (jobs.submit_s <= until_s).any():
        assert (warm.start_s == until_s).any()
    assert (warm.start_s >= until_s).all()

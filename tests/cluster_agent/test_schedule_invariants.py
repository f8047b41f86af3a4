"""What holds for every schedule, on random traces and every composition."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings

from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.scheduler.job_columns import KNOWN_EVERYWHERE, Jobs
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policy_phases import Composition
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, compositions, native_starts, traces


@settings(max_examples=200)
@given(jobs=traces(), composition=compositions())
def test_every_job_starts_after_its_submission_and_ends(jobs: Jobs, composition: Composition) -> None:
    replay = NativeReplay(composition, jobs, PROCESSORS)
    assert not replay.run(EVERYTHING_ENDED)
    assert replay.ended == len(jobs)
    assert (replay.start_s >= jobs.submit_s).all()


@settings(max_examples=200)
@given(jobs=traces(), composition=compositions())
def test_no_processor_runs_two_jobs_at_once(jobs: Jobs, composition: Composition) -> None:
    replay = NativeReplay(composition, jobs, PROCESSORS)
    replay.run(EVERYTHING_ENDED)
    used: dict[int, list[tuple[int, int]]] = {}
    for job, start_s in enumerate(replay.start_s.tolist()):
        processors = [one for first, last in replay.processors(job) for one in range(first, last + 1)]
        assert len(set(processors)) == jobs.width[job]
        for processor in processors:
            assert 0 <= processor < PROCESSORS
            used.setdefault(processor, []).append((start_s, start_s + int(jobs.run_s[job])))
    for spans in used.values():
        assert all(end_s <= start_s for (_, end_s), (start_s, _) in pairwise(sorted(spans)))


class Watched(NativeScheduler):
    """The native scheduler, with the head's reservation worked out from outside after every pass."""

    def __init__(self, composition: Composition, jobs: Jobs, processors: int) -> None:
        super().__init__(composition, jobs, processors)
        self.jobs, self.processors = jobs, processors
        self.waiting: list[int] = []
        self.running: set[int] = set()
        self.reservations: dict[int, list[int]] = {}

    def submit(self, now_s: int, job: int) -> bool:
        self.waiting.append(job)
        return super().submit(now_s, job)

    def end(self, job: int) -> None:
        self.running.remove(job)
        super().end(job)

    def decide(self, now_s: int) -> list[int]:
        started = super().decide(now_s)
        self.running.update(started)
        self.waiting = [job for job in self.waiting if job not in started]
        if self.waiting:
            head = self.waiting[0]
            self.reservations.setdefault(head, []).append(self._earliest(head))
        return started

    def _earliest(self, head: int) -> int:
        free = self.processors - sum(int(self.jobs.width[job]) for job in self.running)
        for job in sorted(self.running, key=self.expected_end_s):
            free += int(self.jobs.width[job])
            if free >= self.jobs.width[head]:
                return self.expected_end_s(job)
        raise AssertionError("the head fits, and was not started")


@settings(max_examples=300)
@given(
    jobs=traces(),
    composition=compositions(
        backfill="easy", order=None, guard=None, ties="instant", passes_if_new_fits=False, shadow=1.0
    ),
)
def test_easy_never_delays_the_head_when_estimates_are_upper_bounds(jobs: Jobs, composition: Composition) -> None:
    scheduler = Watched(composition, jobs, PROCESSORS)
    machine = SimulatedMachine(jobs, composition.ties)
    run(scheduler, JumpingClock(), machine)
    if composition.estimate in ("mean2", "learned"):
        return  # a job may outlive its estimate, and then the head waits for it
    for head, reserved_s in scheduler.reservations.items():
        assert is_descending(reserved_s)
        assert machine.start_s[head] <= reserved_s[-1]


def is_descending(times_s: Sequence[int]) -> bool:
    return all(later <= earlier for earlier, later in pairwise(times_s))


@settings(max_examples=100)
@given(jobs=traces(), composition=compositions(backfill="none", order=None, guard=None))
def test_without_backfilling_jobs_start_in_order_of_submission(jobs: Jobs, composition: Composition) -> None:
    starts = native_starts(composition, jobs)
    assert is_descending([starts[job] for job in reversed(range(len(jobs)))])


@settings(max_examples=150)
@given(
    jobs=traces(),
    composition=compositions(backfill="conservative", estimate="clairvoyant", order=None, guard=None, shadow=1.0),
)
def test_with_true_run_times_no_later_job_changes_a_conservative_start(jobs: Jobs, composition: Composition) -> None:
    starts = native_starts(composition, jobs)
    for count in (len(jobs) // 3, 2 * len(jobs) // 3):
        earlier = Jobs(*(getattr(jobs, column)[:count] for column in KNOWN_EVERYWHERE))
        assert native_starts(composition, earlier) == {job: starts[job] for job in range(count)}


@settings(max_examples=50)
@given(jobs=traces(), composition=compositions())
def test_a_replay_gives_the_same_bits_again(jobs: Jobs, composition: Composition) -> None:
    def everything() -> list[object]:
        replay = NativeReplay(composition, jobs, PROCESSORS)
        replay.run(EVERYTHING_ENDED)
        places = [replay.processors(job) for job in range(len(jobs))]
        return [replay.start_s.tolist(), replay.first_estimate_s.tolist(), replay.overtook.tolist(), places]

    assert everything() == everything()

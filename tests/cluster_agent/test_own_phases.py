"""An *estimate* and a *backfill* written in Python: they decide as those that ship where they are the same, in every
loop, and what they answer wrongly or raise ends a replay in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.errors import ClusterError, StepError
from cluster_agent.library import Busy, Composition, Past, Power, Queue, Submitted, World, policy, replay
from cluster_agent.library.fitting import fitted
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policy_phases import LIVE, Order, clash
from cluster_agent.stepping.steps import Steps
from tests.cluster_agent.traces import PROCESSORS, looped_starts, native_starts, traces, widest_first
from tests.recorded import RECORDED, needs_recorded

LOG: Final = str(Path(__file__).parents[2] / "cluster_agent" / "samples" / "generated-500.swf")
KTH: Final = "sc15-backfilling/KTH-SP2.swf.gz"


def own_easy(queue: Queue, busy: Busy, now_s: int) -> list[int]:
    """EASY as one writes it down."""
    head, room = queue.width[0], busy.free
    free = room + np.cumsum(busy.width)
    at_s = busy.end_s[np.argmax(free >= head)]
    left_over = free[busy.end_s <= at_s][-1] - head
    starts = []
    for place, (width, estimate_s) in enumerate(zip(queue.width.tolist(), queue.estimate_s.tolist(), strict=True)):
        is_late = now_s + estimate_s > at_s
        if place and width <= room and (not is_late or width <= left_over):
            starts.append(place)
            room -= width
            left_over -= width * is_late
    return starts


def mean_of_two(submitted: Submitted, past: Past) -> float:
    """``estimate=mean2``."""
    run_s = past.run_s[past.user == submitted.user][-2:]
    return submitted.request_s if len(run_s) < 2 else int(run_s.sum()) // 2


def requested(submitted: Submitted, past: Past) -> float:
    return submitted.request_s


@pytest.fixture(scope="module")
def log() -> World:
    return World(LOG, machine=128)  # so few that jobs wait


# --- they decide as those that ship


@pytest.mark.parametrize("path", [LOG, pytest.param(str(RECORDED / KTH), marks=needs_recorded(KTH))])
def test_easy_as_a_function_is_easy_job_for_job(path: str) -> None:
    world = World(path, machine=128 if path == LOG else None)
    shipped, own = replay(world, "easy"), replay(world, policy(backfill=own_easy, estimate=requested))
    assert shipped.metrics["overtook"] > 0
    np.testing.assert_array_equal(own.start_s, shipped.start_s)
    assert own.metrics == shipped.metrics


def test_an_estimate_as_a_function_is_mean2_job_for_job(log: World) -> None:
    for phases in ({"correct": "incremental"}, {"correct": "doubling", "scan": "shortest"}, {"shadow": 2.0}):
        shipped, own = (replay(log, policy(estimate=one, **phases)) for one in ("mean2", mean_of_two))
        np.testing.assert_array_equal(own.start_s, shipped.start_s)
        assert own.metrics == shipped.metrics
    assert shipped.metrics["corrections"] > 0


@settings(max_examples=60)
@given(
    jobs=traces(),
    order=st.sampled_from([None, widest_first]),
    estimate=st.sampled_from([requested, mean_of_two]),
    ties=st.sampled_from(["instant", "sc15"]),
    guard=st.sampled_from([None, 1.5]),
)
def test_functions_decide_alike_in_every_loop_and_as_the_phases_that_ship(
    jobs: Jobs, order: Order | None, estimate: Callable[[Submitted, Past], float], ties: Any, guard: float | None
) -> None:
    given = {"order": order, "ties": ties, "guard": guard, "correct": "incremental"}
    own = Composition(estimate=estimate, backfill=own_easy, **given)
    shipped = Composition(estimate="requested" if estimate is requested else "mean2", backfill="easy", **given)
    starts = native_starts(shipped, jobs)
    assert native_starts(own, jobs) == starts
    assert looped_starts(NativeScheduler(own, jobs, PROCESSORS), own, jobs) == starts


@pytest.mark.parametrize(
    "given", [{"machine": "curie:nodes=8"}, {"machine": 128, "closed_loop": "think=60", "seed": 3}]
)
def test_functions_decide_alike_on_a_metered_machine_and_in_a_closed_loop(given: dict[str, Any]) -> None:
    world = World(LOG, **given)
    shipped, own = replay(world, "easy"), replay(world, policy(backfill=own_easy, estimate=requested))
    assert shipped.metrics["overtook"] > 0
    np.testing.assert_array_equal(own.start_s, shipped.start_s)


def test_what_has_ended_is_known_in_the_order_of_ends_and_stays_as_it_is(log: World) -> None:
    seen: list[Past] = []

    def estimate(submitted: Submitted, past: Past) -> float:
        seen.append(past)
        assert not past.run_s.flags.writeable
        return submitted.request_s

    result = replay(log, policy(estimate=estimate))
    jobs, end_s = result.jobs, result.start_s + result.run_s
    assert len(seen) == len(jobs) and len(seen[0].job) == 0 < len(seen[-1].job)
    for number, past in enumerate(seen):
        assert set(past.job) == set(np.flatnonzero(end_s <= jobs.submit_s[number]))
        assert (np.diff(end_s[past.job]) >= 0).all()
        for name in ("submit_s", "request_s", "run_s", "width", "user"):
            np.testing.assert_array_equal(getattr(past, name), getattr(jobs, name)[past.job])


# --- what they may not answer


BACKFILLS: Final[dict[str, tuple[Callable[..., Any], str]]] = {
    "no whole numbers": (lambda queue, busy, now_s: [0.5], "the policy's backfill must return positions, 0 to "),
    "a job, not a position": (lambda queue, busy, now_s: [10**6], "the policy's backfill must return positions, 0 to "),
    "one twice": (lambda queue, busy, now_s: [1, 1], "the policy's backfill must return positions, 0 to "),
    "nothing": (lambda queue, busy, now_s: None, "the policy's backfill must return positions, 0 to "),
    "the head, which does not fit": (lambda queue, busy, now_s: [0], "the policy's backfill starts job "),
    "all": (lambda queue, busy, now_s: np.arange(1, len(queue.job)), "the policy's backfill starts job "),
}


@pytest.mark.parametrize("name", BACKFILLS)
def test_a_wrong_answer_of_a_backfill_is_one_sentence(log: World, name: str) -> None:
    backfill, sentence = BACKFILLS[name]
    with pytest.raises(ClusterError) as error:
        replay(log, policy(backfill=backfill))
    assert str(error.value).startswith(sentence) and "\n" not in str(error.value)


@pytest.mark.parametrize("answer", [float("nan"), -1, None, "an hour"])
def test_a_wrong_answer_of_an_estimate_is_one_sentence(log: World, answer: Any) -> None:
    with pytest.raises(ClusterError, match="the policy's estimate must return how long the job will run, in seconds"):
        replay(log, policy(estimate=lambda submitted, past: answer))


def test_an_estimate_counts_in_whole_seconds_from_one_to_the_request(log: World) -> None:
    for answer, expected in ((0, 1), (59.9, 59), (float("inf"), None)):
        result = replay(log, policy(estimate=lambda submitted, past, answer=answer: answer))
        first_s = result.schedule.first_estimate_s
        np.testing.assert_array_equal(first_s, result.jobs.request_s if expected is None else expected)


def test_what_a_function_raises_comes_through_as_it_is(log: World) -> None:
    def broken(*_: object) -> Any:
        raise KeyboardInterrupt

    for phases in ({"estimate": broken}, {"backfill": broken}):
        with pytest.raises(KeyboardInterrupt):
            replay(log, policy(**phases))


REFUSED: Final[dict[str, tuple[dict[str, Any], dict[str, Any], str]]] = {
    "an estimate": (
        {"estimate": requested},
        {"jobs": {"submit_s": [0], "run_s": [1], "units": [1]}, "machine": "eurora"},
        "an estimate in Python needs estimates of its own, and a trace with nodes plans with the requested times",
    ),
    "a backfill": (
        {"backfill": own_easy, "power": Power()},
        {"jobs": LOG, "machine": "curie:nodes=8"},
        "a policy that knows watts needs watts, and a backfill in Python counts processors alone",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_functions_are_refused_where_they_cannot_be_called(log: World, name: str) -> None:
    phases, other_world, sentence = REFUSED[name]
    with pytest.raises(ClusterError, match=sentence):
        replay(World(**other_world), policy("easy", **phases))
    phases.pop("power", None)
    own = policy("easy", **phases)
    assert (clash([*own.composition.declared, LIVE]) or "").startswith(f"{name} in Python needs a replay")
    with pytest.raises(StepError, match=f"{name} in Python"):
        Steps(fitted(log, own, "processors", print), own.composition)

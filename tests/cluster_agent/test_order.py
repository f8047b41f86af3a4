"""What an *order* written in Python may answer, what is said if it answers anything else, and when it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.errors import ClusterError
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.orders.score_formula import score
from cluster_agent.scheduler.policy_phases import Composition, Order, Queue
from tests.cluster_agent.traces import (
    EVERYTHING_ENDED,
    PROCESSORS,
    jobs_of,
    looped_starts,
    native_starts,
    traces,
    widest_first,
)
from tests.oracle.scheduler import ReferenceScheduler

JOBS = [(0, 10, 10, 10, 0), (1, 5, 5, 8, 0), (2, 5, 5, 3, 0)]

WRONG: dict[str, Callable[[Queue], Any]] = {
    "one is missing": lambda queue: np.arange(len(queue.job))[1:],
    "one is there twice": lambda queue: np.zeros(len(queue.job), np.int64) if len(queue.job) > 1 else [0],
    "jobs, not positions": lambda queue: queue.job + 1,
    "too few scores": lambda queue: queue.width[1:] / 2,
    "columns, not positions": lambda queue: (queue.job, queue.width),
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
def test_an_order_that_does_not_answer_each_position_once_is_an_error_in_every_engine(
    answer: Callable[[Queue], Any],
) -> None:
    composition, jobs = Composition(order=lambda queue, now_s: answer(queue)), jobs_of(JOBS)
    wrong = r"order must return each of the positions 0 to \d of the waiting jobs once"
    with pytest.raises(ClusterError, match=wrong):
        native_starts(composition, jobs)
    for scheduler in (NativeScheduler, ReferenceScheduler):
        with pytest.raises(ClusterError, match=wrong):
            looped_starts(scheduler(composition, jobs, PROCESSORS), composition, jobs)


# --- when an order is called


class Counting:
    """An order with what it was called with."""

    def __init__(self, order: Order) -> None:
        self.order, self.calls = order, list[tuple[int, Queue]]()

    def __call__(self, queue: Queue, now_s: int) -> Any:
        self.calls.append((now_s, queue))
        return self.order(queue, now_s)


def shortest(queue: Queue, now_s: int) -> Any:
    return queue.estimate_s.astype(np.float32)


def slowest(queue: Queue, now_s: int) -> Any:
    """Scores that follow the time, some of them infinite or no number."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(queue.estimate_s - 3.0) * (queue.submit_s - now_s) / (queue.width - 2)


ORDERS: tuple[Order, ...] = (shortest, slowest, widest_first)


@settings(max_examples=150)
@given(
    jobs=traces(),
    order=st.sampled_from(ORDERS),
    backfill=st.sampled_from(["none", "list", "easy", "conservative", "compress"]),
    ties=st.sampled_from(["instant", "sc15"]),
    estimate=st.sampled_from(["requested", "mean2"]),
)
def test_an_order_that_is_called_only_where_it_can_matter_leads_to_the_same_schedule(
    jobs: Jobs, order: Order, backfill: Any, ties: Any, estimate: Any
) -> None:
    phases = {"backfill": backfill, "ties": ties, "estimate": estimate}
    every, few, looped = (Counting(order) for _ in range(3))
    always = NativeReplay(Composition(order=every, order_at="passes", **phases), jobs, PROCESSORS)
    always.run(EVERYTHING_ENDED)
    starts = dict(enumerate(always.start_s.tolist()))
    assert native_starts(Composition(order=few, **phases), jobs) == starts
    assert len(every.calls) == always.passes >= len(few.calls)
    assert all(len(queue.job) > 1 for _, queue in few.calls)
    composition = Composition(order=looped, **phases)
    assert looped_starts(NativeScheduler(composition, jobs, PROCESSORS), composition, jobs) == starts
    seen = [[(now_s, queue.job.tolist()) for now_s, queue in one.calls] for one in (few, looped)]
    assert seen[0] == seen[1]


def test_scores_are_worked_out_only_where_two_jobs_wait_and_one_may_fit() -> None:
    """Job 0 has the machine until 10 s; the others come one by one, and end one by one from then on."""
    jobs = jobs_of([(0, 10, 10, 10, 0), (1, 5, 5, 10, 0), (2, 5, 5, 10, 0), (3, 5, 5, 10, 0), (4, 5, 5, 10, 0)])
    called = {}
    for name, order in (("scores", shortest), ("positions", widest_first)):
        counting = Counting(order)
        native_starts(Composition(order=counting, backfill="easy"), jobs)
        called[name] = [(now_s, len(queue.job)) for now_s, queue in counting.calls]
    assert called["positions"] == [(2, 2), (3, 3), (4, 4), (10, 4), (15, 3), (20, 2)]
    assert called["scores"] == [(2, 2), (10, 4), (15, 3), (20, 2)]  # at 2 s it is not known what the order answers


def test_the_columns_are_the_orders_own_to_change_and_keep() -> None:
    jobs = jobs_of([(0, 10, 10, 10, 0), *((at, 3, 5, 4 + at % 3, at % 2) for at in range(1, 9))])
    names, seen = Queue.__struct_fields__[:6], list[Queue]()

    def careless(queue: Queue, now_s: int) -> Any:
        for name in ("submit_s", "request_s", "width", "user"):
            np.testing.assert_array_equal(getattr(queue, name), getattr(jobs, name)[queue.job])
        scores = queue.estimate_s * 1.0
        for name in names:
            getattr(queue, name)[:] = len(seen)
        seen.append(queue)
        return scores

    starts = native_starts(Composition(order=careless, backfill="easy"), jobs)
    assert starts == native_starts(Composition(score=score("estimate"), backfill="easy"), jobs)
    for number, queue in enumerate(seen):
        assert {value for name in names for value in getattr(queue, name).tolist()} == {number}
    assert len(seen) > 2 and np.isnan(seen[0].watts).all()


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "g"])
def test_scores_of_every_length_are_taken_as_they_are(kind: str) -> None:
    jobs = jobs_of([(0, 10, 10, 10, 0), *((1, 3, 5 + at % 4, 10, 0) for at in range(8))])

    def order(queue: Queue, now_s: int) -> Any:
        scores = (queue.request_s.astype(kind) - 5) % 3
        scores[scores == 1] = np.nan
        return scores[::-1][::-1]

    expected = sorted(range(1, 9), key=lambda job: ({0: 0, 1: 9, 2: 2}[(int(jobs.request_s[job]) - 5) % 3], job))
    starts = native_starts(Composition(order=order), jobs)
    assert sorted(range(1, 9), key=starts.__getitem__) == expected

"""What an *order* written in Python may answer, and what is said if it answers anything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cluster_agent.errors import ClusterError
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policy_phases import Composition, Queue
from tests.cluster_agent.traces import PROCESSORS, jobs_of, looped_starts, native_starts
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

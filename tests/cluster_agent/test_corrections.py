"""What an estimate becomes each time its job outlives it, native and plain Python alike."""

from __future__ import annotations

import pytest

from cluster_agent.scheduler.interfaces import Scheduler
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policy_phases import Composition, Correction
from tests.cluster_agent.traces import PROCESSORS, jobs_of
from tests.oracle.scheduler import ReferenceScheduler

HOUR_S = 3600
REQUEST_S = 150 * HOUR_S
# two jobs of 20 s, after which the user's third is taken to run 20 s; it runs for as long as it requested
JOBS = jobs_of([(0, 20, 20, 1, 0), (0, 20, 20, 1, 0), (20, REQUEST_S, REQUEST_S, 1, 0)])

CORRECTED_S: dict[Correction, list[int]] = {
    "requested": [REQUEST_S, REQUEST_S],
    # 20 s + 1, 5, 15, 30 min, 1, 2, 5, 10, 20, 50, 100 h (Tsafrir, Etzion, Feitelson 2007), then the request
    "incremental": [
        *(20 + 60 * minutes for minutes in (1, 5, 15, 30)),
        *(20 + HOUR_S * hours for hours in (1, 2, 5, 10, 20, 50, 100)),
        REQUEST_S,
    ],
    "doubling": [20 * 2**times for times in range(1, 16)],
    "doubling-capped": [*(20 * 2**times for times in range(1, 15)), REQUEST_S],
}


@pytest.mark.parametrize("correct", CORRECTED_S)
@pytest.mark.parametrize("kind", [NativeScheduler, ReferenceScheduler])
def test_each_correction_takes_its_published_steps(
    kind: type[NativeScheduler] | type[ReferenceScheduler], correct: Correction
) -> None:
    scheduler: Scheduler = kind(Composition(estimate="mean2", correct=correct), JOBS, PROCESSORS)
    for job in (0, 1):
        scheduler.submit(0, job)
    assert scheduler.decide(0) == [0, 1]
    for job in (0, 1):
        scheduler.end(job)
    scheduler.submit(20, 2)
    assert scheduler.decide(20) == [2]
    assert scheduler.expected_end_s(2) == 20 + 20
    assert [scheduler.overrun(2) - 20 for _ in CORRECTED_S[correct]] == CORRECTED_S[correct]

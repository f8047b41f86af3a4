"""wfp3 on a machine of 10 processors, by hand."""

from __future__ import annotations

from cluster_agent.scheduler.policies.registry import choose
from tests.cluster_agent.traces import jobs_of, native_starts

# at 100 all wait: (99/200)^3 x 10 = 1.2, (98/20)^3 x 10 = 1176, (97/20)^3 x 4 = 456
JOBS = [(0, 100, 100, 10, 0), (1, 200, 200, 10, 0), (2, 20, 20, 10, 0), (3, 20, 20, 4, 0)]


def test_short_and_wide_jobs_that_have_waited_long_come_first() -> None:
    assert native_starts(choose("wfp3").composition, jobs_of(JOBS)) == {0: 0, 1: 140, 2: 100, 3: 120}


def test_the_power_weighs_waiting_against_size() -> None:
    # with power 0 only the width counts: at 100 job 1 (first of the widest) is the head
    assert native_starts(choose("wfp3:power=0").composition, jobs_of(JOBS)) == {0: 0, 1: 100, 2: 300, 3: 320}

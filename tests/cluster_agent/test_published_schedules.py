"""Schedules published by others, repeated: every job's wait where it is published, else the mean bounded slowdown.

All four logs and all policies: benchmarks/replay_exact.py. Source: ../shared/data/sc15-backfilling/README.md.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from cluster_agent.replay.measures import measure
from cluster_agent.replay.world_run import Result
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.workloads.job_log import Workload, machine_of, prepare
from cluster_agent.workloads.swf import read_swf
from tests.cluster_agent.worlds import replay
from tests.recorded import RECORDED, needs_recorded

DATA = RECORDED / "sc15-backfilling"
pytestmark = needs_recorded("sc15-backfilling")

LOGS = ("KTH-SP2", "CTC-SP2")
JOB_BY_JOB = {
    "easy_request": "easy:ties=sc15",
    "easy_clairvoyant": "easy:estimate=clairvoyant,ties=sc15",
    "sjbf_clairvoyant": "easy-sjbf:estimate=clairvoyant,ties=sc15",
    "sjbf_tsafrir": "easy-sjbf:estimate=mean2,correct=incremental,ties=sc15",
}


@cache
def workload(log: str) -> Workload:
    read = read_swf(str(DATA / f"{log}.swf.gz"))
    processors = machine_of(read)
    assert processors
    found = prepare(read, processors)
    assert found.findings == ()
    return found


def replayed(log: str, policy: str) -> Result:
    return replay(workload(log), choose(policy).composition)


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("schedule", JOB_BY_JOB)
def test_every_job_waits_as_long_as_in_the_published_schedule(log: str, schedule: str) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is missing: install pyarrow")
    table = parquet.read_table(DATA / f"{log}.schedules.parquet", columns=["job", f"wait__{schedule}"])
    job, wait_s = (column.to_numpy() for column in table.columns)
    jobs, start_s = workload(log).jobs, replayed(log, JOB_BY_JOB[schedule]).schedule.start_s
    np.testing.assert_array_equal(jobs.number, job)
    np.testing.assert_array_equal(start_s - jobs.submit_s, wait_s)


@pytest.mark.parametrize(
    ("log", "policy", "published"),
    [
        # strict FCFS: three independent codes agree
        ("KTH-SP2", "fcfs", 6814.973),
        ("CTC-SP2", "fcfs", 3651.566),
        # published-metrics.parquet, easy_prediction_backfill_scheduler
        ("KTH-SP2", "easy:estimate=mean2,correct=requested,ties=sc15", 65.723589),
        ("KTH-SP2", "easy:estimate=mean2,correct=incremental,ties=sc15", 85.442906),
        ("CTC-SP2", "easy:estimate=mean2,correct=doubling,ties=sc15", 69.38885),
        # the same, easy_sjbf_scheduler and easy_plus_plus_scheduler
        ("KTH-SP2", "easy-sjbf:ties=sc15", 69.405401),
        ("CTC-SP2", "easy-sjbf:ties=sc15", 30.041070),
        ("KTH-SP2", "easy-sjbf:estimate=mean2,correct=requested,ties=sc15", 62.856883),
        ("CTC-SP2", "easy-sjbf:estimate=mean2,correct=requested,ties=sc15", 26.533786),
        ("KTH-SP2", "easy-sjbf:estimate=mean2,correct=doubling,ties=sc15", 64.527474),
        ("CTC-SP2", "easy-sjbf:estimate=mean2,correct=doubling,ties=sc15", 55.640643),
        # the same with the correction limited by the request, from the README of the data
        ("KTH-SP2", "easy-sjbf:estimate=mean2,correct=doubling-capped,ties=sc15", 72.2),
        ("CTC-SP2", "easy-sjbf:estimate=mean2,correct=doubling-capped,ties=sc15", 34.7),
    ],
)
def test_the_mean_bounded_slowdown_is_the_published_one(log: str, policy: str, published: float) -> None:
    digits = len(str(published).partition(".")[2])
    assert round(measure(replayed(log, policy))["AVEbsld"], digits) == published

"""Run times learned on line: against the published schedule, and native against plain Python."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from cluster_agent.replay.measures import bounded_slowdown
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition, Learning, Loss, Model, Weight
from tests.cluster_agent.test_published_schedules import DATA, workload
from tests.cluster_agent.traces import EVERYTHING_ENDED, jobs_of, looped_starts
from tests.cluster_agent.worlds import replay
from tests.oracle.learner import OnlineLearner, terms
from tests.oracle.scheduler import ReferenceScheduler
from tests.recorded import needs_recorded

needs_logs = needs_recorded("sc15-backfilling")
POLICY = "easy-sjbf:estimate=learned,model=sc15,correct=incremental,ties=sc15"


def first_jobs(log: str, count: int) -> Jobs:
    jobs = workload(log).jobs
    columns = (jobs.number, jobs.submit_s, jobs.run_s, jobs.request_s, jobs.width, jobs.user)
    return Jobs(*(column[:count] for column in columns))


@needs_logs
def test_every_job_is_predicted_and_waits_as_in_the_published_schedule_of_the_selected_variant() -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is missing: install pyarrow")
    table = parquet.read_table(DATA / "KTH-SP2.learned.parquet")
    schedule = replay(workload("KTH-SP2"), choose(POLICY).composition).schedule
    wait_s = schedule.start_s - workload("KTH-SP2").jobs.submit_s
    np.testing.assert_array_equal(schedule.first_estimate_s, table["predicted__sjbf_learned_tsafrir"])
    np.testing.assert_array_equal(wait_s, table["wait__sjbf_learned_tsafrir"])


@needs_logs
@pytest.mark.parametrize(
    ("variant", "published"),
    [("loss=linear-squared,weight=small", 70.621), ("loss=squared-linear,weight=equal", 56.499)],
)
def test_other_variants_have_the_published_mean_bounded_slowdown(variant: str, published: float) -> None:
    schedule = replay(workload("KTH-SP2"), choose(f"{POLICY},{variant}").composition).schedule
    jobs = workload("KTH-SP2").jobs
    ave_bsld = bounded_slowdown(schedule.start_s - jobs.submit_s, jobs.run_s).mean()
    assert ave_bsld == pytest.approx(published, rel=0.1)


@needs_logs
@pytest.mark.parametrize("model", get_args(Model))
@pytest.mark.parametrize("loss", get_args(Loss))
def test_native_and_plain_python_learn_the_same_from_a_real_log(model: Model, loss: Loss) -> None:
    weights = get_args(Weight)
    learning = Learning(model, loss, weights[len(loss) % len(weights)])
    jobs = first_jobs("KTH-SP2", 250)
    composition = Composition(estimate="learned", correct="incremental", learning=learning, backfill="easy")
    native = NativeReplay(composition, jobs, 100)
    native.run(EVERYTHING_ENDED)
    reference = ReferenceScheduler(composition, jobs, 100)
    looped_starts(reference, composition, jobs)
    assert dict(enumerate(native.first_estimate_s.tolist())) == reference.first_estimate_s


def test_the_thesis_has_20_features_and_231_terms() -> None:
    learner = OnlineLearner(Learning(), jobs_of([(0, 5, 10, 2, 0), (20, 5, 30, 4, 0)]))
    learner.estimate(0, 0)
    learner.start(0, 0)
    learner.end(0)
    learner.estimate(20, 1)
    x = learner.terms[1][1:21].tolist()
    assert len(learner.terms[1]) == len(terms(x, len(x))) == 231
    # request; last three and means of 2, 3, all; processors, their mean, their ratio; nothing runs; 15 s since an end
    assert x[:16] == [30, 5, 0, 0, 5, 5, 5, 4, 2, 2, 0, 0, 0, 0, 0, 15]


def test_a_learned_estimate_lies_between_one_second_and_the_request() -> None:
    jobs = jobs_of([(10 * i, 1 + i % 9, 9, 1 + i % 5, i % 3) for i in range(200)])
    native = NativeReplay(Composition(estimate="learned", backfill="easy"), jobs, 10)
    native.run(EVERYTHING_ENDED)
    assert native.first_estimate_s.min() >= 1
    assert (native.first_estimate_s <= jobs.request_s).all()
    assert len(set(native.first_estimate_s.tolist())) > 1

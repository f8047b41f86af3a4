"""What a job is predicted to draw, from its submission and from jobs that have ended."""

from __future__ import annotations

import time

import numpy as np
import pytest

from cluster_agent.prediction.job_power import PowerPredictor, Submission
from cluster_agent.prediction.text import Embedding, Float32s, HashedNgrams
from tests.yardstick import yardstick_ns

TDP_W = 1000.0


def predictor(**options: int) -> PowerPredictor:
    return PowerPredictor(lambda job: TDP_W * job.units, **options)


def job(user: str = "ada", text: str = "cfd", units: int = 1, cores: int = 16, request_s: int = 3600) -> Submission:
    return Submission(user, text, units, cores * units, 0, 0, units << 20, request_s)


def test_a_new_kind_of_job_is_taken_at_full_load_then_as_that_request_then_as_that_users_own() -> None:
    power = predictor()
    assert (power.predict(job()).typical_w, power.predict(job()).origin) == (TDP_W, "TDP")
    power.learn(job("bob"), 300.0)
    assert (power.predict(job("ada")).typical_w, power.predict(job("ada")).origin) == (300.0, "same request")
    power.learn(job("ada"), 200.0)
    assert (power.predict(job("ada")).typical_w, power.predict(job("ada")).origin) == (pytest.approx(200.0), "user")


def test_watts_go_with_the_number_of_units() -> None:
    power = predictor()
    power.learn(job(units=2), 400.0)
    assert power.predict(job(units=4)).typical_w == pytest.approx(800.0)


def test_the_text_distinguishes_jobs_of_equal_requests() -> None:
    power = predictor()
    for _ in range(20):
        power.learn(job(text="gromacs_prod_01"), 300.0)
        power.learn(job(text="post_processing"), 60.0)
    assert power.predict(job(text="gromacs_prod_77")).typical_w == pytest.approx(300.0, rel=0.02)
    assert power.predict(job(text="post_processing")).typical_w == pytest.approx(60.0, rel=0.02)


def test_the_maximum_is_the_highest_of_the_neighbours() -> None:
    power = predictor()
    power.learn(job(), 200.0, 260.0)
    power.learn(job(), 220.0, 240.0)
    found = power.predict(job())
    assert 200.0 < found.typical_w < 220.0
    assert found.maximum_w == 260.0


def test_what_a_user_does_now_replaces_what_that_user_did_long_ago() -> None:
    power = predictor(per_user=50)
    for watts in [100.0] * 50 + [300.0] * 50:
        power.learn(job(), watts)
    assert power.predict(job()).typical_w == pytest.approx(300.0)


def test_another_kind_of_node_says_nothing() -> None:
    power = predictor()
    power.learn(Submission("ada", "cfd", 1, 16, 2, 0, 1 << 20, 3600), 600.0)
    assert power.predict(job()).origin == "TDP"


def test_memory_stays_within_its_bound_whoever_comes() -> None:
    power = predictor(per_user=100, jobs_kept=1000)
    for at in range(5000):
        power.learn(job(user=f"user{at % 97}", units=1 + at % 5), 100.0 + at % 50)
    kept = sum(len(history) for history in power._users.values())
    assert kept <= 1000
    assert power.predict(job(user="user0")).origin in ("user", "same request")


@pytest.mark.parametrize("watts", (0.0, -1.0, float("nan"), float("inf")))
def test_a_job_without_watts_cannot_teach(watts: float) -> None:
    with pytest.raises(ValueError, match=f"drew {watts} W"):
        predictor().learn(job(), watts)


def test_like_texts_point_alike_and_equal_ones_are_equal_in_every_process() -> None:
    embed = HashedNgrams()
    texts = ["lammps_run_01", "lammps_run_02", "LAMMPS_run_99", "qe_pw_scf", ""]
    first, second, third, other, none = (embed(text) for text in texts)
    assert np.array_equal(first, second)
    assert np.array_equal(first, third)
    assert abs(float(first @ other)) < 0.5
    assert float(np.linalg.norm(first)) == pytest.approx(1.0)
    assert not none.any()
    small = HashedNgrams(16, (3,))("abc")  # " ab", "abc", "bc "
    assert np.flatnonzero(small).tolist() == [0, 1, 8]
    assert small[[0, 1, 8]] == pytest.approx([-(3**-0.5)] * 3)


@pytest.mark.parametrize("name", ("x" * 10_240, "計算流体力学" * 1707, "ق" * 10_240, "run\udcff", "\0\n\x1b[2J"))
def test_jobs_with_names_of_any_length_and_script_are_distinguished(name: str) -> None:
    power = predictor()
    for _ in range(20):
        power.learn(job(text=name), 300.0)
        power.learn(job(text="post_processing"), 60.0)
    assert power.predict(job(text=name)).typical_w == pytest.approx(300.0, rel=0.02)


def test_the_job_of_a_user_with_one_job_says_what_the_next_one_draws() -> None:
    power = predictor()
    for _ in range(50):
        power.learn(job("bob"), 300.0)
    power.learn(job("eve", "cfd"), 90.0)
    found = power.predict(job("eve", "another"))
    assert (found.origin, found.similar) == ("user", 1)
    assert (found.typical_w, found.expected_w) == (pytest.approx(90.0), pytest.approx(90.0))


def test_another_embedding_can_be_plugged_in() -> None:
    class FirstLetter:
        size = 2

        def __call__(self, text: str) -> Float32s:
            return np.array([text[:1] == "a", text[:1] != "a"], np.float32)

    embedding: Embedding = FirstLetter()
    power = PowerPredictor(lambda job: TDP_W, embedding)
    for _ in range(20):
        power.learn(job(text="abc"), 100.0)
        power.learn(job(text="xyz"), 400.0)
    assert power.predict(job(text="a different one")).typical_w == pytest.approx(100.0, rel=0.05)


def test_a_prediction_costs_less_than_seven_yardsticks_with_the_longest_history_that_is_kept() -> None:
    """A user's history is bounded, so more jobs cost no more (`power_prediction` measures it at 10^5)."""
    power = predictor()
    kinds = [job(text=f"name{at % 9}", units=at + 1, cores=at + 1) for at in range(16)]
    for at in range(2500):
        power.learn(kinds[at % 16], 100.0)
    costs_ns, yardsticks_ns = [], []
    for one in kinds * 10:
        yardsticks_ns.append(yardstick_ns())
        begin_ns = time.thread_time_ns()
        power.predict(one)
        costs_ns.append(time.thread_time_ns() - begin_ns)
    assert np.median(costs_ns) < 7 * np.median(yardsticks_ns)  # about a millisecond

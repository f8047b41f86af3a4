"""The gymnasium environment on stepped worlds."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest

pytest.importorskip("gymnasium", reason="gymnasium is missing: pip install 'nodectl[gym]'")

from gymnasium.utils.env_checker import check_env

from cluster_agent.errors import StepError
from cluster_agent.replay.measures import bounded_slowdown
from cluster_agent.replay.world_run import run
from cluster_agent.stepping.environment import EASY, Backfilling, vector
from tests.cluster_agent.test_stepping import starts, world


def test_gymnasium_has_nothing_to_say_against_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(Backfilling(world(), window=64), skip_render_check=True)


@pytest.mark.parametrize("window", [None, 100])
def test_the_first_job_at_each_decision_is_easy_job_for_job_and_its_return_the_mean_slowdown(
    window: int | None,
) -> None:
    source = world(seed=11)
    environment = Backfilling(source, window=window)
    _, info = environment.reset(seed=1)
    total, ended = info["reward"], False
    while not ended:
        _, reward, ended, _, _ = environment.step(np.int64(0))
        total += reward
    rows = np.arange(info["first"], info["first"] + (window or len(source.jobs)))
    expected, jobs = run(source.only(rows), EASY).start_s, source.jobs.only(rows)
    assert (starts(environment.steps) == expected).all()
    assert total == pytest.approx(-bounded_slowdown(expected - jobs.submit_s, jobs.run_s).mean())


def test_a_vector_of_them_steps_in_turn_without_threads() -> None:
    before = set(threading.enumerate())
    environments = vector(world(), 3, window=64, most=8)
    seen, _ = environments.reset(seed=1)
    assert seen["queue"].shape == (3, 8, 5) and not np.array_equal(seen["queue"][0], seen["queue"][1])
    for _ in range(50):
        seen, reward, *_ = environments.step(environments.action_space.sample())
    assert reward.shape == (3,) and np.isfinite(reward).all()
    assert set(threading.enumerate()) <= before


def test_equal_seeds_give_equal_episodes() -> None:
    first, second = (Backfilling(world(), window=64) for _ in range(2))
    a, b = first.reset(seed=3)[0], second.reset(seed=3)[0]
    for action in range(20):
        assert all(np.array_equal(a[name], b[name]) for name in a)
        a, b = first.step(np.int64(action))[0], second.step(np.int64(action))[0]


def test_what_cannot_be_is_said_in_one_sentence() -> None:
    with pytest.raises(StepError, match="window=999, most=64: the log has 300 jobs"):
        Backfilling(world(), window=999)
    environment = Backfilling(world(), window=100)
    for given in ({"window": 0}, {"window": 64.5}, {"most": "x"}):
        with pytest.raises(StepError, match=r"window=0, most=64: the log has 300 jobs|=.*: give a whole number"):
            Backfilling(world(), **given)  # type: ignore[arg-type]
    with pytest.raises(StepError, match="give the world and the policy of Steps"):
        Backfilling(world(), "easy")  # type: ignore[arg-type]
    with pytest.raises(StepError, match="call reset first"):
        environment.step(np.int64(0))
    with pytest.raises(StepError, match="first=201: a window of 100 jobs begins at 0 to 200"):
        environment.reset(options={"first": 201})
    with pytest.raises(StepError, match="in no window does one job wait for another"):
        Backfilling(world(n=20, load=0.0001), window=20).reset()

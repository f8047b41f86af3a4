"""minimal-slowdown: optimal by its own models, thrifty with what is not used, and aapc where it knows nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cluster_agent.budget.sharers import registry
from cluster_agent.budget.sharers.speed import SpeedModel
from cluster_agent.budget.sharers.view import Job, Tag
from tests.cluster_agent.sharer_views import MODELS, view, worked

SHARE = registry.choose("minimal-slowdown:guard=0").share
STRAIGHT = SpeedModel("straight", 0.0, (1.0, 0.5), (1.0, 0.5))
FLAT = SpeedModel("flat", 0.0, (1.0, 0.5), (1.0, 0.9))


def test_watts_go_to_the_job_that_gains_most_per_watt() -> None:
    nodes = view([400, 400], [200, 200], [Job("straight", ["n0"], model=STRAIGHT), Job("flat", ["n1"], model=FLAT)])
    shares = SHARE(nodes, 600_000)
    assert shares.caps_mw.tolist() == pytest.approx([400_000, 200_000], abs=1)
    assert shares.speed.tolist() == pytest.approx([1.0, 0.9])


def test_no_other_division_is_predicted_to_slow_the_jobs_less() -> None:
    models = [MODELS[Tag.COMPUTE], MODELS[Tag.MIXED], MODELS[Tag.MEMORY]]
    jobs = [Job(f"j{at}", [f"n{at}"], model=model) for at, model in enumerate(models)]
    nodes = view([358] * 3, [193] * 3, jobs)
    share = registry.choose("minimal-slowdown:guard=0,weight=nodes").share

    def total(caps_w: np.ndarray) -> float:
        return sum(1 / float(model.at(cap_w / 358)) for model, cap_w in zip(models, caps_w, strict=True))

    grid = range(193, 359, 3)
    for budget_w in (600, 680, 760, 850):
        ours = total(share(nodes, budget_w * 1000).caps_mw / 1000)
        others = (np.array([a, b, min(budget_w - a - b, 358)]) for a, b in itertools.product(grid, grid)
                  if budget_w - a - b >= 193)  # fmt: skip
        assert ours <= min(total(caps_w) for caps_w in others) * 1.003  # one job may be in the middle of a dent


def test_of_equal_jobs_whose_last_watts_gain_most_the_older_one_runs_fully() -> None:
    model = MODELS[Tag.COMPUTE]
    jobs = [Job("old", ["n1"], model=model), Job("young", ["n0"], model=model)]
    nodes = view([358] * 2, [193] * 2, jobs)
    assert SHARE(nodes, 551_000).caps_mw.tolist() == pytest.approx([193_000, 358_000], abs=1)
    alike = registry.choose("minimal-slowdown:guard=0,weight=nodes").share(nodes, 551_000)
    assert 0.6 < alike.speed.min() < alike.speed.max() < 0.9


def test_watts_of_a_minimal_cap_count_with_the_speed_they_already_give() -> None:
    """At its MOP the memory-bound job is above its lowest P-state: what it gains to full speed is less by that."""
    jobs = [Job("memory", ["n0"], Tag.MEMORY, model=MODELS[Tag.MEMORY])]
    speed = SHARE(view([358], [193], jobs), 193_000).speed[0]
    assert speed == pytest.approx(float(MODELS[Tag.MEMORY].at(np.array(193 / 358))), abs=1e-6)
    assert speed > MODELS[Tag.MEMORY].speed[-1] * 1.03


def test_all_nodes_of_a_job_run_at_one_speed_though_they_are_unlike() -> None:
    jobs = [Job("j", ["n0", "n1"], model=STRAIGHT)]
    assert SHARE(view([400, 200], [50, 20], jobs), 450_000).caps_mw.tolist() == pytest.approx([300_000, 150_000], abs=1)


def test_watts_that_a_node_does_not_use_go_to_one_that_does() -> None:
    jobs = [Job("thrifty", ["n0"], model=STRAIGHT), Job("hungry", ["n1"], model=STRAIGHT)]
    nodes = view([400, 400], [100, 100], jobs, need_w=[200, -1])
    assert SHARE(nodes, 600_000).caps_mw.tolist() == pytest.approx([200_000, 400_000], abs=1)
    guarded = registry.choose("minimal-slowdown:guard=10").share(nodes, 600_000)
    assert guarded.caps_mw[0] == pytest.approx(220_000, abs=1)
    assert guarded.why(nodes, "n0").reason == "need"


def test_less_budget_lowers_caps_by_small_steps() -> None:
    jobs = [Job(tag.name, [f"n{int(tag)}"], tag, model=MODELS[tag]) for tag in Tag]
    nodes = view([358] * 3, [193] * 3, jobs)
    caps_w = np.array([SHARE(nodes, mw).caps_mw for mw in range(579_000, 1_074_000, 1000)]) / 1000
    assert np.abs(np.diff(caps_w, axis=0)).max() <= 2  # a watt of budget moves no cap by more than that
    assert (np.diff(caps_w.sum(axis=1)) >= 0).all()


def test_a_floor_serves_the_slowest_first() -> None:
    jobs = [Job("straight", ["n0"], model=STRAIGHT), Job("flat", ["n1", "n2"], model=FLAT)]
    nodes = view([400] * 3, [40] * 3, jobs)
    free = SHARE(nodes, 500_000).speed
    floored = registry.choose("minimal-slowdown:guard=0,floor=55").share(nodes, 500_000).speed
    assert free.min() < 0.5
    assert floored.min() >= 0.55


def test_watts_beyond_every_curve_go_to_active_nodes_alike_since_tables_err() -> None:
    jobs = [Job("memory", ["n0"], Tag.MEMORY, model=MODELS[Tag.MEMORY])]
    nodes = view([358, 358], [193, 193], jobs)
    assert SHARE(nodes, 510_000).caps_mw.tolist() == [317_000, 193_000]
    assert SHARE(nodes, 900_000).why(nodes, "n0").reason == "uncapped"


def test_without_any_model_aapc_decides_and_that_is_said() -> None:
    nodes = worked()
    shares = SHARE(nodes, 3_750_000)
    assert np.array_equal(shares.caps_mw, registry.choose("aapc").share(nodes, 3_750_000).caps_mw)
    words = shares.why(nodes, "n1").words
    assert words.endswith("no job has a model of its speed, so minimal-slowdown leaves it to aapc")


def test_a_machines_table_serves_jobs_without_a_model_of_their_own() -> None:
    nodes = worked()
    speed = registry.choose("minimal-slowdown:machine=curie").share(nodes, 3_750_000).speed
    assert speed[3] == speed.max() == 1
    assert 0.6 < speed.min() < 0.9


def test_a_job_without_a_model_counts_as_the_most_sensitive_one_that_is_there() -> None:
    jobs = [Job("unknown", ["n0"]), Job("flat", ["n1"], model=FLAT), Job("straight", ["n2"], model=STRAIGHT)]
    caps_mw = SHARE(view([400] * 3, [200] * 3, jobs), 1_000_000).caps_mw
    assert caps_mw.tolist() == pytest.approx([400_000, 200_000, 400_000], abs=1)


def test_a_table_that_does_not_fall_is_refused() -> None:
    with pytest.raises(ValueError, match="must fall from full speed"):
        SpeedModel("rising", 0.1, (0.5, 1.0), (1.0, 0.9))

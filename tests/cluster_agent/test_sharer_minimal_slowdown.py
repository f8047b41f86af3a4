"""minimal-slowdown: optimal by its own models, thrifty with what is not used, and aapc where it knows nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cluster_agent.budget.sharers import registry
from cluster_agent.budget.sharers.speed import SpeedModel, curve
from cluster_agent.budget.sharers.view import Job, Tag
from tests.cluster_agent.sharer_views import MODELS, view, worked

SHARE = registry.choose("minimal-slowdown:guard=0").share
STRAIGHT = SpeedModel("straight", 0.0, (1.0, 0.5), (1.0, 0.5))
FLAT = SpeedModel("flat", 0.0, (1.0, 0.5), (1.0, 0.9))


def test_watts_go_to_the_job_that_gains_most_per_watt() -> None:
    nodes = view([400, 400], [200, 200], [Job("straight", ["n0"], model=STRAIGHT), Job("flat", ["n1"], model=FLAT)])
    shares = SHARE(nodes, 600_000)
    assert shares.caps_mw.tolist() == [400_000, 200_000]
    assert shares.speed.tolist() == pytest.approx([1.0, 0.9])


def test_no_other_division_is_predicted_to_be_better() -> None:
    models = [MODELS[Tag.COMPUTE], MODELS[Tag.MIXED], MODELS[Tag.MEMORY]]
    jobs = [Job(f"j{at}", [f"n{at}"], model=model) for at, model in enumerate(models)]
    nodes = view([358] * 3, [193] * 3, jobs)

    def total(caps_w: np.ndarray) -> float:
        return sum(1 / float(model.at(cap_w / 358)) for model, cap_w in zip(models, caps_w, strict=True))

    grid = range(193, 359, 3)
    for budget_w in (600, 680, 760, 850):
        ours = total(SHARE(nodes, budget_w * 1000).caps_mw / 1000)
        others = (np.array([a, b, min(budget_w - a - b, 358)]) for a, b in itertools.product(grid, grid)
                  if budget_w - a - b >= 193)  # fmt: skip
        assert ours <= min(total(caps_w) for caps_w in others) * 1.002  # the curves are cut into steps


def test_all_nodes_of_a_job_run_at_one_speed_though_they_are_unlike() -> None:
    jobs = [Job("j", ["n0", "n1"], model=STRAIGHT)]
    assert SHARE(view([400, 200], [50, 20], jobs), 450_000).caps_mw.tolist() == [300_000, 150_000]


def test_watts_that_a_node_does_not_use_go_to_one_that_does() -> None:
    jobs = [Job("thrifty", ["n0"], model=STRAIGHT), Job("hungry", ["n1"], model=STRAIGHT)]
    equal = SHARE(view([400, 400], [100, 100], jobs), 600_000)
    assert equal.caps_mw.tolist() == pytest.approx([300_000, 300_000], abs=20_000)
    nodes = view([400, 400], [100, 100], jobs, need_w=[200, -1])
    assert SHARE(nodes, 600_000).caps_mw.tolist() == [200_000, 400_000]
    guarded = registry.choose("minimal-slowdown:guard=10").share(nodes, 600_000)
    assert guarded.caps_mw[0] == 220_000
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
    assert speed[0] == pytest.approx(speed[1], abs=0.02)  # a step
    assert 0.8 < speed[1] < speed[3]


def test_a_job_without_a_model_counts_as_the_most_sensitive_one_that_is_there() -> None:
    jobs = [Job("unknown", ["n0"]), Job("flat", ["n1"], model=FLAT), Job("straight", ["n2"], model=STRAIGHT)]
    caps_mw = SHARE(view([400] * 3, [200] * 3, jobs), 800_000).caps_mw
    assert caps_mw[0] == pytest.approx(caps_mw[2], abs=20_000)
    assert caps_mw[1] < caps_mw[0]


def test_a_curve_has_no_dents_and_begins_at_idle_watts_without_speed() -> None:
    dented = SpeedModel("dented", 0.25, (1.0, 0.75, 0.5), (1.0, 0.7, 0.6))
    watts, speeds = curve(dented)
    assert watts.tolist() == [0.25, 0.5, 1.0]
    assert speeds.tolist() == [0.0, 0.6, 1.0]


def test_a_table_that_does_not_fall_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fall"):
        SpeedModel("rising", 0.1, (0.5, 1.0), (1.0, 0.9))

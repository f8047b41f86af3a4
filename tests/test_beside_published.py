"""Pipelines and power limits next to what Perseus and Zeus publish: what the plans and predictions must keep."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import cap_curves, pipeline_frontier
from benchmarks.pipeline_frontier import CARDS, GROUPINGS, Pipeline, Sweep, iteration, judged, ours, pipeline, time_of

needs_passes = pytest.mark.skipif(not pipeline_frontier.SWEEP.exists(), reason="needs ../shared/data/gpu-stage-clocks")
needs_training = pytest.mark.skipif(not cap_curves.TRAINING.exists(), reason="needs ../shared/data/gpu-dvfs")


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (4, 2), (8, 12)])
def test_equal_stages_take_as_long_as_micro_batches_and_the_others_stages(stages: int, micro_batches: int) -> None:
    steps = iteration(stages, micro_batches)
    durations = [1.0 if step.kind == "forward" else 2.0 for step in steps]
    assert time_of(steps, durations) == 3.0 * (micro_batches + stages - 1)
    assert sorted({(step.kind, step.stage, step.micro_batch) for step in steps}) == sorted(
        (step.kind, step.stage, step.micro_batch) for step in steps
    )


def test_a_card_that_waits_draws_what_blocking_draws() -> None:
    sweep = Sweep((2, 1), (1.0, 2.0), (10.0, 4.0))
    of = Pipeline(
        {(kind, stage): sweep for kind in ("forward", "backward") for stage in (0, 1)}, iteration(2, 1), 2, 3.0
    )
    assert judged(of, [0] * 4) == (4.0, 4 * 10.0 + 3.0 * (2 * 4.0 - 4.0))
    assert judged(of, [0] * 4, 6.0) == (4.0, 4 * 10.0 + 3.0 * (2 * 6.0 - 4.0))
    assert ours(of, 4.0, "per pass") == [0] * 4, "no pass of one micro-batch has slack"
    assert ours(of, 8.0, "per pass") == [1] * 4


@needs_passes
@pytest.mark.parametrize("card", CARDS)
def test_the_pipeline_is_the_published_one(card: str) -> None:
    """Its slowest plan (the joules are those that blocking watts were taken from) and the time of its fastest."""
    of = pipeline(card)
    slowest = [int(np.argmin(of.passes[step.kind, step.stage].energy_j)) for step in of.steps]
    assert judged(of, slowest) == pytest.approx(CARDS[card].slowest, rel=0.006)
    assert judged(of, [0] * len(of.steps))[0] == pytest.approx(CARDS[card].fastest[0], rel=0.007)


@needs_passes
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_a_plan_keeps_its_time_and_more_freedom_saves_no_less(grouping: pipeline_frontier.Grouping) -> None:
    of = pipeline("A100-SXM", 4)
    top = [0] * len(of.steps)
    top_s = judged(of, top)[0]
    for within in (1.0, 1.1, 2.0):
        time_s, energy_j = judged(of, ours(of, within * top_s, grouping), within * top_s)
        assert time_s <= within * top_s * (1 + 1e-6)
        assert energy_j <= judged(of, top, within * top_s)[1]
        assert judged(of, ours(of, within * top_s, "per pass"), within * top_s)[1] <= energy_j


@needs_training
def test_a_network_is_not_predicted_from_its_own_runs_and_known_limits_stay() -> None:
    runs = cap_curves.runs_of("v100")
    run = runs[0]
    others = cap_curves.learned([one for one in runs if one.network != run.network])
    time_s, watts = cap_curves.predicted(run, others, 2)
    assert (time_s[0], time_s[-1], watts[0], watts[-1]) == (run.time_s[0], run.time_s[-1], run.watts[0], run.watts[-1])
    hidden = run._replace(time_s=run.time_s.copy(), watts=run.watts.copy())
    hidden.time_s[1:-1], hidden.watts[1:-1] = 1.0, 1.0
    again = cap_curves.predicted(hidden, others, 2)
    assert (again[0] == time_s).all() and (again[1] == watts).all(), "what was not measured is not looked at"
    assert not set(cap_curves.CHOSEN) & set(cap_curves.JUDGED)

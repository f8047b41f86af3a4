"""What capped nodes truly draw while agents die and links are cut: a short run of the benchmark, emulated."""

import numpy as np
import pytest

from benchmarks.true_power import STEP_S, judged, running_average, short


def test_true_power_stays_below_the_budget_and_limits_that_lose_their_effect_are_seen():
    whole = short(1, is_broken=False)
    assert whole["over_ws"] == 0
    assert whole["used"] > 0.6
    assert short(1, is_broken=True)["over_ws"] > 0


def test_a_running_average_is_what_a_package_limit_bounds():
    step = np.concatenate((np.zeros(1), np.full(200, 100.0)))
    assert running_average(step, 1.0)[round(1 / STEP_S)] == pytest.approx(63.2, abs=0.1)


def test_watts_over_the_budget_are_counted_with_their_seconds():
    power_w = np.full((400, 2), 60.0)
    found = judged(power_w, [1.0, 1.0], np.full(400, 100.0))
    assert found["over_ws"] == pytest.approx(20.0 * 400 * STEP_S)
    assert found["least_margin_w"] == pytest.approx(-20.0)
    assert judged(power_w, [1.0, 1.0], np.full(400, 121.0))["over_ws"] == 0

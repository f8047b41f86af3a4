"""What is believed of a loss, given traffic at some clocks."""

from __future__ import annotations

import numpy as np
import pytest

from nodectl.policies.parts.gpu_curves import LEVELS, Estimator, curve_bank
from pmu.readings import type_f64
from tests.policies.gpu_nodes import layout

BANK = curve_bank(layout().gpus[0], 0.5)
NOTHING = Estimator(np.zeros(LEVELS), np.full(LEVELS, np.inf))


def measured(loss: type_f64, at: list[int], error: float) -> Estimator:
    rate, errors = np.zeros(LEVELS), np.full(LEVELS, np.inf)
    rate[at], errors[at] = 0.4 / (1.0 + loss[at]), error
    return Estimator(rate, errors)


def test_levels_descend_from_the_highest_clock_to_the_floor() -> None:
    used = BANK.mhz[: BANK.n_levels]
    assert used[0] == 1410
    assert (np.diff(used) < 0).all()
    assert used[-1] >= 0.5 * 1410
    assert set(used.tolist()) <= set(layout().gpus[0].clocks_mhz)


def test_without_a_measurement_the_clock_bound_case_is_within_the_spread() -> None:
    beliefs = BANK.weigh(NOTHING, 1.0)
    assert (beliefs.mean + 2.0 * beliefs.deviation >= BANK.stretch)[: BANK.n_levels].all()


@pytest.mark.parametrize("slope", [0.0, 0.3, 0.7, 1.0])
def test_a_straight_curve_is_found_from_three_clocks(slope: float) -> None:
    loss = slope * BANK.stretch
    beliefs = BANK.weigh(measured(loss, [0, 5, 8], 0.002), 1.0)
    assert beliefs.mean[6] == pytest.approx(loss[6], abs=0.006)


def test_a_knee_is_found_and_nothing_is_feared_above_it() -> None:
    loss = 1.1 * np.maximum(BANK.stretch - 0.26, 0.0)
    at = [0, 8, 14, BANK.n_levels - 3]
    beliefs = BANK.weigh(measured(loss, at, 0.002), 1.0)
    assert beliefs.mean[:12] == pytest.approx(loss[:12], abs=0.01)
    assert beliefs.mean[at[-1]] == pytest.approx(loss[at[-1]], abs=0.02)


def test_a_loss_that_may_be_the_clocks_is_taken_for_it_and_a_smaller_one_as_shown() -> None:
    clock = BANK.stretch
    assert BANK.taken_for(0.8 * clock, 1.0) == pytest.approx(clock)
    assert BANK.taken_for(0.75 * clock, 1.0) == pytest.approx(0.875 * clock)
    assert BANK.taken_for(0.7 * clock, 1.0) == pytest.approx(0.7 * clock)
    assert BANK.taken_for(0.4 * clock, 0.5) == pytest.approx(0.5 * clock), "half of the time no kernel runs"
    assert BANK.taken_for(1.1 * clock, 1.0) == pytest.approx(1.1 * clock), "nothing is taken for less than is shown"


def test_time_in_which_no_kernel_runs_is_not_stretched() -> None:
    beliefs = BANK.weigh(NOTHING, 0.3)
    assert (beliefs.mean <= 0.35 * BANK.stretch + 1e-9).all()


def test_the_loss_at_one_clock_says_most_about_its_neighbours() -> None:
    loss = 0.6 * BANK.stretch
    correlation = BANK.weigh(measured(loss, [0, 6], 0.01), 1.0).correlation(6)
    assert correlation[6] == pytest.approx(1.0)
    assert correlation[5] > correlation[BANK.n_levels - 1]

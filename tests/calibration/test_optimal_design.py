"""Points are chosen so that predictions are known well: better than at random, near the bound, the same every time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.model.configuration_grid import Grid, quadratic
from calibration.model.observations import ModelError
from calibration.model.optimal_design import optimal_set, variances
from calibration.model.pareto_front import pareto_front

GRID = Grid((8, 14, 24, 40, 64), (8, 10, 12, 14, 16), (51, 60, 70, 80, 90, 100, 108, 115))
TERMS = quadratic(GRID.coordinates(GRID.points))


@pytest.mark.parametrize("criterion", ["D", "I"])
def test_a_chosen_set_has_a_smaller_worst_variance_than_any_of_a_hundred_random_ones(criterion: str) -> None:
    ours = variances(TERMS, optimal_set(TERMS, 20, criterion))
    for seed in range(100):
        random = variances(TERMS, np.random.default_rng(seed).permutation(len(TERMS))[:20])
        assert ours.max() < random.max() and ours.mean() < random.mean()


def test_each_criterion_is_best_by_its_own_measure_and_d_is_near_the_bound_of_kiefer_and_wolfowitz() -> None:
    by_d, by_i = (variances(TERMS, optimal_set(TERMS, 20, criterion)) for criterion in ("D", "I"))
    assert by_i.mean() < by_d.mean()
    bound = TERMS.shape[1] / 20  # of the worst variance, which no design of 20 measurements goes below
    assert bound <= by_d.max() < 1.5 * bound


def test_no_swap_of_two_points_improves_a_set() -> None:
    chosen = optimal_set(TERMS, 12, "I")
    reached = variances(TERMS, chosen).mean()
    for place in range(12):
        for other in set(range(len(TERMS))) - set(chosen.tolist()):
            swapped = chosen.copy()
            swapped[place] = other
            assert variances(TERMS, swapped).mean() > reached * (1 - 1e-6)


def test_the_same_seed_gives_the_same_set_of_different_points() -> None:
    one, two = optimal_set(TERMS, 20, seed=3), optimal_set(TERMS, 20, seed=3)
    assert np.array_equal(one, two) and len(set(one.tolist())) == 20


@pytest.mark.parametrize("size", [9, 201])
def test_a_set_that_is_too_small_or_too_large_is_refused(size: int) -> None:
    with pytest.raises(ModelError, match=f"a design of {size} points: 10 terms need 10 to 200 of the candidates"):
        optimal_set(TERMS, size)


def test_a_grid_with_too_few_levels_is_refused_and_a_set_that_decides_too_little_has_no_variance() -> None:
    flat = Grid((8, 16), (8, 16), (51, 115))
    with pytest.raises(ModelError, match="do not decide all 10 terms"):
        optimal_set(np.vstack([quadratic(flat.coordinates(flat.points))] * 2), 12)
    assert np.all(np.isinf(variances(TERMS, np.arange(12))))


# --- the front ---


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=40))
def test_the_front_has_what_nothing_beats_and_only_that(pairs: list[tuple[int, int]]) -> None:
    time_s, watts = np.array([p[0] for p in pairs], float), np.array([p[1] for p in pairs], float)
    front = pareto_front(time_s, watts).tolist()
    beaten = {
        (t, w) for t, w in pairs if any((s, v) != (t, w) and s <= t and v <= w for s, v in pairs)
    }  # by brute force
    assert sorted(pairs[number] for number in front) == sorted(set(pairs) - beaten)
    assert front == sorted(front, key=lambda number: time_s[number])
    assert all(pairs.index(pairs[number]) == number for number in front)  # of equal ones the first


def test_values_that_have_no_order_make_no_front() -> None:
    with pytest.raises(ModelError, match="not finite"):
        pareto_front(np.array([1.0, np.nan]), np.array([1.0, 2.0]))
    with pytest.raises(ModelError, match="not one of each"):
        pareto_front(np.ones(2), np.ones(3))

"""A model is fitted to few measurements, predicts with intervals that are right as often as they say, and refuses what
cannot be measurements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from calibration.model.application_model import LAW_ERROR, ApplicationModel
from calibration.model.capped_form import BASE, COEFFICIENTS, DEMAND, KEPT, REACH, TIME, Capped
from calibration.model.configuration_grid import Grid, quadratic
from calibration.model.configuration_table import write_table
from calibration.model.observations import ModelError, Observations, type_f64
from calibration.model.optimal_design import optimal_set
from calibration.model.polynomial_form import TERMS, Form, Polynomial
from calibration.model.sequential_design import core_points, measured_model, next_point
from cluster_agent.scheduler.configurations.cab_table import CAPS_W, CORES, NODES, cab_table
from cluster_agent.workloads.moldable_trace import read_tables

GRID = Grid((8, 14, 24, 40, 64), (8, 10, 12, 14, 16), (51, 60, 70, 80, 90, 100, 108, 115))
I_OPTIMAL = optimal_set(quadratic(GRID.coordinates(GRID.points)), 20)


def polynomial_truth(seed: int) -> type_f64:
    """``[2, n]``: ln s and ln W that RMAP's polynomial can express."""
    random = np.random.default_rng(seed)
    sizes = [0.3] + [0.1] * 3 + [0.03] * 6
    time_s = np.array([6.0, -0.8, -0.3, -0.2, *[0.0] * 6]) + 2 * random.normal(0, sizes)
    watts = np.array([7.4, 1.04, 0.1, 0.3, *[0.0] * 6]) + random.normal(0, sizes)
    coefficients = np.concatenate([time_s, watts])
    return Polynomial().logs(GRID, coefficients, GRID.points)[0]


def capped_coefficients(seed: int) -> type_f64:
    """Of an application that some caps of the grid limit and others do not."""
    random = np.random.default_rng(seed)
    coefficients = np.zeros(COEFFICIENTS)
    coefficients[DEMAND] = [np.log(85), *random.normal((-0.05, 0.12), 0.04), *random.normal(0, 0.02, 3)]
    coefficients[[KEPT, REACH]] = [1.0, 1.2]
    coefficients[TIME] = [6, *random.normal((-0.8, -0.25), 0.1), *random.normal(0, 0.05, 3), 0.6, 0.2, 0.05, 0.05]
    return coefficients


def capped_truth(seed: int) -> type_f64:
    return Capped().logs(GRID, capped_coefficients(seed), GRID.points)[0]


def observed(truth: type_f64, chosen: type_f64 | list[int], noise: float, seed: int = 0) -> Observations:
    clean = np.exp(truth[:, chosen])
    noisy = clean * (1 + noise * np.random.default_rng(seed).standard_normal(clean.shape))
    return Observations.checked(GRID.points[chosen], noisy[0], noisy[1])


def measuring(truth: type_f64, noise: float, seed: int = 0) -> Callable[[int, int, float], tuple[float, float]]:
    random = np.random.default_rng(seed)
    number = {tuple(point): at for at, point in enumerate(GRID.points.tolist())}

    def measure(nodes: int, cores: int, cap_w: float) -> tuple[float, float]:
        time_s, watts = np.exp(truth[:, number[nodes, cores, cap_w]]) * (1 + noise * random.standard_normal(2))
        return float(time_s), float(watts)

    return measure


# --- what is recovered ---


def test_twenty_points_of_a_polynomial_give_it_back_exactly() -> None:
    truth = polynomial_truth(1)
    model = ApplicationModel(GRID, observed(truth, I_OPTIMAL, 0.0), "polynomial")
    found = model.predict()
    assert np.allclose(found.time_s, np.exp(truth[0]), rtol=1e-8)
    assert np.allclose(found.watts, np.exp(truth[1]), rtol=1e-8)
    assert np.all(model.deviation < 0.05)  # the residuals are 0


@pytest.mark.parametrize("seed", range(3))
def test_twenty_points_without_noise_give_a_capped_application_within_a_per_cent(seed: int) -> None:
    truth = capped_truth(seed)
    found = measured_model(GRID, measuring(truth, 0.0), 20, noise=0.002).predict()
    limited = np.exp(truth[1]) / (GRID.points[:, 0] * 2 * GRID.points[:, 2])
    assert np.sum(limited > 0.98) > 20 and np.sum(limited < 0.9) > 20  # caps limit here and there
    assert np.abs(found.watts / np.exp(truth[1]) - 1).max() < 0.01
    assert np.abs(found.time_s / np.exp(truth[0]) - 1).max() < 0.01


def test_caps_that_a_package_cannot_keep_are_found_out() -> None:
    coefficients = capped_coefficients(0)
    coefficients[REACH] = 0.25
    truth = Capped().logs(GRID, coefficients, GRID.points)[0]
    over = np.exp(truth[1]) / (GRID.points[:, 0] * 2 * GRID.points[:, 2])
    assert np.sum(over > 1.1) > 20  # the lowest caps are exceeded
    model = measured_model(GRID, measuring(truth, 0.0), 20, noise=0.002)
    assert model.coefficients[REACH] == pytest.approx(0.25, abs=0.01)
    assert np.abs(model.predict().watts / np.exp(truth[1]) - 1).max() < 0.01


def test_a_cap_makes_a_kink_that_the_capped_form_follows_and_the_polynomial_does_not() -> None:
    truth = capped_truth(0)
    everything = observed(truth, list(range(len(GRID))), 0.0)
    worst = {}
    for form in ("capped", "polynomial"):
        watts = ApplicationModel(GRID, everything, form, noise=0.01).predict().watts
        worst[form] = np.abs(watts / np.exp(truth[1]) - 1).max()
    assert worst["capped"] < 0.005 and worst["polynomial"] > 0.05


@pytest.mark.parametrize("form", [Capped(), Polynomial()], ids=lambda form: form.name)
def test_the_slopes_of_a_form_are_its_derivatives(form: Form) -> None:
    start = capped_coefficients(2) if form.name == "capped" else np.linspace(-1, 1, 2 * TERMS)
    start = start.copy()
    values, slopes = form.logs(GRID, start, GRID.points)
    for number in range(len(start)):
        step = np.zeros(len(start))
        step[number] = 1e-6
        ahead, behind = (form.logs(GRID, start + sign * step, GRID.points)[0] for sign in (1, -1))
        assert np.allclose((ahead - behind) / 2e-6, slopes[:, :, number], atol=1e-5)
    assert values.shape == (2, len(GRID)) and BASE < COEFFICIENTS


# --- intervals and the guard ---


@pytest.mark.parametrize("form, truth_of", [("polynomial", polynomial_truth), ("capped", capped_truth)])
def test_intervals_cover_the_truth_as_often_as_they_say(form: str, truth_of: Callable[[int], type_f64]) -> None:
    covered: dict[float, list[float]] = {0.5: [], 0.9: []}
    for seed in range(40):
        truth = truth_of(seed)
        truth += LAW_ERROR * np.random.default_rng([seed, 1]).standard_normal(truth.shape)  # as far as forms are off
        model = ApplicationModel(GRID, observed(truth, I_OPTIMAL, 0.05, seed), form)
        for share, shares in covered.items():
            found = model.predict(share=share)
            shares.append(
                float(np.mean((found.time_low_s <= np.exp(truth[0])) & (np.exp(truth[0]) <= found.time_high_s)))
            )
            shares.append(
                float(np.mean((found.watts_low <= np.exp(truth[1])) & (np.exp(truth[1]) <= found.watts_high)))
            )
    assert np.mean(covered[0.9]) == pytest.approx(0.9, abs=0.04)
    assert np.mean(covered[0.5]) == pytest.approx(0.5, abs=0.06)


def test_intervals_have_the_tails_of_students_t_since_the_noise_is_estimated() -> None:
    """Of few measurements: relative to those of the middle half, a normal distribution's 98 % would be 3.45 as wide,
    that of a t distribution with some 10 degrees of freedom 3.95."""
    truth = polynomial_truth(2)
    model = ApplicationModel(
        GRID, observed(truth, optimal_set(quadratic(GRID.coordinates(GRID.points)), 12), 0.2), "polynomial"
    )
    assert model._freedom < 13
    half, most = (model.predict(share=share) for share in (0.5, 0.98))
    ratio = np.log(most.time_high_s / most.time_low_s) / np.log(half.time_high_s / half.time_low_s)
    assert np.median(ratio) > 3.7


def test_the_noise_of_the_measurements_is_estimated() -> None:
    truth = polynomial_truth(3)
    everything = list(range(len(GRID)))
    for noise in (0.01, 0.1):
        model = ApplicationModel(GRID, observed(truth, everything, noise), "polynomial", noise=0.05)
        assert np.all(np.abs(np.log(model.deviation / noise)) < 0.3 * np.log(5))  # nearer to it than what was declared


def test_guarded_watts_are_rarely_too_low_and_never_below_the_median() -> None:
    low: dict[float, list[float]] = {0.5: [], 0.75: [], 0.95: []}
    for seed in range(10):
        truth = capped_truth(seed)
        model = measured_model(GRID, measuring(truth, 0.05, seed), 20)
        median = model.predict().watts
        for quantile, shares in low.items():
            watts = model.watts(quantile)
            assert np.all(watts >= median)
            shares.append(float(np.mean(watts < 0.95 * np.exp(truth[1]))))
    assert np.mean(low[0.5]) > np.mean(low[0.75]) >= np.mean(low[0.95])
    assert np.mean(low[0.75]) <= 0.04


# --- the sequence ---


def test_the_same_seed_measures_the_same_points_and_predicts_the_same() -> None:
    truth = capped_truth(4)
    one, two = (measured_model(GRID, measuring(truth, 0.05), 20) for _ in range(2))
    assert np.array_equal(one.observations.points, two.observations.points)
    assert np.array_equal(one.watts(), two.watts()) and np.array_equal(
        one.predict().time_low_s, two.predict().time_low_s
    )


def test_the_next_point_is_the_one_that_takes_most_variance_off_all_predictions() -> None:
    model = ApplicationModel(GRID, observed(capped_truth(5), list(core_points(GRID)), 0.05))
    rows, information = model.slopes(), np.linalg.inv(model.covariance)

    def all_variances(number: int) -> float:
        after = np.linalg.inv(information + rows[:, number].T @ rows[:, number])
        return sum(float(np.einsum("ij,jk,ik->", each, after, each)) for each in rows)

    measured = {tuple(point) for point in model.observations.points.tolist()}
    left = [number for number, point in enumerate(GRID.points.tolist()) if tuple(point) not in measured]
    assert next_point(model) == min(left, key=all_variances)


def test_no_point_is_measured_twice_and_the_core_comes_first() -> None:
    taken = []

    def measure(nodes: int, cores: int, cap_w: float) -> tuple[float, float]:
        taken.append((nodes, cores, cap_w))
        return measuring(capped_truth(6), 0.05)(nodes, cores, cap_w)

    measured_model(GRID, measure, 20)
    core = {tuple(point) for point in GRID.points[core_points(GRID)].tolist()}
    assert len(set(taken)) == 20 and set(taken[: len(core)]) == core


# --- what is refused ---

GOOD = observed(capped_truth(0), I_OPTIMAL, 0.05)


def changed(column: str, place: int, value: float) -> Callable[[], object]:
    def build() -> object:
        columns = {"points": GOOD.points.copy(), "time_s": GOOD.time_s.copy(), "watts": GOOD.watts.copy()}
        if column in ("nodes", "cores", "cap_w"):
            columns["points"][place, ("nodes", "cores", "cap_w").index(column)] = value
        else:
            columns[column][place] = value
        return Observations.checked(**columns)

    return build


def fewer(count: int, form: str) -> Callable[[], object]:
    return lambda: ApplicationModel(
        GRID, Observations.checked(GOOD.points[:count], GOOD.time_s[:count], GOOD.watts[:count]), form
    )


def one_level(axis: int) -> Callable[[], object]:
    points = GRID.points.copy()
    points[:, axis] = points[0, axis]
    return lambda: Observations.checked(points, np.ones(len(GRID)), np.ones(len(GRID)))


def two_levels_of_cores() -> object:
    rows = np.flatnonzero((GRID.points[:, 1] == 8) | (GRID.points[:, 1] == 16))
    return ApplicationModel(GRID, observed(polynomial_truth(0), rows, 0.05), "polynomial")


def repeated(factor: float) -> Callable[[], object]:
    points = np.vstack([GOOD.points, GOOD.points[:1]])
    time_s, watts = np.append(GOOD.time_s, factor * GOOD.time_s[0]), np.append(GOOD.watts, GOOD.watts[0])
    return lambda: Observations.checked(points, time_s, watts)


@pytest.mark.parametrize(
    "build, message",
    [
        (fewer(11, "capped"), "11 different points: form capped needs 12 or more"),
        (fewer(10, "polynomial"), "10 different points: form polynomial needs 11 or more"),
        (lambda: Observations.checked(np.empty((0, 3)), [], []), "no measurements"),
        (changed("time_s", 3, np.nan), "measurement 3 .*: time_s is nan, not a finite number"),
        (changed("watts", 4, np.inf), "measurement 4 .*: watts is inf, not a finite number"),
        (changed("watts", 4, -5.0), "measurement 4 .*: watts is -5; it must be above 0"),
        (changed("time_s", 0, 0.0), "measurement 0 .*: time_s is 0; it must be above 0"),
        (changed("nodes", 2, 0.0), "measurement 2 .*: nodes is 0; it must be above 0"),
        (changed("cap_w", 2, -51.0), "measurement 2 .*: cap_w is -51; it must be above 0"),
        (changed("watts", 4, 1e6), "measurement 4 .*: 1e.06 W is over 2 times the .* W of all caps"),
        (one_level(0), "all 200 measurements have nodes 8: measure a second level"),
        (one_level(2), "all 200 measurements have cap_w 51: measure a second level"),
        (two_levels_of_cores, "the points decide 18 of the 20 coefficients of form polynomial: measure a third level"),
        (repeated(2.0), "measurements of .* contradict each other: .* s and .* s"),
        (lambda: Observations.checked([[8, 16]], [1.0], [1.0]), r"points are \(1, 2\): not a row of nodes"),
        (lambda: Observations.checked(GOOD.points, [1.0], [1.0]), "20 points, 1 times and 1 watts: not as many"),
        (lambda: Observations.checked([["x", 1, 2]], [1.0], [1.0]), "measurements are not numbers: "),
        (lambda: ApplicationModel(GRID, GOOD, "cubic"), 'no form "cubic": there are capped, polynomial'),
        (lambda: ApplicationModel(GRID, GOOD, noise=0.0), "noise 0: a relative deviation is above 0 and below 1"),
        (lambda: ApplicationModel(GRID, GOOD).predict(share=1.0), "share 1: an interval has a share above 0"),
        (lambda: ApplicationModel(GRID, GOOD).watts(0.2), "quantile 0.2: a guard against too little power"),
        (lambda: Grid((8,), (8, 16), (51, 115)), "the grid has 1 level.s. of nodes: it needs two or more"),
        (lambda: Grid((8, 16), (8, 16), (51, np.nan)), "the grid's cap_w .* are not all finite and above 0"),
        (lambda: Grid((8, 16), (8, 16), (51, 115), packages=0), "a node has 0 packages"),
        (lambda: measured_model(GRID, lambda *_: (1.0, 1.0), 20, core=5), "a core of 5 in a budget of 20 measurements"),
        (lambda: measured_model(GRID, lambda *_: (1.0, 1.0), 999), "a core of 14 in a budget of 999 measurements"),
    ],
)
def test_wrong_input_is_refused_in_one_line(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ModelError, match=message) as refused:
        build()
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 200


def test_repeated_measurements_that_agree_are_welcome() -> None:
    assert isinstance(repeated(1.1)(), Observations)


def test_a_grid_whose_points_are_all_measured_has_no_next() -> None:
    small = Grid((8, 16, 32), (8, 12, 16), (51, 80, 115))
    model = ApplicationModel(small, Observations.checked(small.points, np.full(27, 9.0), 2 * small.points[:, 0] * 50))
    with pytest.raises(ModelError, match="all 27 points are measured"):
        next_point(model)


# --- what the cluster agent reads ---


def test_a_table_of_predictions_is_one_that_the_replay_of_moldable_jobs_reads(tmp_path: Path) -> None:
    rows = cab_table()["SP-MZ"]
    known = {(row.nodes, row.cores, row.cap_w): (row.time_s, row.watts) for row in rows}
    grid = Grid(NODES, CORES, CAPS_W)
    model = measured_model(grid, lambda *place: known[place], len(grid) // 10)
    write_table(tmp_path / "table.csv", {"SP-MZ": model})
    found = read_tables(str(tmp_path / "table.csv")).true["SP-MZ"]
    assert {(row.nodes, row.cores, row.cap_w) for row in found} == set(known)
    errors = [row.time_s / known[row.nodes, row.cores, row.cap_w][0] - 1 for row in found]
    assert np.mean(np.abs(errors)) < 0.08

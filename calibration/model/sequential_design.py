"""Which point to measure next: first a core that fills the space, then where the prediction is least known.

The core is the I-optimal set for RMAP's polynomial, which spreads over corners, edges and centre of the grid and needs
no measurement. After it every point is chosen with the model as fitted so far: the one after whose measurement the mean
variance of all predictions of the grid, times and watts, is least (I-optimal, one step ahead). Where the demand is
depends on the application, and so does where its cap stops to limit: only a sequence can find the points around it.

With C the covariance, M the sum of J'J over all candidates, and J the two rows of one of them (in units of the noise),
measuring that one takes trace((I + J C J')^-1 J C M C J') off the sum of all variances.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from calibration.model.application_model import FORMS, NOISE, ApplicationModel
from calibration.model.configuration_grid import Grid, quadratic
from calibration.model.observations import ModelError, Observations
from calibration.model.optimal_design import optimal_set

CORE: Final = 14
"""Points of the core; chosen on applications 1 to 30 of ``benchmarks/rmap_design.py``."""

type_measure = Callable[[int, int, float], tuple[float, float]]
"""Seconds and watts of a run on so many nodes and cores per node under a cap of so many watts per package."""


def core_points(grid: Grid, size: int = CORE, seed: int = 0) -> npt.NDArray[np.int64]:
    """Indices of the grid's points to measure first."""
    return optimal_set(quadratic(grid.coordinates(grid.points)), size, "I", seed)


def next_point(model: ApplicationModel) -> int:
    """Index of the grid's point whose measurement makes all predictions best; none is measured twice. ``ModelError``
    if all are measured."""
    rows = model.slopes().transpose(1, 0, 2)  # [candidate, time or watts, coefficient]
    flat = rows.reshape(-1, rows.shape[2])
    known = rows @ model.covariance  # J C
    spread = known @ (flat.T @ flat) @ known.transpose(0, 2, 1)
    gain = np.trace(np.linalg.solve(np.eye(2) + known @ rows.transpose(0, 2, 1), spread), axis1=1, axis2=2)
    measured = {tuple(point) for point in model.observations.points.tolist()}
    open_points = [number for number, point in enumerate(model.grid.points.tolist()) if tuple(point) not in measured]
    if not open_points:
        raise ModelError(f"all {len(model.grid)} points are measured")
    return max(open_points, key=lambda number: float(gain[number]))


def measured_model(
    grid: Grid,
    measure: type_measure,
    budget: int,
    core: int = CORE,
    form: str = "capped",
    noise: float = NOISE,
    seed: int = 0,
) -> ApplicationModel:
    """Measure ``budget`` points, the core first, and return the model of all. ``ModelError`` as of its parts; wrong
    numbers are found before anything is measured."""
    if form not in FORMS:
        raise ModelError(f'no form "{form}": there are {", ".join(FORMS)}')
    least = FORMS[form].least_points
    if not least <= core <= budget <= len(grid):
        raise ModelError(
            f"a core of {core} in a budget of {budget} measurements: form {form} needs a core of {least} or more, and"
            f" the grid has {len(grid)} points"
        )
    points, found = [], []

    def take(number: int) -> None:
        nodes, cores, cap_w = grid.points[number].tolist()
        points.append([nodes, cores, cap_w])
        found.append(measure(int(nodes), int(cores), cap_w))

    def model() -> ApplicationModel:
        time_s, watts = zip(*found, strict=True)
        return ApplicationModel(grid, Observations.checked(points, time_s, watts, grid.packages), form, noise)

    for number in core_points(grid, core, seed).tolist():
        take(number)
    while len(points) < budget:
        take(next_point(model()))
    return model()

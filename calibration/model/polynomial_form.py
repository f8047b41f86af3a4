"""RMAP's form: logarithms of time and watts are polynomials of degree 2 in the logarithms of nodes, cores and cap.

Patki et al., HPDC 2015, §4, do not print the terms; here they are all ten (``docs/policies.md``). It is the baseline:
where a cap begins to limit there is a kink, which no polynomial has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from calibration.model.configuration_grid import Grid, quadratic
from calibration.model.observations import Observations, type_f64

TERMS: Final = 10


@dataclass(frozen=True, slots=True)
class Prior:
    """What is known of the coefficients before a measurement: means, and precisions (1 / variance; 0: nothing).
    ``starts``: where to begin the search, each time."""

    mean: type_f64
    precision: type_f64
    starts: tuple[type_f64, ...]


class Form(Protocol):
    """A formula with coefficients for the logarithms of time and watts."""

    name: str
    least_points: int

    def prior(self, grid: Grid, observations: Observations) -> Prior:
        """What is known before, and where to begin."""

    def logs(self, grid: Grid, coefficients: type_f64, points: type_f64) -> tuple[type_f64, type_f64]:
        """``values[2, n]``: ln s and ln W; ``slopes[2, n, coefficients]``: their derivatives."""


class Polynomial:
    """Ten coefficients for the time, then ten for the watts."""

    name = "polynomial"
    least_points = TERMS + 1  # one more than terms: else nothing is left to estimate the noise from

    def prior(self, grid: Grid, observations: Observations) -> Prior:
        """Nothing is known."""
        return Prior(np.zeros(2 * TERMS), np.zeros(2 * TERMS), (np.zeros(2 * TERMS),))

    def logs(self, grid: Grid, coefficients: type_f64, points: type_f64) -> tuple[type_f64, type_f64]:
        """See ``Form``."""
        terms = quadratic(grid.coordinates(points))
        slopes = np.zeros((2, len(points), 2 * TERMS))
        slopes[0, :, :TERMS] = slopes[1, :, TERMS:] = terms
        return slopes @ coefficients, slopes

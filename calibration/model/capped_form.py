"""A form with the kink that a power limit makes: the cap enters by how far it is below what the application would draw.

Problem. Up to its demand D an application draws its cap and gets faster with it; above, nothing changes any more. In
logarithms both are almost straight lines with a kink where cap = D. A polynomial in ln cap rounds the kink, and its
watts are up to 10 % too low there.

Idea. Keep RMAP's degree and its number of terms, and replace the coordinate ln cap by the shortfall

    h = min(r, max(0, ln D(n, c) - ln cap))      (rounded over SOFTNESS, so that it has a derivative)
    ln D = b . quadratic(n, c)                   W per package without a cap            6 coefficients
    ln W = ln(nodes packages) + ln D - k h       k = 1: caps are kept                   2, with r
    ln s = quadratic(n, c, h)                    as RMAP's, with h for ln cap          10

r is how far power can be lowered: at the lowest clock a package draws what it draws, whatever its cap.

Coefficients are found together: D also decides from where on the time is flat, so times help to locate the kink.

Prior. Eighteen coefficients meet twenty noisy times and watts, and watts under a cap say nothing of the demand. So a
little is assumed before: caps are kept but for some per cent, curvatures are small. The numbers are ours, chosen on
applications 1 to 30 of ``benchmarks/rmap_design.py``.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from calibration.model.configuration_grid import Grid, quadratic
from calibration.model.observations import Observations, type_f64
from calibration.model.polynomial_form import Prior

SOFTNESS: Final = 0.02
"""Ours: in ln W; a limit on mean power is kept to a per cent or two."""

DEMAND, KEPT, REACH, TIME = slice(0, 6), 6, 7, slice(8, 18)
COEFFICIENTS: Final = 18
BASE: Final = 14  # the first of the time's coefficients that has h in it

DEMAND_MEAN: Final = (0.0, 0.0, 0.0, 0.0, 0.0)
DEMAND_SD: Final = (0.3, 0.5, 0.15, 0.15, 0.15)
"""Of ln D over ln n, ln c, and their products, across half of the grid: a demand may change by a factor of 2 or 3 from
edge to edge, its curvature is small."""
KEPT_MEAN, KEPT_SD = 1.0, 0.04
REACH_MEAN, REACH_SD = 1.0, 0.2
REACH_STARTS: Final = (0.3, REACH_MEAN)
"""A cap that no measurement shows to be out of reach leaves nothing to follow to the right r, so two are tried."""
TIME_MEAN: Final = (-0.7, -0.3, 0.0, 0.0, 0.0)
TIME_SD: Final = (1.0, 1.0, 0.3, 0.3, 0.3)
SHORTFALL_MEAN: Final = (0.6, 0.0, 0.0, 0.0)
SHORTFALL_SD: Final = (0.5, 0.5, 0.15, 0.15)
"""Of ln s over h, h^2, h ln n, h ln c: time grows less than power falls."""


class Capped:
    """Six coefficients of the demand, two of how caps are kept and how far, ten of the time."""

    name = "capped"
    least_points = 12  # ours: six for each of the two surfaces over nodes and cores

    def prior(self, grid: Grid, observations: Observations) -> Prior:
        """The levels from the measurements, all else from what is said above."""
        per_package = np.log(observations.watts / (observations.points[:, 0] * grid.packages))
        level_s = float(np.log(observations.time_s).mean())
        mean = [float(per_package.max()), *DEMAND_MEAN, KEPT_MEAN, REACH_MEAN, level_s, *TIME_MEAN, *SHORTFALL_MEAN]
        deviation = np.array([1.0, *DEMAND_SD, KEPT_SD, REACH_SD, 10.0, *TIME_SD, *SHORTFALL_SD])
        starts = np.tile(mean, (len(REACH_STARTS), 1))
        starts[:, REACH] = REACH_STARTS
        return Prior(np.array(mean), 1 / deviation**2, tuple(starts))

    def logs(self, grid: Grid, coefficients: type_f64, points: type_f64) -> tuple[type_f64, type_f64]:
        """See ``Form``."""
        kept, reach = coefficients[KEPT], coefficients[REACH]
        where = grid.coordinates(points)[:, :2]
        surface = quadratic(where)
        demand = surface @ coefficients[DEMAND]
        wanted, is_capped = _positive_part(demand - np.log(points[:, 2]))
        out_of_reach, is_lowest = _positive_part(wanted - reach)
        shortfall, moves = wanted - out_of_reach, is_capped * (1 - is_lowest)  # dh / d ln D
        time = np.column_stack([surface, shortfall, shortfall**2, shortfall[:, None] * where])

        values = np.empty((2, len(points)))
        values[0] = time @ coefficients[TIME]
        values[1] = np.log(points[:, 0] * grid.packages) + demand - kept * shortfall
        h1, h2, *hx = coefficients[BASE:]
        per_shortfall = h1 + 2 * h2 * shortfall + where @ np.array(hx)
        slopes = np.zeros((2, len(points), COEFFICIENTS))
        slopes[0, :, DEMAND] = surface * (moves * per_shortfall)[:, None]
        slopes[0, :, REACH] = is_lowest * per_shortfall
        slopes[0, :, TIME] = time
        slopes[1, :, DEMAND] = surface * (1 - moves * kept)[:, None]
        slopes[1, :, KEPT] = -shortfall
        slopes[1, :, REACH] = -is_lowest * kept
        return values, slopes


def _positive_part(values: type_f64) -> tuple[type_f64, type_f64]:
    """max(0, values), rounded over ``SOFTNESS``, and its derivative, from 0 to 1."""
    scaled = values / SOFTNESS
    return SOFTNESS * np.logaddexp(0.0, scaled), np.asarray(0.5 * (1 + np.tanh(0.5 * scaled)))

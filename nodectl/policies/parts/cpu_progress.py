"""Beta of a phase from the progress that the application reports: the seconds that a unit of work takes at each clock.

A unit that takes ``a`` seconds at the highest clock takes ``a * (1 + beta * (f_max / f - 1))`` at a lower one. Over
``f_max / f - 1`` this is a line, and beta is its slope divided by its intercept. The only error is that of counting:
units are few, differ from each other, and are cut at both ends of a stretch of time. So the variance of beta is known.
"""

from __future__ import annotations

import math

from pmu.readings import type_f64

PROGRESS = ("units", "progress_s", "stretches")
UNITS, PROGRESS_S, STRETCHES = range(len(PROGRESS))
"""Tables of ``progress``, each ``[phase, level]``, of what the application reports: units finished in the phase at that
clock, the seconds they took, and in how many stretches of time (each cuts a unit at both ends)."""

UNIT_SCATTER, UNIT_EDGES = 0.12, 0.2
"""How much single units differ, relative, and the variance that the two cut units of a stretch add (ours; it is a sixth
if each position of the cut is equally likely)."""


def progress_beta(reported: type_f64, steepness: type_f64) -> tuple[float, float]:
    """Beta of a phase and its variance (infinite where unknown) from its ``progress`` ``[len(PROGRESS), levels]``.

    A line is fitted to the seconds that a unit takes at each clock, by least squares weighed with their variances;
    ``steepness`` is the loss at each level for beta = 1.
    """
    is_heard = reported[UNITS] >= 1.0
    units, steepness = reported[UNITS, is_heard], steepness[is_heard]
    unit_s = reported[PROGRESS_S, is_heard] / units
    weight = 1.0 / (unit_s**2 * (UNIT_SCATTER**2 * units + UNIT_EDGES * reported[STRETCHES, is_heard]) / units**2)
    total, first, second = weight.sum(), weight @ steepness, weight @ steepness**2
    leverage = total * second - first**2
    if not leverage > 1e-9 * total * second:  # one clock, or none
        return 0.0, math.inf
    slope = (total * (weight @ (steepness * unit_s)) - first * (weight @ unit_s)) / leverage
    top_s = (second * (weight @ unit_s) - first * (weight @ (steepness * unit_s))) / leverage
    if not top_s > 0:
        return 0.0, math.inf
    beta = float(slope / top_s)
    variance = (total + 2.0 * beta * first + beta**2 * second) / leverage / top_s**2
    # points further from the line than counting explains: units of several kinds, so the variance grows
    surprise = weight @ (unit_s - top_s - slope * steepness) ** 2 / max(len(units) - 2, 1)
    return beta, float(variance) * max(float(surprise), 1.0)

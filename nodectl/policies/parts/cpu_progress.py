"""What the application's own progress says of a phase: the seconds that a unit of work takes at each clock.

A unit that takes ``a`` seconds at the highest clock takes ``a * (1 + beta * (f_max / f - 1))`` at a lower one: a line,
whose slope over whose start is beta. Nothing stands between that and the truth but counting: units are few, unlike each
other, and cut at both ends of a stretch of time. So how sure the line is can be said, and it is believed so far.
"""

from __future__ import annotations

import math

from pmu.readings import type_f64

TOLD = ("units", "told_s", "stretches")
UNITS, TOLD_S, STRETCHES = range(len(TOLD))
"""Tables of ``told``, each ``[phase, level]``, where the application tells its progress: units finished in the phase at
that clock, the seconds they took, and in how many stretches of time (at the ends of each a unit is cut)."""

UNIT_SCATTER, UNIT_EDGES = 0.12, 0.2
"""How much single units of the application's progress differ, relative, and the variance that the two cut units of a
stretch add (ours; a sixth if they are cut anywhere)."""


def told_beta(told: type_f64, steepness: type_f64) -> tuple[float, float]:
    """Beta of a phase and its variance (infinite where nothing can be said) from its ``told`` ``[len(TOLD), levels]``.

    The line goes through the seconds that a unit takes at each clock, weighed by how well they are known;
    ``steepness`` is the loss at each level for beta = 1.
    """
    is_heard = told[UNITS] >= 1.0
    units, steepness = told[UNITS, is_heard], steepness[is_heard]
    unit_s = told[TOLD_S, is_heard] / units
    weight = 1.0 / (unit_s**2 * (UNIT_SCATTER**2 * units + UNIT_EDGES * told[STRETCHES, is_heard]) / units**2)
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
    # points further from the line than counting explains: units of several kinds, so all of it is less sure
    surprise = weight @ (unit_s - top_s - slope * steepness) ** 2 / max(len(units) - 2, 1)
    return beta, float(variance) * max(float(surprise), 1.0)

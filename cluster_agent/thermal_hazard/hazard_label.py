"""When is a room in thermal hazard? HazardNet's definition (REGALE D2.3), with a threshold that could have been known.

A node has its own threshold, the 0.95 quantile of its inlet temperature. A window of six hours is in hazard if at least
5 % of its readings, of all nodes, are above their thresholds (10 and 15 % for the severe ones). HazardNet takes the
quantile over the whole year, also over what is then predicted; ours is of the training part alone. A reading that is
missing (NaN) counts neither way, and a window of which more than half is missing has no label.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from cluster_agent.errors import ClusterError

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

QUANTILE: Final = 0.95
WINDOW_S: Final = 6 * 3600.0
SHARE: Final = 0.05
"""HazardNet's: of the readings of a window. It was chosen there among 5, 10 and 15 %, which were in hazard for 19.5,
8.0 and 3.8 % of the year."""

STUCK_S: Final = 86_400.0
"""Ours: air that hot changes within a day, if only by the machine's load."""

LEAST_READINGS: Final = 500
"""Ours: fewer have no 0.95 quantile to speak of."""


def thresholds(inlet_c: Floats) -> Floats:
    """Of each sensor, from readings ``[steps, sensors]`` in degrees; NaN for one with fewer than ``LEAST_READINGS``."""
    enough = (~np.isnan(inlet_c)).sum(0) >= LEAST_READINGS
    if not enough.any():
        raise ClusterError(f"no sensor has {LEAST_READINGS} readings: a threshold needs days of them")
    found = np.full(inlet_c.shape[1], np.nan)
    found[enough] = np.nanquantile(inlet_c[:, enough], QUANTILE, axis=0)
    return found


def shares(inlet_c: Floats, threshold_c: Floats, step_s: float) -> Floats:
    """The share of readings above their thresholds in the six hours that end with each step, ``[steps]``; NaN where
    more than half of the window is missing, as in the first six hours."""
    counts = ~np.isnan(inlet_c) & ~np.isnan(threshold_c)
    with np.errstate(invalid="ignore"):
        above = (inlet_c > threshold_c).sum(1)
    length = window_steps(step_s)
    hot, of = (_sums(one.astype(float), length) for one in (above, counts.sum(1)))
    found = np.full(len(inlet_c), np.nan)
    has_label = of > 0.5 * length * inlet_c.shape[1]
    found[has_label] = hot[has_label] / of[has_label]
    return found


def stuck(inlet_c: Floats, threshold_c: Floats, step_s: float) -> Bools:
    """Readings ``[steps, sensors]`` above their thresholds that have been the same for ``STUCK_S``: of sensors that
    show nothing any more. One below its threshold does no harm, and may have a coarse scale."""
    is_same = np.zeros(inlet_c.shape, bool)
    is_same[1:] = inlet_c[1:] == inlet_c[:-1]
    steps = np.arange(len(inlet_c))[:, None]
    since = np.maximum.accumulate(np.where(is_same, 0, steps), axis=0)
    with np.errstate(invalid="ignore"):
        return np.asarray(is_same & (steps - since >= STUCK_S / step_s) & (inlet_c > threshold_c))


def window_steps(step_s: float) -> int:
    """Steps in six hours."""
    return max(round(WINDOW_S / step_s), 1)


def _sums(values: Floats, length: int) -> Floats:
    """Of the last ``length`` values up to each; 0 where there are fewer."""
    found = np.zeros(len(values))
    total = np.concatenate([[0.0], np.cumsum(values)])
    if len(values) >= length:
        found[length - 1 :] = total[length:] - total[:-length]
    return found

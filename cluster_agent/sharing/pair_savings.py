"""What a pair of jobs saves on one GPU, and how likely it is that both stay above their floors.

Jobs with h_i and h_j hours alone run together at speeds a and b until the first has ended, t = min(h_i / a, h_j / b).
The other then runs alone. One after the other they need h_i + h_j hours; together they save t (a + b - 1).

A speed that is predicted has an error. Such a pair is a *trial*: it is separated as soon as its measured speeds are
below a floor, or lose against one after the other. So it counts with the mean of what it saves over the errors of both
speeds. Where it is separated, it saves nothing and costs the time of the trial. A pair that may be good is worth a
trial, and one that can hardly be is not.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]

TRIAL_H: Final = 0.02
"""Ours: a trial takes 72 s of GPU time, all of it lost if it fails. A job that is slowed for so long stays above any
floor over its whole run, unless it is as short as the trial."""

NODES: Final = 9
"""Ours: of the Gauss-Hermite rule for each of the two errors."""


class Savings(NamedTuple):
    """(n, n), symmetric: ``hours`` of GPU that a pair saves on average, 0 or less if it is not to share; ``chance``, 0
    to 1, that both speeds are above their floors and it saves time."""

    hours: Float64s
    chance: Float64s


def savings(speed: Float64s, error: Float64s, hours: Float64s, floor: Float64s) -> Savings:
    """What each pair of n jobs saves.

    ``speed``: (n, n), of i next to j as a share of its speed alone; 0 or NaN: they may not share. ``error``: (n, n),
    its standard deviation, 0 where it was measured. ``hours``: (n,) alone on the GPU. ``floor``: (n,) the least speed
    of each, 0 to 1; above 1: it shares with none.
    """
    points, weights = np.polynomial.hermite_e.hermegauss(NODES if error.any() else 1)
    weights = weights / weights.sum()
    may = (np.nan_to_num(speed) > 0) & (np.nan_to_num(speed) > 0).T
    base = np.where(may, speed, 0.0)
    mean, chance = np.zeros(speed.shape), np.zeros(speed.shape)
    for own, own_weight in zip(points, weights, strict=True):
        a = np.clip(base + own * error, 0.0, 1.0)
        for others, others_weight in zip(points, weights, strict=True):
            b = np.clip(base.T + others * error.T, 0.0, 1.0)
            saved = saved_hours(a, b, hours)
            keeps = may & (a >= floor[:, None]) & (b >= floor) & (saved > 0)
            mean += own_weight * others_weight * np.where(keeps, saved, 0.0)
            chance += own_weight * others_weight * keeps
    mean, chance = (mean + mean.T) / 2, (chance + chance.T) / 2  # equal but for the order of sums
    return Savings(mean - (1 - chance) * TRIAL_H, chance)


def saved_hours(a: Float64s, b: Float64s, hours: Float64s) -> Float64s:
    """(n, n): hours of GPU that pairs save with speeds ``a[i, j]`` of i and ``b[i, j]`` of j; below 0: they lose."""
    together = np.minimum(hours[:, None] / np.maximum(a, 1e-9), hours / np.maximum(b, 1e-9))
    return np.where(a + b > 0, together * (a + b - 1.0), 0.0)

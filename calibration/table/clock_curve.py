"""A quantity over the clock: measured at some clocks, predicted at the others with its uncertainty.

The curve is a Gaussian process: a physical shape with free coefficients, and around it a smooth deviation of which the
size is learned. Watts have the shape ``a + b u + c u^3`` (idle; leakage; switching, whose voltage rises with the
clock); the time of a unit of work has ``a + b / u`` (memory; core), where ``u`` is the clock over the highest. With
three points the coefficients are just determined, and the deviation's assumed size alone makes the interval. Each
further point shows what a prediction without it would have missed (leave one out), which corrects that size.
Source: Rasmussen and Williams, Gaussian Processes for Machine Learning, sections 2.7 and 5.4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from calibration.measure.batch_means import Z95
from pmu.readings import type_f64

LENGTH: Final = 0.25
"""Ours: the deviation forgets its value within so much of the clock's relative range."""

ASSUMED: Final = 0.013
ASSUMED_WEIGHT: Final = 8.0
"""Ours: relative size of the deviation before anything is known, and how many points that counts for."""

WIDE: Final = 10.0
"""Standard deviation of the coefficients, relative to the value at the top: nearly free."""

FREE, STEPS = 3, 5
"""Points that say nothing about the deviation; rounds in which its size is found."""

SHAPES: Final[dict[str, Callable[[type_f64], type_f64]]] = {
    "watts": lambda u: np.stack([np.ones_like(u), u, u**3], 1),
    "time": lambda u: np.stack([np.ones_like(u), 1.0 / u], 1),
}


@dataclass(frozen=True, slots=True)
class Curve:
    """Predictions at some clocks: ``value`` and ``half`` of the 95 % interval, ``[n]`` each."""

    value: type_f64
    half: type_f64


def predict(
    shape: str, clocks: Sequence[float], values: Sequence[float], deviations: Sequence[float], at: Sequence[float]
) -> Curve:
    """The curve at clocks ``at`` from ``values`` at ``clocks`` (ascending or not, any unit), of which each has a
    standard deviation. Without any value it is NaN with an infinite interval; with a single clock it is flat, and
    uncertain elsewhere."""
    x, y, goal = (np.asarray(one, np.float64) for one in (clocks, values, at))
    if not x.size or not np.isfinite(y).all():
        return Curve(np.full(goal.shape, np.nan), np.full(goal.shape, np.inf))
    scale, top = float(np.max(np.abs(y))) or 1.0, float(max(x.max(), goal.max()))
    noise = np.square(np.maximum(np.nan_to_num(np.asarray(deviations), posinf=scale) / scale, 1e-6))
    u, goal_u, y = x / top, goal / top, y / scale
    size = _size(shape, u, y, noise)
    inverse = np.linalg.inv(_covariance(shape, u, u, size) + np.diag(noise))
    cross = _covariance(shape, goal_u, u, size)
    mean = cross @ inverse @ y
    prior = np.diag(_covariance(shape, goal_u, goal_u, size))
    variance = prior - np.einsum("ij,jk,ik->i", cross, inverse, cross)
    return Curve(mean * scale, Z95 * np.sqrt(np.maximum(variance, 0.0)) * scale)


def _covariance(shape: str, a: type_f64, b: type_f64, size: float) -> type_f64:
    """Of the shape's coefficients, which are nearly free, and of a deviation (Matern, 5/2) of this relative size."""
    distance = np.sqrt(5.0) * np.abs(a[:, None] - b[None, :]) / LENGTH
    smooth: type_f64 = (1 + distance + distance**2 / 3) * np.exp(-distance)
    basis = SHAPES[shape]
    return WIDE**2 * basis(a) @ basis(b).T + size**2 * smooth


def _size(shape: str, clocks: type_f64, values: type_f64, noise: type_f64) -> float:
    """The deviation's size: how far values are from predictions without them, over how far they were expected."""
    size = ASSUMED
    if len(values) <= FREE:
        return size
    for _ in range(STEPS):
        inverse = np.linalg.inv(_covariance(shape, clocks, clocks, size) + np.diag(noise))
        left_out = (inverse @ values) / np.sqrt(np.diag(inverse))  # standardised errors of leaving each out
        known = ASSUMED_WEIGHT + len(values)
        ratio = (ASSUMED_WEIGHT * (ASSUMED / size) ** 2 + float(np.square(left_out).sum())) / known
        size = float(np.clip(size * np.sqrt(ratio), ASSUMED / 20, 1.0))
    return size

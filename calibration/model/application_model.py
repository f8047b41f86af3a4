"""The model of one application: fitted to a few measurements, it predicts time and watts anywhere, with intervals.

Fit. Least squares of both logarithms together, with the form's prior, by Levenberg and Marquardt's steps. A form that
is linear in its coefficients takes one.

Noise. ``noise`` is what the caller knows of a measurement's relative deviation. It counts as much as ``BELIEF``
observations next to the residuals: twenty measurements after eighteen coefficients say little by themselves. Times and
watts have a deviation each.

Intervals. Coefficients are sampled from their distribution around the fit (normal, with the scale of Student's t since
the noise is estimated), every sample predicts through the form, and intervals are quantiles of these predictions. A
linear interval would take a cap in force for exact even where the demand above it is a guess. ``LAW_ERROR`` is added
for what the form itself cannot follow. The intervals are for the truth, not for another noisy measurement.

Guard. Too little predicted power breaks a cluster's bound, too much only wastes some. So a scheduler takes watts at a
quantile above the median (``watts(quantile)``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from calibration.model.capped_form import Capped
from calibration.model.configuration_grid import Grid
from calibration.model.observations import ModelError, Observations, type_f64
from calibration.model.polynomial_form import Form, Polynomial

FORMS: Final[dict[str, Form]] = {form.name: form for form in (Capped(), Polynomial())}
NOISE: Final = 0.05
BELIEF: Final = 10.0
SAMPLES: Final = 500
SEED: Final = 1
LAW_ERROR: Final = 0.01
"""Ours: relative, of time and of watts: what ``capped`` leaves on all points without noise of applications 1 to 30 of
``benchmarks/rmap_design.py`` (rms on `spr-h100`: 0.013 and 0.008)."""
GUARD: Final = 0.75
"""Quantile of the watts that a scheduler should count; chosen on the same applications."""

STEPS: Final = 60
DAMPING: Final = 1e-6
LEAST_GAIN: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Predictions:
    """At each of n points: medians, and the ends of the interval. Watts are of all packages of all nodes."""

    time_s: type_f64
    time_low_s: type_f64
    time_high_s: type_f64
    watts: type_f64
    watts_low: type_f64
    watts_high: type_f64


class ApplicationModel:
    """Fitted coefficients. ``deviation``: relative, of the measured times and of the measured watts, as estimated;
    ``covariance``: of the coefficients."""

    def __init__(
        self, grid: Grid, observations: Observations, form: str = "capped", noise: float = NOISE, seed: int = SEED
    ) -> None:
        """``noise``: relative standard deviation of a measurement. ``ModelError`` if there are too few points, or none
        that decide a coefficient."""
        if form not in FORMS:
            raise ModelError(f'no form "{form}": there are {", ".join(FORMS)}')
        if not 0 < noise < 1:
            raise ModelError(f"noise {noise:g}: a relative deviation is above 0 and below 1")
        self.grid, self.form, self.observations = grid, FORMS[form], observations
        places = len(np.unique(observations.points, axis=0))
        if places < self.form.least_points:
            raise ModelError(f"{places} different points: form {form} needs {self.form.least_points} or more")
        self._prior = self.form.prior(grid, observations)
        self._logs = np.stack([np.log(observations.time_s), np.log(observations.watts)])
        self.deviation: type_f64 = np.full(2, noise)
        self.coefficients = min((self._fitted(start) for start in self._prior.starts), key=self._loss)
        self.deviation = self._estimated(noise)
        self.coefficients = self._fitted(self.coefficients)
        self.covariance = np.asarray(np.linalg.inv(self._information()[0]), np.float64)
        self._seed = seed

    def predict(self, points: type_f64 | None = None, share: float = 0.9) -> Predictions:
        """At ``points[n, 3]`` (default: all of the grid); the truth is between the ends at a ``share`` of points."""
        if not 0 < share < 1:
            raise ModelError(f"share {share:g}: an interval has a share above 0 and below 1 of the truths")
        time_s, watts = np.exp(self._evaluated(points)[0])
        low, high = np.exp(np.quantile(self._possible(points), (0.5 - share / 2, 0.5 + share / 2), axis=0))
        return Predictions(time_s, low[0], high[0], watts, low[1], high[1])

    def watts(self, quantile: float = GUARD, points: type_f64 | None = None) -> type_f64:
        """Watts at a quantile, never below the fitted ones: what a bound should count."""
        if not 0.5 <= quantile < 1:
            raise ModelError(f"quantile {quantile:g}: a guard against too little power is from 0.5 to below 1")
        at_quantile = np.quantile(self._possible(points)[:, 1], quantile, axis=0)
        return np.asarray(np.exp(np.maximum(self._evaluated(points)[0][1], at_quantile)))

    def slopes(self, points: type_f64 | None = None) -> type_f64:
        """``[2, n, coefficients]``: derivatives of ln s and ln W, in units of a measurement's deviation."""
        return np.asarray(self._evaluated(points)[1] / self.deviation[:, None, None])

    def _evaluated(self, points: type_f64 | None) -> tuple[type_f64, type_f64]:
        return self.form.logs(self.grid, self.coefficients, self.grid.points if points is None else points)

    def _possible(self, points: type_f64 | None) -> type_f64:
        """``[sample, 2, n]``: ln s and ln W as they may be."""
        return self._on_grid if points is None else self._predicted_by_samples(points)

    @cached_property
    def _on_grid(self) -> type_f64:
        return self._predicted_by_samples(self.grid.points)

    def _predicted_by_samples(self, points: type_f64) -> type_f64:
        random = np.random.default_rng(self._seed)
        root = np.linalg.cholesky(self.covariance)
        normal = random.standard_normal((SAMPLES, len(self.coefficients))) @ root.T
        scale = np.sqrt(self._freedom / random.chisquare(self._freedom, SAMPLES))
        samples = self.coefficients + normal * scale[:, None]
        logs = np.array([self.form.logs(self.grid, each, points)[0] for each in samples])
        return np.asarray(logs + LAW_ERROR * random.standard_normal(logs.shape))

    # --- the fit ---

    def _residuals(self, coefficients: type_f64) -> tuple[type_f64, type_f64]:
        """Weighted, one after the other, and their derivatives by coefficient (of the prediction)."""
        values, slopes = self.form.logs(self.grid, coefficients, self.observations.points)
        weight = 1 / np.hypot(self.deviation, LAW_ERROR)
        left = (self._logs - values) * weight[:, None]
        return left.ravel(), (slopes * weight[:, None, None]).reshape(left.size, -1)

    def _loss(self, coefficients: type_f64) -> float:
        left = self._residuals(coefficients)[0]
        return float(left @ left + self._prior.precision @ (coefficients - self._prior.mean) ** 2)

    def _information(self) -> tuple[type_f64, type_f64]:
        """The matrix whose inverse is the covariance, and the derivatives it is made of."""
        slopes = self._residuals(self.coefficients)[1]
        return slopes.T @ slopes + np.diag(self._prior.precision), slopes

    def _fitted(self, start: type_f64) -> type_f64:
        now, loss, damping = start, self._loss(start), DAMPING
        for _ in range(STEPS):
            left, slopes = self._residuals(now)
            information = slopes.T @ slopes + np.diag(self._prior.precision)
            _check_rank(information, self.form)
            pull = slopes.T @ left - self._prior.precision * (now - self._prior.mean)
            step = np.linalg.solve(information + damping * np.diag(np.diag(information)), pull)
            reached = self._loss(now + step)
            if reached > loss:
                damping *= 10
                continue
            gain, now, loss, damping = loss - reached, now + step, reached, max(damping / 10, 1e-12)
            if gain <= LEAST_GAIN * (1 + loss):
                break
        return now

    def _estimated(self, noise: float) -> type_f64:
        """Deviation of times and of watts: the residuals', with as many degrees of freedom as the fit leaves, and the
        declared one, as ``BELIEF`` observations."""
        information, slopes = self._information()
        used = np.einsum("ij,ij->i", slopes @ np.linalg.inv(information), slopes).reshape(2, -1).sum(axis=1)
        left = (self._logs - self.form.logs(self.grid, self.coefficients, self.observations.points)[0]) ** 2
        free = np.maximum(len(self.observations) - used, 0.0)
        self._freedom = float(free.sum() / 2 + BELIEF)
        return np.asarray(np.sqrt((left.sum(axis=1) + BELIEF * noise**2) / (free + BELIEF)))


def _check_rank(information: type_f64, form: Form) -> None:
    scale = np.sqrt(np.maximum(np.diag(information), 1e-300))
    rank = int(np.linalg.matrix_rank(information / np.outer(scale, scale), hermitian=True))
    if rank < len(information):
        raise ModelError(
            f"the points decide {rank} of the {len(information)} coefficients of form {form.name}: measure a third"
            " level of nodes, cores and caps"
        )

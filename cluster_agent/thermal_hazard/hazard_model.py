"""Logistic regression on the features of a room: the chance that the next six hours are in hazard.

The weights minimise the log loss with an L2 penalty (Newton's method; Hastie, Tibshirani, Friedman, The Elements of
Statistical Learning, 4.4.1), on features that are standardised by the training part. A feature is cut at
``MOST_SIGMA`` from its mean, so one that no training has seen counts as the most extreme that it has. The threshold at
which a chance is an alarm, and the penalty, are those with the best F1 on a part that was not trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from cluster_agent.errors import ClusterError
from cluster_agent.thermal_hazard.hazard_features import NAMES
from cluster_agent.thermal_hazard.hazard_label import Bools, Floats
from cluster_agent.thermal_hazard.hazard_scores import f1_of

MOST_SIGMA: Final = 6.0
PENALTIES: Final = (1000.0, 100.0, 10.0, 1.0)
"""Each begins where the one before has ended."""
ROUNDS: Final = 50
LEAST_HOURS: Final = 20
"""Ours: fewer hours with hazard, or without, train nothing."""


class HazardModel(msgspec.Struct, frozen=True):
    """Weights of the standardised features, and from which chance on it is an alarm."""

    mean: list[float]
    sigma: list[float]
    weights: list[float]
    intercept: float
    threshold: float

    def chance(self, features: Floats) -> Floats:
        """Of hazard, for ``[hours, features]``."""
        found = _standard(features, np.asarray(self.mean), np.asarray(self.sigma)) @ np.asarray(self.weights)
        return _logistic(found + self.intercept)

    def reasons(self, features: Floats, count: int = 3) -> list[tuple[str, float]]:
        """The features of one hour that speak most for hazard, with what each adds to the log odds."""
        parts = _standard(features, np.asarray(self.mean), np.asarray(self.sigma)) * np.asarray(self.weights)
        order = np.argsort(-parts, kind="stable")[:count]
        return [(NAMES[place], float(parts[place])) for place in order if parts[place] > 0]


def train(features: Floats, label: Bools, choosing: Floats, choosing_label: Bools) -> HazardModel:
    """Weights from one part; penalty and threshold from another. ``ClusterError`` for too little of either label."""
    if min(int(label.sum()), int((~label).sum())) < LEAST_HOURS or not choosing_label.any():
        raise ClusterError(
            f"{int(label.sum())} of {len(label)} hours are in hazard: a model needs {LEAST_HOURS} of both kinds,"
            " and some in the part on which it is chosen"
        )
    mean = np.nan_to_num(np.nanmean(_with_value(features), axis=0))
    sigma = np.nanstd(_with_value(features), axis=0)
    sigma = np.where(np.isfinite(sigma) & (sigma > 1e-9), sigma, 1.0)
    standard = _standard(features, mean, sigma)
    found, weights = [], np.zeros(standard.shape[1] + 1)
    for penalty in PENALTIES:
        weights = _fitted(standard, label, penalty, weights)
        model = HazardModel(mean.tolist(), sigma.tolist(), weights[1:].tolist(), float(weights[0]), 0.5)
        threshold, f1 = best_threshold(model.chance(choosing), choosing_label)
        found.append((f1, msgspec.structs.replace(model, threshold=threshold)))
    return max(found, key=lambda one: one[0])[1]


def best_threshold(chance: Floats, label: Bools) -> tuple[float, float]:
    """Of chances, with the F1 that it gives."""
    tried: Sequence[float] = np.linspace(0.05, 0.95, 91).tolist()
    f1 = [f1_of(chance >= one, label) for one in tried]
    best = int(np.argmax(f1))
    return tried[best], f1[best]


def _with_value(features: Floats) -> Floats:
    """A column of NaN alone has the mean 0."""
    return np.where(np.isnan(features).all(0), 0.0, features)


def _standard(features: Floats, mean: Floats, sigma: Floats) -> Floats:
    return np.asarray(np.clip(np.nan_to_num((features - mean) / sigma), -MOST_SIGMA, MOST_SIGMA))


def _logistic(values: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(values, -500.0, 500.0))))


def _fitted(standard: Floats, label: Bools, penalty: float, weights: Floats) -> Floats:
    """Intercept and weights, from others on. A step of Newton that does not lower the loss is halved."""
    given = np.hstack([np.ones((len(standard), 1)), standard])
    penalties = np.append(0.0, np.full(standard.shape[1], penalty))
    loss = _loss(given, label, penalties, weights)
    for _ in range(ROUNDS):
        chance = _logistic(given @ weights)
        slope = given.T @ (chance - label) + penalties * weights
        curve = (given * (chance * (1.0 - chance))[:, None]).T @ given + np.diag(penalties + 1e-9)
        step = np.linalg.solve(curve, slope)
        while (lower := _loss(given, label, penalties, weights - step)) > loss and np.abs(step).max() > 1e-9:
            step /= 2.0
        weights = weights - step
        if loss - lower < 1e-3:
            break
        loss = lower
    return weights


def _loss(given: Floats, label: Bools, penalties: Floats, weights: Floats) -> float:
    odds = given @ weights
    return float(np.sum(np.logaddexp(0.0, odds) - label * odds) + 0.5 * np.sum(penalties * weights**2))

"""Which points to measure so that a model that is linear in its terms is known best: optimal design by exchange.

With the terms ``F[n, p]`` of all candidates and a chosen set S the variance of a prediction at candidate x, in units of
the noise's, is ``F_x (F_S' F_S)^-1 F_x'``. A D-optimal set makes the determinant of ``F_S' F_S`` largest, and with it
the worst variance small; an I-optimal set makes the mean variance over all candidates smallest. Both are found by
Fedorov's exchange: from a random set, swap the pair of points (one of the set, one candidate) that gains most, until
none gains; the best of ``STARTS`` random sets is taken. The same seed gives the same set.

The determinant and the trace after a swap follow from small updates, so a round costs O(set x candidates x p^2).
Source: Fedorov, Theory of Optimal Experiments, 1972; Atkinson, Donev and Tobias, 2007, chapters 10 and 12.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from calibration.model.observations import ModelError, type_f64

STARTS: Final = 4
RIDGE: Final = 1e-6
"""Added to each term's information while points are exchanged, so that random sets of too low rank can improve."""
GAIN: Final = 1e-9

type_criterion = Literal["D", "I"]


def optimal_set(terms: type_f64, size: int, criterion: type_criterion = "I", seed: int = 0) -> npt.NDArray[np.int64]:
    """Indices of ``size`` different candidates, ascending. ``ModelError`` if so many cannot decide all terms."""
    candidates, count = terms.shape
    if not count <= size <= candidates:
        raise ModelError(f"a design of {size} points: {count} terms need {count} to {candidates} of the candidates")
    if not np.all(np.isfinite(terms)) or np.linalg.matrix_rank(terms) < count:
        raise ModelError(f"the candidates do not decide all {count} terms: the grid has too few levels")
    random = np.random.default_rng(seed)
    found = [_exchanged(terms, random.permutation(candidates)[:size], criterion) for _ in range(STARTS)]
    return np.sort(min(found, key=lambda chosen: _loss(terms, chosen, criterion)))


def variances(terms: type_f64, chosen: npt.NDArray[np.int64]) -> type_f64:
    """Variance of the prediction at each candidate over that of one measurement; infinite if the set decides too
    little."""
    shown = terms[chosen]
    if np.linalg.matrix_rank(shown) < terms.shape[1]:
        return np.full(len(terms), np.inf)
    return np.asarray(np.einsum("ij,ij->i", terms @ np.linalg.inv(shown.T @ shown), terms))


def _inverse(terms: type_f64, chosen: npt.NDArray[np.int64]) -> type_f64:
    shown = terms[chosen]
    return np.asarray(np.linalg.inv(shown.T @ shown + RIDGE * np.eye(terms.shape[1])))


def _loss(terms: type_f64, chosen: npt.NDArray[np.int64], criterion: type_criterion) -> float:
    inverse = _inverse(terms, chosen)
    if criterion == "D":
        return float(np.linalg.slogdet(inverse)[1])
    return float(np.einsum("ij,ij->", terms @ inverse, terms)) / len(terms)


def _exchanged(terms: type_f64, chosen: npt.NDArray[np.int64], criterion: type_criterion) -> npt.NDArray[np.int64]:
    chosen = chosen.copy()
    loss = _loss(terms, chosen, criterion)
    while True:
        best = (loss, -1, -1)
        for place in range(len(chosen)):
            losses = _losses_with_another(terms, np.delete(chosen, place), criterion)
            losses[chosen] = np.inf  # a point is taken once
            other = int(np.argmin(losses))
            best = min(best, (float(losses[other]), place, other))
        if best[0] >= loss - GAIN * max(abs(loss), 1.0):
            return chosen
        loss, chosen[best[1]] = best[0], best[2]


def _losses_with_another(terms: type_f64, chosen: npt.NDArray[np.int64], criterion: type_criterion) -> type_f64:
    """The loss of the set with each candidate added, by the formulas of Sherman and Morrison for inverse and
    determinant."""
    inverse = _inverse(terms, chosen)
    solved = terms @ inverse
    variance = np.einsum("ij,ij->i", solved, terms)
    if criterion == "D":
        return np.asarray(np.linalg.slogdet(inverse)[1] - np.log1p(variance))
    spread = solved @ (terms.T @ terms)
    trace = np.einsum("ij,ij->", solved, terms) - np.einsum("ij,ij->i", spread, solved) / (1 + variance)
    return np.asarray(trace / len(terms))

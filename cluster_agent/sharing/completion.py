"""Speeds of pairs that nobody measured, from three measured partners of each application.

A speed is taken as ``mean + a_i + c_j + r_i . q_j``: how much variant i suffers (a, r), and how much j makes
others suffer (c, q). These are fitted to the measured speeds by least squares in turns, first the rows, then the
columns. Two penalties make few measurements suffice: ``SHRINK`` draws all towards 0, ``KINSHIP`` draws variants
of one application together, the more, the closer their batch sizes. The completion of a table by low rank is the method
of Quasar (Delimitrou and Kozyrakis, ASPLOS'14), which Gavel uses too; the kinship is ours.

The constants were chosen on the V100 of Gavel's pairs, each application left out in turn (``benchmarks/gpu_pairs.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from cluster_agent.sharing.pair_table import Variant

Float64s = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]

PARTNERS: Final = 3
"""How many measured partners a variant needs before its other pairs are predicted."""

RANK: Final = 3
SHRINK: Final = 0.1
KINSHIP: Final = 0.3
ROUNDS: Final = 6
SLOWEST: Final = 0.02
"""Ours: what runs together at all runs at least so fast."""

ERROR: Final = 0.15
"""Standard deviation of a predicted speed, as a share of the speed alone, where a table is too small to say: that of
the V100."""

FEWEST_APPLICATIONS: Final = 4
"""Ours: of a table from which the error of predictions is measured."""

ANCHORS: Final = 9
"""Variants of one new application take turns among so many partners: they inform each other."""


def completed(speed: Float64s, variants: Sequence[Variant], partners: int = PARTNERS) -> tuple[Float64s, Bools]:
    """The speeds, (n, n), with predictions where both variants have so many measured partners; and where
    these are. NaN stays where a variant has fewer, or ran with none. 0 (did not run together) is not learned
    from: memory decides it, not speed."""
    measured = ~np.isnan(speed)
    runs = np.nan_to_num(speed) > 0
    known = (measured.sum(1) >= min(partners, len(speed))) & runs.any(1)
    predicted = ~measured & known[:, None] & known[None, :]
    if not predicted.any():
        return speed, predicted
    found = np.clip(_fitted(speed, runs, _kinship(variants)), SLOWEST, 1.0)
    return np.where(predicted, found, speed), predicted


def prediction_error(speed: Float64s, variants: Sequence[Variant]) -> float:
    """The standard deviation of predicted speeds, as a share of the speed alone: each application that is measured with
    all others is left out in turn, but for the partners that it would be measured with, and predicted from the rest."""
    among = np.array(_measured_together(speed), dtype=np.int64)
    applications = [variants[at].application for at in among]
    if len(set(applications)) < FEWEST_APPLICATIONS:
        return ERROR
    true, squares = speed[np.ix_(among, among)], list[Float64s]()
    for application in sorted(set(applications)):
        is_new = np.array([one == application for one in applications])
        given = with_measured(true, np.flatnonzero(~is_new), np.flatnonzero(is_new))
        found, predicted = completed(given, [variants[at] for at in among])
        squares.append(((found - true) ** 2)[predicted & (true > 0)])
    errors = np.concatenate(squares)
    return float(np.sqrt(errors.mean())) if len(errors) else ERROR


def with_measured(speed: Float64s, known: Indices, new: Indices) -> Float64s:
    """The speeds if those of ``new`` variants were measured with the chosen partners among ``known`` alone."""
    given = np.full(speed.shape, math.nan)
    given[np.ix_(known, known)] = speed[np.ix_(known, known)]
    for one, partners in zip(new, partners_to_measure(given[np.ix_(known, known)], len(new)), strict=True):
        chosen = known[partners]
        given[one, chosen], given[chosen, one] = speed[one, chosen], speed[chosen, one]
    return given


def partners_to_measure(speed: Float64s, new: int) -> list[list[int]]:
    """For each of so many variants of one new application the partners to measure it with, best first.

    Among those that are measured with each other: the one whose speeds differ most from what the ones before it
    explain, as a pivoted QR chooses columns, times the share of partners that it runs with.
    """
    among = _measured_together(speed)
    order = [among[at] for at in _pivots(speed[np.ix_(among, among)])][:ANCHORS]
    if not order:
        return [[] for _ in range(new)]
    return [
        [order[(PARTNERS * at + turn) % len(order)] for turn in range(min(PARTNERS, len(order)))] for at in range(new)
    ]


def _measured_together(speed: Float64s) -> list[int]:
    """Variants of which all pairs are measured: those with the fewest are left out until that is so."""
    among = list(range(len(speed)))
    while among:
        lacks = np.isnan(speed[np.ix_(among, among)]).sum(1)
        if not lacks.any():
            break
        among.pop(int(lacks.argmax()))
    return among


def _pivots(speed: Float64s) -> list[int]:
    if not len(speed):
        return []
    runs = speed > 0
    both = np.concatenate([_without_holes(speed, runs), _without_holes(speed.T, runs.T)])  # a column for each partner
    both -= both.mean(1, keepdims=True)
    left, order, weight = list(range(len(speed))), list[int](), runs.mean(1)
    while left:
        at = left[int(((both[:, left] ** 2).sum(0) * weight[left]).argmax())]
        order.append(at)
        left.remove(at)
        direction = both[:, at] / max(float(np.linalg.norm(both[:, at])), 1e-12)
        both = both - np.outer(direction, direction @ both)
    return order


def _without_holes(speed: Float64s, runs: Bools) -> Float64s:
    """Where a pair does not run: the mean of its row and what its column is above the mean of rows."""
    rows = np.where(runs, speed, 0).sum(1) / np.maximum(runs.sum(1), 1)
    above = np.where(runs, speed - rows[:, None], 0).sum(0) / np.maximum(runs.sum(0), 1)
    return np.where(runs, speed, rows[:, None] + above[None])


def _kinship(variants: Sequence[Variant]) -> Float64s:
    """The Laplacian of the graph that joins batch sizes of one application, by one over their distance in octaves."""
    count = len(variants)
    laplacian = np.zeros((count, count))
    for i, one in enumerate(variants):
        for j, other in enumerate(variants[:i]):
            if one.application == other.application:
                weight = 1 / max(abs(_octave(one) - _octave(other)), 0.5)
                laplacian[[i, j], [j, i]] -= weight
                laplacian[[i, j], [i, j]] += weight
    return laplacian


def _octave(of: Variant) -> float:
    try:
        return math.log2(float(of.batch_size))
    except ValueError:  # none, or none of numbers
        return 0.0


def _fitted(speed: Float64s, learned: Bools, kinship: Float64s) -> Float64s:
    """The model's speeds, (n, n), fitted to those that are ``learned``."""
    count, mean = len(speed), float(speed[learned].mean())
    rank = min(RANK, count)
    left = np.where(learned, speed - mean, 0.0)
    penalty = SHRINK * np.eye(count) + KINSHIP * kinship
    ones = np.ones((count, 1))
    a, c = np.zeros(count), np.zeros(count)
    for _ in range(ROUNDS):
        a = _solved(ones, np.where(learned, left - c, 0.0), learned, penalty)[:, 0]
        c = _solved(ones, np.where(learned, left - a[:, None], 0.0).T, learned.T, penalty)[:, 0]
    u, s, vt = np.linalg.svd(np.where(learned, left - a[:, None] - c, 0.0))
    r, q = u[:, :rank] * np.sqrt(s[:rank]), vt[:rank].T * np.sqrt(s[:rank])
    for _ in range(ROUNDS):
        rows = _solved(np.hstack([q, ones]), np.where(learned, left - c, 0.0), learned, penalty)
        r, a = rows[:, :rank], rows[:, rank]
        columns = _solved(np.hstack([r, ones]), np.where(learned, left - a[:, None], 0.0).T, learned.T, penalty)
        q, c = columns[:, :rank], columns[:, rank]
    found: Float64s = mean + a[:, None] + c + r @ q.T
    return found


def _solved(factors: Float64s, target: Float64s, learned: Bools, penalty: Float64s) -> Float64s:
    """x, (n, m), that minimises the sum over learned (i, j) of (target_ij - x_i . factors_j)^2 plus, in each of the m
    columns of x, x' penalty x."""
    count, width = len(target), factors.shape[1]
    weight = learned.astype(np.float64)
    matrix = np.zeros((count, width, count, width))
    rows, columns = np.arange(count), np.arange(width)
    matrix[rows, :, rows, :] = np.einsum("ij,jk,jl->ikl", weight, factors, factors)
    for column in columns:
        matrix[:, column, :, column] += penalty
    right = np.einsum("ij,ij,jk->ik", weight, target, factors)
    return np.linalg.solve(matrix.reshape(count * width, -1), right.ravel()).reshape(count, width)

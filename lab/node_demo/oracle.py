"""The most that could be saved: the best fixed clock for each phase, with phases and their costs known.

An oracle uses what no policy can know: it measures every phase of a workload at every clock, and takes the combination
with the least energy under a slowdown bound.

Where each phase gets one clock (``best_clocks``), this is a multiple-choice knapsack: at most a few dozen clocks and a
handful of phases, solved by dynamic programming over the seconds that may be lost. Where the work of a phase may be
shared between two clocks (``best_shares``), it is the knapsack's linear relaxation, which a sort by joules saved per
second lost solves exactly. A policy that changes clocks within a phase can save more than the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

type_f64 = npt.NDArray[np.float64]

CELLS = 4000
"""Resolution of the time budget: rounding each phase up to a cell loses at most 1/4000 of the bound per phase."""


@dataclass(frozen=True, slots=True)
class PhaseCosts:
    """One phase over a whole run: ``seconds`` and ``joules`` ``[n_clocks]``; the last clock is the highest."""

    name: str
    seconds: type_f64
    joules: type_f64


@dataclass(frozen=True, slots=True)
class Best:
    """The oracle's result: for each phase the index of its clock, and the totals against the highest clock."""

    clocks: tuple[int, ...]
    saving: float
    slowdown: float


@dataclass(frozen=True, slots=True)
class Shares:
    """The answer with two clocks per phase: of each phase one clock, a slower one, and the share of the phase's work
    that is done at the slower one; and what it gives against the highest clock."""

    shares: tuple[tuple[int, int, float], ...]
    saving: float
    slowdown: float


def best_clocks(phases: Sequence[PhaseCosts], bound: float, overhead_s: float = 0.0, overhead_j: float = 0.0) -> Best:
    """The clock of each phase with the least energy in all, slowdown at most ``bound``.

    ``overhead_s`` and ``overhead_j`` are spent in any case (time between phases, other groups).
    """
    reference_s = overhead_s + sum(float(phase.seconds[-1]) for phase in phases)
    reference_j = overhead_j + sum(float(phase.joules[-1]) for phase in phases)
    cell_s = bound * reference_s / CELLS
    least = np.zeros(CELLS + 1)  # least[k]: joules of the phases so far with at most k cells lost
    taken: list[npt.NDArray[np.int64]] = []
    for phase in phases:
        lost_s = phase.seconds - phase.seconds[-1]
        cells = np.ceil(np.maximum(lost_s, 0.0) / cell_s - 1e-9).astype(np.int64) if cell_s > 0 else None
        options = np.full((len(lost_s), CELLS + 1), np.inf)
        for clock in range(len(lost_s)):
            shift = int(cells[clock]) if cells is not None else (0 if lost_s[clock] <= 0 else CELLS + 1)
            if shift <= CELLS:
                options[clock, shift:] = least[: CELLS + 1 - shift] + phase.joules[clock]
        taken.append(options.argmin(axis=0))
        least = options.min(axis=0)
    clocks: list[int] = []
    room = CELLS
    for phase, choice in zip(reversed(phases), reversed(taken), strict=True):
        clock = int(choice[room])
        clocks.append(clock)
        lost = max(float(phase.seconds[clock] - phase.seconds[-1]), 0.0)
        room -= int(np.ceil(lost / cell_s - 1e-9)) if cell_s > 0 else 0
    clocks.reverse()
    seconds = overhead_s + sum(float(p.seconds[c]) for p, c in zip(phases, clocks, strict=True))
    joules = overhead_j + sum(float(p.joules[c]) for p, c in zip(phases, clocks, strict=True))
    return Best(tuple(clocks), 1.0 - joules / reference_j, seconds / reference_s - 1.0)


def best_shares(phases: Sequence[PhaseCosts], bound: float) -> Shares:
    """As ``best_clocks``, but each phase may do part of its work at one clock and the rest at another.

    Mixing two clocks moves along the straight line between their points (seconds, joules), so of each phase only the
    lower convex hull counts. Along a hull the joules saved per second lost only fall; so the steepest edges of all
    phases are taken first, until the bound is spent. At most the last edge is taken in part.
    """
    hulls = [_hull(phase) for phase in phases]
    reference_s = sum(float(phase.seconds[-1]) for phase in phases)
    reference_j = sum(float(phase.joules[-1]) for phase in phases)
    seconds = sum(float(phase.seconds[hull[0]]) for phase, hull in zip(phases, hulls, strict=True))
    joules = sum(float(phase.joules[hull[0]]) for phase, hull in zip(phases, hulls, strict=True))
    shares = [(hull[0], hull[0], 0.0) for hull in hulls]
    edges = []
    for at, (phase, hull) in enumerate(zip(phases, hulls, strict=True)):
        for one, other in itertools.pairwise(hull):
            lost_s, gained_j = (float(of[other] - of[one]) for of in (phase.seconds, phase.joules))
            edges.append((gained_j / lost_s, at, one, other, lost_s, gained_j))
    room_s = (1 + bound) * reference_s - seconds
    for _, at, one, other, lost_s, gained_j in sorted(edges):
        part = min(max(room_s / lost_s, 0.0), 1.0)
        shares[at] = (one, other, part)
        room_s -= part * lost_s
        seconds += part * lost_s
        joules += part * gained_j
        if part < 1.0:
            break  # the rest of the bound is a rounding error
    return Shares(tuple(shares), 1.0 - joules / reference_j, seconds / reference_s - 1.0)


def _hull(phase: PhaseCosts) -> list[int]:
    """The clocks on the lower convex hull of (seconds, joules), from the fastest to the one with the least energy."""
    hull: list[int] = []
    for clock in np.lexsort((phase.joules, phase.seconds)).tolist():
        if hull and phase.joules[clock] >= phase.joules[hull[-1]]:
            continue  # slower, and saves nothing
        while len(hull) > 1 and _rise(phase, hull[-2], clock) <= _rise(phase, hull[-2], hull[-1]):
            hull.pop()
        hull.append(clock)
    return hull


def _rise(phase: PhaseCosts, one: int, other: int) -> float:
    """Joules per second from one clock to a slower one."""
    return float((phase.joules[other] - phase.joules[one]) / (phase.seconds[other] - phase.seconds[one]))

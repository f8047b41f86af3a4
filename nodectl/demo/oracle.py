"""What could be saved at most: the best fixed clock for each phase, with phases and their costs known.

An oracle sees what no policy may: every phase of a workload is measured at every clock, and the combination with the
least energy under a slowdown bound is taken. Each phase gets one clock. With at most a few dozen clocks and a handful
of phases this is a multiple-choice knapsack, solved by dynamic programming over the seconds that may be lost.
"""

from __future__ import annotations

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
    """The oracle's answer: index of the clock of each phase, and what it gives against the highest clock."""

    clocks: tuple[int, ...]
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

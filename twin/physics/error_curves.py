"""Measured errors of DRAM activity as an estimator of speed, one curve per application.

Each curve has, over the clock relative to the highest, the ratio of the speed that DRAM activity implies to the true
one; at the highest clock it is 1. ``twin/data/v100-counter-errors.csv`` has those of 15 applications on a V100
(``twin/fit/counter_errors.py`` says how they were derived). The larger part is within 2 %. Applications whose DRAM is
active for less than 4 % of the time have the large errors, up to 57 % at low clocks.

A phase takes the curve of one application, drawn at random with equal chance. Ours: it does so whatever its own DRAM
activity and on any card, at the same clock relative to the card's highest.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from foundation.shell.errors import nearest
from twin.errors import TwinError
from twin.physics.curves import type_f64

UNIFORM = "uniform"
MEASURED = "measured"

TABLE = Path(__file__).parents[1] / "data" / "v100-counter-errors.csv"


class ErrorCurve(msgspec.Struct, frozen=True):
    """``ratio``: implied over true speed at ``clock``, a share of the highest clock, ascending."""

    name: str
    clock: tuple[float, ...]
    ratio: tuple[float, ...]

    @property
    def size(self) -> float:
        """Mean distance of the ratio from 1 over the clocks below the highest."""
        return float(np.mean(np.abs(np.array(self.ratio[:-1]) - 1.0)))

    def at(self, clocks_khz: Sequence[int]) -> type_f64:
        """The ratio at each clock of an ascending ladder: linear between points, below the first of them as there."""
        clock = np.asarray(clocks_khz, float)
        return np.asarray(np.interp(clock / clock[-1], self.clock, self.ratio))


def read_curves(path: Path) -> tuple[ErrorCurve, ...]:
    """The curves of a table: a row per application, a column per clock relative to the highest."""
    with path.open(newline="") as file:
        header, *rows = csv.reader(line for line in file if not line.startswith("#"))
    clock = tuple(float(cell) for cell in header[1:])
    return tuple(ErrorCurve(row[0], clock, tuple(float(cell) for cell in row[1:])) for row in rows)


@functools.cache
def shipped_curves() -> tuple[ErrorCurve, ...]:
    """The shipped curves, by ascending name."""
    return read_curves(TABLE)


def at_quantile(share: float, curves: Sequence[ErrorCurve]) -> ErrorCurve:
    """The smallest of ``curves`` that is at least as large as ``share`` of them (nearest rank, by ``size``)."""
    ordered = sorted(curves, key=lambda curve: curve.size)
    return ordered[max(math.ceil(share * len(ordered) - 1e-9), 1) - 1]


def spread(curves: Sequence[ErrorCurve]) -> tuple[float, float]:
    """Median and 95th percentile of the ratio's distance from 1, over all curves and clocks below the highest."""
    errors = np.abs(np.array([curve.ratio[:-1] for curve in curves]) - 1.0)
    return float(np.median(errors)), float(np.percentile(errors, 95))


def choices(counter_error: str) -> tuple[ErrorCurve, ...]:
    """The curves to draw from: none for ``uniform``, all for ``measured``, one for ``measured:NAME``; TwinError
    for other words."""
    word, colon, name = counter_error.partition(":")
    if counter_error == UNIFORM:
        return ()
    if word != MEASURED or (colon and not name):
        words = (UNIFORM, MEASURED)
        raise TwinError(f'counter error "{counter_error}" is unknown: {", ".join(words)} or {MEASURED}:APPLICATION')
    curves = shipped_curves()
    if not name:
        return curves
    known = [curve.name for curve in curves]
    if name not in known:
        raise TwinError(f'counter error "{counter_error}": no measured application{nearest(name, known)}')
    return (curves[known.index(name)],)


def drawn(curves: Sequence[ErrorCurve], random: np.random.Generator) -> ErrorCurve | None:
    """One of ``curves``, each with the same chance; None of none."""
    return curves[int(random.integers(len(curves)))] if curves else None

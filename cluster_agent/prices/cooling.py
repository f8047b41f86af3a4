"""What cooling takes: a table of PUE by outdoor temperature and IT power, and the temperatures of a day.

Bridi (PhD thesis, Bologna 2018, ch. 6) looks PUE up in such a table, rows 5 degrees apart and columns 500 W, and does
not print it. Ours has his slope points, where chillers start: PUE 1.43497 (air, summer), 1.11726 (air, winter), 1.08727
(hybrid, summer) and 1.00302 (hybrid, winter); his two printed rows put the change between 10 and 15 degrees. The rest
is ours. Below the slope point air carries the heat, and its overhead falls to ``CALM`` of the printed one as the load
goes to 0. Above it a chiller carries what is more, with 0.4 of the Carnot efficiency.

The temperatures are ours, too: rounded climate normals of Bologna's July and January, with a sinusoid of 24 hours.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent.cap_steps import FOREVER_S
from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.job_columns import Float64s
from foundation.shell.plain_text import TextError, read_text, rows_by_name

Plant: TypeAlias = Literal["air", "hybrid"]
Season: TypeAlias = Literal["summer", "winter"]

SLOPE: Final[dict[Plant, tuple[float, float]]] = {"air": (0.11726, 0.43497), "hybrid": (0.00302, 0.08727)}
"""PUE - 1 at the slope point, up to ``COOL_C`` and above (thesis, ch. 6)."""

SLOPE_AT: Final[dict[Plant, float]] = {"air": 0.95, "hybrid": 0.8482}
"""Ours: the slope point as a share of the highest IT power. For hybrid it is the utilisation of his policy tree."""

COOL_C: Final = 10
CALM: Final = 2 / 3
CARNOT, COLD_K, APPROACH_K = 0.4, 280.15, 15.0
"""Ours: of the chiller. Water of 7 degrees; its condenser is so much warmer than the air outside."""

STEP_C, STEP_W = 5, 500.0
COLDEST_C, HOTTEST_C = -40, 60

DAYS_C: Final[dict[Season, tuple[float, float]]] = {"summer": (25.0, 6.0), "winter": (3.0, 3.0)}
"""Mean and amplitude; the coldest hour is 3:00."""


class PueTable(msgspec.Struct, frozen=True):
    """``pue[row, column]`` at ``celsius[row]`` and above, and at ``watts[column]``, linear between."""

    celsius: Float64s
    watts: Float64s
    pue: npt.NDArray[np.float64]

    def at(self, celsius: float, watts: float) -> float:
        """Of this much IT power; beyond the table its edge counts."""
        row = max(int(np.searchsorted(self.celsius, celsius, side="right")) - 1, 0)
        return float(np.interp(watts, self.watts, self.pue[row]))


class Temperatures(msgspec.Struct, frozen=True):
    """``celsius[k]`` from ``from_s[k]`` on, until ``to_s``."""

    from_s: npt.NDArray[np.int64]
    celsius: Float64s
    to_s: int = FOREVER_S

    def at(self, at_s: int) -> float:
        """Then; ``WrongUseError`` where there is none."""
        if not self.from_s[0] <= at_s < self.to_s:
            raise WrongUseError(f"no temperature at second {at_s}: the table has {self.from_s[0]} to {self.to_s} s")
        return float(self.celsius[np.searchsorted(self.from_s, at_s, side="right") - 1])


def our_table(plant: Plant, highest_w: float) -> PueTable:
    """For a machine whose nodes draw so much at most."""
    celsius = np.arange(COLDEST_C, HOTTEST_C + 1, STEP_C, dtype=np.float64)
    watts = np.arange(0.0, highest_w + 2 * STEP_W, STEP_W)
    slope_w = SLOPE_AT[plant] * highest_w
    cool, warm = SLOPE[plant]
    rows = []
    for outside in celsius:
        slope = warm if outside > COOL_C else cool
        lift_k = max(outside + 273.15 + APPROACH_K - COLD_K, 1.0)
        below = slope * (CALM + (1 - CALM) * np.minimum(watts / slope_w, 1.0)) * np.minimum(watts, slope_w)
        above = np.maximum(watts - slope_w, 0.0) * (slope + lift_k / (CARNOT * COLD_K))
        rows.append(1.0 + (below + above) / np.maximum(watts, 1.0))
    return PueTable(celsius, watts, np.array(rows))


def our_temperatures(season: Season, to_s: int) -> Temperatures:
    """By the hour, up to ``to_s`` seconds of the log, whose second 0 is midnight."""
    hours = np.arange(0, max(to_s, 1) // 3600 + 1)
    mean, swing = DAYS_C[season]
    return Temperatures(hours * 3600, mean - swing * np.cos(2 * math.pi * (hours - 3) / 24))


def read_pue(path: str) -> PueTable:
    """A table ``celsius,watts,pue``, with every pair of its temperatures and watts once."""
    rows = _numbers(path, ("celsius", "watts", "pue"))
    found = {(celsius, watts): pue for _, (celsius, watts, pue) in rows}
    celsius, watts = (sorted({key[at] for key in found}) for at in (0, 1))
    for number, (_, drawn, pue) in rows:
        if not 1 <= pue < 10 or drawn < 0:
            raise WrongUseError(f"{path}:{number}: a PUE is 1 or more, and watts are 0 or more; correct the line")
    if len(found) != len(celsius) * len(watts) or len(found) != len(rows):
        raise WrongUseError(f"{path}: every pair of a temperature and watts is needed once; complete the table")
    return PueTable(np.array(celsius), np.array(watts), np.array([[found[c, w] for w in watts] for c in celsius]))


def read_temperatures(path: str) -> Temperatures:
    """A table ``from_s,celsius`` in seconds of the log; the last row counts for as long as the one before it."""
    rows = _numbers(path, ("from_s", "celsius"))
    times = [int(from_s) for _, (from_s, _) in rows]
    if len(times) < 2 or any(later <= earlier for earlier, later in pairwise(times)):
        raise WrongUseError(f"{path}: two or more rows in order of time are needed; sort them")
    every_s = times[-1] - times[-2]
    return Temperatures(np.array(times), np.array([celsius for _, (_, celsius) in rows]), times[-1] + every_s)


def _numbers(path: str, names: tuple[str, ...]) -> list[tuple[int, tuple[float, ...]]]:
    """The rows of a CSV with these columns, with their line numbers."""
    try:
        header, rows = rows_by_name(read_text(Path(path)), "#")
        if missing := [name for name in names if name not in header]:
            raise WrongUseError(f"{path}: lacks the column {missing[0]}; the first line must name {','.join(names)}")
        found = []
        for number, row in rows:
            values = tuple(_number(path, number, name, row[name]) for name in names)
            found.append((number, values))
    except (TextError, OSError) as error:
        raise WrongUseError(f"{path}: cannot read the table: {error.strerror}") from None
    if not found:
        raise WrongUseError(f"{path}: has no rows below the names {','.join(names)}")
    return found


def _number(path: str, number: int, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) < 2**53:
        raise WrongUseError(f"{path}:{number}: {name} cannot be {text.strip()!r}: a number is needed")
    return value

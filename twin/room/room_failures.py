"""What goes wrong with the cooling of a room, as a list in a CSV file, and what it does to the units over time.

Four kinds announce themselves in the inlet temperatures: *fouling* of a unit's coil, over days to weeks; the *decay* of
a unit's fans, over days, by which exhaust comes back; a *drift* of the chiller's set point, over hours to days; and
*heat* outdoors, over days. A *trip* of a unit does not: from one step to the next it cools no more.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from twin.errors import TwinError
from twin.room.room_spec import DATA

FAILURES: Final = DATA / "room-failures.csv"
"""Those on which models are trained, chosen and judged."""

Floats = npt.NDArray[np.float64]

ANNOUNCED: Final = ("fouling", "decay", "drift", "heat")
KINDS: Final = (*ANNOUNCED, "trip")

_DRAWN: Final = {
    "fouling": ((72.0, 336.0), (0.25, 0.60)),
    "decay": ((24.0, 96.0), (0.30, 0.60)),
    "drift": ((12.0, 60.0), (3.0, 7.0)),
    "heat": ((48.0, 120.0), (5.0, 12.0)),
    "trip": ((2.0, 12.0), (1.0, 1.0)),
}
"""Hours that a failure lasts, and how bad it gets."""


@dataclass(frozen=True, slots=True)
class Failure:
    """``severity``: the share of a unit's capacity (fouling, trip) or air (decay) that is lost in the end; kelvins of
    drift or heat. ``unit``: which one; drift and heat are of all."""

    kind: str
    unit: int
    start_h: float
    length_h: float
    severity: float


@dataclass(frozen=True)
class Conditions:
    """Of each step and unit: capacity and air as shares of a sound unit's; of each step: kelvins above the set point,
    and above the weather."""

    capacity: Floats
    air: Floats
    drift_c: Floats
    heat_c: Floats


def conditions(failures: Sequence[Failure], steps: int, step_s: float, units: int) -> Conditions:
    """What these failures do, as arrays ``[steps, units]`` and ``[steps]``."""
    found = Conditions(np.ones((steps, units)), np.ones((steps, units)), np.zeros(steps), np.zeros(steps))
    hours = np.arange(steps) * step_s / 3600.0
    for one in failures:
        passed = (hours - one.start_h) / one.length_h
        passed = np.where((passed >= 0.0) & (passed < 1.0), passed, np.nan)
        is_on = ~np.isnan(passed)
        match one.kind:
            case "fouling":
                found.capacity[is_on, one.unit] *= 1.0 - one.severity * passed[is_on]
            case "trip":
                found.capacity[is_on, one.unit] *= 1.0 - one.severity
            case "decay":  # slow at first, as bearings do
                lost = one.severity * passed[is_on] ** 2
                found.air[is_on, one.unit] *= 1.0 - lost
            case "drift":
                found.drift_c[is_on] += one.severity * passed[is_on]
            case _:  # heat: rises over the first quarter and goes over the last
                found.heat_c[is_on] += one.severity * np.minimum(1.0, 4.0 * np.minimum(passed, 1.0 - passed))[is_on]
    return found


def drawn(kind: str, hours: float, per_year: float, units: int, seed: int) -> list[Failure]:
    """Failures of a kind at random times of so many hours, one after the other with pauses. Heat comes in summer, with
    a year that begins on the first of January."""
    random = np.random.default_rng(seed)
    lengths, severities = _DRAWN[kind]
    found: list[Failure] = []
    at_h, pause_h = 0.0, 8760.0 / per_year
    while True:
        length_h = round(float(random.uniform(*lengths)), 1)
        at_h = round(at_h + float(random.uniform(0.3, 1.0)) * max(pause_h - length_h, 24.0) * 1.2, 1)
        if at_h + length_h > hours:
            return found
        unit, severity = int(random.integers(units)), round(float(random.uniform(*severities)), 3)
        is_warm = math.cos((at_h / 8760.0 - 0.55) * 2 * math.pi) > 0.0
        if kind != "heat" or is_warm:
            found.append(Failure(kind, unit, at_h, length_h, severity))
        at_h += length_h


def read_failures(path: Path = FAILURES) -> dict[str, list[Failure]]:
    """The failures of each year by its name; ``TwinError`` with file and line."""
    years: dict[str, list[Failure]] = {}
    try:
        with path.open(newline="") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                years.setdefault(row["year"], []).append(_failure(row, f"{path}:{number}"))
    except OSError as error:
        raise TwinError(f"{path}: {error.strerror}") from None
    except KeyError as error:
        raise TwinError(f"{path}: no column {error}; it has year, kind, unit, start_h, length_h, severity") from None
    return years


def write_failures(path: Path, years: dict[str, list[Failure]]) -> None:
    """As ``read_failures`` reads them."""
    rows = [f"{y},{f.kind},{f.unit},{f.start_h},{f.length_h},{f.severity}" for y, fs in years.items() for f in fs]
    path.write_text("\n".join(("year,kind,unit,start_h,length_h,severity", *rows, "")))


def _failure(row: dict[str, str], where: str) -> Failure:
    try:
        found = Failure(
            row["kind"], int(row["unit"]), float(row["start_h"]), float(row["length_h"]), float(row["severity"])
        )
    except (ValueError, TypeError):
        raise TwinError(f"{where}: {','.join(map(str, row.values()))!r} is no failure: give numbers") from None
    if found.kind not in KINDS:
        raise TwinError(f"{where}: kind {found.kind!r} is none of {', '.join(KINDS)}")
    if not (found.unit >= 0 and 0.0 < found.length_h < math.inf and math.isfinite(found.start_h + found.severity)):
        raise TwinError(f"{where}: a failure has a unit from 0 on, a length above 0 h and finite numbers")
    return found

"""Measured runs of one application, checked: every mistake is one line that names the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

type_f64 = npt.NDArray[np.float64]

AXES: Final = ("nodes", "cores", "cap_w")
CONFLICT: Final = 0.5
"""Ours: runs of one configuration whose larger value is more than this share above the smaller one contradict each
other. Noise of 5 % gives that once in 10^8."""
UNITS: Final = 2.0
"""Ours: power above so many times all caps together is power of something else. Caps that a package cannot keep are
exceeded by less."""


class ModelError(ValueError):
    """A wrong input, in one line."""


@dataclass(frozen=True, slots=True)
class Observations:
    """Measured runs. ``points[n, 3]``: nodes, cores per node, cap in watts per package; ``time_s[n]``; ``watts[n]`` of
    all packages of all nodes, averaged over the run."""

    points: type_f64
    time_s: type_f64
    watts: type_f64

    @classmethod
    def checked(
        cls, points: npt.ArrayLike, time_s: npt.ArrayLike, watts: npt.ArrayLike, packages: int = 2
    ) -> Observations:
        """From anything that numpy takes for numbers; ``packages`` of a node. ``ModelError`` if it cannot be right."""
        try:
            where, seconds, power = (np.asarray(values, np.float64) for values in (points, time_s, watts))
        except (TypeError, ValueError) as error:
            raise ModelError(f"measurements are not numbers: {error}") from None
        if where.ndim != 2 or where.shape[1] != len(AXES):
            raise ModelError(f"points are {where.shape}: not a row of nodes, cores and cap for each measurement")
        if not seconds.shape == power.shape == where.shape[:1]:
            raise ModelError(f"{len(where)} points, {seconds.size} times and {power.size} watts: not as many of each")
        for number, point in enumerate(where):
            _check_run(number, point, float(seconds[number]), float(power[number]), packages)
        _check_levels(where)
        _check_repeats(where, seconds, "s")
        _check_repeats(where, power, "W")
        return cls(where, seconds, power)

    def __len__(self) -> int:
        return len(self.points)


def named(point: Sequence[float] | type_f64) -> str:
    """A configuration as messages name it."""
    return f"{point[0]:g} nodes x {point[1]:g} cores, {point[2]:g} W"


def _check_run(number: int, point: type_f64, seconds: float, watts: float, packages: int) -> None:
    values = (*zip(AXES, point.tolist(), strict=True), ("time_s", seconds), ("watts", watts))
    for name, value in values:
        if not np.isfinite(value):
            raise ModelError(f"measurement {number} ({named(point)}): {name} is {value}, not a finite number")
        if value <= 0:
            raise ModelError(f"measurement {number} ({named(point)}): {name} is {value:g}; it must be above 0")
    caps_w = float(point[0] * packages * point[2])
    if watts > UNITS * caps_w:
        raise ModelError(
            f"measurement {number} ({named(point)}): {watts:g} W is over {UNITS:g} times the {caps_w:g} W of all caps"
        )


def _check_levels(points: type_f64) -> None:
    if len(points) == 0:
        raise ModelError("no measurements")
    for axis, name in enumerate(AXES):
        if len(set(points[:, axis])) < 2:
            raise ModelError(f"all {len(points)} measurements have {name} {points[0, axis]:g}: measure a second level")


def _check_repeats(points: type_f64, values: type_f64, unit: str) -> None:
    places, place = np.unique(points, axis=0, return_inverse=True)
    for number, point in enumerate(places):
        found = values[place.ravel() == number]
        low, high = found.min(), found.max()
        if high > (1 + CONFLICT) * low:
            raise ModelError(
                f"measurements of {named(point)} contradict each other: {low:g} {unit} and {high:g} {unit}"
            )

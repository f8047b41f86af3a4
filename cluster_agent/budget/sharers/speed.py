"""From watts to speed: what a P-state table says of a kind of job, as a curve without dents.

A cap between the watts of two P-states makes the firmware go to and fro between them, so speeds between two entries
can be had: the curve is the least concave one above the entries. Below the lowest entry clocks are gated, so it goes
straight down to no speed at idle watts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from cluster_agent.machine import Machine

Floats: TypeAlias = npt.NDArray[np.float64]

LOWEST_SPEED: Final = 0.05
"""Ours: slower than this counts as this."""
BELOW, WITHIN = 4, 12
"""Ours: steps of equal speed below the table, and within it."""


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """``power[i]`` (parts of a node's TDP) gives ``speed[i]`` (parts of the full speed), highest first; ``idle``: parts
    of TDP that an idle node draws. ``source``: where the table is from."""

    name: str
    idle: float
    power: tuple[float, ...]
    speed: tuple[float, ...]
    source: str = ""

    def __post_init__(self) -> None:
        power, speed = self.power, self.speed
        is_table = len(power) == len(speed) > 0 and all(0 < part <= 1 for part in speed) and speed[0] == 1
        is_falling = all(high > low for values in (power, speed) for high, low in pairwise(values))
        if not is_table or not is_falling or not 0 <= self.idle < power[-1] or power[0] > 1:
            raise ValueError(f"the table {self.name!r} does not fall from full speed to above idle watts within TDP")

    def at(self, power: Floats) -> Floats:
        """Speed at these parts of TDP, on the curve."""
        watts, speeds = curve(self)
        found: Floats = np.interp(power, watts, speeds)
        return np.maximum(found, LOWEST_SPEED)


@cache
def curve(model: SpeedModel) -> tuple[Floats, Floats]:
    """Corners of the concave curve: parts of TDP and speeds, rising."""
    corners: list[tuple[float, float]] = []
    points = [(model.idle, 0.0), *zip(reversed(model.power), reversed(model.speed), strict=True)]
    for watts, speed in points:
        while len(corners) > 1 and _is_below(corners[-2], corners[-1], (watts, speed)):
            corners.pop()
        corners.append((watts, speed))
    return np.array([watts for watts, _ in corners]), np.array([speed for _, speed in corners])


@cache
def levels(model: SpeedModel, floor: float = 0.0) -> tuple[Floats, Floats]:
    """The curve in ``BELOW + WITHIN`` steps: speeds rising to 1, and for each the part of the watts between idle and
    full speed that it takes. A ``floor`` above 0 is one of the speeds, too."""
    watts, speeds = curve(model)
    lowest = max(model.speed[-1], LOWEST_SPEED * 1.01)
    below = np.linspace(LOWEST_SPEED, lowest, BELOW + 1)[:-1]
    steps = np.concatenate((below, np.linspace(min(lowest, 0.999), 1.0, WITHIN + 1)))
    if floor > LOWEST_SPEED:
        steps = np.sort(np.append(steps, floor))
    return steps, (np.interp(steps, speeds, watts) - model.idle) / (model.power[0] - model.idle)


def model_of(machine: Machine, application: str, activity: float = 1.0) -> SpeedModel:
    """The table of a machine file's first nodes for a class of applications.

    ``activity``: of the watts between idle and busy, how much these applications draw. TDP is the highest busy watts.
    """
    node = machine.node
    busy_w = node.busy_w
    tdp_w = (node.busy_max_w or busy_w)[0]
    return SpeedModel(
        name=f"{application} on {machine.name}",
        idle=node.idle_w / tdp_w,
        power=tuple((node.idle_w + activity * (watts - node.idle_w)) / tdp_w for watts in busy_w),
        speed=tuple(1 / slowdown for slowdown in machine.slowdowns(application)),
        source=f"machine file {machine.name}, class {application}",
    )


def _is_below(left: Sequence[float], middle: Sequence[float], right: Sequence[float]) -> bool:
    """Whether the line from left to right passes above the point in the middle."""
    rise = (middle[1] - left[1]) * (right[0] - left[0])
    return rise <= (right[1] - left[1]) * (middle[0] - left[0])

"""From watts to speed: what a P-state table says of a kind of job.

Between two entries speed goes straight: the firmware goes to and fro between neighbours. Below the lowest entry clocks
are gated, so it goes straight down to no speed at idle watts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from cluster_agent.cluster import Machine

Floats: TypeAlias = npt.NDArray[np.float64]

LOWEST_SPEED: Final = 0.05
"""Ours: slower than this counts as this."""


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
        found: Floats = np.interp(power, (self.idle, *reversed(self.power)), (0.0, *reversed(self.speed)))
        return np.maximum(found, LOWEST_SPEED)


@cache
def levels(model: SpeedModel) -> tuple[Floats, Floats]:
    """The curve's corners: speeds rising to 1, and for each the part of the watts between idle and full speed."""
    lowest = max(model.speed[-1], LOWEST_SPEED)
    power = [model.idle + (model.power[-1] - model.idle) * LOWEST_SPEED / lowest, *reversed(model.power)]
    speed = [LOWEST_SPEED, *np.maximum(model.speed[::-1], LOWEST_SPEED)]
    return np.array(speed), (np.array(power) - model.idle) / (model.power[0] - model.idle)


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

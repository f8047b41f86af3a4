"""From watts to speed, by the P-state table for a kind of job.

Between two entries speed is linear in watts, since the firmware alternates between neighbouring P-states. Below the
lowest entry clocks are gated, so speed falls linearly to 0 at idle watts.
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
"""Ours: the lowest speed of a model; anything slower counts as this."""


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """``power[i]`` (parts of a node's TDP) gives ``speed[i]`` (parts of the full speed), highest first. ``idle``: the
    part of TDP that an idle node draws. ``source``: where the table comes from."""

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
            raise ValueError(f"the table {self.name!r} must fall from full speed and at most TDP to above idle watts")

    def at(self, power: Floats) -> Floats:
        """Speed at these parts of TDP, interpolated."""
        found: Floats = np.interp(power, (self.idle, *reversed(self.power)), (0.0, *reversed(self.speed)))
        return np.maximum(found, LOWEST_SPEED)


@cache
def levels(model: SpeedModel) -> tuple[Floats, Floats]:
    """The curve's corners: speeds rising to 1, and for each its fraction of the way from idle to full-speed watts."""
    lowest = max(model.speed[-1], LOWEST_SPEED)
    power = [model.idle + (model.power[-1] - model.idle) * LOWEST_SPEED / lowest, *reversed(model.power)]
    speed = [LOWEST_SPEED, *np.maximum(model.speed[::-1], LOWEST_SPEED)]
    return np.array(speed), (np.array(power) - model.idle) / (model.power[0] - model.idle)


def model_of(machine: Machine, application: str, activity: float = 1.0) -> SpeedModel:
    """The table of a machine file's first nodes for an application class.

    ``activity``: which part of the watts between idle and busy these applications draw. TDP is the highest busy watts.
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

"""Split a node's cap over its devices: subtract the constant part and the floors, share the rest by measured power."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

IDLE_SHARE: Final = 0.02
"""Ours: a device that draws nothing weighs this part of its range, so that it can begin to work."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device with a cap: not below ``floor_w``; it never draws more than ``most_w`` (inf: not known).

    ``draw_w``: its measured power; NaN: not measured, then it counts as drawing all that it can.
    """

    floor_w: float
    most_w: float
    draw_w: float = math.nan


def split(cap_w: float, rest_w: float, devices: Sequence[Device]) -> list[float]:
    """A cap in watts for each device; their sum and ``rest_w`` are at most ``cap_w``, unless floors alone are more.

    What is left above the floors is shared in proportion to what each device draws above its floor; what a device
    cannot use, because its share would pass its most, goes to the others.
    """
    caps_w = [device.floor_w for device in devices]
    left_w = cap_w - rest_w - sum(caps_w)
    open_devices = {i: _weight(device) for i, device in enumerate(devices) if device.most_w > device.floor_w}
    while left_w > 0 and open_devices:
        per_weight = left_w / sum(open_devices.values())
        full = [i for i, weight in open_devices.items() if caps_w[i] + per_weight * weight >= devices[i].most_w]
        if not full:
            for i, weight in open_devices.items():
                caps_w[i] += per_weight * weight
            break
        for i in full:
            left_w -= devices[i].most_w - caps_w[i]
            caps_w[i] = devices[i].most_w
            del open_devices[i]
    return caps_w


def _weight(device: Device) -> float:
    most_w = device.most_w if math.isfinite(device.most_w) else max(10 * device.floor_w, 1000.0)
    draw_w = most_w if math.isnan(device.draw_w) else device.draw_w
    return max(draw_w - device.floor_w, IDLE_SHARE * (most_w - device.floor_w))

"""A cap on the whole node as caps of its devices, and the power of the whole node.

``caps.rest_w`` is what the node draws outside packages and GPUs (board, fans, memory); it counts as constant. Shares
are computed again when the cap changes, and otherwise once a second: they follow the power that each device draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from nodectl.config import Config
from nodectl.decide.split import Device, split
from pmu.layout import Layout
from pmu.readings import Quality, Sample

AGAIN_S: Final = 1.0

FULL: Final = 0.02
"""Ours: a device whose power is within this part of its share is cap-bound; RAPL's own step and sensor noise."""


@dataclass(frozen=True, slots=True)
class Share:
    """The packages' cap, all together, and each GPU board's; 0 for none."""

    packages_mw: int
    boards_mw: tuple[int, ...]


NO_SHARE: Final = Share(0, ())


class NodeShares:
    """The devices of one node. The packages' floor is what the node's MOP leaves when each GPU is at its lowest
    limit."""

    def __init__(self, layout: Layout, config: Config) -> None:
        self._rest_w = config.caps.rest_w
        self._gpus = layout.gpus
        packages = [zone for zone in layout.zones if zone.kind == "package"]
        self._package = np.array([zone.kind == "package" for zone in layout.zones], np.bool_)
        gpu_least_w = sum(gpu.min_power_limit_w for gpu in self._gpus)
        self._floor_w = max(config.cluster.mop_w - self._rest_w - gpu_least_w, 1.0)
        most_w = sum(zone.max_power_uw / 1e6 for zone in packages)
        self._most_w = most_w if packages and all(zone.max_power_uw for zone in packages) else math.inf
        self._bounds: tuple[float, Sequence[float]] = math.inf, [math.inf] * len(self._gpus)
        self._cap_w, self._age_s = -1.0, 0.0
        self._last = NO_SHARE
        self.safe = self._split(config.cluster.safe_w, math.nan, [math.nan] * len(self._gpus))
        """The shares of the safe cap; they do not depend on the power."""

    def bound(self, packages_w: float, gpus_w: Sequence[float]) -> int:
        """The site's own limits allow the packages together, and each GPU, no more than this (inf: any power). Returns
        the highest cap in mW of which the node can make use; -1: not known."""
        gpus_w = gpus_w or [math.inf] * len(self._gpus)
        if (packages_w, gpus_w) != self._bounds:
            self._bounds = packages_w, gpus_w
            self._cap_w = -1.0  # split again
        devices = self._devices(math.nan, [math.nan] * len(self._gpus))
        useful_w = self._rest_w + sum(device.most_w for device in devices)
        return round(useful_w * 1000) if useful_w < 1e6 else -1

    def of(self, cap_w: float, sample: Sample) -> Share:
        """The shares of a cap; none for 0."""
        if cap_w <= 0:
            return NO_SHARE
        self._age_s += sample.elapsed_s
        if cap_w != self._cap_w or self._age_s >= AGAIN_S:
            self._last = self._split(cap_w, self._packages_w(sample), sample.gpu.power_w.tolist())
            self._cap_w, self._age_s = cap_w, 0.0
        return self._last

    def is_full(self, share: Share, sample: Sample) -> bool:
        """Whether any device draws all that its share allows, so that it is cap-bound."""
        if not share.packages_mw:
            return False
        boards_w = np.array(share.boards_mw[: len(self._gpus)]) / 1000
        is_full = bool((sample.gpu.power_w[: len(boards_w)] >= (1 - FULL) * boards_w).any())
        return is_full or self._packages_w(sample) * 1000 >= (1 - FULL) * share.packages_mw

    def node_power(self, sample: Sample) -> tuple[float, str]:
        """Watts of the whole node in the interval, and the worst quality in them; NaN and "missing" if a part is."""
        quality = max([*sample.energy_quality[self._package].tolist(), *sample.gpu.quality.tolist()], default=0)
        power_w = self._packages_w(sample) + float(sample.gpu.power_w.sum()) + self._rest_w
        return (math.nan, "missing") if math.isnan(power_w) else (power_w, Quality(quality).name.lower())

    def node_energy(self, sample: Sample) -> tuple[float, str]:
        """Joules of the whole node in the interval, by its counters of energy where it has any, and their quality; NaN
        and "missing" if a part is. Unlike ``node_power`` this is right for a long interval too."""
        quality = max([*sample.energy_quality[self._package].tolist(), *sample.gpu.quality.tolist()], default=0)
        gpus_j = np.where(np.isnan(sample.gpu.energy_j), sample.gpu.power_w * sample.elapsed_s, sample.gpu.energy_j)
        joules = (self._packages_w(sample) + self._rest_w) * sample.elapsed_s + float(gpus_j.sum())
        return (math.nan, "missing") if math.isnan(joules) else (joules, Quality(quality).name.lower())

    def _packages_w(self, sample: Sample) -> float:
        if not self._package.any():
            return math.nan
        return float(sample.energy_j[self._package].sum()) / sample.elapsed_s

    def _split(self, cap_w: float, packages_w: float, gpus_w: list[float]) -> Share:
        packages, *boards = split(cap_w, self._rest_w, self._devices(packages_w, gpus_w))
        return Share(max(int(packages * 1000), 1), tuple(int(board * 1000) for board in boards))

    def _devices(self, packages_w: float, gpus_w: list[float]) -> list[Device]:
        """The packages and the GPUs, with the power that each draws."""
        packages_most_w, gpus_most_w = self._bounds
        devices = [Device(self._floor_w, max(min(self._most_w, packages_most_w), self._floor_w), packages_w)]
        for gpu, drew_w, most_w in zip(self._gpus, gpus_w, gpus_most_w, strict=True):
            least_w = gpu.min_power_limit_w
            devices.append(Device(least_w, max(min(gpu.max_power_limit_w, most_w), least_w), drew_w))
        return devices

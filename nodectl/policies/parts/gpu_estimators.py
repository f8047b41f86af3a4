"""What shows how fast a phase runs, and how far each estimator can be wrong.

    traffic     there at once and for every job, but its fall with the clock is not that of the speed: an error that no
                averaging removes, ``HIDDEN``
    progress    units per second that the application reports (docs/progress.md): no error but that of counting

Progress is of the whole job, so it counts only while one group has all GPUs that are busy (``gpu_ladder``).
"""

from __future__ import annotations

import numpy as np

from nodectl.policies.parts.cpu_progress import UNIT_EDGES, UNIT_SCATTER
from nodectl.policies.parts.gpu_curves import Estimator
from nodectl.policies.parts.gpu_phases import (
    COUNT,
    HIDDEN,
    RATE,
    STRETCHES,
    UNITS,
    UNITS_S,
    Phases,
)
from pmu.readings import type_f64

SURE = 0.01
"""Ours: standard error of reported progress at which it counts as much as all doubt of traffic."""


def traffic(phases: Phases, phase: int, distrust: float) -> Estimator:
    """Mean traffic of a phase. Its error has ``distrust`` (0 to 1) of ``HIDDEN``."""
    rate, error = phases.table[phase, RATE], phases.error(phase)
    if rate[0] <= 0:
        return Estimator(rate, error)
    fallen = np.log(rate[0] / np.where(rate > 0, rate, rate[0]))
    return Estimator(rate, np.sqrt(error**2 + hidden2(distrust, fallen)))


def hidden2(distrust: float, fallen: type_f64) -> type_f64:
    """Variance of the error of traffic that no averaging removes, where it has ``fallen`` by this logarithm."""
    least, share = HIDDEN
    return np.asarray(distrust**2 * (least**2 + (share * fallen) ** 2))


def progress(phases: Phases, phase: int) -> Estimator | None:
    """Units per second at each level; None: fewer than two levels have any."""
    units, seconds = phases.table[phase, UNITS], phases.table[phase, UNITS_S]
    is_heard = (units >= 1.0) & (seconds > 0)
    if is_heard.sum() < 2:
        return None
    error = np.sqrt(counting2(units, phases.table[phase, STRETCHES]))
    return Estimator(np.where(is_heard, units, 0.0) / np.maximum(seconds, 1e-9), np.where(is_heard, error, np.inf))


def counting2(units: type_f64, stretches: type_f64) -> type_f64:
    """Relative variance of a rate counted over so many units, in so many stretches of time."""
    return np.asarray((UNIT_SCATTER**2 * units + UNIT_EDGES * stretches) / np.maximum(units, 1.0) ** 2)


def sureness(reported: Estimator | None) -> float:
    """How far progress settles what a lower clock costs: 0 = it says nothing, 1 = it needs no second opinion."""
    if reported is None or not np.isfinite(reported.error[0]):
        return 0.0
    error2 = reported.error[0] ** 2 + float(reported.error[1:].min()) ** 2
    return float(1.0 / (1.0 + error2 / SURE**2))


class Reading:
    """How well a look of some seconds shows the loss of a level: variances of the logarithm of a ratio to the highest
    clock."""

    def __init__(self, phases: Phases, phase: int, distrust: float, fallen: float, blocks: int, block_s: float) -> None:
        """``fallen``: logarithm of how far traffic would have fallen at the level in question."""
        table = phases.table[phase]
        self._noise2, self._count = phases.scatter(phase) ** 2, float(table[COUNT, 0])
        self._hidden2 = 2.0 * phases.rounding(phase) ** 2 + float(hidden2(distrust, np.array(fallen)))
        self._blocks = blocks
        units, seconds = float(table[UNITS, 0]), float(table[UNITS_S, 0])
        self._units, self._stretches = units, float(table[STRETCHES, 0])
        self._more = units / seconds * blocks * block_s if seconds > 0 else 0.0

    def below(self) -> float:
        """Of a look at a level that was never measured."""
        of_traffic = self._noise2 * (1.0 / self._blocks + 1.0 / self._count) + self._hidden2
        return _together(of_traffic, _counted(self._more, 1.0) + _counted(self._units, self._stretches))

    def at_top_less(self) -> float:
        """By how much a look at the highest clock would lower the variance of what is known of it."""
        blocks = self._count + self._blocks
        now = _together(self._noise2 / self._count, _counted(self._units, self._stretches))
        then = _together(self._noise2 / blocks, _counted(self._units + self._more, self._stretches + 1.0))
        return max(now - then, 0.0)


def _counted(units: float, stretches: float) -> float:
    return float(counting2(np.array(units), np.array(stretches))) if units >= 1.0 else np.inf


def _together(one: float, other: float) -> float:
    """Variance of the weighed mean of two estimates."""
    return one if other == np.inf else one * other / (one + other)

"""How well the model's two laws of speed predict a workload that they were not fitted to, from its speed at two clocks.

*beta*: time = beta / f + 1 - beta, the law of the twin's CPUs; nothing is common to workloads. *knee*: time =
(1 + (knee / f)^s)^(1 / s), the law of its GPU kernels; the sharpness s is the one that fits the other workloads best.
Either has one number per workload, which the speed at the lowest clock gives. Errors are relative to the measured
speed, at the clocks between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np

from twin.fit.judge import WorkloadErrors, errors_of
from twin.fit.law import type_f64
from twin.fit.sweep import Curve

SHARPNESS: Final = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0, 20.0)
"""Values to choose from: 1 is the law of beta with another meaning of its number, 20 a corner."""

_HALVINGS: Final = 60


def beta_time(clock: type_f64, beta: float) -> type_f64:
    """Time at clocks relative to the top."""
    return np.asarray(beta / clock + 1.0 - beta)


def knee_time(clock: type_f64, knee: float, sharpness: float) -> type_f64:
    """Time at clocks relative to the top, over that at the top."""
    return np.asarray(((1.0 + (knee / clock) ** sharpness) / (1.0 + knee**sharpness)) ** (1.0 / sharpness))


def left_out_speeds(curves: Sequence[Curve]) -> dict[str, WorkloadErrors]:
    """Errors of both laws; empty if a workload's speed was not measured, or there is only one workload."""
    if len(curves) < 2 or not all(curve.has_speed for curve in curves):
        return {}
    at = {s: {curve.workload: _errors(curve, partial(knee_time, sharpness=s), 1e3) for curve in curves}
          for s in SHARPNESS}  # fmt: skip
    knee: dict[str, type_f64] = {}
    for out in curves:
        others = [curve.workload for curve in curves if curve is not out]
        best = min(SHARPNESS, key=lambda s: sum(float((at[s][name] ** 2).sum()) for name in others))
        knee[out.workload] = at[best][out.workload]
    return {
        "beta": errors_of({curve.workload: _errors(curve, beta_time, 1.0) for curve in curves}),
        "knee": errors_of(knee),
    }


def _errors(curve: Curve, law: Callable[[type_f64, float], type_f64], largest: float) -> type_f64:
    """Errors between the lowest and the highest clock, of the law whose number gives the speed at the lowest."""
    clock, speed = np.asarray(curve.clock_mhz) / curve.clock_mhz[-1], np.asarray(curve.speed)
    low, high = 0.0, largest
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if law(clock[:1], middle)[0] < 1.0 / speed[0]:
            low = middle
        else:
            high = middle
    return np.asarray((1.0 / law(clock, low) / speed - 1.0)[1:-1])

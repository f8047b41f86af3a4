"""The configurations worth running: none other is as fast with as little power."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from calibration.model.observations import ModelError, type_f64


def pareto_front(time_s: type_f64, watts: type_f64) -> npt.NDArray[np.int64]:
    """Indices, fastest first, so watts fall along it; of equal pairs the first. O(n log n)."""
    time_s, watts = np.asarray(time_s, float), np.asarray(watts, float)
    if time_s.shape != watts.shape or time_s.ndim != 1:
        raise ModelError(f"{time_s.shape} times and {watts.shape} watts: not one of each per configuration")
    if not (np.all(np.isfinite(time_s)) and np.all(np.isfinite(watts))):
        raise ModelError("a time or watts of the front are not finite")
    order = np.lexsort((watts, time_s))  # by time, equal times by watts; stable
    lowest = np.minimum.accumulate(watts[order])
    is_lower = np.ones(len(order), bool)
    is_lower[1:] = lowest[1:] < lowest[:-1]
    return np.asarray(order[is_lower])

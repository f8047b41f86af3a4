"""Bridi's three orders of a queue (PhD thesis, Bologna 2018, ch. 6 and 7), on nodes and on a number of processors.

The lowest score is served first. Profit there is the price of a job's cores over the cost of its energy; with prices
that are the same for all jobs that is cores per watt.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Float64s: TypeAlias = npt.NDArray[np.float64]


def est(submit_s: npt.NDArray[Any]) -> Float64s:
    """Increasing earliest start, which for jobs that wait is the time of their submission."""
    return submit_s.astype(np.float64)


def walltime(request_s: npt.NDArray[Any]) -> Float64s:
    """Increasing requested time."""
    return request_s.astype(np.float64)


def profit(cores: npt.NDArray[Any], watts: npt.NDArray[Any]) -> Float64s:
    """Decreasing cores per watt."""
    return np.asarray(-cores / np.maximum(watts, 1.0), np.float64)

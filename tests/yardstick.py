"""How fast this machine is just now: a fixed piece of work to compare a measured cost with.

Shared machines change their speed by a factor of two within minutes. A bound in microseconds then tests the machine; a
bound in yardsticks, measured in turn with the cost, tests the code. The work is of the kind that a tick consists of:
small NumPy operations, dictionaries, and encoding.
"""

from __future__ import annotations

import statistics
import time

import msgspec
import numpy as np

_COLUMN = np.arange(384, dtype=np.float64)


def yardstick_ns() -> int:
    """Nanoseconds of this thread's processor time for one yardstick: 120 to 150 us on a machine left to itself."""
    begin_ns = time.thread_time_ns()
    found = {}
    for i in range(16):
        rates = np.where(i < _COLUMN, _COLUMN * 0.5, 0.0)
        found[str(i)] = float(rates.sum()) + float(np.maximum(rates, 1.0).max())
    msgspec.json.encode(found)
    return time.thread_time_ns() - begin_ns


def yardstick_us(times: int) -> float:
    """The median of so many, in microseconds."""
    return statistics.median(yardstick_ns() for _ in range(times)) / 1e3

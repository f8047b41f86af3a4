"""The speed of a kernel: units per second, with an interval.

The time is cut into equal windows. Their rates scatter by what disturbs the node, and the interval of their mean
follows from that scatter (Student's t). What lasts longer than the whole measurement, such as other load, is in no
interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from calibration.kernels.port import Kernel, KernelPort, running
from foundation.student import mean_interval
from pmu.ports import Clock

WINDOWS: Final = 20

SETTLE_SHARE: Final = 0.1
"""Ours: of the measuring time, before it: clocks rise, and the first passes find cold caches."""


class Speed(msgspec.Struct, frozen=True):
    """A kernel on some CPUs. The mean of the true speed is between ``low`` and ``high`` with 95 % confidence."""

    kernel: str
    flops_per_byte: float
    unit: str
    cpus: tuple[int, ...]
    seconds: float
    units_per_s: float
    low_units_per_s: float
    high_units_per_s: float
    is_emulated: bool


def measure_speed(port: KernelPort, clock: Clock, kernel: Kernel, cpus: Sequence[int], seconds: float) -> Speed:
    """Run a kernel for this long and a little. ``KernelError`` if it cannot run, or the CPU computes wrongly."""
    window_ns = round(seconds * 1e9 / WINDOWS)
    with running(port, kernel, cpus):
        clock.sleep_until_ns(clock.now_ns() + round(seconds * SETTLE_SHARE * 1e9))
        start_ns, before = clock.now_ns(), port.units_done()
        began_ns = start_ns
        rates = []
        for window in range(1, WINDOWS + 1):
            clock.sleep_until_ns(began_ns + window * window_ns)
            now_ns, units = clock.now_ns(), port.units_done()
            rates.append((units - before) / ((now_ns - start_ns) / 1e9))
            start_ns, before = now_ns, units
    mean, half = mean_interval(rates)
    taken_s = (start_ns - began_ns) / 1e9
    return Speed(
        kernel.name, kernel.flops_per_byte, kernel.unit, tuple(cpus), taken_s, mean, mean - half, mean + half,
        port.is_emulated,
    )  # fmt: skip

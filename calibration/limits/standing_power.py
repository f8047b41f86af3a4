"""Power that no cap reaches: of the idle node, of its rest, and while it boots; with what cannot be measured.

- *idle*: packages without load, and the whole node where it has a meter.
- *rest*: what the node draws outside its packages and GPUs under load (board, fans, DRAM, supply losses). Only a meter
  of the whole node shows it.
- *boot*: the most that the node draws from power-on until it is capped. No program of the node runs then, so only a
  meter that records its own highest value can say (``powerN_input_highest``; Linux Documentation/hwmon/
  sysfs-interface.rst). Its record may also be of a load since, so it is an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from calibration.limits.session_probes import PackageEnergy
from pmu.layout import Column
from pmu.ports import Clock, Files

READINGS = 20
"""Ours."""

NO_METER = "the node has no meter of its own (hwmon)"


type_means = tuple[float, float]
"""Mean watts of the packages, and of the whole node by its meter (NaN without one)."""


class StandingPower(msgspec.Struct, frozen=True):
    """Watts; None where it cannot be measured, with the reason in ``missing``."""

    idle_w: float
    idle_node_w: float | None = None
    rest_w: float | None = None
    boot_w: float | None = None
    missing: tuple[str, ...] = ()


def mean_watts(energy: PackageEnergy, meter: Callable[[], float | None], clock: Clock, seconds: float) -> type_means:
    """Over so long."""
    seen: list[float] = []
    energy.watts()
    for _ in range(READINGS):
        clock.sleep_until_ns(clock.now_ns() + round(seconds / READINGS * 1e9))
        watts = meter()
        seen.append(math.nan if watts is None else watts)
    return energy.watts(), sum(seen) / len(seen)


def standing_power(idle: type_means, loaded: type_means, gpus_w: float, boot_w: float | None) -> StandingPower:
    """From means without load and under load."""
    missing = []
    idle_node_w, rest_w = None, None
    if math.isnan(loaded[1]) or math.isnan(idle[1]):
        missing.append(f"rest_w: {NO_METER}: declare caps.rest_w by the BMC's or the PDU's watts less the packages'")
    else:
        idle_node_w, rest_w = idle[1], max(loaded[1] - loaded[0] - gpus_w, 0.0)
    if boot_w is None:
        missing.append(
            "boot_w: no program runs while the node boots, and no meter of it keeps its highest value: declare it by"
            " the BMC's or the PDU's record"
        )
    return StandingPower(idle[0], idle_node_w, rest_w, boot_w, tuple(missing))


def highest_recorded_w(files: Files, meter: Sequence[Column]) -> float | None:
    """The most that the node's meter has recorded, since power-on if nobody has reset it; None if it keeps none."""
    total, found = 0.0, False
    for column in meter:
        stem, _, _ = column.source.rpartition("_")
        for name in ("input_highest", "average_highest"):
            try:
                total += int(files.read(f"{stem}_{name}")) / column.per_unit
            except (OSError, ValueError):
                continue
            found = True
            break
        else:
            return None
    return total if found else None

"""powercap: RAPL zones with energy counters and, if the hardware has them, power limits.

A control type (``intel-rapl``, on client machines also ``intel-rapl-mmio``) has one zone per package, and a package has
sub-zones (core, uncore, dram). /sys/class/powercap has links to all of them. Written values are rounded to the fields
of the limit register: power to 1/8 W in 15 bits, truncated, and windows to 2^Y (1 + F/4) times 976 us. So a value reads
back as the hardware stores it: 150000001 as 150000000, 1000000 us as 999424.

Refusals: text that is not a number gives EINVAL. What the RAPL driver refuses, the powercap core reports as ENODATA,
and for ``enabled`` as ENOSYS. ``energy_uj`` has mode 0400 and cannot be reset: opening it for writing fails with
EACCES. AMD packages show energy only: a limit register that cannot be read has no constraint files, reads ``enabled``
0, and efuses it.
Source: Linux 6.x drivers/powercap/{powercap_sys,intel_rapl_common,intel_rapl_msr}.c,
Documentation/power/powercap/powercap.rst; Intel SDM vol. 3B §15.10.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from twin.files.sysfs_nodes import Nodes, boolean, refused, unsigned
from twin.machine import Constraint, Zone
from twin.physics.model import Twin

DEVICES = "/sys/devices/virtual/powercap"
CLASS = "/sys/class/powercap"

POWER_UNIT_UW = 125_000
"""1/8 W: MSR_RAPL_POWER_UNIT bits 3:0 = 3, as on every Core and Xeon so far."""

TIME_UNIT_US = 976
"""1/1024 s in whole microseconds: bits 19:16 = 10, computed in integers by rapl_check_unit_core()."""

_POWER_BITS = 15


class Limit:
    """One power limit of one zone, with the values of its register."""

    def __init__(self, twin: Twin, zone: int, number: int, constraint: Constraint) -> None:
        self._twin = twin
        self._zone = zone
        self._number = number
        self.constraint = constraint
        self.power_uw = round(constraint.limit_w * 1e6)
        self.window_us = constraint.window_us
        self.enabled = True

    def store_power(self, text: str, effective: bool) -> None:
        """Set the limit, in microwatts."""
        self.power_uw = register_power_uw(_number(text))
        self.apply(effective)

    def store_window(self, text: str, effective: bool) -> None:
        """Set the time over which power is averaged, in microseconds."""
        self.window_us = register_window_us(_number(text))
        self.apply(effective)

    def apply(self, effective: bool = True) -> None:
        """Apply the limit to the machine."""
        if effective:
            self._twin.set_zone_limit(
                self._zone, self._number, limit_uw=self.power_uw, window_us=self.window_us, enabled=self.enabled
            )


def register_power_uw(power_uw: int) -> int:
    """A power rounded to the limit register, in microwatts."""
    return (power_uw // POWER_UNIT_UW) % (1 << _POWER_BITS) * POWER_UNIT_UW


def register_window_us(window_us: int) -> int:
    """A time window rounded to the limit register: 2^Y (1 + F/4) units (rapl_compute_time_window_core)."""
    units = window_us // TIME_UNIT_US
    if units == 0:
        return TIME_UNIT_US  # Y = F = 0
    exponent = min(units.bit_length() - 1, 31)
    quarters = min(4 * (units - (1 << exponent)) >> exponent, 3)
    return (1 << exponent) * (4 + quarters) * TIME_UNIT_US // 4


def add(nodes: Nodes, twin: Twin) -> dict[str, tuple[Limit, ...]]:
    """Add every control type and zone; returns the limits by the zone's path."""
    limits: dict[str, tuple[Limit, ...]] = {}
    for index, zone in enumerate(twin.machine.zones):
        control = f"{DEVICES}/{zone.control_type}"
        if control not in nodes.children:
            _add_control_type(nodes, control)
        folder = f"{control}/{zone.path}"
        limits[folder] = _add_zone(nodes, twin, folder, index, zone)
        nodes.link(f"{CLASS}/{folder.rpartition('/')[2]}", folder)
    return limits


def _add_control_type(nodes: Nodes, folder: str) -> None:
    name = folder.rpartition("/")[2]
    nodes.device(folder, CLASS)
    nodes.file(f"{folder}/enabled", "1\n", _store_enabled_nowhere, mode=0o644)
    nodes.link(f"{CLASS}/{name}", folder)


def _add_zone(nodes: Nodes, twin: Twin, folder: str, index: int, zone: Zone) -> tuple[Limit, ...]:
    shown = zone.constraints if zone.writable else ()
    limits = tuple(Limit(twin, index, i, constraint) for i, constraint in enumerate(shown))
    nodes.device(folder, CLASS)
    nodes.link(f"{folder}/device", folder.rpartition("/")[0])
    nodes.file(f"{folder}/name", f"{zone.name}\n")
    nodes.file(f"{folder}/energy_uj", lambda: f"{twin.zone_energy_uj(index)}\n", mode=0o400, wraps_at=zone.range_uj)
    nodes.file(f"{folder}/max_energy_range_uj", f"{zone.range_uj}\n")
    if not limits:
        nodes.file(f"{folder}/enabled", "0\n", _store_enabled_nowhere, mode=0o644)
        return limits
    nodes.file(f"{folder}/enabled", lambda: f"{limits[0].enabled:d}\n", _enabled_store(limits))
    for number, limit in enumerate(limits):
        stem = f"{folder}/constraint_{number}"
        nodes.file(f"{stem}_name", f"{limit.constraint.name}\n")
        nodes.file(f"{stem}_max_power_uw", f"{round(limit.constraint.max_w * 1e6)}\n")
        nodes.file(f"{stem}_power_limit_uw", _shower(limit, "power_uw"), limit.store_power)
        has_window = limit.constraint.name != "peak_power"
        show, store = (_shower(limit, "window_us"), limit.store_window) if has_window else (_no_data, _no_store)
        nodes.file(f"{stem}_time_window_us", show, store)
    return limits


def _shower(limit: Limit, field: str) -> Callable[[], str]:
    return lambda: f"{getattr(limit, field)}\n"


def _no_data() -> str:
    """PL4, the peak limit, has no window: get_pl_prim() has none, and the powercap core returns ENODATA."""
    raise refused(errno.ENODATA)


def _no_store(text: str, effective: bool) -> None:
    _number(text)
    raise refused(errno.ENODATA)


def _enabled_store(limits: tuple[Limit, ...]) -> Callable[[str, bool], None]:
    """set_domain_enable(): switches all limits of the zone together."""

    def store(text: str, effective: bool) -> None:
        enabled = boolean(text)
        for limit in limits:
            limit.enabled = enabled
            limit.apply(effective)

    return store


def _store_enabled_nowhere(text: str, effective: bool) -> None:
    """A control type or zone that cannot be switched: enabled_store() ends in ENOSYS."""
    boolean(text)
    raise refused(errno.ENOSYS)


def _number(text: str) -> int:
    """``kstrtoull(buf, 10, ...)``; the powercap core returns EINVAL for any invalid text."""
    try:
        return unsigned(text, base=10)
    except OSError:
        raise refused(errno.EINVAL) from None

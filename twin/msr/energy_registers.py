"""RAPL by registers: units, energies, limits. They are the powercap zones seen from another side.

A limit that is written goes through the zone's powercap files, so faults and rounding are the same for both, and each
side reads back what the other wrote.
Source: Intel SDM vol. 3B §15.10 and vol. 4; AMD PPR of family 17h and 19h (MSRC001_0299, _029A, _029B); Linux
drivers/powercap/intel_rapl_{common,msr}.c.
"""

from __future__ import annotations

import math

from twin.files.sysfs_powercap import POWER_UNIT_UW, TIME_UNIT_US, Limit
from twin.files.sysfs_tree import SysfsTree
from twin.machine import Zone
from twin.msr.bits import Register, constant, faulted, field, placed

_COUNTER = 0xFFFFFFFF
_POWER_EXPONENT, _TIME_EXPONENT = 3, 10  # 1/8 W, 1/1024 s: what sysfs_powercap rounds to
_CLAMP, _LOCK = 1 << 16, 1 << 63

_ENERGY = {"package": 0x611, "core": 0x639, "uncore": 0x641, "dram": 0x619, "psys": 0x64D}
_UNIT, _PACKAGE_LIMIT, _PACKAGE_INFO, _PACKAGE_THROTTLED, _PEAK = 0x606, 0x610, 0x614, 0x613, 0x601
_AMD_UNIT, _AMD_CORE_ENERGY, _AMD_PACKAGE_ENERGY = 0xC0010299, 0xC001029A, 0xC001029B
_NO_LIMITS = {"core": (0x638, 0x63A), "uncore": (0x640, 0x642), "dram": (0x618, 0x61B, 0x61C)}
"""Limit, priority, throttled time and range of a zone whose limit is not in use: these read 0."""


def intel(tree: SysfsTree) -> dict[int, Register]:
    """The registers of an Intel machine, by number."""
    zones = _zones(tree)
    if "package" not in zones:
        return {}
    registers = {_UNIT: constant(_units(zones["package"][0][1].unit_uj))}
    for kind, of_kind in zones.items():
        registers[_ENERGY[kind]] = _energy(tree, of_kind)
        for number in _NO_LIMITS.get(kind, ()):
            registers[number] = constant(0)
    limits = {package: _limits_of(tree, index) for package, (index, _) in enumerate(zones["package"])}
    registers[_PACKAGE_THROTTLED] = constant(0)  # ours: the model does not count throttled time
    if all(folder_limits[1] for folder_limits in limits.values()):
        registers[_PACKAGE_LIMIT] = _limit(tree, limits)
        registers[_PACKAGE_INFO] = _info(tree, limits)
        has_peak = all(len(folder_limits[1]) > 2 for folder_limits in limits.values())
        registers[_PEAK] = _peak(tree, limits) if has_peak else constant(0)
    return registers


def amd(tree: SysfsTree) -> dict[int, Register]:
    """The registers of an AMD machine, by number: energy of each core and package, no limits."""
    zones = _zones(tree)
    if "package" not in zones:
        return {}
    twin, unit_uj = tree.twin, zones["package"][0][1].unit_uj

    def core(cpu: int) -> int:
        return int(twin.core_energy_j(twin.machine.core_of[cpu]) * 1e6 / unit_uj) & _COUNTER

    return {
        _AMD_UNIT: constant(_units(unit_uj)),
        _AMD_CORE_ENERGY: Register(core),
        _AMD_PACKAGE_ENERGY: _energy(tree, zones["package"]),
    }


type_zones = list[tuple[int, Zone]]
type_limits = dict[int, tuple[str, tuple[Limit, ...]]]
"""By package: the folder of its zone in powercap, and the limits."""


def _zones(tree: SysfsTree) -> dict[str, type_zones]:
    """By kind, those that registers show: per package in order, or one for the node (psys)."""
    found: dict[str, type_zones] = {}
    for index, zone in enumerate(tree.twin.machine.zones):
        if not zone.mmio:
            found.setdefault(zone.kind, []).append((index, zone))
    return found


def _limits_of(tree: SysfsTree, zone: int) -> tuple[str, tuple[Limit, ...]]:
    return list(tree.zones.items())[zone]


def _units(unit_uj: float) -> int:
    """Power, energy and time units, each as a negative power of two."""
    energy = round(-math.log2(unit_uj * 1e-6))
    return placed(_TIME_EXPONENT, 16, 19) | placed(energy, 8, 12) | _POWER_EXPONENT


def _energy(tree: SysfsTree, zones: type_zones) -> Register:
    """The 32-bit counter from which the kernel computes ``energy_uj``: both wrap at the same moment, and have the same
    faults."""
    folders = list(tree.zones)

    def read(cpu: int) -> int:
        package = tree.twin.machine.package_of[cpu]
        index, zone = zones[package] if len(zones) > package else zones[0]
        energy_uj = int(tree.read(f"{folders[index]}/energy_uj"))
        return -(-energy_uj * _COUNTER // zone.range_uj) & _COUNTER

    return Register(read)


def _limit(tree: SysfsTree, limits: type_limits) -> Register:
    """MSR_PKG_POWER_LIMIT: limit 1 in the low half, limit 2 in the high one."""
    clamps = dict.fromkeys(limits, 0)
    locked: set[int] = set()

    def read(cpu: int) -> int:
        package = tree.twin.machine.package_of[cpu]
        value = clamps[package] | (_LOCK if package in locked else 0)
        for number, limit in enumerate(limits[package][1][:2]):
            value |= _half(limit) << 32 * number
        return value

    def write(cpu: int, value: int) -> None:
        package = tree.twin.machine.package_of[cpu]
        if package in locked:
            raise faulted()
        folder, of_package = limits[package]
        for number, limit in enumerate(of_package[:2]):
            _store_half(tree, f"{folder}/constraint_{number}", limit, value >> 32 * number)
        if bool(field(value, 15, 15)) != of_package[0].enabled:
            _store(tree, f"{folder}/enabled", field(value, 15, 15))
        clamps[package] = value & (_CLAMP | _CLAMP << 32)
        if value & _LOCK:
            locked.add(package)

    return Register(read, write)


def _half(limit: Limit) -> int:
    units = limit.window_us // TIME_UNIT_US
    exponent = max(units.bit_length() - 1, 0)
    quarters = 4 * (units - (1 << exponent)) >> exponent if units else 0
    window = placed(exponent, 17, 21) | placed(quarters, 22, 23)
    return placed(limit.power_uw // POWER_UNIT_UW, 0, 14) | limit.enabled << 15 | window


def _store_half(tree: SysfsTree, stem: str, limit: Limit, half: int) -> None:
    power_uw = field(half, 0, 14) * POWER_UNIT_UW
    window_us = (1 << field(half, 17, 21)) * (4 + field(half, 22, 23)) * TIME_UNIT_US // 4
    if power_uw != limit.power_uw:
        _store(tree, f"{stem}_power_limit_uw", power_uw)
    if window_us != limit.window_us:
        _store(tree, f"{stem}_time_window_us", window_us)


def _info(tree: SysfsTree, limits: type_limits) -> Register:
    """MSR_PKG_POWER_INFO: thermal design power, and the highest limit."""

    def read(cpu: int) -> int:
        constraint = limits[tree.twin.machine.package_of[cpu]][1][0].constraint
        top_w = constraint.max_w or constraint.limit_w
        return placed(round(top_w * 8), 0, 14) | placed(round(top_w * 8), 32, 46)

    return Register(read)


def _peak(tree: SysfsTree, limits: type_limits) -> Register:
    """MSR_VR_CURRENT_CONFIG, whose low bits are the peak limit (PL4) in 1/8 W on client processors."""

    def read(cpu: int) -> int:
        return placed(limits[tree.twin.machine.package_of[cpu]][1][2].power_uw // POWER_UNIT_UW, 0, 12)

    def write(cpu: int, value: int) -> None:
        folder = limits[tree.twin.machine.package_of[cpu]][0]
        _store(tree, f"{folder}/constraint_2_power_limit_uw", field(value, 0, 12) * POWER_UNIT_UW)

    return Register(read, write)


def _store(tree: SysfsTree, path: str, value: int) -> None:
    try:
        tree.write(path, f"{value}".encode())
    except OSError:
        raise faulted() from None

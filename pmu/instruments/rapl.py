"""Energy and power limits from the Linux powercap tree (intel-rapl and similar drivers).

A zone's ``energy_uj`` counts microjoules up to ``max_energy_range_uj`` and then starts again from zero, on a 400 W
package about every eleven minutes. One wrap in an interval is added back. If two readings are further apart than the
shortest time in which the zone can wrap, the number of wraps is unknown: the second reading is marked STALE and gives
what the counter shows, a lower bound. A step that no power can explain, backwards or forwards, means that the counter
was reset: such an interval is MISSING.

The counter moves in steps of about 1 ms. A *package* that shows no energy over several steps is stuck, since no
processor draws nothing. (A core, uncore or DRAM zone may read zero: on some machines it exists but never counts.)

Client processors have the package a second time in memory-mapped registers (``intel-rapl-mmio``): the same energy,
hence reported once, but its own limits; the lower one is in force. AMD has energy without limits. A locked limit
register shows as ``enabled`` 0 here; a lock set after the driver was loaded is not visible. Only root may read
``energy_uj`` since Linux 5.10, because it leaks keys (CVE-2020-8694, PLATYPUS).
Sources: Documentation/power/powercap/powercap.rst; drivers/powercap/intel_rapl_common.c; Intel SDM vol. 3B 15.10.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pmu.driver_values import MOST_LIMIT_UW, digits, whole
from pmu.findings import Finding, absent, read_number, read_or_none
from pmu.layout import Column, EnergyZone
from pmu.ports import Files
from pmu.readings import RAW_HIGHEST

POWERCAP = "/sys/class/powercap"
MMIO = "intel-rapl-mmio"

KINDS = ("package", "core", "uncore", "dram", "psys")

MAX_POWER_UW = {"package": 1_000_000_000, "core": 1_000_000_000, "uncore": 500_000_000, "dram": 500_000_000}
"""Ours: above any processor of today (the largest packages have limits of some 500 W and peak below twice that)."""

MAX_POWER_PSYS_UW = 10_000_000_000
"""Ours: a whole platform."""

PEAK_OVER_LIMIT = 4
"""Ours: a package may draw more than its limits for milliseconds; client processors peak at some 3 x TDP (PL4)."""


@dataclass(frozen=True, slots=True)
class PowerLimit:
    """One constraint of one zone. ``interface``: "msr" or "mmio"; ``index``: N of ``constraint_N_*`` below ``path``."""

    zone: str
    path: str
    index: int
    name: str
    interface: str
    limit_uw: int | None
    window_us: int | None
    enabled: bool | None
    writable: bool


@dataclass(frozen=True, slots=True)
class Rapl:
    """The powercap tree: zones that are read, limits that could be written, and a finding for each."""

    zones: tuple[EnergyZone, ...]
    limits: tuple[PowerLimit, ...]
    findings: tuple[Finding, ...]


def find(files: Files) -> Rapl:
    """Find the zones, in the tree's order, each energy once."""
    entries = _entries(files)
    if not entries:
        return Rapl((), (), (absent("rapl", "energy", f"{POWERCAP} has no zones: {_why_no_zones(files)}"),))
    zones: list[EnergyZone] = []
    limits: list[PowerLimit] = []
    findings: list[Finding] = []
    names: dict[str, str] = {}
    for entry in entries:
        own = read_or_none(files, f"{POWERCAP}/{entry}/name") or entry
        parent = names.get(entry.rpartition(":")[0])
        name = f"{parent}/{own}" if parent else own
        if any(zone.name == name and _interface(zone.path) == _interface(entry) for zone in zones):
            name = f"{name}-{entry}"  # another zone of that name, such as the psys of a second socket
        names[entry] = name
        zone, finding = _energy(files, entry, name, zones)
        findings.append(finding)
        if zone is not None:
            zones.append(zone)
        zone_limits = _limits(files, entry, name)
        limits += zone_limits
        findings += [_limit_finding(limit) for limit in zone_limits]
        if name.startswith("package") and not parent and not zone_limits:
            findings.append(absent(f"{name} limits", "limit", "the zone has no constraints (AMD shows energy only)"))
    return Rapl(tuple(zones), tuple(limits), tuple(findings))


def _entries(files: Files) -> list[str]:
    """Folders of zones: parents first, and memory-mapped ones last, so that a zone there twice is read by MSR."""
    try:
        entries = [name for name in files.listdir(POWERCAP) if re.fullmatch(r"[\w-]+(:\d+)+", name)]
    except OSError:
        return []
    return sorted(entries, key=lambda name: (name.startswith(MMIO), _numbers(name)))


def _interface(entry: str) -> str:
    return entry.partition(":")[0]


def _energy(files: Files, entry: str, name: str, known: Sequence[EnergyZone]) -> tuple[EnergyZone | None, Finding]:
    """The zone, if its energy can be read and is not one of ``known``, and its finding."""
    seen = next((zone for zone in known if zone.name == name), None)
    if seen is not None:
        why = f"the same energy as {seen.path} by memory-mapped registers: read once; its limits are its own"
        return None, Finding(f"{name} ({entry})", "energy", present=True, why=why)
    zone = _zone(files, entry, name)
    finding = _energy_finding(files, zone)
    return zone if finding.readable else None, finding


def max_power_w(zone: EnergyZone) -> float:
    """The most that the zone can draw, watts: its own bound, or that of its kind."""
    return (zone.max_power_uw or MAX_POWER_UW.get(zone.kind, MAX_POWER_PSYS_UW)) * 1e-6


def column(zone: EnergyZone) -> Column:
    """A zone as a column. Layouts keep zones apart, since policies look for them and journals of format 1 have them."""
    return Column(
        instrument="rapl",
        name=zone.name,
        unit="J",
        kind="counter",
        source=f"{POWERCAP}/{zone.path}/energy_uj",
        per_unit=1e6,
        range=zone.max_energy_uj,
        most_per_s=max_power_w(zone),
        is_never_idle=zone.kind == "package",
    )


def _zone(files: Files, entry: str, name: str) -> EnergyZone:
    own = name.rpartition("/")[2].partition("-")[0]
    kind = own if own in KINDS else "psys"  # another meter of the platform: shown, never added to the rest
    package = re.match(r"package-(\d+)", name)
    return EnergyZone(
        name=name,
        path=entry,
        kind=kind,
        package=(digits(package[1]) or 0) if package else 0,
        max_energy_uj=whole(read_number(files, f"{POWERCAP}/{entry}/max_energy_range_uj"), (1, RAW_HIGHEST)) or 0,
        max_power_uw=_max_power_uw(files, entry, kind),
    )


def _max_power_uw(files: Files, entry: str, kind: str) -> int:
    """From the zone's own limits where it has any, but not below the usual bound of its kind."""
    values = [
        whole(read_number(files, f"{POWERCAP}/{entry}/constraint_{i}_{what}"), (1, MOST_LIMIT_UW))
        for i in range(_constraint_count(files, entry))
        for what in ("power_limit_uw", "max_power_uw")
    ]
    stated = PEAK_OVER_LIMIT * max((value for value in values if value), default=0)
    usual = MAX_POWER_UW.get(kind, MAX_POWER_PSYS_UW)
    return max(stated, usual)


def _energy_finding(files: Files, zone: EnergyZone) -> Finding:
    path = f"{POWERCAP}/{zone.path}/energy_uj"
    try:
        int(files.read(path))
    except ValueError:
        return Finding(zone.name, "energy", present=True, why=f"{path} has no number")
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, str(error.errno))
        why = f"reading {path} gives {code}"
        if error.errno == errno.ENOENT and not files.exists(f"{POWERCAP}/{zone.path}"):
            why += (
                ": the link leads nowhere, as in a container that hides /sys/devices/virtual/powercap; run on the host"
            )
        if error.errno in (errno.EACCES, errno.EPERM):
            why += ": only root may read it since Linux 5.10 (CVE-2020-8694); run as root"
        return Finding(zone.name, "energy", present=error.errno != errno.ENOENT, why=why)
    return Finding(zone.name, "energy", present=True, readable=True)


def _limits(files: Files, entry: str, zone: str) -> list[PowerLimit]:
    base = f"{POWERCAP}/{entry}"
    enabled = read_number(files, f"{base}/enabled")
    limits = []
    for index in range(_constraint_count(files, entry)):
        path = f"{base}/constraint_{index}"
        limits.append(
            PowerLimit(
                zone=zone,
                path=entry,
                index=index,
                name=read_or_none(files, f"{path}_name") or f"constraint_{index}",
                interface="mmio" if entry.startswith(MMIO) else "msr",
                limit_uw=whole(read_number(files, f"{path}_power_limit_uw"), (0, MOST_LIMIT_UW)),
                window_us=read_number(files, f"{path}_time_window_us"),
                enabled=None if enabled is None else enabled != 0,
                writable=files.writable(f"{path}_power_limit_uw"),
            )
        )
    return limits


def _limit_finding(limit: PowerLimit) -> Finding:
    name = f"{limit.zone}/{limit.name}" + (" (mmio)" if limit.interface == "mmio" else "")
    is_locked = limit.enabled is False and bool(limit.limit_uw)
    if limit.limit_uw is None:
        why = f"{POWERCAP}/{limit.path}/constraint_{limit.index}_power_limit_uw gives no number"
    elif is_locked:
        why = "enabled reads 0: switched off, or locked by the firmware until the next boot"
    elif not limit.writable:
        why = "writing needs root"
    else:
        why = f"{limit.limit_uw / 1e6:g} W"
    return Finding(name, "limit", True, limit.limit_uw is not None, limit.writable and not is_locked, is_locked, why)


def _constraint_count(files: Files, entry: str) -> int:
    try:
        names = files.listdir(f"{POWERCAP}/{entry}")
    except OSError:
        return 0
    return sum(bool(re.fullmatch(r"constraint_\d+_power_limit_uw", name)) for name in names)


def _why_no_zones(files: Files) -> str:
    if not files.exists(POWERCAP):
        return "the kernel has no powercap (virtual machine, or CONFIG_POWERCAP is off)"
    return "no RAPL driver is loaded (modprobe intel_rapl_msr), or the processor has none"


def _numbers(entry: str) -> tuple[str, list[int]]:
    control, *numbers = entry.split(":")
    return control, [int(number) for number in numbers]

"""Temperature and power sensors of the kernel's hwmon class, by chip and label.

``tempN_input`` is in millidegrees, ``powerN_input`` or ``powerN_average`` in microwatts; ``*_label`` names what is
measured ("Package id 0", "Tctl"). Chips come and go with their drivers, and a failing bus gives EIO: such a sensor is
MISSING with the reason, and the others are still read. Source: Documentation/hwmon/sysfs-interface.rst.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from pmu.findings import Finding, absent, read_or_none
from pmu.ports import Files, KeptFile
from pmu.readings import Quality, Reading

HWMON = "/sys/class/hwmon"

_INPUT = re.compile(r"(temp|power)(\d+)_(input|average)")


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a kind of sensor, and the range of values that are possible (ours, generous)."""

    name: str
    per_unit: float
    lowest: float
    highest: float


UNITS = {"temp": Unit("C", 1e3, -55.0, 150.0), "power": Unit("W", 1e6, 0.0, 100_000.0)}


class Sensors:
    """Every temperature and power sensor, kept open."""

    def __init__(self, files: Files) -> None:
        self._sensors: list[tuple[str, Unit, KeptFile]] = []
        self.findings: list[Finding] = []
        for name, unit, path in _inputs(files):
            try:
                kept = files.keep(path)
            except OSError as error:
                self.findings.append(Finding(name, "sensor", present=True, why=f"cannot open {path}: {error.strerror}"))
                continue
            self._sensors.append((name, unit, kept))
            self.findings.append(_finding(name, path, _read(name, unit, kept, 0)))
        if not self.findings:
            why = f"{HWMON} has no temperature or power sensor: no driver (virtual machine), or none loaded"
            self.findings.append(absent("hwmon", "sensor", why))

    def read(self, time_ns: int) -> list[Reading]:
        """One reading per sensor, in C or W."""
        return [_read(name, unit, kept, time_ns) for name, unit, kept in self._sensors]

    def close(self) -> None:
        """Close the files."""
        for _, _, kept in self._sensors:
            kept.close()
        self._sensors = []


def _read(name: str, unit: Unit, kept: KeptFile, time_ns: int) -> Reading:
    try:
        value = int(kept.read()) / unit.per_unit
    except OSError as error:
        return Reading(name, math.nan, unit.name, time_ns, Quality.MISSING, error.strerror or str(error))
    except ValueError:
        return Reading(name, math.nan, unit.name, time_ns, Quality.MISSING, "no number")
    if not unit.lowest <= value <= unit.highest:
        bound = min(max(value, unit.lowest), unit.highest)
        return Reading(name, bound, unit.name, time_ns, Quality.CLIPPED, f"shows {value:g} {unit.name}")
    return Reading(name, value, unit.name, time_ns, Quality.MEASURED)


def _finding(name: str, path: str, reading: Reading) -> Finding:
    is_readable = reading.quality is not Quality.MISSING
    why = f"{path}: {reading.why}" if reading.why else f"{reading.value:.0f} {reading.unit} now"
    return Finding(name, "sensor", True, is_readable, why=why)


def _inputs(files: Files) -> list[tuple[str, Unit, str]]:
    """Name ("hwmon0/k10temp/Tctl"), unit and path of each sensor."""
    found = []
    for chip in sorted(_names(files, HWMON), key=lambda name: (len(name), name)):
        folder = f"{HWMON}/{chip}"
        driver = read_or_none(files, f"{folder}/name") or "unknown"
        inputs = [match for name in _names(files, folder) if (match := _INPUT.fullmatch(name))]
        for sort, number, suffix in sorted({(m[1], int(m[2]), m[3]) for m in inputs}):
            if suffix == "average" and (sort, number, "input") in {(m[1], int(m[2]), m[3]) for m in inputs}:
                continue  # the same sensor, averaged by the chip
            label = read_or_none(files, f"{folder}/{sort}{number}_label") or f"{sort}{number}"
            found.append((f"{chip}/{driver}/{label}", UNITS[sort], f"{folder}/{sort}{number}_{suffix}"))
    return found


def _names(files: Files, path: str) -> list[str]:
    try:
        return files.listdir(path)
    except OSError:
        return []

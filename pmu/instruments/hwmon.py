"""Temperature, power and energy sensors of the kernel's hwmon class, by chip and label.

``tempN_input`` is in millidegrees, ``powerN_input`` or ``powerN_average`` in microwatts, ``energyN_input`` counts
microjoules; ``tempN_crit_alarm`` is 1 while a chip is beyond its critical temperature; ``*_label`` names what is
measured ("Package id 0", "Tctl"), and of a power meter ``powerN_oem_info`` does ("Grace Power Socket 0"). Chips come
and go with their drivers, and a failing bus gives EIO: such a sensor is MISSING with the reason, and the others are
still read.

The loop reads only inputs of drivers in ``LOOP``, whose cost is known. A reading from a BMC (acpi_power_meter) or a
network card may take tens of milliseconds, in which every tick would be late; all others are there for people.
Sources: Documentation/hwmon/{sysfs-interface,coretemp,k10temp,acpi_power_meter}.rst.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from pmu.findings import absent, read_or_none
from pmu.instruments.instrument import Found, Instrument
from pmu.layout import Column, type_kind
from pmu.ports import Files, Ports

HWMON = "/sys/class/hwmon"

_INPUT = re.compile(r"(temp|power|energy)(\d+)_(input|average)")


@dataclass(frozen=True, slots=True)
class Sort:
    """How a kind of sensor counts, and the range of values that are possible (ours, generous)."""

    unit: str
    kind: type_kind
    per_unit: float
    lowest: float = -math.inf
    highest: float = math.inf


SORTS: Final = {
    "temp": Sort("C", "level", 1e3, -55.0, 150.0),
    "power": Sort("W", "level", 1e6, 0.0, 100_000.0),
    "energy": Sort("J", "counter", 1e6),
}
ALARM: Final = Sort("", "flag", 1.0, highest=1.0)


@dataclass(frozen=True, slots=True)
class Loop:
    """Inputs that the loop reads every ``period_s``: those of a driver whose label matches (``re.fullmatch``)."""

    driver: str
    label: str
    part: str
    period_s: float


LOWEST_C, HIGHEST_C = -20.0, 90.0
"""Ours: air that a server takes in. What is outside is a sensor that fails."""

_AIR: Final = r"(?i:.*(inlet|intake|ambient).*)"

LOOP: Final = (
    Loop("coretemp", r"Package id \d+", "package", 1.0),  # a register that the driver reads once a second at most
    Loop("k10temp", r"T(ctl|die)", "package", 1.0),  # a register on the processor's own network
    Loop(
        "spd5118", "temp1", "memory", 5.0
    ),  # the hub of a DDR5 module: half a millisecond on SMBus, heats over minutes
    Loop("jc42", "temp1", "memory", 5.0),  # the sensor of a DDR4 server module, likewise
    # the air that the node takes in, which changes over minutes: a sensor on I2C that the device tree names, and
    # POWER's, whose firmware keeps the last value in memory
    *(Loop(driver, _AIR, "inlet", 10.0) for driver in ("lm75", "tmp75", "tmp421", "ibmpowernv")),
)


def find(ports: Ports) -> Found:
    """Every sensor; those of ``LOOP`` are for the loop."""
    columns = _columns(ports.files)
    if not columns:
        why = f"{HWMON} has no temperature or power sensor: no driver (virtual machine), or none loaded"
        return Found((), (), (absent("hwmon", "sensor", why),))
    return Found(tuple(c for c in columns if c.part), tuple(c for c in columns if not c.part))


INSTRUMENT: Final = Instrument("hwmon", find)


def _columns(files: Files) -> list[Column]:
    found = []
    for chip in sorted(_names(files, HWMON), key=lambda name: (len(name), name)):
        folder = f"{HWMON}/{chip}"
        driver = read_or_none(files, f"{folder}/name") or "unknown"
        labels: set[str] = set()
        inputs = {(m[1], int(m[2]), m[3]) for name in _names(files, folder) if (m := _INPUT.fullmatch(name))}
        for sort, number, suffix in sorted(inputs):
            if suffix == "average" and (sort, number, "input") in inputs:
                continue  # the same sensor, averaged by the chip
            label = _label(files, f"{folder}/{sort}{number}", labels)
            name, path, loop = f"{chip}/{driver}/{label}", f"{folder}/{sort}{number}", _loop(driver, label)
            found.append(_column(name, f"{path}_{suffix}", SORTS[sort], loop))
            if loop and sort == "temp" and files.exists(f"{path}_crit_alarm"):
                found.append(_column(f"{name}/critical", f"{path}_crit_alarm", ALARM, loop))
    return found


def _label(files: Files, path: str, known: set[str]) -> str:
    """What the sensor at ``path`` measures, by its driver or, of a power meter, by the firmware ("Module Power Socket
    0"); with the file's name where the chip has another sensor of that label."""
    own = path.rpartition("/")[2]
    label = read_or_none(files, f"{path}_label") or read_or_none(files, f"{path}_oem_info") or own
    label = label if label not in known else f"{label} ({own})"
    known.add(label)
    return label


def _column(name: str, path: str, sort: Sort, loop: Loop | None) -> Column:
    is_air = loop is not None and loop.part == "inlet" and sort.unit == "C"
    return Column(
        instrument="hwmon",
        name=name,
        unit=sort.unit,
        kind=sort.kind,
        source=path,
        part=loop.part if loop else "",
        per_unit=sort.per_unit,
        lowest=LOWEST_C if is_air else sort.lowest,
        highest=HIGHEST_C if is_air else sort.highest,
        period_s=loop.period_s if loop and sort.kind != "counter" else 0.0,
    )


def _loop(driver: str, label: str) -> Loop | None:
    return next((one for one in LOOP if one.driver == driver and re.fullmatch(one.label, label)), None)


def _names(files: Files, path: str) -> list[str]:
    try:
        return files.listdir(path)
    except OSError:
        return []

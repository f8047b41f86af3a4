"""Inlet temperatures that the baseboard management controller measures: its last answer, from a file.

Most servers show the temperature of the air that they take in through IPMI or Redfish alone, and a controller takes a
tenth of a second to many seconds to answer. So the loop never asks one: whoever asks (a timer with ``ipmitool`` or
``curl``) puts the answer into ``ANSWER``, and this instrument reads it once in ``PERIOD_S``. The first line of the file
is ``/proc/uptime`` at the time of asking, so an answer that got old is MISSING, not the temperature of today.

What follows is either text of ``ipmitool sdr type Temperature`` or ``ipmitool sensor``, in which an inlet is a sensor
that is called so, or JSON of Redfish: ``Thermal`` (DSP0266, ``Temperatures``) or ``ThermalMetrics``
(``TemperatureReadingsCelsius``), in which its ``PhysicalContext`` is ``Intake``.
"""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from pmu.findings import absent
from pmu.instruments.hwmon import HIGHEST_C, LOWEST_C
from pmu.instruments.instrument import Found, Instrument
from pmu.layout import Column
from pmu.ports import Files, Ports
from pmu.readings import RAW_MISSING, type_i64

ANSWER: Final = "/run/nodectl/bmc-temperatures"
UPTIME: Final = "/proc/uptime"
PERIOD_S: Final = 60.0
OLDEST_S: Final = 600.0
"""Ours: an answer that is older says nothing of now."""

MOST_C: Final = 1e6
"""Ours: a number beyond it is no temperature of anything."""

_INLET: Final = re.compile(r"inlet|intake|ambient|front panel", re.IGNORECASE)
_DEGREES: Final = re.compile(r"(-?\d+(?:\.\d+)?)( degrees C)?")


def inlets(text: str) -> dict[str, float]:
    """Degrees of each inlet in an answer, NaN where the sensor gave none; ValueError if it is neither of both."""
    found: dict[str, float] = {}
    for name, value in _redfish(text) if text.lstrip().startswith("{") else _ipmi(text):
        found.setdefault(name, value)
    return found


def find(ports: Ports) -> Found:
    """The inlets of the answer that is there at the start of a run."""
    text, why = _fresh(ports.files)
    names = list(_inlets_or_none(text)) if text else []
    if not names:
        return Found((), (), (absent("inlet", "sensor", why or f"{ANSWER}: no inlet in this answer of the BMC"),))
    return Found(tuple(_column(name) for name in names))


class OpenAnswer:
    """The answer, read again once in ``PERIOD_S``."""

    def __init__(self, ports: Ports, columns: Sequence[Column]) -> None:
        self._files, self._names = ports.files, [column.name.removeprefix("bmc/") for column in columns]
        self._last = np.full(len(columns), RAW_MISSING, np.int64)
        self._errors = [0] * len(columns)
        self._due_ns: int | None = None

    def sweep(self, time_ns: int, out: type_i64) -> None:
        """Fill ``out`` ``[n_columns]``, in millidegrees."""
        if self._names and (self._due_ns is None or time_ns >= self._due_ns):
            self._due_ns = time_ns + round(PERIOD_S * 1e9)
            text, _ = _fresh(self._files)
            found = _inlets_or_none(text) if text else {}
            values = [found.get(name, math.nan) for name in self._names]
            self._last[:] = [RAW_MISSING if math.isnan(value) else round(value * 1000) for value in values]
            self._errors = [0 if text else errno.ETIME] * len(self._names)
        out[:] = self._last

    def errors(self) -> list[int]:
        """ETIME where there is no answer, or an old one."""
        return self._errors

    def close(self) -> None:
        """Nothing is open between two readings: who writes the file replaces it."""


INSTRUMENT: Final = Instrument("inlet", find, OpenAnswer)


def _column(name: str) -> Column:
    return Column(
        instrument="inlet", name=f"bmc/{name}", unit="C", kind="level", part="inlet",
        per_unit=1000.0, lowest=LOWEST_C, highest=HIGHEST_C,
    )  # fmt: skip


def _fresh(files: Files) -> tuple[str, str]:
    """The answer, and why there is none."""
    try:
        first, _, text = files.read(ANSWER).partition("\n")
        now_s = float(files.read(UPTIME).split()[0])
    except OSError as error:
        return "", f"{ANSWER}: {error.strerror}: let a timer put the answers of the BMC there (docs/hazard.md)"
    except (ValueError, IndexError):
        return "", f"{UPTIME}: no number"
    try:
        age_s = now_s - float(first.split()[0])
    except (ValueError, IndexError):
        return "", f"{ANSWER}: the first line is not that of {UPTIME} at the time of the request"
    if not -1.0 <= age_s <= OLDEST_S:
        return "", f"{ANSWER}: the answer is {age_s:.0f} s old, more than {OLDEST_S:.0f}: does its timer run?"
    return text, ""


def _inlets_or_none(text: str) -> dict[str, float]:
    try:
        return inlets(text)
    except ValueError:
        return {}


def _ipmi(text: str) -> Iterator[tuple[str, float]]:
    lines = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.strip()]
    if not any(len(cells) >= 3 for cells in lines):
        raise ValueError("neither JSON of Redfish nor a table of ipmitool")
    for cells in lines:
        if len(cells) >= 3 and _INLET.search(cells[0]):
            yield cells[0], _ipmi_degrees(cells)


def _ipmi_degrees(cells: list[str]) -> float:
    """``Inlet Temp | 04h | ok | 7.1 | 23 degrees C``, or ``Inlet Temp | 23.000 | degrees C | ok | ...``."""
    if cells[2] == "degrees C":
        match, is_sound = _DEGREES.fullmatch(cells[1]), len(cells) > 3 and cells[3] != "ns"
    else:
        match, is_sound = _DEGREES.fullmatch(cells[-1]), cells[2] != "ns" and cells[-1].endswith("degrees C")
    return _degrees(float(match[1])) if match and is_sound else math.nan


def _redfish(text: str) -> Iterator[tuple[str, float]]:
    import json  # few nodes have such a BMC

    try:
        given = json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    rows = [given.get(key) for key in ("Temperatures", "TemperatureReadingsCelsius")]
    if not any(isinstance(row, list) for row in rows):
        raise ValueError("no Temperatures, which Redfish's Thermal has, nor TemperatureReadingsCelsius")
    for row in (one for some in rows if isinstance(some, list) for one in some if isinstance(one, dict)):
        name = row.get("Name") or row.get("DeviceName")
        if row.get("PhysicalContext") == "Intake" and isinstance(name, str) and name.isprintable():
            yield name, _redfish_degrees(row)


def _redfish_degrees(row: dict[str, Any]) -> float:
    status = row.get("Status")
    state = status.get("State", "Enabled") if isinstance(status, dict) else "Enabled"
    value = row.get("ReadingCelsius", row.get("Reading"))
    if not isinstance(value, int | float) or isinstance(value, bool) or state != "Enabled":
        return math.nan
    return _degrees(value)


def _degrees(value: float) -> float:
    return float(value) if -MOST_C <= value <= MOST_C else math.nan

"""Thermal zones: /sys/class/thermal, where Intel's driver x86_pkg_temp shows the temperature of each package.

It reads the same register as coretemp. Its two trip points are thresholds for an event to user space; they are stored
and shown, and no event comes. Mode and policy likewise. AMD's processors have no zone of their own.
Source: Linux drivers/thermal/intel/x86_pkg_temp_thermal.c, Documentation/driver-api/thermal/sysfs-api.rst.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from twin.files.sysfs_hwmon import STEP_MC
from twin.files.sysfs_nodes import Nodes, refused, unsigned, word
from twin.machine import Sensor
from twin.physics.model import Twin

CLASS = "/sys/class/thermal"
DEVICES = "/sys/devices/virtual/thermal"

_TRIPS = 2
_CHIP = "coretemp"


class _Setting:
    """A stored word or number."""

    def __init__(self, text: str, check: Callable[[str], str]) -> None:
        self.text = text
        self._check = check

    def show(self) -> str:
        """The stored text."""
        return f"{self.text}\n"

    def store(self, text: str, effective: bool) -> None:
        """Replace it, if the check accepts it."""
        self.text = self._check(text)


def add(nodes: Nodes, twin: Twin) -> None:
    """Add a zone per package that coretemp shows."""
    for folder in (CLASS, DEVICES):
        nodes.directory(folder)
    sensors = [
        (index, sensor)
        for index, sensor in enumerate(twin.machine.sensors)
        if sensor.chip == _CHIP and sensor.of == "package"
    ]
    for number, (index, sensor) in enumerate(sensors):
        _add_zone(nodes, twin, f"{DEVICES}/thermal_zone{number}", index, sensor)
        nodes.link(f"{CLASS}/thermal_zone{number}", f"{DEVICES}/thermal_zone{number}")


def _add_zone(nodes: Nodes, twin: Twin, folder: str, index: int, sensor: Sensor) -> None:
    step_mc = STEP_MC[_CHIP]
    nodes.device(folder, CLASS)
    nodes.file(f"{folder}/type", "x86_pkg_temp\n")
    nodes.file(f"{folder}/temp", lambda: f"{twin.temperature_mc(index) // step_mc * step_mc}\n")
    nodes.file(f"{folder}/available_policies", "user_space step_wise \n")
    settings = {
        "mode": _Setting("enabled", _one_of(("enabled", "disabled"))),
        "policy": _Setting("step_wise", _one_of(("user_space", "step_wise"))),
    }
    settings |= {
        f"trip_point_{trip}_temp": _Setting("0", _below(round(sensor.critical_c * 1000))) for trip in range(_TRIPS)
    }
    for name, setting in settings.items():
        nodes.file(f"{folder}/{name}", setting.show, setting.store)
    for trip in range(_TRIPS):
        nodes.file(f"{folder}/trip_point_{trip}_type", "passive\n")


def _one_of(words: Sequence[str]) -> Callable[[str], str]:
    def check(text: str) -> str:
        if word(text) not in words:
            raise refused(errno.EINVAL)
        return word(text)

    return check


def _below(limit_mc: int) -> Callable[[str], str]:
    """sys_set_trip_temp(): thresholds are below the highest temperature of the junction."""

    def check(text: str) -> str:
        value_mc = unsigned(text, bits=31, base=10)
        if value_mc >= limit_mc:
            raise refused(errno.EINVAL)
        return f"{value_mc}"

    return check

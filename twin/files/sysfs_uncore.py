"""The limits of the uncore's clock, as the driver intel_uncore_frequency shows them per package and die.

On a machine with ``[uncore]`` the model's clock, watts and speed follow. On others the range is static: the present
clock stays at the upper limit's, without effect. A store counts in steps of 100 MHz, rounds down to one, and refuses 0
and more than 127 of them. Neither limit moves the other.
Source: Linux 6.x drivers/platform/x86/intel/uncore-frequency/{uncore-frequency,uncore-frequency-common}.c.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from twin.files.sysfs_nodes import Nodes, refused, unsigned
from twin.machine import Machine
from twin.physics.model import Twin

UNCORE = "/sys/devices/system/cpu/intel_uncore_frequency"

STEP_KHZ, MOST_STEPS = 100_000, 0x7F

RANGES_KHZ = {85: (1_200_000, 2_400_000), 140: (400_000, 3_600_000)}
"""By CPU model (Skylake SP, Tiger Lake), of those that the driver knows: Sandy Bridge has no such limits. Skylake SP:
2.4 GHz at most (Intel's specification of the Gold 61xx uncore); the rest: ours."""


def add(nodes: Nodes, twin: Twin) -> None:
    """Add one folder per package and die, on processors that the driver knows."""
    machine = twin.machine
    if machine.uncore is not None:
        low_khz, high_khz = machine.uncore.min_khz, machine.uncore.max_khz
    elif machine.vendor == "GenuineIntel" and machine.cpu_model in RANGES_KHZ:
        low_khz, high_khz = RANGES_KHZ[machine.cpu_model]
    else:
        return
    for package, die in _dies(machine):
        _add_folder(nodes, twin, package, f"{UNCORE}/package_{package:02d}_die_{die:02d}", low_khz, high_khz)


def _dies(machine: Machine) -> list[tuple[int, int]]:
    return sorted({(machine.package_of[cpu], machine.die_of[cpu]) for cpu in range(machine.cpus)})


class _Limit:
    """One of the two limits of a folder: what it shows, and what is in force (a fault may keep a store from that)."""

    def __init__(self, khz: int, changed: Callable[[], None]) -> None:
        self.khz = self.in_force_khz = khz
        self._changed = changed

    def show(self) -> str:
        """The limit as stored last."""
        return f"{self.khz}\n"

    def store(self, text: str, effective: bool) -> None:
        """Take a limit, rounded down to a step."""
        steps = unsigned(text, bits=32, base=10) // STEP_KHZ
        if not 0 < steps <= MOST_STEPS:
            raise refused(errno.EINVAL)
        self.khz = steps * STEP_KHZ
        if effective:
            self.in_force_khz = self.khz
            self._changed()


def _add_folder(nodes: Nodes, twin: Twin, package: int, folder: str, low_khz: int, high_khz: int) -> None:
    def changed() -> None:
        twin.set_uncore(package, low.in_force_khz, high.in_force_khz)

    def show_clock() -> str:
        static = max(low.in_force_khz, min(high.in_force_khz, high_khz))
        return f"{twin.uncore_khz(package) or static}\n"

    low, high = _Limit(low_khz, changed), _Limit(high_khz, changed)
    for which, limit in (("min", low), ("max", high)):
        nodes.file(f"{folder}/initial_{which}_freq_khz", limit.show())
        nodes.file(f"{folder}/{which}_freq_khz", limit.show, limit.store)
    nodes.file(f"{folder}/current_freq_khz", show_clock)

"""What hardware the kernel shows now, in a few cheap looks: enough to see that some has come since a layout was made.

A layout is found once. Drivers are loaded later than a service starts, CPUs are put on line, cards are plugged in or
reset. Whoever runs for long looks here every few seconds, and makes a new layout when there is more.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from pmu import topology
from pmu.cpulist import format_list
from pmu.instruments import pci_gpus
from pmu.instruments.cpufreq import CPUFREQ
from pmu.instruments.event_source import DEVICES as PMUS
from pmu.instruments.hwmon import HWMON
from pmu.instruments.pci_gpus import BusGpus
from pmu.instruments.rapl import POWERCAP
from pmu.ports import Files

_CPU: Final = "CPU"

SHOWN: Final = 4
"""Ours: names in a line."""

_FOLDERS: Final = {
    "RAPL zone": POWERCAP,
    "cpufreq": CPUFREQ,
    "hwmon chip": HWMON,
    "PMU": PMUS,
    "uncore": "/sys/devices/system/cpu/intel_uncore_frequency",
}
"""What the names in a folder are."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """``parts``: (kind, name) of all that is there; ``bus``: NVIDIA's GPUs on the PCI bus."""

    parts: frozenset[tuple[str, str]]
    bus: BusGpus


def take(files: Files, before: Inventory | None = None) -> Inventory:
    """What is there now. ``before``: an earlier one, which makes this one cheaper."""
    parts = {(_CPU, str(cpu)) for cpu in topology.online_cpus(files)}
    for kind, folder in _FOLDERS.items():
        parts.update((kind, name) for name in _names(files, folder))
    return Inventory(frozenset(parts), pci_gpus.look(files, before.bus if before else BusGpus()))


def in_words(parts: Collection[tuple[str, str]]) -> str:
    """What these parts are, for a line in the log: "CPU 4-7, cpufreq policy4"."""
    words = []
    for kind in dict.fromkeys(kind for kind, _ in sorted(parts)):
        names = sorted(name for one, name in parts if one == kind)
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN and kind != _CPU else ""
        words.append(f"{kind} {format_list(map(int, names)) if kind == _CPU else ', '.join(names[:SHOWN]) + more}")
    return ", ".join(words)


def _names(files: Files, folder: str) -> list[str]:
    try:
        return files.listdir(folder)
    except OSError:
        return []

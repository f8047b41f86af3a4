"""Maps the numbers in perf_event_attr (type and config) to counts of the model.

A program may request an event in three ways: by its generic number (PERF_TYPE_HARDWARE, PERF_TYPE_HW_CACHE), which the
kernel translates by processor; by the raw code; or by a PMU's name in /sys/bus/event_source, from whose ``events`` and
``format`` files it builds the raw code. For the second and third way the codes are parsed from the same files, so the
twin serves exactly the events that it lists.
Source: perf_event_open(2), Linux Documentation/ABI/testing/sysfs-bus-event_source-devices-{events,format}.
"""

from __future__ import annotations

from dataclasses import dataclass

from twin.files.sysfs_memory_events import memory_events
from twin.files.sysfs_tree import SysfsTree
from twin.machine import EVENTS, Machine

PERF_TYPE_HARDWARE, PERF_TYPE_SOFTWARE, PERF_TYPE_HW_CACHE = 0, 1, 3

_DEVICES = "/sys/bus/event_source/devices"

_GENERIC = {0: "cycles", 1: "instructions", 3: "llc-misses", 8: "stalls", 9: "reference-cycles"}
"""enum perf_hw_id; the model's last-level misses are what PERF_COUNT_HW_CACHE_MISSES counts on these machines."""

_LAST_LEVEL_READ_MISS = 2 | 0 << 8 | 1 << 16
"""PERF_COUNT_HW_CACHE_LL, OP_READ, RESULT_MISS. AMD's core PMU has none: that row of its table of cache events is empty
(arch/x86/events/amd/core.c), and the last level counts in a PMU of its own."""

DERIVED = {
    "branches": ("instructions", 0.1),
    "branch-misses": ("instructions", 0.001),
    "cache-references": ("llc-misses", 2.0),
    "frontend-stalls": ("cycles", 0.02),
}
"""Events that the model has no count of, as so many per count of another one (ours: typical of scientific codes)."""

_GENERIC_DERIVED = {2: "cache-references", 4: "branches", 5: "branch-misses", 7: "frontend-stalls"}
_LAST_LEVEL_READ = 2
"""PERF_COUNT_HW_CACHE_LL, OP_READ, RESULT_ACCESS."""

_DERIVED_NAMES = {
    "branch-instructions": "branches",
    "branch-misses": "branch-misses",
    "cache-references": "cache-references",
    "stalled-cycles-frontend": "frontend-stalls",
}
_CORE_NAMES = {
    "cpu-cycles": "cycles",
    "instructions": "instructions",
    "cache-misses": "llc-misses",
    "ref-cycles": "reference-cycles",
    "stalled-cycles-backend": "stalls",
}
_MSR_NAMES = {"aperf": "cycles", "mperf": "reference-cycles"}
_ENERGY_NAMES = {
    "energy-cores": "core",
    "energy-pkg": "package",
    "energy-ram": "dram",
    "energy-gpu": "uncore",
    "energy-psys": "psys",
}


@dataclass(frozen=True, slots=True)
class EnergyEvent:
    """One powercap zone as a counter (PMU ``power``): joules in units of 2^-32."""

    zone: int
    range_uj: int


class EventNames:
    """The events of one machine. ``columns`` numbers those that count CPUs, in the model's order."""

    def __init__(self, tree: SysfsTree, machine: Machine) -> None:
        self._machine = machine
        self.columns = {event: EVENTS.index(event) for event in machine.events}
        raw_names = {text.partition("/")[0]: event for event, text in machine.raw_events.items()}
        pmus = {"cpu": _CORE_NAMES | raw_names, "msr": _MSR_NAMES}
        self._counted = {
            key: names[name]
            for pmu, names in pmus.items()
            for key, name in _listed(tree, pmu).items()
            if names.get(name) in self.columns
        }
        self._energies = {
            key: _ENERGY_NAMES[name] for key, name in _listed(tree, "power").items() if name in _ENERGY_NAMES
        }
        self._scales: dict[tuple[int, int], float] = {}
        self._add_derived(tree)
        self._traffic = {
            (number, config): share
            for name, config, share in memory_events(machine)
            if (number := _number(tree, name, 0))
        }
        self._add_generic(_number(tree, "cpu"))

    def event(self, kind: int, config: int) -> str | None:
        """The model's event for a type and config, None if the machine has no such event."""
        return self._counted.get((kind, config))

    def scale(self, kind: int, config: int) -> float:
        """How many of this event there are for each of ``event``."""
        return self._scales.get((kind, config), 1.0)

    def traffic_share(self, kind: int, config: int) -> float:
        """The share of a package's memory traffic that the event of a memory channel counts; 0: it is another event."""
        return self._traffic.get((kind, config), 0.0)

    def energy(self, kind: int, config: int, cpu: int) -> EnergyEvent | None:
        """The zone that counts for ``cpu``, None if there is none."""
        wanted = self._energies.get((kind, config))
        package = self._machine.package_of[cpu] if cpu >= 0 else None
        for index, zone in enumerate(self._machine.zones):
            if zone.kind == wanted and not zone.mmio and zone.package in (package, -1):
                return EnergyEvent(index, zone.range_uj)
        return None

    def _add_generic(self, core_type: int) -> None:
        for number, event in _GENERIC.items():
            if event in self.columns and self._is_generic(event):
                self._counted[PERF_TYPE_HARDWARE, number] = event
                self._counted[PERF_TYPE_HARDWARE, core_type << 32 | number] = event  # PERF_PMU_TYPE_SHIFT
        has_misses = "llc-misses" in self.columns and self._is_generic("llc-misses")
        if has_misses and self._machine.vendor != "AuthenticAMD":
            self._counted[PERF_TYPE_HW_CACHE, _LAST_LEVEL_READ_MISS] = "llc-misses"
            self._derive((PERF_TYPE_HW_CACHE, _LAST_LEVEL_READ), "cache-references")

    def _add_derived(self, tree: SysfsTree) -> None:
        core = _number(tree, "cpu")
        listed = {_DERIVED_NAMES[name]: key for key, name in _listed(tree, "cpu").items() if name in _DERIVED_NAMES}
        for name, key in listed.items():
            self._derive(key, name)
        for number, name in _GENERIC_DERIVED.items():
            if name in listed:
                self._derive((PERF_TYPE_HARDWARE, number), name)
                self._derive((PERF_TYPE_HARDWARE, core << 32 | number), name)

    def _derive(self, key: tuple[int, int], name: str) -> None:
        self._counted[key], self._scales[key] = DERIVED[name]

    def _is_generic(self, event: str) -> bool:
        """Whether the kernel's event map of this processor has it, not just a raw code or another PMU."""
        if event == "reference-cycles" and self._machine.reference_source == "msr":
            return False
        return event not in self._machine.raw_events


def _listed(tree: SysfsTree, pmu: str) -> dict[tuple[int, int], str]:
    """The events that a PMU lists: (type, config) to name."""
    folder = f"{_DEVICES}/{pmu}"
    if tree.kind(f"{folder}/events") is None:
        return {}
    formats = {name: tree.read(f"{folder}/format/{name}").decode().strip() for name in tree.listdir(f"{folder}/format")}
    number = _number(tree, pmu)
    return {
        (number, encode(tree.read(f"{folder}/events/{name}").decode(), formats)): name
        for name in tree.listdir(f"{folder}/events")
        if "." not in name  # .unit and .scale are for printing an event
    }


def _number(tree: SysfsTree, pmu: str, absent: int | None = None) -> int:
    path = f"{_DEVICES}/{pmu}/type"
    return absent if absent is not None and tree.kind(path) is None else int(tree.read(path))


def encode(terms: str, formats: dict[str, str]) -> int:
    """The config of "event=0xb1,umask=0x01,inv": each term's bits go where its format file says, lowest first."""
    config = 0
    for term in terms.strip().split(","):
        name, equals, text = term.partition("=")
        value = int(text, 0) if equals else 1
        for span in formats[name].removeprefix("config:").split(","):
            low, _, high = span.partition("-")
            width = int(high or low) - int(low) + 1
            config |= (value & ((1 << width) - 1)) << int(low)
            value >>= width
    return config

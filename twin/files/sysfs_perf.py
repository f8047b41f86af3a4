"""PMUs as perf finds them: /sys/bus/event_source/devices/{cpu,msr,power,...}, links into /sys/devices.

``perf`` and our own ``pmu`` read here the type number of a PMU and the encoding of its events. Only events that the
machine counts are listed. Processors without a generic back-end stall event (Skylake and later, Zen 2 and later) may
list one under its vendor's name. If the core PMU cannot count reference cycles, ``mperf`` of the MSR PMU does, at TSC
rate while the CPU is not halted.
Source: Linux arch/x86/events/{core,intel/core,amd/core,msr,rapl}.c; include/uapi/linux/perf_event.h.
"""

from __future__ import annotations

from twin.files import sysfs_memory_events
from twin.files.sysfs_nodes import Nodes
from twin.machine import Machine
from twin.physics.model import Twin

DEVICES = "/sys/bus/event_source/devices"

PMU_TYPES = {"software": 1, "tracepoint": 2, "cpu": 4, "breakpoint": 5, "msr": 9, "power": 10}
"""perf_event_attr.type: below 6 fixed by perf_event.h, above assigned in the order of registration."""

_SHARED_FORMAT = {"umask": "config:8-15", "edge": "config:18", "inv": "config:23", "cmask": "config:24-31"}
_FORMATS = {
    "GenuineIntel": {"event": "config:0-7", **_SHARED_FORMAT, "pc": "config:19", "any": "config:21"},
    "AuthenticAMD": {"event": "config:0-7,32-35", **_SHARED_FORMAT},
}

_CORE_EVENTS = {
    "GenuineIntel": {
        "cycles": ("cpu-cycles", "event=0x3c"),
        "instructions": ("instructions", "event=0xc0"),
        "llc-misses": ("cache-misses", "event=0x2e,umask=0x41"),
        "reference-cycles": ("ref-cycles", "event=0x00,umask=0x03"),
        "stalls": ("stalled-cycles-backend", "event=0xb1,umask=0x01,inv,cmask=0x01"),  # as Sandy Bridge's map has it
    },
    "AuthenticAMD": {
        "cycles": ("cpu-cycles", "event=0x76"),
        "instructions": ("instructions", "event=0xc0"),
        "llc-misses": ("cache-misses", "event=0x64,umask=0x09"),
        "reference-cycles": ("ref-cycles", "event=0x120"),  # Zen 4 on
        "stalls": ("stalled-cycles-backend", "event=0x87,umask=0x01"),  # Zen 1
    },
}
"""Names and encodings of the generic events, from the event maps of intel/core.c and amd/core.c."""

_DERIVED_EVENTS = {
    "GenuineIntel": {
        "branch-instructions": ("instructions", "event=0xc4"),
        "branch-misses": ("instructions", "event=0xc5"),
        "cache-references": ("llc-misses", "event=0x2e,umask=0x4f"),
    },
    "AuthenticAMD": {
        "branch-instructions": ("instructions", "event=0xc2"),
        "branch-misses": ("instructions", "event=0xc3"),
        "cache-references": ("llc-misses", "event=0x60,umask=0xff"),
        "stalled-cycles-frontend": ("cycles", "event=0xa9"),
    },
}
"""Further generic events of every processor of the vendor that counts the named one."""

_SANDY_BRIDGE_EP = 45
_SANDY_BRIDGE_STALLS = {"stalled-cycles-frontend": ("cycles", "event=0x0e,umask=0x01,inv,cmask=0x01")}

_MSR_EVENTS = {"cycles": ("aperf", "event=0x01"), "reference-cycles": ("mperf", "event=0x02")}

_ENERGY_EVENTS = {
    "core": ("energy-cores", 1),
    "package": ("energy-pkg", 2),
    "dram": ("energy-ram", 3),
    "uncore": ("energy-gpu", 4),
    "psys": ("energy-psys", 5),
}
_ENERGY_SCALE = "2.3283064365386962890625e-10"  # rapl.c: 2^-32 J, independent of the hardware's unit


def add(nodes: Nodes, twin: Twin) -> tuple[str, ...]:
    """Add every PMU of the machine; returns their folders below /sys/devices."""
    machine = twin.machine
    folders = []
    for name, number in PMU_TYPES.items():
        folder = f"/sys/devices/{name}"
        nodes.device(folder, "/sys/bus/event_source")
        nodes.file(f"{folder}/type", f"{number}\n")
        nodes.link(f"{DEVICES}/{name}", folder)
        folders.append(folder)
    _add_core(nodes, machine)
    _add_events(nodes, "msr", _MSR_EVENTS, [event for event in _MSR_EVENTS if event in machine.events])
    _add_format(nodes, "msr", {"event": "config:0-63"})
    _add_energy(nodes, machine)
    return (*folders, *sysfs_memory_events.add(nodes, machine, max(PMU_TYPES.values()) + 1))


def _add_core(nodes: Nodes, machine: Machine) -> None:
    """The core PMU: the generic events of the processor, and the raw ones in the machine file."""
    generic = [event for event in machine.events if event not in machine.raw_events]
    if machine.reference_source == "msr":
        generic = [event for event in generic if event != "reference-cycles"]
    names = _CORE_EVENTS.get(machine.vendor, {})
    _add_events(nodes, "cpu", names, [event for event in generic if event in names])
    derived = _DERIVED_EVENTS.get(machine.vendor, {})
    if machine.vendor == "GenuineIntel" and machine.cpu_model == _SANDY_BRIDGE_EP:
        derived = derived | _SANDY_BRIDGE_STALLS
    for name, (event, terms) in derived.items():
        if event in generic:
            nodes.file(f"/sys/devices/cpu/events/{name}", f"{terms}\n")
    for name, terms in (text.split("/", 1) for text in machine.raw_events.values()):
        nodes.file(f"/sys/devices/cpu/events/{name}", f"{terms}\n")
    _add_format(nodes, "cpu", _FORMATS.get(machine.vendor, {}))
    nodes.file("/sys/devices/cpu/rdpmc", "0\n")  # counters can be read by system call only


def _add_energy(nodes: Nodes, machine: Machine) -> None:
    """RAPL as perf events: one CPU of each package counts for the package (cpumask)."""
    kinds = {zone.kind for zone in machine.zones if not zone.mmio}
    folder = "/sys/devices/power"
    for kind in sorted(kinds):
        name, number = _ENERGY_EVENTS[kind]
        nodes.file(f"{folder}/events/{name}", f"event=0x{number:02x}\n")
        nodes.file(f"{folder}/events/{name}.unit", "Joules\n")
        nodes.file(f"{folder}/events/{name}.scale", f"{_ENERGY_SCALE}\n")
    first = {package: cpu for cpu, package in reversed(list(enumerate(machine.package_of)))}
    nodes.file(f"{folder}/cpumask", ",".join(str(cpu) for cpu in sorted(first.values())) + "\n")
    _add_format(nodes, "power", {"event": "config:0-7"})


def _add_events(nodes: Nodes, pmu: str, names: dict[str, tuple[str, str]], events: list[str]) -> None:
    for event in events:
        name, terms = names[event]
        nodes.file(f"/sys/devices/{pmu}/events/{name}", f"{terms}\n")


def _add_format(nodes: Nodes, pmu: str, terms: dict[str, str]) -> None:
    for term, bits in terms.items():
        nodes.file(f"/sys/devices/{pmu}/format/{term}", f"{bits}\n")

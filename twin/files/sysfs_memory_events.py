"""Counters of the memory controllers: PMUs ``uncore_imc_N`` (Intel servers) and ``amd_df``.

Each counts lines of 64 bytes for its package, on the first CPU of the package (``cpumask``). The model has one traffic
of a package: it is spread evenly over the channels, two thirds of it reads (ours).
Source: Linux arch/x86/events/intel/uncore_snbep.c (events, formats), arch/x86/events/amd/uncore.c, and
tools/perf/pmu-events/arch/x86/{amdzen1,amdzen4}/ for the names and codes of AMD's channels.
"""

from __future__ import annotations

from collections.abc import Iterator

from twin.files.sysfs_nodes import Nodes
from twin.machine import Machine

READS = 2 / 3
"""Ours: two loads for each store."""

_DEVICES = "/sys/bus/event_source/devices"

_INTEL_CHANNELS = {45: 4, 85: 6, 143: 8}
"""By CPU model: Sandy Bridge EP, Skylake SP, Sapphire Rapids (Intel's specifications)."""

_CAS_READ, _CAS_WRITE = 0x0304, 0x0C04
_INTEL_FORMAT = {
    "event": "config:0-7",
    "umask": "config:8-15",
    "edge": "config:18",
    "inv": "config:23",
    "thresh": "config:24-31",
}
_MIB_PER_LINE = "6.103515625e-5"

_ZEN_2, _ZEN_4 = (23, 49), (25, 17)
_ZEN_2_CHANNELS = tuple(0x07 + 0x40 * channel for channel in range(8))
_ZEN_4_CHANNELS = tuple(0x1F + 0x40 * channel for channel in range(12))
_ZEN_2_ALL, _ZEN_4_READ, _ZEN_4_WRITE = 0x38, 0xFE, 0xFF
_AMD_FORMAT = {"event": "config:0-7,32-35,59-60", "umask": "config:8-15"}


def memory_events(machine: Machine) -> Iterator[tuple[str, int, float]]:
    """The PMU, config and share of its package's traffic of each event."""
    if machine.vendor == "GenuineIntel" and (channels := _INTEL_CHANNELS.get(machine.cpu_model)):
        for channel in range(channels):
            yield f"uncore_imc_{channel}", _CAS_READ, READS / channels
            yield f"uncore_imc_{channel}", _CAS_WRITE, (1 - READS) / channels
    if machine.vendor == "AuthenticAMD" and (machine.cpu_family, machine.cpu_model) == _ZEN_2:
        for event in _ZEN_2_CHANNELS:
            yield "amd_df", _config(event, _ZEN_2_ALL), 1 / len(_ZEN_2_CHANNELS)
    if machine.vendor == "AuthenticAMD" and (machine.cpu_family, machine.cpu_model) == _ZEN_4:
        for event in _ZEN_4_CHANNELS:
            yield "amd_df", _config(event, _ZEN_4_READ), READS / len(_ZEN_4_CHANNELS)
            yield "amd_df", _config(event, _ZEN_4_WRITE), (1 - READS) / len(_ZEN_4_CHANNELS)


def add(nodes: Nodes, machine: Machine, first_type: int) -> tuple[str, ...]:
    """Add the PMUs with types from ``first_type`` on; returns their folders below /sys/devices."""
    names = list(dict.fromkeys(name for name, _, _ in memory_events(machine)))
    first_cpu = {package: cpu for cpu, package in reversed(list(enumerate(machine.package_of)))}
    for number, name in enumerate(names, first_type):
        folder = f"/sys/devices/{name}"
        nodes.device(folder, "/sys/bus/event_source")
        nodes.link(f"{_DEVICES}/{name}", folder)
        nodes.file(f"{folder}/type", f"{number}\n")
        nodes.file(f"{folder}/cpumask", ",".join(str(cpu) for cpu in sorted(first_cpu.values())) + "\n")
        for term, bits in (_AMD_FORMAT if name == "amd_df" else _INTEL_FORMAT).items():
            nodes.file(f"{folder}/format/{term}", f"{bits}\n")
        if name != "amd_df":  # AMD's driver names no events; perf's own tables do
            _add_event(nodes, folder, "cas_count_read", "event=0x04,umask=0x03")
            _add_event(nodes, folder, "cas_count_write", "event=0x04,umask=0x0c")
    return tuple(f"/sys/devices/{name}" for name in names)


def _add_event(nodes: Nodes, folder: str, name: str, terms: str) -> None:
    nodes.file(f"{folder}/events/{name}", f"{terms}\n")
    nodes.file(f"{folder}/events/{name}.scale", f"{_MIB_PER_LINE}\n")
    nodes.file(f"{folder}/events/{name}.unit", "MiB\n")


def _config(event: int, umask: int) -> int:
    """A code above 255 has its high bits in bits 35:32."""
    return event & 0xFF | (event >> 8) << 32 | umask << 8

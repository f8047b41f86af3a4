"""NUMA nodes: /sys/devices/system/node, one node per package.

Sizes are those of the machine file. Nothing is allocated on the emulated node, so free memory is constant and the
allocation counters stay zero; /proc/meminfo is the host's, which has the memory that programs really get.
Source: Linux drivers/base/node.c, Documentation/admin-guide/numastat.rst.
"""

from __future__ import annotations

from collections.abc import Iterable

from twin.files.sysfs_cpu import CPU
from twin.files.sysfs_nodes import Nodes, mask, ranges
from twin.machine import Machine

NODE = "/sys/devices/system/node"
BUS = "/sys/bus/node"

PAGE_KB = 4
_NOT_MANAGED = 64 / 4096
"""The kernel's own share of memory: a struct page of 64 bytes for each page (include/linux/mm_types.h)."""

_USED = 1 / 64
"""Ours: what an idle system has in use."""

_NOTHING = (
    *("SwapCached", "Active", "Inactive", "Active(anon)", "Inactive(anon)", "Active(file)", "Inactive(file)"),
    *("Unevictable", "Mlocked", "Dirty", "Writeback", "FilePages", "Mapped", "AnonPages", "Shmem", "KernelStack"),
    *("PageTables", "Bounce", "WritebackTmp", "KReclaimable", "Slab", "SReclaimable", "SUnreclaim", "AnonHugePages"),
)
_COUNTERS = ("numa_hit", "numa_miss", "numa_foreign", "interleave_hit", "local_node", "other_node")


def add(nodes: Nodes, machine: Machine) -> None:
    """Add the list of nodes and a folder for each. Distances are those of two-socket boards (ACPI SLIT: 10 local, 21
    remote)."""
    members: dict[int, list[int]] = {}
    for cpu, package in enumerate(machine.package_of):
        members.setdefault(package, []).append(cpu)
    packages = sorted(members)
    nodes.device(NODE, BUS)
    for name in ("online", "possible", "has_cpu", "has_memory", "has_normal_memory"):
        nodes.file(f"{NODE}/{name}", ranges(packages) + "\n")
    nodes.directory(f"{BUS}/drivers")
    for package in packages:
        folder = f"{NODE}/node{package}"
        nodes.device(folder, BUS)
        nodes.link(f"{BUS}/devices/node{package}", folder)
        nodes.file(f"{folder}/cpulist", ranges(members[package]) + "\n")
        nodes.file(f"{folder}/cpumap", mask(members[package], machine.cpus) + "\n")
        nodes.file(f"{folder}/distance", _distances(package, packages))
        nodes.file(f"{folder}/numastat", "".join(f"{name} 0\n" for name in _COUNTERS))
        if machine.memory.gib:
            _add_memory(nodes, folder, package, machine.memory.gib)
        for cpu in members[package]:
            nodes.link(f"{folder}/cpu{cpu}", f"{CPU}/cpu{cpu}")
            nodes.link(f"{CPU}/cpu{cpu}/node{package}", folder)


def _add_memory(nodes: Nodes, folder: str, package: int, gib: int) -> None:
    total_kb, free_kb = _memory_kb(gib)
    rows = {"MemTotal": total_kb, "MemFree": free_kb, "MemUsed": total_kb - free_kb} | dict.fromkeys(_NOTHING, 0)
    text = "".join(f"Node {package} {name + ':':<15}{kb:>9} kB\n" for name, kb in rows.items())
    pages = (f"Node {package} HugePages_{name + ':':<6}{0:>6}\n" for name in ("Total", "Free", "Surp"))
    nodes.file(f"{folder}/meminfo", text + "".join(pages))
    nodes.file(f"{folder}/vmstat", f"nr_free_pages {free_kb // PAGE_KB}\n")


def _memory_kb(gib: int) -> tuple[int, int]:
    """MemTotal and MemFree of a node with so many GiB."""
    total_kb = int((gib << 20) * (1 - _NOT_MANAGED)) // PAGE_KB * PAGE_KB
    return total_kb, int(total_kb * (1 - _USED)) // PAGE_KB * PAGE_KB


def _distances(package: int, packages: Iterable[int]) -> str:
    return " ".join("10" if other == package else "21" for other in packages) + "\n"

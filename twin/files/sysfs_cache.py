"""CPU caches: /sys/devices/system/cpu/cpuN/cache/indexM, as lscpu, hwloc and the loader of a library read them.

Source: Linux drivers/base/cacheinfo.c, Documentation/ABI/testing/sysfs-devices-system-cpu.
"""

from __future__ import annotations

from twin.files.sysfs_cpu import CPU
from twin.files.sysfs_nodes import Nodes, mask, ranges
from twin.machine import Cache, Machine


def add(nodes: Nodes, machine: Machine) -> None:
    """Add the caches of every CPU, in the order of the machine file. Nothing if it has none."""
    for index, cache in enumerate(machine.memory.caches):
        members: dict[int, list[int]] = {}
        for cpu, core in enumerate(machine.core_of):
            members.setdefault(core // cache.cores, []).append(cpu)
        for number, cpus in members.items():
            _add_one(nodes, index, cache, number, cpus, machine.cpus)


def _add_one(nodes: Nodes, index: int, cache: Cache, number: int, cpus: list[int], size: int) -> None:
    """One cache, in the folder of each CPU that shares it. ``number`` is unique among those of its level and type."""
    files = {
        "id": f"{number}",
        "level": f"{cache.level}",
        "type": cache.type,
        "size": f"{cache.kib}K",
        "coherency_line_size": f"{Cache.LINE_BYTES}",
        "physical_line_partition": "1",
        "ways_of_associativity": f"{cache.ways}",
        "number_of_sets": f"{cache.sets}",
        "shared_cpu_map": mask(cpus, size),
        "shared_cpu_list": ranges(cpus),
    }
    for cpu in cpus:
        for name, text in files.items():
            nodes.file(f"{CPU}/cpu{cpu}/cache/index{index}/{name}", f"{text}\n")

"""The two halves of a node's cores, for two jobs on one node: half the cores of every die, with all threads of each.

So both jobs reach all of the node's memory. A die is here the cores that share a level-3 cache, since that is what has
a link of its own to memory (AMD's CCD or CCX); without such a cache, the die or package that the kernel names. Where a
die has an odd number of cores, the halves take turns with its last one.
Source: Linux Documentation/ABI/testing/sysfs-devices-system-cpu.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Final, TypeAlias

from pmu.findings import read_or_none
from pmu.ports import Files
from pmu.topology import CPU, find

Halves: TypeAlias = tuple[frozenset[int], frozenset[int]]
"""Logical CPU numbers."""

MOST_CACHES: Final = 8
"""Ours: no CPU has more levels and types of caches."""


def core_halves(files: Files, usable: Collection[int] | None = None) -> Halves | None:
    """Of all online CPUs, or of those that are ``usable``; None where there are fewer than two whole cores."""
    topology = find(files)
    cores = defaultdict[int, list[int]](list)
    for cpu, core in zip(topology.cpus, topology.core_of, strict=True):
        cores[core].append(cpu)
    dies = defaultdict[str, list[list[int]]](list)
    package_of = dict(zip(topology.cpus, topology.package_of, strict=True))
    for cpus in cores.values():
        if usable is None or set(cpus) <= set(usable):
            dies[_die(files, cpus[0], package_of[cpus[0]])].append(cpus)
    found, odd = (set[int](), set[int]()), 0
    for of_die in dies.values():
        first = (len(of_die) + odd) // 2
        odd ^= len(of_die) % 2
        for place, cpus in enumerate(of_die):
            found[place >= first].update(cpus)
    return (frozenset(found[0]), frozenset(found[1])) if found[0] and found[1] else None


def _die(files: Files, cpu: int, package: int) -> str:
    for index in range(MOST_CACHES):
        folder = f"{CPU}/cpu{cpu}/cache/index{index}"
        is_third = read_or_none(files, f"{folder}/level") == "3"
        if is_third and (shared := read_or_none(files, f"{folder}/shared_cpu_list")):
            return shared
    die = read_or_none(files, f"{CPU}/cpu{cpu}/topology/die_id")
    return f"package {package} die {die or ''}"

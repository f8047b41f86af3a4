"""Which logical CPUs there are, and which share a core or a package.

The list is the kernel's (``/sys/devices/system/cpu/online``): the CPUs that this process may run on are not those of
the node. CPU numbers may have gaps; arrays use the position in the list.
Source: Documentation/admin-guide/cputopology.rst.
"""

from __future__ import annotations

from dataclasses import dataclass

from pmu.cpulist import parse_list
from pmu.findings import read_number, read_or_none
from pmu.ports import Files

CPU = "/sys/devices/system/cpu"


@dataclass(frozen=True, slots=True)
class Topology:
    """Logical CPU numbers; per CPU its physical core (0.., unique over the node) and its package."""

    cpus: tuple[int, ...]
    core_of: tuple[int, ...]
    package_of: tuple[int, ...]


def find(files: Files) -> Topology:
    """The online CPUs; none where the kernel lists none."""
    cpus = online_cpus(files)
    cores: dict[int, int] = {}
    core_of, package_of = [], []
    for cpu in cpus:
        folder = f"{CPU}/cpu{cpu}/topology"
        siblings = read_or_none(files, f"{folder}/core_cpus_list") or read_or_none(
            files,
            f"{folder}/thread_siblings_list",  # the name before Linux 5.3
        )
        first = min(_numbers(siblings or ""), default=cpu)
        core_of.append(cores.setdefault(first, len(cores)))
        package = read_number(files, f"{folder}/physical_package_id")
        package_of.append(max(package or 0, 0))  # -1: the firmware does not report it (some Arm and virtual machines)
    return Topology(cpus, tuple(core_of), tuple(package_of))


def online_cpus(files: Files) -> tuple[int, ...]:
    """CPU numbers in use, ascending."""
    for name in ("online", "present"):
        text = read_or_none(files, f"{CPU}/{name}")
        if text and (cpus := _numbers(text)):
            return cpus
    return ()


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return parse_list(text)
    except ValueError:
        return ()

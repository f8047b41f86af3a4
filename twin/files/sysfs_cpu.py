"""/sys/devices/system/cpu and node: logical CPUs, their topology and idle times.

In the emulated node CPUs cannot be taken offline, SMT cannot be switched and idle states cannot be disabled. The first
two fail with EBUSY, as in a kernel with hotplug disabled; the last is read-only (ours).
Source: Linux Documentation/ABI/testing/sysfs-devices-system-cpu, Documentation/admin-guide/cputopology.rst,
Documentation/admin-guide/pm/cpuidle.rst, drivers/base/{cpu,topology,node}.c.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from twin.files.sysfs_nodes import Nodes, boolean, mask, ranges, refused, word
from twin.machine import Machine
from twin.physics.model import Twin

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"

TICK_US = 4000
"""Ours: one entry into the idle state per timer tick at HZ=250, since the model knows how long a CPU idles, not how
often."""


@dataclass(frozen=True, slots=True)
class IdleState:
    """An idle state: name, description, exit latency and target residency in us."""

    name: str
    description: str
    latency_us: int
    residency_us: int


IDLE_STATES = {
    "GenuineIntel": (
        IdleState("POLL", "CPUIDLE CORE POLL IDLE", 0, 0),
        IdleState("C1", "MWAIT 0x00", 2, 2),
        IdleState("C6", "MWAIT 0x20", 133, 600),
    ),
    "AuthenticAMD": (
        IdleState("POLL", "CPUIDLE CORE POLL IDLE", 0, 0),
        IdleState("C1", "ACPI FFH MWAIT 0x0", 1, 2),
        IdleState("C2", "ACPI IOPORT 0x414", 400, 800),
    ),
}
"""Idle states of server kernels: drivers/idle/intel_idle.c skx_cstates; ACPI _CST tables of EPYC boards."""

IDLE_DRIVERS = {"GenuineIntel": "intel_idle", "AuthenticAMD": "acpi_idle"}


def add(nodes: Nodes, twin: Twin) -> None:
    """Add the CPU list, a folder per logical CPU, SMT state, idle times and NUMA nodes."""
    machine = twin.machine
    cpus = range(machine.cpus)
    everyone = ranges(cpus) + "\n"
    nodes.device(CPU, "/sys/bus/cpu")
    for name in ("possible", "present", "online"):
        nodes.file(f"{CPU}/{name}", everyone)
    for name in ("offline", "isolated", "nohz_full"):
        nodes.file(f"{CPU}/{name}", "\n")
    nodes.file(f"{CPU}/kernel_max", "8191\n")  # CONFIG_NR_CPUS - 1 of distribution kernels
    has_smt = machine.threads_per_core > 1
    nodes.file(f"{CPU}/smt/active", f"{has_smt:d}\n")
    nodes.file(f"{CPU}/smt/control", "on\n" if has_smt else "notsupported\n", _store_smt, mode=0o644)
    topology = _Topology(machine)
    for cpu in cpus:
        folder = f"{CPU}/cpu{cpu}"
        nodes.device(folder, "/sys/bus/cpu", f"DRIVER=processor\nMODALIAS=cpu:type:x86,cpu{cpu}\n")
        if cpu > 0:  # the boot CPU cannot be taken offline on x86, so it has no switch
            nodes.file(f"{folder}/online", "1\n", _store_online, mode=0o644)
        _add_topology(nodes, f"{folder}/topology", topology, cpu)
    _add_idle(nodes, twin)
    _add_numa(nodes, machine, topology)


class _Topology:
    """Which CPUs share a core and a package."""

    def __init__(self, machine: Machine) -> None:
        self.size = machine.cpus
        self.core, self.core_id = machine.core_of, machine.core_id
        self.package, self.die = machine.package_of, machine.die_of
        self.threads: dict[int, list[int]] = {}
        self.members: dict[int, list[int]] = {}
        for cpu in range(self.size):
            self.threads.setdefault(self.core[cpu], []).append(cpu)
            self.members.setdefault(self.package[cpu], []).append(cpu)


def _add_topology(nodes: Nodes, folder: str, topology: _Topology, cpu: int) -> None:
    """Topology of one CPU. The older names (thread_siblings, core_siblings) exist in addition to the newer ones."""
    threads = topology.threads[topology.core[cpu]]
    package = topology.members[topology.package[cpu]]
    nodes.file(f"{folder}/physical_package_id", f"{topology.package[cpu]}\n")
    nodes.file(f"{folder}/die_id", f"{topology.die[cpu]}\n")
    nodes.file(f"{folder}/core_id", f"{topology.core_id[cpu]}\n")
    for names, members in (
        (("thread_siblings", "core_cpus"), threads),
        (("core_siblings", "package_cpus", "die_cpus"), package),
    ):
        as_mask, as_list = mask(members, topology.size) + "\n", ranges(members) + "\n"
        for name in names:
            nodes.file(f"{folder}/{name}", as_mask)
            nodes.file(f"{folder}/{name}_list", as_list)


def _add_idle(nodes: Nodes, twin: Twin) -> None:
    """Idle states. All idle time counts for the deepest one, where CPUs of an HPC node spend nearly all of it
    (ours)."""
    vendor = twin.machine.vendor
    if vendor not in IDLE_STATES:
        return
    nodes.file(f"{CPU}/cpuidle/current_driver", f"{IDLE_DRIVERS[vendor]}\n")
    nodes.file(f"{CPU}/cpuidle/current_governor", "menu\n")
    nodes.file(f"{CPU}/cpuidle/current_governor_ro", "menu\n")
    nodes.file(f"{CPU}/cpuidle/available_governors", "menu \n")
    states = IDLE_STATES[vendor]
    for cpu in range(twin.machine.cpus):
        for number, state in enumerate(states):
            folder = f"{CPU}/cpu{cpu}/cpuidle/state{number}"
            nodes.file(f"{folder}/name", f"{state.name}\n")
            nodes.file(f"{folder}/desc", f"{state.description}\n")
            nodes.file(f"{folder}/latency", f"{state.latency_us}\n")
            nodes.file(f"{folder}/residency", f"{state.residency_us}\n")
            nodes.file(f"{folder}/disable", "0\n")
            deepest = number == len(states) - 1
            nodes.file(f"{folder}/time", _idle_us(twin, cpu, 1) if deepest else "0\n")
            nodes.file(f"{folder}/usage", _idle_us(twin, cpu, TICK_US) if deepest else "0\n")


def _idle_us(twin: Twin, cpu: int, unit_us: int) -> Callable[[], str]:
    return lambda: f"{twin.idle_us(cpu) // unit_us}\n"


def _add_numa(nodes: Nodes, machine: Machine, topology: _Topology) -> None:
    """One NUMA node per package, with the distances of two-socket boards (ACPI SLIT: 10 local, 21 remote)."""
    packages = sorted(topology.members)
    for name in ("online", "possible", "has_cpu", "has_memory", "has_normal_memory"):
        nodes.file(f"{NODE}/{name}", ranges(packages) + "\n")
    for package in packages:
        folder = f"{NODE}/node{package}"
        members = topology.members[package]
        nodes.device(folder, "/sys/bus/node")
        nodes.file(f"{folder}/cpulist", ranges(members) + "\n")
        nodes.file(f"{folder}/cpumap", mask(members, machine.cpus) + "\n")
        nodes.file(f"{folder}/distance", _distances(package, packages))
        for cpu in members:
            nodes.link(f"{folder}/cpu{cpu}", f"{CPU}/cpu{cpu}")
            nodes.link(f"{CPU}/cpu{cpu}/node{package}", folder)


def _distances(package: int, packages: Iterable[int]) -> str:
    return " ".join("10" if other == package else "21" for other in packages) + "\n"


def _store_online(text: str, effective: bool) -> None:
    if not boolean(text):
        raise refused(errno.EBUSY)


def _store_smt(text: str, effective: bool) -> None:
    if word(text) not in ("on", "off", "forceoff"):
        raise refused(errno.EINVAL)
    raise refused(errno.EBUSY)

"""/sys/devices/system/cpu: logical CPUs, their topology and energy preference.

In the emulated node CPUs cannot be taken offline and SMT cannot be switched: both fail with EBUSY, as in a kernel with
hotplug disabled. The energy-performance bias of Intel processors is stored and shown; the model does not follow it.
Source: Linux Documentation/ABI/testing/sysfs-devices-system-cpu, Documentation/admin-guide/cputopology.rst,
drivers/base/{cpu,topology}.c, arch/x86/kernel/cpu/intel_epb.c.
"""

from __future__ import annotations

import errno

from twin.files.sysfs_nodes import Nodes, boolean, mask, ranges, refused, unsigned, word
from twin.machine import Machine

CPU = "/sys/devices/system/cpu"
BUS = "/sys/bus/cpu"

BIASES = {"performance": 0, "balance-performance": 4, "normal": 6, "balance-power": 8, "power": 15}
"""Names of values of the energy-performance bias (intel_epb.c); the highest is 15."""


def add(nodes: Nodes, machine: Machine) -> None:
    """Add the CPU list, a folder per logical CPU, SMT state and the bus of all CPUs."""
    cpus = range(machine.cpus)
    everyone = ranges(cpus) + "\n"
    nodes.device(CPU, BUS)
    nodes.directory(f"{BUS}/drivers/processor")
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
        nodes.link(f"{BUS}/devices/cpu{cpu}", folder)
        nodes.link(f"{folder}/driver", f"{BUS}/drivers/processor")
        nodes.link(f"{BUS}/drivers/processor/cpu{cpu}", folder)
        nodes.device(folder, BUS, f"DRIVER=processor\nMODALIAS=cpu:type:x86,cpu{cpu}\n")
        if cpu > 0:  # the boot CPU cannot be taken offline on x86, so it has no switch
            nodes.file(f"{folder}/online", "1\n", _store_online, mode=0o644)
        _add_topology(nodes, f"{folder}/topology", topology, cpu)
        if machine.vendor == "GenuineIntel":
            bias = _Bias()
            nodes.file(f"{folder}/power/energy_perf_bias", bias.show, bias.store)


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
    nodes.file(f"{folder}/cluster_id", "65535\n")  # x86 has no number for it (BAD_APICID)
    nodes.file(f"{folder}/core_id", f"{topology.core_id[cpu]}\n")
    for names, members in (
        (("thread_siblings", "core_cpus", "cluster_cpus"), threads),
        (("core_siblings", "package_cpus", "die_cpus"), package),
    ):
        as_mask, as_list = mask(members, topology.size) + "\n", ranges(members) + "\n"
        for name in names:
            nodes.file(f"{folder}/{name}", as_mask)
            nodes.file(f"{folder}/{name}_list", as_list)


class _Bias:
    """The energy-performance bias of one CPU."""

    def __init__(self) -> None:
        self._value = BIASES["normal"]

    def show(self) -> str:
        """The number, also if a name was written."""
        return f"{self._value}\n"

    def store(self, text: str, effective: bool) -> None:
        """Take a name or a number; EINVAL for another or above 15."""
        name = text.removesuffix("\n")
        value = BIASES[name] if name in BIASES else unsigned(text)
        if value > BIASES["power"]:
            raise refused(errno.EINVAL)
        self._value = value


def _store_online(text: str, effective: bool) -> None:
    if not boolean(text):
        raise refused(errno.EBUSY)


def _store_smt(text: str, effective: bool) -> None:
    if word(text) not in ("on", "off", "forceoff"):
        raise refused(errno.EINVAL)
    raise refused(errno.EBUSY)

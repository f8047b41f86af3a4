"""Model-specific registers of the emulated machine, as the instructions RDMSR and WRMSR find them.

What the machine lacks faults (EIO from the kernel's msr driver). So does a write to a register that cannot be written,
or that we do not emulate a write of.
"""

from __future__ import annotations

from twin.files.sysfs_tree import SysfsTree
from twin.msr import amd_registers, energy_registers, intel_registers
from twin.msr.bits import WIDE, Register, constant, faulted

_TSC, _MPERF, _APERF = 0x10, 0xE7, 0xE8
_AMD_READ_ONLY = 0xC0000000
"""AMD's copies of MPERF and APERF that nothing can reset (MSRC000_00E7, _00E8)."""

_MICROCODE = 0x8B
_REVISIONS = {
    ("GenuineIntel", 45): 0x71A,
    ("GenuineIntel", 85): 0x2006E05,
    ("GenuineIntel", 140): 0xA4,
    ("GenuineIntel", 143): 0x2B0001B0,
    ("AuthenticAMD", 49): 0x830107A,
    ("AuthenticAMD", 17): 0xA10113E,
}
"""Microcode by vendor and model: ours, a revision that each has had. sysfs, if it shows one, comes first."""

_VERSION = "/sys/devices/system/cpu/cpu0/microcode/version"


class Registers:
    """All registers of the machine of a tree; none on machines that are no x86."""

    def __init__(self, tree: SysfsTree) -> None:
        self._registers = _of_vendor(tree)

    def __bool__(self) -> bool:
        return bool(self._registers)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The registers that exist."""
        return tuple(sorted(self._registers))

    def read(self, cpu: int, number: int) -> int:
        """The value on this logical CPU; OSError EIO if the register does not exist."""
        register = self._registers.get(number)
        if register is None:
            raise faulted()
        try:
            return register.read(cpu) & WIDE
        except OSError:
            raise faulted() from None

    def write(self, cpu: int, number: int, value: int) -> None:
        """Write it; OSError EIO if it cannot be written."""
        register = self._registers.get(number)
        if register is None or register.write is None:
            raise faulted()
        try:
            register.write(cpu, value)
        except OSError:
            raise faulted() from None


def _of_vendor(tree: SysfsTree) -> dict[int, Register]:
    match tree.twin.machine.vendor:
        case "GenuineIntel":
            return _counters(tree) | energy_registers.intel(tree) | intel_registers.registers(tree)
        case "AuthenticAMD":
            counters = _counters(tree)
            copies = {number | _AMD_READ_ONLY: counters[number] for number in (_MPERF, _APERF)}
            return counters | copies | energy_registers.amd(tree) | amd_registers.registers(tree)
    return {}


def _counters(tree: SysfsTree) -> dict[int, Register]:
    twin = tree.twin
    machine = twin.machine
    revision = _REVISIONS.get((machine.vendor, machine.cpu_model), 0)
    if tree.kind(_VERSION) == "file":
        revision = int(tree.read(_VERSION), 16)

    def count(event: str) -> Register:
        return Register(lambda cpu: int(twin.counters([event])[cpu, 0]))

    return {
        _TSC: Register(lambda cpu: twin.time_ns * machine.tsc_khz // 1_000_000),
        _MICROCODE: constant(revision << 32 if machine.vendor == "GenuineIntel" else revision),
        _MPERF: count("reference-cycles"),
        _APERF: count("cycles"),
    }

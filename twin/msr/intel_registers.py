"""Registers of Intel processors: clocks, HWP, temperatures, uncore, idle states.

Source: Intel SDM vol. 4, tables 2-2 (architectural), 2-20 (Sandy Bridge), 2-50 (Skylake SP), 2-46 (Tiger Lake).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twin.files.sysfs_tree import SysfsTree
from twin.machine import Machine
from twin.msr.bits import Register, constant, field, placed
from twin.msr.clock_registers import RATIO_KHZ, Clocks

SKYLAKE_SP, TIGER_LAKE, SAPPHIRE_RAPIDS = 85, 140, 143
_WITH_HWP = (SKYLAKE_SP, TIGER_LAKE, SAPPHIRE_RAPIDS)

_SPEED_STEP, _TURBO_OFF = 1 << 16, 1 << 38
_PROGRAMMABLE_RATIOS, _PROGRAMMABLE_TDP = 1 << 28, 1 << 29
_READOUT_IS_VALID = 1 << 31
_CPU = "/sys/devices/system/cpu"

_ZEROS = (
    0x034,  # SMI_COUNT: no system management interrupt
    0x19A,  # IA32_CLOCK_MODULATION: off
    0x19B,  # IA32_THERM_INTERRUPT
    0x1A4,  # MISC_FEATURE_CONTROL: all prefetchers are on
    0x1AA,  # MISC_PWR_MGMT
    0x1B2,  # IA32_PACKAGE_THERM_INTERRUPT
    *(0x3F8, 0x3F9, 0x3FA, 0x60D),  # residencies of packages: the model knows none
    *(0x60A, 0x60B, 0x60C),  # response times of package states: not set
    *(0x3FC, 0x3FE),  # residencies of cores in C3 and C7
)
_ZEROS_OF_HWP = (0x773, 0x777)  # HWP_INTERRUPT, HWP_STATUS
_ZEROS_SINCE_IVY_BRIDGE = (0x649, 0x64A, 0x64B)  # CONFIG_TDP levels and control


def registers(tree: SysfsTree) -> dict[int, Register]:
    """By number, without energies."""
    machine, clocks = tree.twin.machine, Clocks(tree)
    found = {number: constant(0) for number in _ZEROS}
    found |= _clocks(clocks, machine) | _temperatures(tree, machine) | _idle(tree, machine)
    found[0x1B0] = _bias(tree)
    if machine.cpu_model in _WITH_HWP:
        found |= {number: constant(0) for number in (*_ZEROS_OF_HWP, *_ZEROS_SINCE_IVY_BRIDGE)}
        found[0x648] = constant(clocks.base_khz() // RATIO_KHZ)  # CONFIG_TDP_NOMINAL
        found |= _hardware_p_states(clocks, machine)
    uncore = f"{_CPU}/intel_uncore_frequency"
    if tree.kind(uncore) == "dir":
        found |= _uncore(tree, uncore, machine)
    return found


def _clocks(clocks: Clocks, machine: Machine) -> dict[int, Register]:
    base, low, top = (khz // RATIO_KHZ for khz in (clocks.base_khz(), machine.min_khz, clocks.top_khz()))
    platform = base << 8 | low << 40 | _PROGRAMMABLE_RATIOS | _PROGRAMMABLE_TDP
    threads = machine.cores_per_socket * machine.threads_per_core
    found = {
        0x035: constant(threads | machine.cores_per_socket << 16),  # CORE_THREAD_COUNT
        0x0CE: constant(platform),
        0x198: Register(lambda cpu: _status(clocks, clocks.khz(cpu))),
        0x199: Register(lambda cpu: clocks.requested_khz(cpu) // RATIO_KHZ << 8, _speed_store(clocks, machine)),
        0x1A0: Register(
            lambda cpu: 1 | _SPEED_STEP | (_TURBO_OFF if clocks.is_boost_off() else 0),
            lambda cpu, value: clocks.switch_boost(bool(value & _TURBO_OFF)),
        ),
        0x1AD: constant(_packed(_ratios(machine, top))),  # TURBO_RATIO_LIMIT
        0x1FC: constant(1 << 1),  # POWER_CTL: C1E
    }
    if machine.cpu_model in (SKYLAKE_SP, SAPPHIRE_RAPIDS):  # up to how many active cores each ratio is for
        found[0x1AE] = constant(_packed(_groups(machine)))
    return found


def _ratios(machine: Machine, top: int) -> list[int]:
    """The highest ratios of eight groups of active cores, without wide vectors, of which no register speaks."""
    if machine.turbo is None:
        return [top] * 8
    return _eight([mhz * 1000 // RATIO_KHZ for mhz in machine.turbo.scalar])


def _groups(machine: Machine) -> list[int]:
    if machine.turbo is None:
        return [-(-machine.cores_per_socket * (group + 1) // 8) for group in range(8)]
    return _eight(machine.turbo.cores)


def _eight(values: Sequence[int]) -> list[int]:
    """As a register of eight bytes has them: the first, then the last of those there are."""
    return [values[min(group, len(values) - 1)] for group in range(8)]


def _packed(values: Sequence[int]) -> int:
    return sum(value << 8 * at for at, value in enumerate(values))


def _status(clocks: Clocks, khz: int) -> int:
    return khz // RATIO_KHZ << 8 | placed(round(clocks.volts(khz) * 8192), 32, 47)


def _speed_store(clocks: Clocks, machine: Machine) -> Callable[[int, int], None]:
    def store(cpu: int, value: int) -> None:
        if machine.cpu_model not in _WITH_HWP:  # hardware that chooses its clock itself ignores this register
            clocks.request_speed(cpu, field(value, 8, 15) * RATIO_KHZ)

    return store


def _hardware_p_states(clocks: Clocks, machine: Machine) -> dict[int, Register]:
    base, low, top = (khz // RATIO_KHZ for khz in (clocks.base_khz(), machine.min_khz, clocks.top_khz()))

    def read(cpu: int) -> int:
        low_khz, high_khz = clocks.requested_range_khz(cpu)
        return low_khz // RATIO_KHZ | high_khz // RATIO_KHZ << 8 | clocks.preference(cpu) << 24

    def write(cpu: int, value: int) -> None:
        lowest, highest, desired = (field(value, at, at + 7) * RATIO_KHZ for at in (0, 8, 16))
        clocks.store_preference(cpu, field(value, 24, 31))
        clocks.request_range(cpu, desired or lowest, desired or highest)

    return {
        0x770: constant(1),  # PM_ENABLE
        0x771: constant(top | base << 8 | low << 16 | low << 24),
        0x774: Register(read, write),
    }


def _bias(tree: SysfsTree) -> Register:
    """IA32_ENERGY_PERF_BIAS. The model's power does not follow it."""
    stored: dict[int, int] = {}

    def path(cpu: int) -> str:
        return f"{_CPU}/cpu{cpu}/power/energy_perf_bias"

    def read(cpu: int) -> int:
        if tree.kind(path(cpu)) == "file":
            return int(tree.read(path(cpu)))
        return stored.get(tree.twin.machine.core_of[cpu], 6)  # 6: "normal", what the kernel sets at boot

    def write(cpu: int, value: int) -> None:
        if tree.kind(path(cpu)) == "file":
            tree.write(path(cpu), b"%d" % field(value, 0, 3))
        stored[tree.twin.machine.core_of[cpu]] = field(value, 0, 3)

    return Register(read, write)


def _temperatures(tree: SysfsTree, machine: Machine) -> dict[int, Register]:
    """Readouts in whole degrees below the limit that TEMPERATURE_TARGET names, as coretemp reads them."""
    of_core = {s.index: n for n, s in enumerate(machine.sensors) if s.chip == "coretemp" and s.of == "core"}
    of_package = {s.index: n for n, s in enumerate(machine.sensors) if s.chip == "coretemp" and s.of == "package"}
    if not of_package:
        return {}
    limit_c = round(machine.sensors[of_package[0]].critical_c)

    def readout(sensor: int) -> int:
        below_c = limit_c - tree.twin.temperature_mc(sensor) // 1000
        return _READOUT_IS_VALID | placed(below_c, 16, 22) | (below_c <= 0)

    def core(cpu: int) -> int:
        return readout(of_core.get(machine.core_of[cpu], of_package[machine.package_of[cpu]]))

    return {
        0x1A2: constant(limit_c << 16),
        0x19C: Register(core),
        0x1B1: Register(lambda cpu: readout(of_package[machine.package_of[cpu]])),
    }


def _idle(tree: SysfsTree, machine: Machine) -> dict[int, Register]:
    """Residency in C6, in ticks of the time-stamp counter: while all threads of the core are idle, or as the model of
    idle states has it."""
    threads: dict[int, list[int]] = {}
    for cpu, core in enumerate(machine.core_of):
        threads.setdefault(core, []).append(cpu)

    def read(cpu: int) -> int:
        if machine.idle:
            return tree.twin.idle_states_us(machine.core_of[cpu])[-1] * machine.tsc_khz // 1000
        idle_us = tree.twin.busy_idle_us()[1]
        return int(min(idle_us[each] for each in threads[machine.core_of[cpu]])) * machine.tsc_khz // 1000

    return {0x0E2: constant(1 << 15 | 2), 0x3FD: Register(read)}  # PKG_CST_CONFIG_CONTROL: locked, limit C6


def _uncore(tree: SysfsTree, folder: str, machine: Machine) -> dict[int, Register]:
    """UNCORE_RATIO_LIMIT and UNCORE_PERF_STATUS: the files of intel_uncore_frequency."""

    def ratio(cpu: int, name: str) -> int:
        die = f"{folder}/package_{machine.package_of[cpu]:02d}_die_{machine.die_of[cpu]:02d}"
        return int(tree.read(f"{die}/{name}")) // RATIO_KHZ

    def read(cpu: int) -> int:
        return ratio(cpu, "max_freq_khz") | ratio(cpu, "min_freq_khz") << 8

    def write(cpu: int, value: int) -> None:
        die = f"{folder}/package_{machine.package_of[cpu]:02d}_die_{machine.die_of[cpu]:02d}"
        for name, low in (("max_freq_khz", 0), ("min_freq_khz", 8)):
            if steps := field(value, low, low + 6):
                tree.write(f"{die}/{name}", b"%d" % (steps * RATIO_KHZ))

    return {0x620: Register(read, write), 0x621: Register(lambda cpu: ratio(cpu, "current_freq_khz"))}

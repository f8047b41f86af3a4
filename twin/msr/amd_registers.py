"""Registers of AMD processors of family 17h and 19h: P-states, boost, CPPC.

Source: AMD PPR of family 17h model 31h and of family 19h model 11h (MSRC001_0015, _0061 to _006B, _0293, _02B0 to
_02B3); Linux arch/x86/include/asm/msr-index.h.
"""

from __future__ import annotations

from twin.files.sysfs_tree import SysfsTree
from twin.machine import Machine
from twin.msr.bits import Register, constant, field, placed
from twin.msr.clock_registers import Clocks

_BOOST_OFF, _DEFINED = 1 << 25, 1 << 63
_DIVISOR, _STEP_KHZ = 8, 25_000  # clock = 200 MHz * multiplier / divisor
_MOST_STATES = 8
_HIGHEST = 255  # the scale of CPPC, as in sysfs (sysfs_cpufreq)


def registers(tree: SysfsTree) -> dict[int, Register]:
    """By number, without energies."""
    machine, clocks = tree.twin.machine, Clocks(tree)
    states = _states_khz(machine, clocks)

    def state_at(khz: int) -> int:
        return max((number for number, each in enumerate(states) if each >= khz), default=0)

    def state(cpu: int) -> int:
        return state_at(clocks.khz(cpu))

    def store_state(cpu: int, value: int) -> None:
        clocks.request_speed(cpu, states[min(field(value, 0, 2), len(states) - 1)])

    found = {
        0xC0010015: Register(
            lambda cpu: _BOOST_OFF if clocks.is_boost_off() else 0,
            lambda cpu, value: clocks.switch_boost(bool(value & _BOOST_OFF)),
        ),
        0xC0010061: constant(len(states) - 1 << 4),
        0xC0010062: Register(lambda cpu: state_at(clocks.requested_khz(cpu)), store_state),
        0xC0010063: Register(state),
        0xC0010293: Register(lambda cpu: _definition(clocks, clocks.khz(cpu)) | state(cpu) << 22),
    }
    for number in range(_MOST_STATES):
        value = _definition(clocks, states[number]) | _DEFINED if number < len(states) else 0
        found[0xC0010064 + number] = constant(value)
    return found | (_cppc(clocks, machine) if machine.driver.startswith("amd-pstate") else {})


def _states_khz(machine: Machine, clocks: Clocks) -> tuple[int, ...]:
    """The P-states, highest clock first; firmware with CPPC defines the base clock at least (ours)."""
    domain = machine.domains[0]
    return tuple(sorted(domain.steps_khz, reverse=True))[:_MOST_STATES] if domain.lists_steps else (clocks.base_khz(),)


def _definition(clocks: Clocks, khz: int) -> int:
    voltage = round((1.55 - clocks.volts(khz)) / 0.00625)
    return placed(round(khz / _STEP_KHZ), 0, 7) | _DIVISOR << 8 | placed(voltage, 14, 21)


def _cppc(clocks: Clocks, machine: Machine) -> dict[int, Register]:
    def performance(khz: int) -> int:
        return round(_HIGHEST * khz / machine.max_khz)

    def khz_of(value: int) -> int:
        """Rounded to the nearest clock that the machine has: the scale is coarser (ours)."""
        khz = value * machine.max_khz / _HIGHEST
        return min(machine.steps_khz, key=lambda step: abs(step - khz))

    def read(cpu: int) -> int:
        low_khz, high_khz = clocks.requested_range_khz(cpu)
        return performance(high_khz) | performance(low_khz) << 8 | clocks.preference(cpu) << 24

    def write(cpu: int, value: int) -> None:
        highest, lowest, desired = (field(value, at, at + 7) for at in (0, 8, 16))
        clocks.store_preference(cpu, field(value, 24, 31))
        clocks.request_range(cpu, *((khz_of(desired),) * 2 if desired else (khz_of(lowest), khz_of(highest))))

    low, base = performance(machine.min_khz), performance(clocks.base_khz())
    return {
        0xC00102B0: constant(low | low << 8 | base << 16 | _HIGHEST << 24),
        0xC00102B1: constant(1),
        0xC00102B3: Register(read, write),
    }

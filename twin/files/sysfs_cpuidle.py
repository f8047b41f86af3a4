"""cpuidle: the idle states of every CPU, the time in each of them, and the switch that disables one.

On machines with ``[[idle]]`` times are the model's, and disabling a state changes power and the time to wake. On others
all idle time counts for the deepest enabled state, where CPUs of an HPC node spend nearly all of it (ours), and
disabling states changes what is counted from then on, nothing else. If every state is disabled, the CPU polls, as with
the kernel's governors.
Source: Linux Documentation/admin-guide/pm/cpuidle.rst, drivers/cpuidle/sysfs.c.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

from twin.files.sysfs_cpu import CPU
from twin.files.sysfs_nodes import Nodes, refused, unsigned, word
from twin.machine import Machine
from twin.physics.model import Twin

TICK_US = 4000
"""Ours: one entry into the idle state per timer tick at HZ=250, since the model knows how long a CPU idles, not how
often."""

GOVERNORS = ("ladder", "menu", "teo")


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


class _Residency:
    """The times of one CPU in its states. ``disabled`` is what the files show, ``_avoided`` what is in force."""

    def __init__(self, twin: Twin, cpu: int, count: int, changed: Callable[[], None]) -> None:
        self._twin, self._cpu, self._changed = twin, cpu, changed
        self._times_us = [0] * count
        self._settled_us = 0  # idle time that is in _times_us
        self.disabled = [False] * count
        self._avoided = [False] * count

    def time_us(self, state: int) -> int:
        """The time in a state so far. On machines with ``[[idle]]`` it is the core's; while another thread keeps the
        core awake, an idle one is in the first state after polling."""
        if self._twin.machine.idle:
            core_us = self._twin.idle_states_us(self._twin.machine.core_of[self._cpu])
            alone_us = self._twin.idle_us(self._cpu) - sum(core_us)
            return core_us[state] + (max(alone_us, 0) if state == 1 else 0)
        more = self._twin.idle_us(self._cpu) - self._settled_us if state == self._present() else 0
        return self._times_us[state] + more

    def store(self, state: int, is_disabled: bool, effective: bool) -> None:
        """Disable or enable a state from now on."""
        self.disabled[state] = is_disabled
        if effective:
            present, now_us = self._present(), self._twin.idle_us(self._cpu)
            self._times_us[present] += now_us - self._settled_us
            self._settled_us = now_us
            self._avoided[state] = is_disabled
            self._changed()

    @property
    def enabled(self) -> list[bool]:
        """What is in force, by state."""
        return [not is_avoided for is_avoided in self._avoided]

    def _present(self) -> int:
        return max((state for state, is_avoided in enumerate(self._avoided) if not is_avoided), default=0)


def add(nodes: Nodes, twin: Twin) -> None:
    """Add the driver, the governors and the states, on processors whose states are known."""
    vendor = twin.machine.vendor
    if vendor not in IDLE_STATES:
        return
    governor = ["menu"]

    def store_governor(text: str, effective: bool) -> None:
        if word(text) not in GOVERNORS:
            raise refused(errno.EINVAL)
        governor[0] = word(text)

    nodes.file(f"{CPU}/cpuidle/current_driver", f"{IDLE_DRIVERS[vendor]}\n")
    nodes.file(f"{CPU}/cpuidle/current_governor", lambda: f"{governor[0]}\n", store_governor)
    nodes.file(f"{CPU}/cpuidle/current_governor_ro", lambda: f"{governor[0]}\n")
    nodes.file(f"{CPU}/cpuidle/available_governors", " ".join(GOVERNORS) + " \n")
    states = _states(twin.machine)
    of_core: dict[int, list[_Residency]] = {}
    for cpu in range(twin.machine.cpus):
        core = twin.machine.core_of[cpu]
        threads = of_core.setdefault(core, [])
        threads.append(_Residency(twin, cpu, len(states), _pass_on(twin, core, threads)))
        for number, state in enumerate(states):
            _add_state(nodes, f"{CPU}/cpu{cpu}/cpuidle/state{number}", state, number, threads[-1])


def _states(machine: Machine) -> tuple[IdleState, ...]:
    if not machine.idle:
        return IDLE_STATES[machine.vendor]
    return tuple(IdleState(each.name, each.description, each.latency_us, each.residency_us) for each in machine.idle)


def _pass_on(twin: Twin, core: int, threads: list[_Residency]) -> Callable[[], None]:
    """What gives the model the states that all threads of a core may enter."""

    def pass_on() -> None:
        twin.set_idle_states(core, [all(each) for each in zip(*(thread.enabled for thread in threads), strict=True)])

    return pass_on


def _add_state(nodes: Nodes, folder: str, state: IdleState, number: int, residency: _Residency) -> None:
    nodes.file(f"{folder}/name", f"{state.name}\n")
    nodes.file(f"{folder}/desc", f"{state.description}\n")
    nodes.file(f"{folder}/latency", f"{state.latency_us}\n")
    nodes.file(f"{folder}/residency", f"{state.residency_us}\n")
    nodes.file(f"{folder}/time", _time(residency, number, 1))
    nodes.file(f"{folder}/usage", _time(residency, number, TICK_US))

    def store(text: str, effective: bool) -> None:
        residency.store(number, unsigned(text, bits=32) != 0, effective)

    nodes.file(f"{folder}/disable", lambda: f"{residency.disabled[number]:d}\n", store)


def _time(residency: _Residency, state: int, unit_us: int) -> Callable[[], str]:
    return lambda: f"{residency.time_us(state) // unit_us}\n"

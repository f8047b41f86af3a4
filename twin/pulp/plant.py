"""The plant in Python: numpy views of the C struct, and the wires for a controller's board."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twin._pulp import ffi, lib
from twin.pulp import heat_network

CLASSES = (0.4667, 0.6949, 1.2354, 1.6512, 1.6001)
"""Effective capacitance of the published instruction classes, lightest first (the last two as published)."""

CORES, DOMAINS, DOMAIN_CORES = 36, 4, 9
SLOT_S = 500e-6

SENSORS: int = lib.PULP_SENSORS
"""In the order of ``Plant.fault``: temperatures and activities of the cores, powers of package and domains."""


class Fault(IntEnum):
    """What a broken sensor shows. ``Plant.fault_amount`` has the amount, in the unit of the wire (mK, fF, uW)."""

    SOUND = lib.PULP_SOUND
    UNREADABLE = lib.PULP_UNREADABLE
    STUCK = lib.PULP_STUCK
    """The last reading."""
    FIXED = lib.PULP_FIXED
    """The amount."""
    SCALED = lib.PULP_SCALED
    """The truth times the amount."""
    BIASED = lib.PULP_BIASED
    """The truth plus the amount."""
    NOISY = lib.PULP_NOISY
    """The truth plus normal noise of this deviation."""
    LATE = lib.PULP_LATE
    """The truth of so many readings ago: every 250 us a temperature, 50 us an activity, 100 us a power."""
    SWAPPED = lib.PULP_SWAPPED
    """The truth of the sensor with this number."""


class Plant:
    """36 cores with their sensors. The connected board advances time."""

    def __init__(
        self,
        *,
        ambient_c: float = 25.0,
        cooling: float = 1.0,
        seed: int = 1,
        memory: NDArray[np.uint8] | None = None,
    ) -> None:
        """``memory`` is zeroed room for the C struct; by default the object allocates it."""
        self._memory = np.zeros(ffi.sizeof("pulp_plant_t"), dtype=np.uint8) if memory is None else memory
        self._struct = ffi.cast("pulp_plant_t *", ffi.from_buffer(self._memory))
        self._keep: list[Any] = []
        self._fill_network(ambient_c, cooling)
        s = self._struct
        s.noise = seed * 0x9E3779B97F4A7C15 % 2**64 or 1
        self.temperature_c = self._view("state_c", heat_network.STATES)
        self.capacitance = self._view("capacitance", CORES)
        self.memory_share = self._view("memory_share", CORES)
        self.dynamic_factor = self._view("dynamic_factor", CORES)
        self.leak_factor = self._view("leak_factor", CORES)
        self.work_s = self._view("work_s", CORES)
        self.power_w = self._view("power_w", DOMAINS + 1)
        self.fault = self._view("fault", SENSORS, np.int32)
        self.fault_amount = self._view("fault_amount", SENSORS)
        self.temperature_fault, self.activity_fault, self.power_fault = np.split(self.fault, (CORES, 2 * CORES))
        self.temperature_c[:] = ambient_c
        self.dynamic_factor[:] = self.leak_factor[:] = 1.0
        self.cooling, self.ambient_c = cooling, ambient_c

    def _view(self, field: str, size: int, kind: Any = np.float64) -> NDArray[Any]:
        """A field of the struct. The view keeps the whole struct alive."""
        start = ffi.offsetof("pulp_plant_t", field)
        return self._memory[start : start + size * np.dtype(kind).itemsize].view(kind)

    def _fill_network(self, ambient_c: float, cooling: float) -> None:
        matrix, per_w, ambient_gain = heat_network.discrete(cooling)
        s, at = self._struct, 0
        for row in range(heat_network.STATES):
            s.row_start[row] = at
            for column in np.flatnonzero(matrix[row]):
                s.column[at], s.entry[at] = int(column), float(matrix[row, column])
                at += 1
        s.row_start[heat_network.STATES] = at
        s.core_k_per_w[0:CORES] = per_w.tolist()
        s.ambient_gain, s.ambient_c, s.air = ambient_gain, ambient_c, heat_network.AIR

    def blow(self, ambient_c: float, cooling: float) -> None:
        """From now on air of this temperature, moved by so much of the fans' flow."""
        self.cooling, self.ambient_c = cooling, ambient_c
        self._fill_network(ambient_c, cooling)

    def wire(self, wires: dict[str, NDArray[np.int32]]) -> tuple[int, int]:
        """Connects the plant to a board's wires (arrays by the names of ``plant.h``).

        Returns the addresses of the advance function, which the board calls, and of its argument.
        """
        for name in ("temperature_mk", "capacitance_ff", "power_uw", "freq_khz", "volt_mv"):
            pointer = ffi.cast("int32_t *", ffi.from_buffer(wires[name]))
            setattr(self._struct, name, pointer)
        self._keep.append(wires)
        return int(ffi.cast("uintptr_t", ffi.addressof(lib, "pulp_advance"))), int(ffi.cast("uintptr_t", self._struct))

    def advance_to(self, until_ns: int) -> None:
        """Advances the plant to a time, for boards that do not do so themselves."""
        lib.pulp_advance(self._struct, until_ns)

    def noise(self, *, temperature_k: float = 0.0, power: float = 0.0, capacitance: float = 0.0) -> None:
        """White noise of the sensors; power and capacitance relative."""
        s = self._struct
        s.temperature_noise_k, s.power_noise, s.capacitance_noise = temperature_k, power, capacitance

    def vary_silicon(self, seed: int, spread: float = 0.05) -> None:
        """Gives each core its own dynamic and static factor, normal around 1."""
        random = np.random.default_rng(seed)
        self.dynamic_factor[:] = np.clip(random.normal(1.0, spread, CORES), 0.8, 1.2)
        self.leak_factor[:] = np.clip(random.normal(1.0, 2 * spread, CORES), 0.6, 1.4)

    def trace(self, slots: int) -> NDArray[np.float32]:
        """From now on records the mean package power of each 500 us; ``traced`` counts the slots."""
        array = np.zeros(slots, dtype=np.float32)
        self._struct.trace_w = ffi.cast("float *", ffi.from_buffer(array))
        self._struct.trace_size, self._struct.trace_length = slots, 0
        self._struct.longest_advance_ns = 0
        self._keep.append(array)
        return array

    @property
    def traced(self) -> int:
        """Number of slots in the trace."""
        return int(self._struct.trace_length)

    @property
    def longest_advance_s(self) -> float:
        """Time since the trace began without a controller, in which the clocks stayed unchanged."""
        return float(self._struct.longest_advance_ns) / 1e9

    @property
    def energy_j(self) -> float:
        """Energy of all cores since the start."""
        return float(self._struct.energy_j)

    def drawn(self) -> tuple[float, float]:
        """Seconds since the start in the plant's own time, and the energy until then, while another thread or process
        advances it."""
        while True:
            now_ns, energy_j = self._struct.now_ns, self.energy_j
            if now_ns == self._struct.now_ns:
                return now_ns / 1e9, energy_j

    @property
    def unsafe_steps(self) -> int:
        """Core steps at a clock above the limit of the voltage. A correct controller keeps this at zero."""
        return int(self._struct.unsafe_steps)

    def settle(self, power_w: NDArray[np.float64]) -> None:
        """Sets the steady temperatures of constant core powers."""
        self.temperature_c[:] = heat_network.steady(power_w, self.ambient_c, self.cooling)


def core_power_w(capacitance: float, freq_ghz: float, volt: float, temperature_c: float) -> float:
    """The published power of one core, W."""
    return float(lib.pulp_core_power_w(capacitance, freq_ghz, volt, temperature_c))

"""The emulated node as an object: time, instruments, actuators, and the truth.

The physics is in C (``csrc/model*.c``). This module converts a machine and a workload to its tables and names its
numbers. Other threads may read and control a running Twin: the C side locks a mutex for at most 1 ms of model time, and
runs without the GIL.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from foundation.shell.errors import nearest
from twin._model import ffi, lib
from twin.errors import TwinError
from twin.machine import EVENTS, Machine
from twin.physics.model_structs import group_struct, node_struct, write_identity
from twin.physics.variation import NONE, Variation
from twin.programs.workload import Group, Workload
from twin.programs.workload_phases import DEFAULT_NOISE

START_NS = 1_000_000_000_000
"""CLOCK_MONOTONIC at the start of virtual time: not 0, since programs may use 0 for "never"."""

GPU_MEMORY_BYTES: int = ffi.sizeof("twin_gpus_t")
"""Size of ``gpu_memory``: one twin_gpus_t."""

STEP_S = lib.TWIN_STEP_NS * 1e-9

COLDEST_C, HOTTEST_C = -40.0, 100.0
"""Ours: air for which the laws of heat and leakage still say something."""

_TEMPERATURES = {
    "core": lib.twin_model_core_c,
    "package": lib.twin_model_package_c,
    "memory": lib.twin_model_memory_c,
}

_WHOLE = (-1, -1)
"""Of a program that runs on a card that is not divided."""

_DYNAMIC = {"schedutil", "ondemand", "conservative"}
_FOLLOW_NS = 50_000_000
type_i64 = npt.NDArray[np.int64]


class StopFlag(Protocol):
    """The flag that ends ``run_realtime``, such as a threading.Event."""

    def is_set(self) -> bool:
        """Whether to stop."""


class PhaseReport(msgspec.Struct, frozen=True):
    """Seconds of a group in a phase, and the joules drawn meanwhile: CPU packages with DRAM, GPUs, whole node."""

    group: int
    name: str
    seconds: float
    cpu_j: float
    gpu_j: float
    node_j: float


class Report(msgspec.Struct, frozen=True):
    """The truth about the running workload, from its start until its end or now.

    ``energy_j`` by part: ``package-N`` (without DRAM), ``dram-N``, ``gpu-N``, ``rest``, and their sum ``node``.
    ``slowdown``: time taken / time the same work takes at the highest clocks - 1.
    """

    time_s: float
    work_done: float
    finished: bool
    slowdown: float
    energy_j: dict[str, float]
    phases: tuple[PhaseReport, ...]


class Twin:
    """One emulated node.

    ``gpu_memory`` is a writable buffer of at least ``GPU_BYTES`` that other processes may map (twin_gpus_t); without
    it the GPUs' state is private to this process. ``variation``: how its parts and runs differ from the machine file;
    as given there, to the last bit, by default.
    """

    GPU_BYTES = GPU_MEMORY_BYTES

    def __init__(
        self,
        machine: Machine,
        workload: Workload | None = None,
        seed: int = 1,
        gpu_memory: Any | None = None,
        variation: Variation = NONE,
    ) -> None:
        self.machine = machine
        self.workload = workload
        memory = ffi.new("twin_gpus_t *") if gpu_memory is None else self._mapped(gpu_memory)
        self._gpus = memory
        write_identity(memory, machine)
        keep: list[Any] = []
        parts = variation.parts(machine.sockets, machine.gpus, seed)
        handle = lib.twin_model_new(node_struct(machine, seed, START_NS, parts, keep), memory)
        if handle == ffi.NULL:
            raise TwinError("no memory for the node model")
        self._model = ffi.gc(handle, lib.twin_model_free)
        self._units = 0
        self._inlet_c = machine.heat.ambient_c
        self._variation, self._seed, self._runs = variation, seed, 0
        self._requests: list[tuple[int, int, int, str]] = [
            (machine.min_khz, machine.max_khz, machine.max_khz, machine.governor) for _ in machine.policies
        ]
        self._limits = [list(zone.constraints) for zone in machine.zones]
        self._is_limited = [True] * len(machine.zones)
        self._limit_changes = [(START_NS, self.packages_limit_w)]
        for policy in range(len(machine.policies)):
            self._apply_policy(policy)
        if workload is not None:
            self.start_workload(workload)

    # --- time ---

    @property
    def time_ns(self) -> int:
        """Virtual CLOCK_MONOTONIC, on the 50 us grid."""
        return int(lib.twin_model_time_ns(self._model))

    @property
    def age_ns(self) -> int:
        """Model time since the twin was made; it does not jump when the twin begins to follow real time."""
        return int(lib.twin_model_age_ns(self._model))

    def advance(self, duration_s: float) -> None:
        """Run the model for this long, rounded up to whole 50 us steps."""
        steps = -(-round(duration_s * 1e9) // lib.TWIN_STEP_NS)
        lib.twin_model_advance(self._model, max(steps, 0))

    def run_realtime(self, stop: StopFlag) -> None:
        """Keep model time at CLOCK_MONOTONIC until ``stop`` is set. Run this in a thread."""
        while not stop.is_set():
            lib.twin_model_follow(self._model, _FOLLOW_NS)
        lib.twin_model_unfollow(self._model)

    # --- work ---

    def start_workload(self, workload: Workload) -> None:
        """Replace the running workload by this one."""
        if workload.machine != self.machine.name:
            raise TwinError(f'workload "{workload.name}" was fitted to "{workload.machine}", not "{self.machine.name}"')
        keep: list[Any] = []
        scale = self._variation.work(self._seed, workload.name, self._runs)
        places = [self._instance(group) for group in workload.groups]
        rows = [group_struct(group, scale, keep, at) for group, at in zip(workload.groups, places, strict=True)]
        groups = ffi.new("twin_group_t[]", rows)
        if lib.twin_model_start(self._model, len(workload.groups), groups, workload.noise) != 0:
            raise TwinError("no memory for the workload")
        self.workload, self._units = workload, 0
        self._runs += 1

    def _instance(self, group: Group) -> tuple[int, int]:
        """GPU instance and compute instance of a group of GPUs, -1 for none. TwinError if a card is not divided so."""
        found = {self._instance_of(gpu, group.mig) for gpu in group.units} if group.on_gpu else {_WHOLE}
        if len(found) > 1:
            raise TwinError(f"the GPUs {', '.join(map(str, group.units))} are not divided alike (MIG)")
        return found.pop()

    def _instance_of(self, gpu: int, mig: int | None) -> tuple[int, int]:
        card = self._gpus.gpu[gpu]
        if mig is None:
            if card.mig_mode:
                raise TwinError(f"GPU {gpu} is divided (MIG): a program needs the number of a MIG device (`mig`)")
            return _WHOLE
        places = [(one, part) for one in range(lib.TWIN_INSTANCES) for part in range(lib.TWIN_COMPUTE)]
        devices = [(one, part) for one, part in places if card.compute[one][part].slices]
        if mig >= len(devices):
            raise TwinError(f"GPU {gpu} has {len(devices)} MIG devices; there is none of number {mig}")
        return devices[mig]

    def stop_workload(self) -> None:
        """Stop the workload, as if it were killed."""
        if lib.twin_model_start(self._model, 0, ffi.NULL, DEFAULT_NOISE) != 0:
            raise TwinError("no memory to run nothing")
        self.workload = None

    @property
    def finished(self) -> bool:
        """Whether the workload has ended."""
        return bool(lib.twin_model_finished(self._model))

    def progress_units(self) -> int | None:
        """Units of progress that the running program has counted; None if it reports no progress."""
        for number, group in enumerate(self.workload.groups if self.workload else ()):
            if group.progress:
                progress = ffi.new("twin_progress_t *")
                lib.twin_model_progress(self._model, number, progress)
                # at a barrier the seconds are summed again, and rounding must not reduce the count
                self._units = max(self._units, group.progress.finished(progress.done_s))
                return self._units
        return None

    def work_s(self) -> tuple[float, ...]:
        """Seconds of work, at the highest clock, that each group of the workload has done."""
        progress = ffi.new("twin_progress_t *")
        done = []
        for number in range(len(self.workload.groups) if self.workload else 0):
            lib.twin_model_progress(self._model, number, progress)
            done.append(float(progress.done_s))
        return tuple(done)

    def set_load(self, shares: Sequence[float]) -> None:
        """The share of time, 0 to 1, in which each logical CPU runs programs of the host, if no workload runs there."""
        load = np.asarray(shares, np.float64)
        if load.shape != (self.machine.cpus,):
            raise TwinError(f"{load.shape[0]} shares for {self.machine.cpus} CPUs")
        lib.twin_model_set_load(self._model, ffi.from_buffer("double[]", load))

    @property
    def inlet_c(self) -> float:
        """Degrees Celsius of the air that the node takes in: ``[heat] ambient_c`` until ``set_inlet``."""
        return self._inlet_c

    def set_inlet(self, inlet_c: float) -> None:
        """The air is so warm from now on. Packages, memory and GPUs follow: the air of each changes by as many kelvin.
        TwinError beyond -40 to 100 degrees."""
        if not COLDEST_C <= inlet_c <= HOTTEST_C:
            raise TwinError(f"air of {inlet_c:g} degrees: give {COLDEST_C:g} to {HOTTEST_C:g}")
        self._inlet_c = inlet_c
        lib.twin_model_set_air(self._model, inlet_c - self.machine.heat.ambient_c)

    # --- instruments ---

    def counters(self, events: Sequence[str]) -> type_i64:
        """Cumulative counts, int64 ``[n_cpus, len(events)]``, whether or not this machine has such an event."""
        columns = []
        for event in events:
            if event not in EVENTS:
                raise TwinError(f'unknown event "{event}"{nearest(event, EVENTS)}')
            columns.append(EVENTS.index(event))
        out = np.empty((self.machine.cpus, lib.TWIN_EVENTS), np.int64)
        lib.twin_model_counters(self._model, ffi.from_buffer("int64_t[]", out))
        return out[:, columns]

    def busy_idle_us(self) -> tuple[type_i64, type_i64]:
        """Microseconds that each logical CPU was busy, and idle, since the twin began."""
        busy, idle = np.empty(self.machine.cpus, np.int64), np.empty(self.machine.cpus, np.int64)
        lib.twin_model_busy_us(self._model, ffi.from_buffer("int64_t[]", busy), ffi.from_buffer("int64_t[]", idle))
        return busy, idle

    def idle_us(self, cpu: int) -> int:
        """Microseconds this logical CPU was idle."""
        return int(self.busy_idle_us()[1][cpu])

    def zone_energy_uj(self, zone: int) -> int:
        """The zone's energy counter: moves each millisecond in whole units, wraps at the zone's range."""
        return int(lib.twin_model_zone_uj(self._model, zone))

    def core_energy_j(self, core: int) -> float:
        """Joules of one core since the twin began."""
        return float(lib.twin_model_core_j(self._model, core))

    def core_traffic_gb(self, core: int) -> float:
        """Bytes between one core and the memory since the twin began, in 1e9."""
        return float(lib.twin_model_core_gb(self._model, core))

    def traffic_bytes(self, package: int) -> int:
        """Bytes between this package and its memory since the twin began."""
        return int(lib.twin_model_traffic_gb(self._model, package) * 1e9)

    def set_zone_energy_uj(self, zone: int, energy_uj: int) -> None:
        """Set the counter, for instance just before its wrap."""
        lib.twin_model_set_zone_uj(self._model, zone, energy_uj)

    def domain_khz(self, domain: int) -> int:
        """The clock of a domain, after requests, latency and throttling."""
        return int(lib.twin_model_domain_khz(self._model, domain))

    def cpu_khz(self, cpu: int) -> int:
        """The clock of this logical CPU."""
        return self.domain_khz(self.machine.domain_of[cpu])

    def idle_state(self, core: int) -> int | None:
        """The idle state of a core, an index of ``machine.idle``; None while it is active."""
        state = int(lib.twin_model_idle_state(self._model, core))
        return None if state < 0 else state

    def idle_states_us(self, core: int) -> tuple[int, ...]:
        """Microseconds that a core, all its threads idle, was in each of ``machine.idle``."""
        out = ffi.new("int64_t[]", max(len(self.machine.idle), 1))
        lib.twin_model_idle_us(self._model, core, out)
        return tuple(out[state] for state in range(len(self.machine.idle)))

    def uncore_khz(self, package: int) -> int:
        """The clock of a package's uncore; 0 on machines without ``[uncore]``."""
        return int(lib.twin_model_uncore_khz(self._model, package))

    def temperature_mc(self, sensor: int) -> int:
        """Thousandths of a degree Celsius at ``machine.sensors[sensor]``."""
        which = self.machine.sensors[sensor]
        if which.of == "inlet":
            return round(self.inlet_c * 1000)
        read = _TEMPERATURES[which.of]
        return round(float(read(self._model, which.index)) * 1000)

    def power_uw(self, sensor: int) -> int:
        """Microwatts at ``machine.sensors[sensor]``: the whole node, or a package without DRAM."""
        which = self.machine.sensors[sensor]
        kind = lib.TWIN_ZONE_PSYS if which.of == "node" else lib.TWIN_ZONE_PACKAGE
        return round(float(lib.twin_model_power_w(self._model, kind, which.index)) * 1e6)

    # --- actuators: raw, unvalidated ---

    def set_policy(
        self,
        policy: int,
        min_khz: int | None = None,
        max_khz: int | None = None,
        setspeed_khz: int | None = None,
        governor: str | None = None,
    ) -> None:
        """Change the requests of ``machine.policies[policy]``; None leaves one unchanged. The clock of its domain
        follows the highest request of the domain's policies, after the machine's latency."""
        low, high, speed, mode = self._requests[policy]
        self._requests[policy] = (
            low if min_khz is None else min_khz,
            high if max_khz is None else max_khz,
            speed if setspeed_khz is None else setspeed_khz,
            mode if governor is None else governor,
        )
        self._apply_policy(policy)

    def prefer(self, policy: int, highest_khz: int) -> None:
        """The highest clock that a governor which follows load chooses under ``machine.policies[policy]``; a limit that
        requests a higher lowest clock has precedence."""
        lib.twin_model_prefer(self._model, policy, highest_khz)

    def set_domain(
        self,
        domain: int,
        min_khz: int | None = None,
        max_khz: int | None = None,
        setspeed_khz: int | None = None,
        governor: str | None = None,
    ) -> None:
        """``set_policy`` for every policy of a frequency domain."""
        for policy in self.machine.domains[domain].policies:
            self.set_policy(policy, min_khz, max_khz, setspeed_khz, governor)

    def policy_request(self, policy: int) -> tuple[int, int, int, str]:
        """What a policy has requested last: lowest, highest and set clock in kHz, and the governor."""
        return self._requests[policy]

    def set_zone_limit(
        self,
        zone: int,
        constraint: int,
        limit_uw: int | None = None,
        window_us: int | None = None,
        enabled: bool | None = None,
    ) -> None:
        """Change a zone's power limit; None leaves a value unchanged. ``enabled`` is for the zone, not the
        constraint."""
        if enabled is not None:
            lib.twin_model_enable_zone(self._model, zone, enabled)
            self._is_limited[zone] = enabled
        if limit_uw is not None or window_us is not None:
            now = self._limits[zone][constraint]
            if limit_uw is not None:
                now = msgspec.structs.replace(now, limit_w=limit_uw / 1e6)
            if window_us is not None:
                now = msgspec.structs.replace(now, window_us=window_us)
            self._limits[zone][constraint] = now
            lib.twin_model_set_limit(self._model, zone, constraint, now.limit_w, now.window_us * 1e-6)
        self._limit_changes.append((self.time_ns, self.packages_limit_w))

    @property
    def packages_limit_w(self) -> float:
        """The sum of the packages' long-term limits in force; inf where one has none."""
        least = [math.inf] * self.machine.sockets
        for zone, limits, is_limited in zip(self.machine.zones, self._limits, self._is_limited, strict=True):
            if zone.kind == "package" and limits and is_limited:
                least[zone.package] = min(least[zone.package], limits[0].limit_w)
        return sum(least)

    @property
    def limit_changes(self) -> Sequence[tuple[int, float]]:
        """Each change of a limit so far: the time, and ``packages_limit_w`` from then on."""
        return self._limit_changes

    def set_idle_states(self, core: int, enabled: Sequence[bool]) -> None:
        """Which of the machine's idle states a core may enter; without any it polls."""
        bits = sum(1 << state for state, is_enabled in enumerate(enabled) if is_enabled)
        lib.twin_model_set_idle(self._model, core, bits)

    def set_uncore(self, package: int, min_khz: int, max_khz: int) -> None:
        """Change the limits of a package's uncore clock, which follows at once; the higher limit has precedence."""
        if self.machine.uncore is not None:
            top = self.machine.uncore.max_khz
            lib.twin_model_set_uncore(self._model, package, min(min_khz, top), min(max_khz, top))

    def lock_gpu(self, index: int, low_mhz: int, high_mhz: int) -> None:
        """Keep the SM clock of a GPU between two clocks, as NVML's SetGpuLockedClocks does; 0 and 0 end this."""
        gpu = self._gpus.gpu[index]
        gpu.lock_min_mhz, gpu.lock_max_mhz = low_mhz, high_mhz
        gpu.lock_seq += 1  # last: a new number makes the model read the clocks

    @property
    def gpus(self) -> Any:
        """Pointer to twin_gpus_t: state to read, requests to write."""
        return self._gpus

    @property
    def gpus_address(self) -> int:
        """That pointer as a number, for ``twin_nvml_attach``."""
        return int(ffi.cast("uintptr_t", self._gpus))

    @property
    def model_address(self) -> int:
        """The C model as a number, for native code that calls the functions of model.h without the GIL."""
        return int(ffi.cast("uintptr_t", self._model))

    # --- truth ---

    @property
    def node_j(self) -> float:
        """Joules that the whole node has drawn since the twin was made, over all workloads."""
        return float(lib.twin_model_node_j(self._model))

    def parts_j(self) -> dict[str, float]:
        """The same by part, with the names of ``Report.energy_j``."""
        return self._parts(lib.twin_model_parts)

    def report(self) -> Report:
        """Time and energy of the workload so far."""
        elapsed, done, share = self.progress()
        return Report(
            time_s=elapsed,
            work_done=share,
            finished=self.finished,
            slowdown=elapsed / done - 1.0 if done > 0 else 0.0,
            energy_j=self._parts(lib.twin_model_energy),
            phases=self._phases(),
        )

    def _parts(self, read: Callable[[Any, Any], None]) -> dict[str, float]:
        packages = self.machine.sockets
        parts = np.empty(3 * packages + self.machine.gpus + 1)
        read(self._model, ffi.from_buffer("double[]", parts))
        energy: dict[str, float] = {}
        for package in range(packages):
            core, uncore, dram = (float(x) for x in parts[3 * package : 3 * package + 3])
            energy[f"package-{package}"] = core + uncore
            energy[f"dram-{package}"] = dram
        for gpu in range(self.machine.gpus):
            energy[f"gpu-{gpu}"] = float(parts[3 * packages + gpu])
        energy["rest"] = float(parts[-1])
        energy["node"] = float(parts.sum())
        return energy

    def progress(self) -> tuple[float, float, float]:
        """Elapsed seconds, seconds the same work takes at the highest clocks, share of the work done."""
        elapsed, done, shares = 0.0, 0.0, [1.0]
        progress = ffi.new("twin_progress_t *")
        for number, group in enumerate(self.workload.groups if self.workload else ()):
            lib.twin_model_progress(self._model, number, progress)
            if group.repeat == 0:
                continue
            if progress.elapsed_s >= elapsed:
                elapsed, done = progress.elapsed_s, progress.done_s
            shares.append(progress.done_s / progress.total_s)
        return elapsed, done, min(shares) if len(shares) > 1 else 0.0

    def _phases(self) -> tuple[PhaseReport, ...]:
        reports = []
        for number, group in enumerate(self.workload.groups if self.workload else ()):
            rows = np.empty((len(group.phases), 4))
            lib.twin_model_phases(self._model, number, ffi.from_buffer("double[]", rows))
            reports += [
                PhaseReport(number, phase.truth.name, *(float(x) for x in row))
                for phase, row in zip(group.phases, rows, strict=True)
            ]
        return tuple(reports)

    # --- to C ---

    def _apply_policy(self, policy: int) -> None:
        low, high, speed, governor = self._requests[policy]
        lib.twin_model_set_policy(self._model, policy, low, high, speed, self._governor(governor))

    def _governor(self, name: str) -> int:
        active = self.machine.driver in ("intel_pstate", "amd-pstate-epp")
        if name in _DYNAMIC or (name == "powersave" and active):  # in these drivers "powersave" scales with load
            return int(lib.TWIN_DYNAMIC)
        known = {"performance": lib.TWIN_PERFORMANCE, "powersave": lib.TWIN_POWERSAVE, "userspace": lib.TWIN_USERSPACE}
        if name not in known:
            raise TwinError(f'unknown governor "{name}"{nearest(name, (*known, *_DYNAMIC))}')
        return int(known[name])

    def _mapped(self, buffer: Any) -> Any:
        view = ffi.from_buffer("char[]", buffer, require_writable=True)
        if len(view) < self.GPU_BYTES:
            raise TwinError(f"GPU memory has {len(view)} bytes, needs {self.GPU_BYTES}")
        self._view = view
        return ffi.cast("twin_gpus_t *", view)

"""The emulated node as an object: time, instruments, actuators, and the truth behind them.

The physics is in C (``csrc/model*.c``); this module turns a machine and a workload into its tables and gives names to
its numbers. A Twin may be read and acted on from other threads while it runs: the C side holds a mutex for at most
1 ms of model time, and runs without the GIL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from twin import curves
from twin._model import ffi, lib
from twin.errors import TwinError, nearest
from twin.machine import EVENTS, Gpu, HeatConstants, Machine
from twin.workload import Group, Workload

START_NS = 1_000_000_000_000
"""CLOCK_MONOTONIC at the start of virtual time: large, so that nobody takes zero for "never"."""

STEP_S = lib.TWIN_STEP_NS * 1e-9

_ARCHITECTURE = {"volta": 5, "ampere": 7, "hopper": 9}  # NVML_DEVICE_ARCH_*
_KIND = {
    "package": lib.TWIN_ZONE_PACKAGE,
    "core": lib.TWIN_ZONE_CORE,
    "uncore": lib.TWIN_ZONE_UNCORE,
    "dram": lib.TWIN_ZONE_DRAM,
    "psys": lib.TWIN_ZONE_PSYS,
}
_DYNAMIC = {"schedutil", "ondemand", "conservative"}
_FOLLOW_NS = 50_000_000
_SAME_NAME = (
    *("idle_leak_share", "uncore_idle_w", "uncore_busy_w", "uncore_w_per_gbs", "dram_idle_w", "dram_w_per_gbs"),
    *("rest_w", "spin_activity", "spin_ipc", "tick_share"),
)
"""Constants that the machine file and the C struct call by one name."""

type_i64 = npt.NDArray[np.int64]


class StopFlag(Protocol):
    """What ``run_realtime`` asks whether to go on: threading.Event and its like."""

    def is_set(self) -> bool:
        """Whether to stop."""


class PhaseReport(msgspec.Struct, frozen=True):
    """Seconds a group spent in a phase, and the joules drawn meanwhile: CPU packages with DRAM, GPUs, whole node."""

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
    it the GPUs' state is private to this process.
    """

    GPU_BYTES: int = ffi.sizeof("twin_gpus_t")

    def __init__(
        self, machine: Machine, workload: Workload | None = None, seed: int = 1, gpu_memory: Any | None = None
    ) -> None:
        self.machine = machine
        self.workload = workload
        self._keep: list[Any] = []
        memory = ffi.new("twin_gpus_t *") if gpu_memory is None else self._mapped(gpu_memory)
        self._gpus = memory
        _write_identity(memory, machine)
        handle = lib.twin_model_new(self._node(seed), memory)
        self._keep.clear()
        if handle == ffi.NULL:
            raise TwinError("no memory for the node model")
        self._model = ffi.gc(handle, lib.twin_model_free)
        self._requests: list[tuple[int, int, int, str]] = [
            (domain.min_khz, domain.max_khz, domain.max_khz, machine.governor) for domain in machine.domains
        ]
        self._limits = [list(zone.constraints) for zone in machine.zones]
        for domain in range(len(machine.domains)):
            self._apply_domain(domain)
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
        """Keep model time at CLOCK_MONOTONIC until ``stop`` is set: the body of a thread."""
        while not stop.is_set():
            lib.twin_model_follow(self._model, _FOLLOW_NS)
        lib.twin_model_unfollow(self._model)

    # --- work ---

    def start_workload(self, workload: Workload) -> None:
        """Replace whatever runs by this workload, from now on."""
        if workload.machine != self.machine.name:
            raise TwinError(f'workload "{workload.name}" was fitted to "{workload.machine}", not "{self.machine.name}"')
        keep: list[Any] = []
        groups = ffi.new("twin_group_t[]", [self._group(group, keep) for group in workload.groups])
        if lib.twin_model_start(self._model, len(workload.groups), groups, workload.noise) != 0:
            raise TwinError("no memory for the workload")
        self.workload = workload

    @property
    def finished(self) -> bool:
        """Whether the workload has ended."""
        return bool(lib.twin_model_finished(self._model))

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

    def busy_us(self) -> type_i64:
        """Microseconds each logical CPU was not idle."""
        busy, _ = self._busy_idle()
        return busy

    def all_idle_us(self) -> type_i64:
        """Microseconds each logical CPU was idle."""
        _, idle = self._busy_idle()
        return idle

    def idle_us(self, cpu: int) -> int:
        """Microseconds this logical CPU was idle."""
        return int(self._busy_idle()[1][cpu])

    def zone_energy_uj(self, zone: int) -> int:
        """The zone's energy counter: moves each millisecond in whole units, wraps at the zone's range."""
        return int(lib.twin_model_zone_uj(self._model, zone))

    def set_zone_energy_uj(self, zone: int, energy_uj: int) -> None:
        """Put the counter where a test wants it, for instance just before its wrap."""
        lib.twin_model_set_zone_uj(self._model, zone, energy_uj)

    def domain_khz(self, domain: int) -> int:
        """The clock a domain runs at, after requests, latency and throttling."""
        return int(lib.twin_model_domain_khz(self._model, domain))

    def cpu_khz(self, cpu: int) -> int:
        """The clock this logical CPU runs at."""
        return self.domain_khz(self.machine.domain_of[cpu])

    def temperature_mc(self, sensor: int) -> int:
        """Thousandths of a degree Celsius at ``machine.sensors[sensor]``."""
        which = self.machine.sensors[sensor]
        read = lib.twin_model_core_c if which.of == "core" else lib.twin_model_package_c
        return round(read(self._model, which.index) * 1000)

    def power_uw(self, sensor: int) -> int:
        """Microwatts at ``machine.sensors[sensor]``: the whole node, or a package without DRAM."""
        which = self.machine.sensors[sensor]
        kind = lib.TWIN_ZONE_PSYS if which.of == "node" else lib.TWIN_ZONE_PACKAGE
        return round(lib.twin_model_power_w(self._model, kind, which.index) * 1e6)

    # --- actuators: raw, unvalidated ---

    def set_domain(
        self,
        domain: int,
        min_khz: int | None = None,
        max_khz: int | None = None,
        setspeed_khz: int | None = None,
        governor: str | None = None,
    ) -> None:
        """Change a clock domain's requests; what is None stays. The clock follows after the machine's latency."""
        low, high, speed, mode = self._requests[domain]
        self._requests[domain] = (
            low if min_khz is None else min_khz,
            high if max_khz is None else max_khz,
            speed if setspeed_khz is None else setspeed_khz,
            mode if governor is None else governor,
        )
        self._apply_domain(domain)

    def domain_request(self, domain: int) -> tuple[int, int, int, str]:
        """(min_khz, max_khz, setspeed_khz, governor) as last requested."""
        return self._requests[domain]

    def set_zone_limit(
        self,
        zone: int,
        constraint: int,
        limit_uw: int | None = None,
        window_us: int | None = None,
        enabled: bool | None = None,
    ) -> None:
        """Change a zone's power limit; what is None stays. ``enabled`` is the zone's, not the constraint's."""
        if enabled is not None:
            lib.twin_model_enable_zone(self._model, zone, enabled)
        if limit_uw is None and window_us is None:
            return
        now = self._limits[zone][constraint]
        if limit_uw is not None:
            now = msgspec.structs.replace(now, limit_w=limit_uw / 1e6)
        if window_us is not None:
            now = msgspec.structs.replace(now, window_us=window_us)
        self._limits[zone][constraint] = now
        lib.twin_model_set_limit(self._model, zone, constraint, now.limit_w, now.window_us * 1e-6)

    @property
    def gpus(self) -> Any:
        """Pointer to twin_gpus_t: state to read, requests to write."""
        return self._gpus

    @property
    def gpus_address(self) -> int:
        """The same as a number, for ``twin_nvml_attach``."""
        return int(ffi.cast("uintptr_t", self._gpus))

    @property
    def model_address(self) -> int:
        """The C model as a number, for native code that calls the functions of model.h without the GIL."""
        return int(ffi.cast("uintptr_t", self._model))

    # --- truth ---

    def report(self) -> Report:
        """What the workload has taken so far."""
        packages = self.machine.sockets
        parts = np.empty(3 * packages + self.machine.gpus + 1)
        lib.twin_model_energy(self._model, ffi.from_buffer("double[]", parts))
        energy: dict[str, float] = {}
        for package in range(packages):
            core, uncore, dram = (float(x) for x in parts[3 * package : 3 * package + 3])
            energy[f"package-{package}"] = core + uncore
            energy[f"dram-{package}"] = dram
        for gpu in range(self.machine.gpus):
            energy[f"gpu-{gpu}"] = float(parts[3 * packages + gpu])
        energy["rest"] = float(parts[-1])
        energy["node"] = float(parts.sum())
        elapsed, done, share = self._progress()
        return Report(
            time_s=elapsed,
            work_done=share,
            finished=self.finished,
            slowdown=elapsed / done - 1.0 if done > 0 else 0.0,
            energy_j=energy,
            phases=self._phases(),
        )

    def _progress(self) -> tuple[float, float, float]:
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

    def _busy_idle(self) -> tuple[type_i64, type_i64]:
        busy, idle = np.empty(self.machine.cpus, np.int64), np.empty(self.machine.cpus, np.int64)
        lib.twin_model_busy_us(self._model, ffi.from_buffer("int64_t[]", busy), ffi.from_buffer("int64_t[]", idle))
        return busy, idle

    def _apply_domain(self, domain: int) -> None:
        low, high, speed, governor = self._requests[domain]
        lib.twin_model_set_domain(self._model, domain, low, high, speed, self._governor(governor))

    def _governor(self, name: str) -> int:
        active = self.machine.driver in ("intel_pstate", "amd-pstate-epp")
        if name in _DYNAMIC or (name == "powersave" and active):  # there "powersave" scales with load
            return int(lib.TWIN_DYNAMIC)
        known = {"performance": lib.TWIN_PERFORMANCE, "powersave": lib.TWIN_POWERSAVE, "userspace": lib.TWIN_USERSPACE}
        if name not in known:
            raise TwinError(f'unknown governor "{name}"{nearest(name, (*known, *_DYNAMIC))}')
        return int(known[name])

    def _mapped(self, buffer: Any) -> Any:
        view = ffi.from_buffer("char[]", buffer, require_writable=True)
        if len(view) < self.GPU_BYTES:
            raise TwinError(f"GPU memory holds {len(view)} bytes, needs {self.GPU_BYTES}")
        self._view = view
        return ffi.cast("twin_gpus_t *", view)

    def _array(self, kind: str, values: Any, keep: list[Any]) -> Any:
        array = ffi.new(f"{kind}[]", [x.item() if hasattr(x, "item") else x for x in values])
        keep.append(array)
        return array

    def _node(self, seed: int) -> Any:
        machine, keep = self.machine, self._keep
        power, clock = machine.power, np.asarray(machine.clock_hz)
        volt = curves.volts(power.volts, machine.clock_hz)
        zones = ffi.new("twin_zone_t[]", max(len(machine.zones), 1))
        for number, zone in enumerate(machine.zones):
            _fill_zone(zones[number], zone, seed, number)
        cards = ffi.new("twin_gpu_card_t[]", max(machine.gpus, 1))
        for number in range(machine.gpus):
            assert machine.gpu is not None
            self._fill_card(cards[number], machine.gpu)
        keep += [zones, cards]
        node = ffi.new("twin_node_t *")
        node.n_cpus, node.n_cores, node.n_packages = machine.cpus, machine.cores, machine.sockets
        node.n_domains, node.n_levels = len(machine.domains), len(clock)
        node.n_zones, node.n_gpus = len(machine.zones), machine.gpus
        node.core_of = self._array("int32_t", machine.core_of, keep)
        node.domain_of = self._array("int32_t", machine.domain_of, keep)
        node.package_of = self._array("int32_t", machine.package_of[: machine.cores], keep)
        node.clock_hz = self._array("double", clock, keep)
        node.label_khz = self._array("double", machine.steps_khz, keep)
        node.volt = self._array("double", volt, keep)
        node.tsc_hz, node.smt_throughput = machine.tsc_khz * 1e3, machine.smt_throughput
        node.latency_s, node.governor_s = machine.latency_us * 1e-6, 0.010  # ours: dynamic governors act each 10 ms
        node.dynamic_w = power.dynamic_w / (volt[-1] ** 2 * clock[-1])
        node.leak_k0_w, node.leak_k1_w_per_v = power.leak_w, power.leak_w_per_v
        node.leak_per_v, node.leak_per_k, node.leak_offset = power.leak_per_v, power.leak_per_k, power.leak_offset
        for name in _SAME_NAME:
            setattr(node, name, getattr(power, name))
        _fill_heat(node.thermal, machine.heat)
        node.core_k_per_w, node.core_tau_s = machine.heat.core_k_per_w, machine.heat.core_tau_s
        node.throttle_c = machine.heat.throttle_c
        node.zones, node.cards = zones, cards
        node.seed, node.origin_ns = seed, START_NS
        return node

    def _fill_card(self, card: Any, gpu: Gpu) -> None:
        clocks = gpu.clocks_khz
        card.n_levels = len(clocks)
        card.idle_level = max(i for i, khz in enumerate(clocks) if khz <= gpu.idle_khz)
        card.clock_khz = self._array("double", clocks, self._keep)
        ready = curves.gpu_ready_w(gpu)
        card.idle_w = self._array("double", gpu.power.idle_w + 0.7 * (ready - gpu.power.idle_w), self._keep)  # ours
        card.leak_per_k, card.memory_over_die_c = gpu.power.leak_per_k, gpu.memory_over_die_c
        _fill_heat(card.thermal, gpu.heat)
        sensors = gpu.sensors
        card.lock_latency_s = sensors.lock_latency_ms * 1e-3
        card.power_update_s, card.power_window_s = sensors.power_update_ms * 1e-3, sensors.power_window_ms * 1e-3
        card.energy_update_s = sensors.energy_update_ms * 1e-3
        card.utilization_window_s = sensors.utilization_window_ms * 1e-3

    def _group(self, group: Group, keep: list[Any]) -> dict[str, Any]:
        phases = []
        for phase in group.phases:
            tables = np.ascontiguousarray(phase.tables, np.float64)
            keep.append(tables)
            phases.append(
                {
                    "tables": ffi.from_buffer("double[]", tables),
                    "activity": phase.activity,
                    "gap_share": phase.gap_share,
                    "sm_active": phase.sm_active,
                    "occupancy": phase.occupancy,
                    "fp_active": phase.fp_active,
                    "free_level": phase.free_level,
                    "free_loss": phase.free_loss,
                }
            )
        parts = [{"phase": p, "iterations": n, "work_s": work} for p, n, work in group.program]
        return {
            "on_gpu": group.on_gpu,
            "n_units": len(group.units),
            "n_phases": len(phases),
            "n_parts": len(parts),
            "repeat": group.repeat,
            "spins": group.spins,
            "units": self._array("int32_t", group.units, keep),
            "weight": self._array("double", group.weight, keep),
            "nominal_share": group.nominal_share,
            "memory_mib": group.memory_mib,
            "phases": self._array("twin_phase_t", phases, keep),
            "parts": self._array("twin_part_t", parts, keep),
        }


def _fill_heat(network: Any, heat: HeatConstants) -> None:
    for name in ("ambient_c", "die_k_per_w", "die_j_per_k", "sink_k_per_w", "sink_j_per_k"):
        setattr(network, name, getattr(heat, name))


def _fill_zone(out: Any, zone: Any, seed: int, number: int) -> None:
    out.kind, out.package = _KIND[zone.kind], zone.package
    out.range_uj, out.unit_uj = zone.range_uj, zone.unit_uj
    # A counter has run since boot: it starts anywhere below half of its range.
    out.start_uj = float(curves.stream(seed, "zone", number).uniform(0.0, 0.5)) * zone.range_uj
    out.enabled = 1
    for place, constraint in enumerate(zone.constraints):
        out.limit_w[place], out.window_s[place] = constraint.limit_w, constraint.window_us * 1e-6


def _write_identity(memory: Any, machine: Machine) -> None:
    """The fields of twin_gpus_t that say what the cards are; UUIDs follow from machine and index."""
    memory.magic, memory.version, memory.size = lib.TWIN_GPU_MAGIC, lib.TWIN_GPU_VERSION, ffi.sizeof("twin_gpus_t")
    memory.n_gpus = machine.gpus
    if machine.gpu is None:
        return
    gpu = machine.gpu
    memory.driver, memory.driver_cuda = gpu.driver.encode(), gpu.driver_cuda
    clocks = gpu.clocks_mhz[::-1]
    for index in range(gpu.count):
        card = memory.gpu[index]
        random = curves.stream("uuid", machine.name, index)
        digits = "".join(f"{int(x):x}" for x in random.integers(0, 16, 32))
        card.name = gpu.name.encode()
        card.uuid = f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}".encode()
        card.serial = f"{int(random.integers(10**12, 10**13))}".encode()
        card.pci_bus_id = f"00000000:{0x07 + 0x10 * index:02X}:00.0".encode()
        card.vbios = gpu.vbios.encode()
        card.architecture = _ARCHITECTURE[gpu.architecture]
        card.cuda_major, card.cuda_minor = gpu.compute_capability
        card.cores, card.n_clocks = gpu.cores, len(clocks)
        card.clocks_mhz[0 : len(clocks)] = list(clocks)
        card.memory_clock_mhz, card.memory_mib = gpu.memory_mhz, gpu.memory_mib
        card.memory_bus_bits = gpu.memory_bus_bits
        card.power_limit_default_mw = round(gpu.power_limit_w * 1e3)
        card.power_limit_min_mw = round(gpu.power_limit_min_w * 1e3)
        card.power_limit_max_mw = round(gpu.power_limit_max_w * 1e3)
        card.power_limit_mw = card.power_limit_default_mw
        card.has_gpm = gpu.has_gpm
        card.slowdown_c, card.shutdown_c = gpu.slowdown_c, gpu.shutdown_c
        card.node_numa = index * machine.sockets // gpu.count
        card.pcie_gen, card.pcie_width = gpu.pcie_gen, gpu.pcie_width

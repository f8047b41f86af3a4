"""The tables of a machine file (TOML), with the constants of a node's physics."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from twin.toml_table import Count, NotNegative, Positive

ZoneKind = Literal["package", "core", "uncore", "dram", "psys"]


class Constraint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One power limit of a zone: watts, averaging window, and the highest watts it accepts (0: not shown)."""

    name: Literal["long_term", "short_term", "peak_power"]
    limit_w: Positive
    window_us: Count
    max_w: float = 0.0


class CpuTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[cpu]``: for /proc/cpuinfo, topology and perf."""

    vendor: str
    model_name: str
    family: int
    model: int
    stepping: int
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    tsc_khz: int
    events: tuple[str, ...]
    reference_source: Literal["cpu", "msr"] = "cpu"
    raw_events: dict[str, str] = {}
    smt_throughput: Positive = 1.0


class Cache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One level and type of the caches that the cores have; ``cores`` share each of them."""

    level: Count
    type: Literal["Data", "Instruction", "Unified"]
    kib: Count
    ways: Count
    cores: Count

    LINE_BYTES: ClassVar[int] = 64  # of all x86 processors since 2000

    @property
    def sets(self) -> int:
        """Number of sets; 0 if the numbers do not fit."""
        sets, rest = divmod(self.kib * 1024, self.ways * self.LINE_BYTES)
        return 0 if rest else sets


class MemoryTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[memory]``: the memory and the caches of a package."""

    gib: Annotated[int, msgspec.Meta(ge=0)] = 0  # 0: the kernel shows no sizes
    caches: tuple[Cache, ...] = ()


class FrequencyTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[frequency]``: the cpufreq driver and its policies."""

    driver: str
    governors: tuple[str, ...]
    governor: str
    domain: Literal["core", "socket"] | int  # or a number of cores
    min_khz: Count
    max_khz: Count
    base_khz: Count
    latency_us: Annotated[int, msgspec.Meta(ge=0)]
    step_khz: int = 0
    steps_khz: tuple[int, ...] = ()
    turbo_khz: int = 0
    lists_steps: bool = True  # whether scaling_available_frequencies exists


class PowerConstants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Electrical constants. Watts per core unless noted."""

    volts: Annotated[tuple[tuple[Positive, Positive], ...], msgspec.Meta(min_length=1)]  # (MHz, volt), linear between
    dynamic_w: NotNegative  # at activity 1, the highest clock and its voltage
    leak_w_per_v: float  # (leak_w + leak_w_per_v V) exp(leak_per_v V + leak_per_k T + leak_offset), T in C
    leak_w: float = 0.0
    leak_per_v: float = 0.0
    leak_per_k: float = 0.0
    leak_offset: float = 0.0
    idle_leak_share: float = 0.3  # share of leakage that remains in deep idle states
    uncore_idle_w: float = 0.0  # per package
    uncore_busy_w: float = 0.0
    uncore_w_per_gbs: float = 0.0
    dram_idle_w: float = 0.0  # per package
    dram_w_per_gbs: float = 0.0
    rest_w: float = 0.0  # node: board, fans, network, power supply
    spin_activity: float = 0.35
    spin_ipc: float = 1.2
    tick_share: float = 0.001


class HeatConstants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """die -> heatsink -> air; for CPUs per package."""

    ambient_c: float
    die_k_per_w: Positive
    die_j_per_k: Positive
    sink_k_per_w: Positive
    sink_j_per_k: Positive
    core_k_per_w: float = 0.0  # temperature of a core above its die, by its own power
    core_tau_s: float = 0.005
    throttle_c: float = 95.0
    memory_k_per_w: float = 0.0  # a package's DIMMs above the air, by the power of all of them
    memory_tau_s: Positive = 60.0


class ZoneTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[[zone]]``: a RAPL domain, one for each package (``psys``: one for the node)."""

    kind: ZoneKind
    range_uj: Count
    unit_uj: Positive
    writable: bool = False
    mmio: bool = False
    constraints: tuple[Constraint, ...] = ()


class SensorTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[[sensor]]``: an hwmon input for each package or core, for a module of each package ("memory"), or one for the
    node. A chip without labels has ``label = ""``."""

    chip: str
    kind: Literal["temperature", "power"]
    of: Literal["package", "core", "memory", "node"]
    label: str  # "{n}" is replaced by the index
    max_c: float = 0.0
    critical_c: float = 0.0


class GpuPower(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Board watts of a kernel: base(clock) + memory_w * dram_active + sm_w * activity * V^2 f relative to the top."""

    volts: tuple[tuple[float, float], ...]
    idle_w: float  # no context, lowest clock
    ready_w: float  # context, top clock, no kernel
    memory_w: float
    sm_w: float
    leak_per_k: float


class GpuSensors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Latencies and averaging of NVML's numbers on this card."""

    power_update_ms: float
    power_window_ms: float
    energy_update_ms: float
    utilization_window_ms: float
    lock_latency_ms: float


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU model: identity as NVML shows it, clock ladder, power, heat."""

    count: Count
    name: str
    architecture: Literal["volta", "ampere", "hopper"]
    compute_capability: tuple[int, int]
    cores: int
    min_khz: Count
    max_khz: Count
    step_khz: Count
    idle_khz: Count
    memory_mhz: int
    memory_mib: int
    memory_bus_bits: int
    power_limit_w: float
    power_limit_min_w: float
    power_limit_max_w: float
    slowdown_c: int
    shutdown_c: int
    pcie_gen: int
    pcie_width: int
    vbios: str
    has_gpm: bool
    driver: str
    driver_cuda: int
    power: GpuPower
    heat: HeatConstants
    sensors: GpuSensors
    memory_over_die_c: float = 6.0

    @property
    def clocks_khz(self) -> tuple[int, ...]:
        """Exact ladder, ascending. NVML shows whole megahertz, rounded down."""
        return tuple(range(self.min_khz, self.max_khz + 1, self.step_khz))

    @property
    def clocks_mhz(self) -> tuple[int, ...]:
        """Ladder as NVML shows it, ascending."""
        return tuple(khz // 1000 for khz in self.clocks_khz)


class MachineTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine file."""

    name: str
    summary: str
    cpu: CpuTable
    frequency: FrequencyTable
    power: PowerConstants
    heat: HeatConstants
    memory: MemoryTable = MemoryTable()
    zone: tuple[ZoneTable, ...] = ()
    sensor: tuple[SensorTable, ...] = ()
    gpu: Gpu | None = None
    fault: tuple[dict[str, Any], ...] = ()

"""The tables of a machine file (TOML), with the constants of a node's physics."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from twin.toml_table import Count, NotNegative, Positive, Share

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


class Bandwidth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[memory.bandwidth]``: GB/s between cores and memory; without this table threads do not slow each other.

    ``core_gbs``: the most that one core takes. ``link_gbs``: of each ``link_cores`` cores, such as a core complex die;
    each further core that asks for all it can take costs the share ``link_loss`` of it. ``package_gbs``: of a package.
    """

    core_gbs: Positive
    package_gbs: Positive
    link_cores: Annotated[int, msgspec.Meta(ge=0)] = 0  # 0: no links
    link_gbs: NotNegative = 0.0
    link_loss: Share = 0.0


class MemoryTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[memory]``: the memory and the caches of a package."""

    gib: Annotated[int, msgspec.Meta(ge=0)] = 0  # 0: the kernel shows no sizes
    caches: tuple[Cache, ...] = ()
    bandwidth: Bandwidth | None = None


class Turbo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[frequency.turbo]``: the highest clock, in MHz, while up to so many ``cores`` of a package are active, by the
    widest vectors that a core uses."""

    cores: tuple[Count, ...]
    scalar: tuple[Count, ...]
    avx2: tuple[Count, ...]
    avx512: tuple[Count, ...]

    @property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """Clocks by licence, in the model's order."""
        return self.scalar, self.avx2, self.avx512


class FrequencyTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[frequency]``: the cpufreq driver and its policies."""

    driver: str
    governors: tuple[str, ...]
    governor: str
    domain: Literal["core", "socket"] | int  # what shares a clock; or a number of cores
    min_khz: Count
    max_khz: Count
    base_khz: Count
    latency_us: Annotated[int, msgspec.Meta(ge=0)]
    step_khz: int = 0
    steps_khz: tuple[int, ...] = ()
    turbo_khz: int = 0
    turbo: Turbo | None = None
    update_us: NotNegative = 0.0  # firmware takes requests at this interval, not latency_us after each; 0: it does not
    switch_up_us: NotNegative = 0.0  # from then on until the clock has changed
    switch_down_us: NotNegative = 0.0
    lists_steps: bool = True  # whether scaling_available_frequencies exists
    preference_khz: tuple[tuple[int, int], ...] = ()
    """(Energy preference from 0 to 255, the highest clock that the hardware chooses for it), linear between and
    constant beyond, where the hardware chooses clocks by itself. Empty: the preference has no effect."""
    policy: Literal["cpu", "domain"] | None = None  # what has a cpufreq policy; None: as Linux does with this driver


class IdleState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[[idle]]``: a state of an idle core, from POLL to the deepest. ``core_w``: what a core in it draws."""

    name: str
    description: str
    latency_us: Annotated[int, msgspec.Meta(ge=0)]
    residency_us: Annotated[int, msgspec.Meta(ge=0)]
    core_w: NotNegative


class Uncore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[uncore]``: the clock between cores and memory (intel_uncore_frequency), in steps of 100 MHz.

    ``wait_share``: of the time that work waits for memory, what goes with the inverse of this clock. ``clock_w``: watts
    of a package that go with its square; they are part of those in ``[power]``, which are at the highest clock. A power
    limit of the package below ``cap_high_w`` lowers the clock, down to the lowest at ``cap_low_w``; 0: it does not.
    """

    min_khz: Count
    max_khz: Count
    wait_share: Share
    clock_w: NotNegative
    cap_low_w: NotNegative = 0.0
    cap_high_w: NotNegative = 0.0


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
    uncore_sleep_w: NotNegative = 0.0  # while all cores of the node are in the deepest state of [[idle]]
    uncore_busy_w: float = 0.0
    uncore_w_per_gbs: float = 0.0
    dram_idle_w: float = 0.0  # per package
    dram_w_per_gbs: float = 0.0
    rest_w: float = 0.0  # node: board, fans, network, power supply
    package_limit_w: NotNegative = 0.0  # that a package's own firmware keeps, without DRAM (AMD: PPT); 0: none
    responsive_above_w: NotNegative = 0.0
    """Below this sum of the packages' long-term limits programs of the node wait for tenths of a second; 0: never. Some
    values that can be set hang a node (REGALE D2.3 section 4.2)."""
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
    node, or for the air that it takes in ("inlet"). A chip without labels has ``label = ""``."""

    chip: str
    kind: Literal["temperature", "power"]
    of: Literal["package", "core", "memory", "node", "inlet"]
    label: str  # "{n}" is replaced by the index
    max_c: float = 0.0
    critical_c: float = 0.0


class GpuPower(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Board watts of a kernel: base(clock) + memory_w * dram_active * speed + sm_w * activity * V^2 f.

    V, f and the kernel's speed are relative to the top clock. ``sm_work`` is the share of the SMs' watts that follows
    the speed in place of the clock, as of stalled SMs whose clock is gated; ``memory_awake`` the share of the memory's
    watts that follows neither. Both are 0 in machines that were not fitted (``twin/fit``).
    """

    volts: tuple[tuple[float, float], ...]
    idle_w: float  # no context, lowest clock
    ready_w: float  # context, top clock, no kernel
    memory_w: float
    sm_w: float
    leak_per_k: float
    sm_work: Share = 0.0
    memory_awake: Share = 0.0


class FitErrors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Errors of the law's watts against measured ones, per cent, over so many points."""

    points: int
    median_pct: float
    p95_pct: float
    worst_pct: float
    worst: str  # the workload


class FitShares(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Watts of one workload of the sweep at the top clock, above the ready watts."""

    workload: str
    core_w: float
    awake_w: float
    memory_w: float = 0.0
    uncore_w: float = 0.0


class Fit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the constants of a file were fitted: written by ``nodectl twin fit``, read by people.

    ``two_clocks`` and ``top_clock``: errors for workloads left out of the fit, whose watts at the highest and lowest
    clock, or at the highest alone, were given. ``sha256``: of the sweep.
    """

    sweep: str
    sha256: str
    card: str
    rate: Literal["work", "clock"]
    residual: FitErrors
    two_clocks: FitErrors | None = None
    top_clock: FitErrors | None = None
    shares: tuple[FitShares, ...] = ()


class GpuSensors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Latencies, averaging and errors of NVML's numbers on this card.

    Power readings and the energy counter show ``power_gain`` times the true watts plus ``power_offset_w``.
    ``lock_spread``: the deviation of the logarithm of the time until a locked clock is in force, whose median is
    ``lock_latency_ms``; 0: that time is uniform over 0.6 to 1.4 of it.
    ``instant_window_ms``: what the instantaneous reading averages over, each ``power_update_ms``; 0: the last
    millisecond, at each millisecond.
    """

    power_update_ms: float
    power_window_ms: float
    energy_update_ms: float
    utilization_window_ms: float
    lock_latency_ms: float
    lock_spread: Annotated[float, msgspec.Meta(ge=0.0, le=2.0)] = 0.0
    power_gain: Positive = 1.0
    power_offset_w: float = 0.0
    instant_window_ms: NotNegative = 0.0


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU model: identity as NVML shows it, clock ladder, power, heat.

    Under a power limit that binds, the shown watts settle on ``limit_share`` of it with the time constant
    ``limit_settle_ms``; 0: at once, at whole clocks. The clock then swings about its mean by ``limit_ripple`` of what
    the limit takes from it. Without kernels an unlocked card falls to its idle clock after ``idle_after_ms`` and takes
    ``wake_ms`` to leave it for work.
    """

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
    limit_share: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1.0
    limit_settle_ms: NotNegative = 0.0
    limit_ripple: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] = 0.0
    idle_after_ms: NotNegative = 500.0  # ours
    wake_ms: NotNegative = 0.0
    fit: Fit | None = None

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
    uncore: Uncore | None = None
    idle: tuple[IdleState, ...] = ()
    zone: tuple[ZoneTable, ...] = ()
    sensor: tuple[SensorTable, ...] = ()
    gpu: Gpu | None = None
    fit: Fit | None = None  # of [power]
    fault: tuple[dict[str, Any], ...] = ()

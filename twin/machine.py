"""Machines that the twin can emulate: the parts of a node and the constants of its physics.

A machine file describes one real node type in TOML; each number has its source or the word *ours*. Loading expands it
to what the Linux kernel would show: logical CPUs in kernel order (first threads of all cores, then their siblings),
cpufreq policies, powercap zones, hwmon sensors, GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from foundation.shell.errors import nearest
from twin.errors import TwinError
from twin.machine_tables import (
    Cache,
    Constraint,
    FrequencyTable,
    Gpu,
    GpuSensors,
    HeatConstants,
    IdleState,
    MachineTable,
    MemoryTable,
    PowerConstants,
    SensorTable,
    Turbo,
    Uncore,
    ZoneKind,
    ZoneTable,
)
from twin.toml_table import place, read_toml

__all__ = [
    "EVENTS",
    "MACHINES",
    "Cache",
    "Constraint",
    "CpufreqPolicy",
    "Domain",
    "Gpu",
    "HeatConstants",
    "IdleState",
    "Machine",
    "MemoryTable",
    "PowerConstants",
    "Sensor",
    "Turbo",
    "TwinError",
    "Uncore",
    "Zone",
    "load_machine",
    "machine_names",
]

MACHINES = Path(__file__).parent / "machines"

EVENTS = ("cycles", "reference-cycles", "instructions", "stalls", "llc-misses")
"""Counter columns in the model's order."""


class CpufreqPolicy(msgspec.Struct, frozen=True):
    """Logical CPUs that the kernel requests one clock for. A domain may have several; its highest request counts."""

    number: int  # of its directory: the first of its CPUs
    cpus: tuple[int, ...]
    domain: int  # index into Machine.domains


class Domain(msgspec.Struct, frozen=True):
    """Logical CPUs that share one clock."""

    cpus: tuple[int, ...]
    policies: tuple[int, ...]  # indices into Machine.policies
    min_khz: int
    max_khz: int
    base_khz: int
    steps_khz: tuple[int, ...]  # every clock the hardware can run, ascending
    lists_steps: bool  # whether scaling_available_frequencies lists them
    latency_us: int


class Zone(msgspec.Struct, frozen=True):
    """A powercap zone. ``name`` as in its name file, ``path`` below /sys/class/powercap's control type."""

    name: str
    label: str  # unique: "package-0/dram"
    path: str  # "intel-rapl:0/intel-rapl:0:1"
    control_type: str  # "intel-rapl" | "intel-rapl-mmio"
    kind: ZoneKind
    package: int  # -1: whole node
    parent: int  # index into Machine.zones, or -1
    range_uj: int
    unit_uj: float
    writable: bool
    mmio: bool
    constraints: tuple[Constraint, ...]


class Sensor(msgspec.Struct, frozen=True):
    """An hwmon input. Inputs with the same ``chip`` and ``chip_index`` belong to one hwmon device."""

    chip: str
    chip_index: int
    label: str
    kind: Literal["temperature", "power", "energy"]
    of: Literal["package", "core", "memory", "node", "inlet"]
    index: int
    max_c: float
    critical_c: float


class Machine(msgspec.Struct, frozen=True):
    """A node type, expanded."""

    name: str
    summary: str
    path: str
    vendor: str
    model_name: str
    cpu_family: int
    cpu_model: int
    cpu_stepping: int
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    cpus: int
    cores: int
    core_of: tuple[int, ...]  # per logical CPU: core, unique over the node
    core_id: tuple[int, ...]  # per logical CPU: the kernel's core_id, unique within its package
    package_of: tuple[int, ...]  # per logical CPU
    die_of: tuple[int, ...]  # per logical CPU: die within the package
    domain_of: tuple[int, ...]  # per logical CPU: index into domains
    domains: tuple[Domain, ...]
    policy_of: tuple[int, ...]  # per logical CPU: index into policies
    policies: tuple[CpufreqPolicy, ...]
    driver: str
    governors: tuple[str, ...]
    governor: str  # at boot
    min_khz: int
    max_khz: int
    base_khz: int
    steps_khz: tuple[int, ...]
    preference_khz: tuple[tuple[int, int], ...]
    turbo_khz: int  # true clock of the top step where it is a turbo state, else 0
    turbo: Turbo | None  # the highest clock by active cores
    latency_us: int
    update_us: float  # interval at which firmware takes requests; 0: after latency_us
    switch_us: tuple[float, float]  # from then on, up and down
    tsc_khz: int
    events: tuple[str, ...]
    reference_source: Literal["cpu", "msr"]
    raw_events: dict[str, str]
    smt_throughput: float
    memory: MemoryTable
    uncore: Uncore | None
    idle: tuple[IdleState, ...]  # as the model has them; none: those of the vendor are shown without effect
    zones: tuple[Zone, ...]
    sensors: tuple[Sensor, ...]
    gpu: Gpu | None
    faults: tuple[dict[str, Any], ...]
    power: PowerConstants
    heat: HeatConstants

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.gpu.count if self.gpu else 0

    @property
    def clock_hz(self) -> tuple[float, ...]:
        """True clock of each step. A turbo step's label is base plus one megahertz, unlike its clock."""
        steps = [khz * 1e3 for khz in self.steps_khz]
        if self.turbo_khz:
            steps[-1] = self.turbo_khz * 1e3
        return tuple(steps)


def machine_names() -> list[str]:
    """Machines shipped with the product."""
    return sorted(path.stem for path in MACHINES.glob("*.toml"))


MOST_CPUS = 4096
"""Ours: several times as many as the largest present node has; each costs a few files and counters."""


MOST_STEPS = 4096
"""Ours: several times as many clocks as a processor or card has."""


def load_machine(name: str) -> Machine:
    """A shipped machine by name, or one in a TOML file by path."""
    path = Path(name)
    if path.suffix == ".toml":
        return expand(read_toml(path, MachineTable), path)
    path = MACHINES / f"{name}.toml"
    if not path.exists():
        raise TwinError(f'unknown machine "{name}"{nearest(name, machine_names())}')
    return expand(read_toml(path, MachineTable), path)


def expand(table: MachineTable, path: Path) -> Machine:
    """The machine of a machine file, as the kernel would show it."""
    cpu, frequency = table.cpu, table.frequency
    _check(table, path)
    cores = cpu.sockets * cpu.cores_per_socket
    cpus = cores * cpu.threads_per_core
    core_of = tuple(i % cores for i in range(cpus))
    package_of = tuple(core // cpu.cores_per_socket for core in core_of)
    width = {"core": 1, "socket": cpu.cores_per_socket}.get(str(frequency.domain), frequency.domain)
    domain_of = tuple(core // int(width) for core in core_of)
    policy_of = tuple(range(cpus)) if _has_a_policy_per_cpu(table) else domain_of
    steps = frequency.steps_khz or tuple(range(frequency.min_khz, frequency.max_khz + 1, frequency.step_khz))
    return Machine(
        name=table.name,
        summary=table.summary,
        path=str(path),
        vendor=cpu.vendor,
        model_name=cpu.model_name,
        cpu_family=cpu.family,
        cpu_model=cpu.model,
        cpu_stepping=cpu.stepping,
        sockets=cpu.sockets,
        cores_per_socket=cpu.cores_per_socket,
        threads_per_core=cpu.threads_per_core,
        cpus=cpus,
        cores=cores,
        core_of=core_of,
        core_id=tuple(core % cpu.cores_per_socket for core in core_of),
        package_of=package_of,
        die_of=(0,) * cpus,
        domain_of=domain_of,
        domains=_domains(domain_of, policy_of, frequency, steps),
        policy_of=policy_of,
        policies=tuple(CpufreqPolicy(number=own[0], cpus=own, domain=domain_of[own[0]]) for own in _members(policy_of)),
        driver=frequency.driver,
        governors=frequency.governors,
        governor=frequency.governor,
        min_khz=frequency.min_khz,
        max_khz=frequency.max_khz,
        base_khz=frequency.base_khz,
        steps_khz=steps,
        preference_khz=frequency.preference_khz,
        turbo_khz=frequency.turbo_khz,
        turbo=frequency.turbo,
        latency_us=frequency.latency_us,
        update_us=frequency.update_us,
        switch_us=(frequency.switch_up_us, frequency.switch_down_us),
        tsc_khz=cpu.tsc_khz,
        events=cpu.events,
        reference_source=cpu.reference_source,
        raw_events=cpu.raw_events,
        smt_throughput=cpu.smt_throughput,
        memory=table.memory,
        uncore=table.uncore,
        idle=table.idle,
        zones=_zones(table.zone, cpu.sockets),
        sensors=_sensors(table.sensor, cpu.sockets, cpu.cores_per_socket),
        gpu=table.gpu,
        faults=table.fault,
        power=table.power,
        heat=table.heat,
    )


def _check(table: MachineTable, path: Path) -> None:
    for key, problem in _problems(table):
        raise TwinError(f"{place(path, *key)}: {'.'.join(key)}: {problem}")


def _problems(table: MachineTable) -> Iterator[tuple[tuple[str, ...], str]]:
    """Errors that concern several keys, or the range of valid names."""
    cpu, frequency = table.cpu, table.frequency
    for key in ("sockets", "cores_per_socket", "threads_per_core", "tsc_khz"):
        if getattr(cpu, key) < 1:
            yield ("cpu", key), f"{getattr(cpu, key)} is below 1"
    if cpu.sockets * cpu.cores_per_socket * cpu.threads_per_core > MOST_CPUS:
        yield ("cpu",), f"more than {MOST_CPUS} logical CPUs"
    for event in (*cpu.events, *cpu.raw_events):
        if event not in EVENTS:
            yield ("cpu", "events"), f'unknown event "{event}"{nearest(event, EVENTS)}'
    yield from _cache_problems(table)
    yield from _bandwidth_problems(table)
    yield from _turbo_problems(table)
    yield from _uncore_problems(table)
    yield from _idle_problems(table)
    governor, governors = frequency.governor, frequency.governors
    if governor not in governors:
        yield ("frequency", "governor"), f'"{governor}" is not among governors{nearest(governor, governors)}'
    for name, clocks in (("frequency", frequency), ("gpu", table.gpu)):
        if clocks is not None and clocks.min_khz > clocks.max_khz:
            yield (name, "min_khz"), f"{clocks.min_khz} is above max_khz, {clocks.max_khz}"
    if table.gpu:
        yield from _sensor_problems(table.gpu.sensors)
    yield from _frequency_problems(frequency)


def _frequency_problems(frequency: FrequencyTable) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(frequency.domain, int) and frequency.domain < 1:
        yield ("frequency", "domain"), f"{frequency.domain} is below 1"
    if not frequency.steps_khz and frequency.step_khz <= 0:
        yield ("frequency",), "give steps_khz, or step_khz above 0"
    elif not frequency.steps_khz and (frequency.max_khz - frequency.min_khz) // frequency.step_khz >= MOST_STEPS:
        yield ("frequency", "step_khz"), f"more than {MOST_STEPS} clocks from min_khz to max_khz"
    if list(frequency.steps_khz) != sorted(set(frequency.steps_khz)):
        yield ("frequency", "steps_khz"), "clocks must ascend"
    preferences = [preference for preference, _ in frequency.preference_khz]
    if preferences != sorted(set(preferences)) or any(not 0 <= preference <= 255 for preference in preferences):
        yield ("frequency", "preference_khz"), "preferences must ascend within 0 to 255"


def _cache_problems(table: MachineTable) -> Iterator[tuple[tuple[str, ...], str]]:
    for cache in table.memory.caches:
        if not cache.sets or table.cpu.cores_per_socket % cache.cores:
            yield ("memory", "caches"), f"level {cache.level} {cache.type}: its ways or cores do not divide"


def _sensor_problems(sensors: GpuSensors) -> Iterator[tuple[tuple[str, ...], str]]:
    if sensors.instant_window_ms > sensors.power_update_ms:
        yield ("gpu", "sensors", "instant_window_ms"), f"{sensors.instant_window_ms:g} is longer than power_update_ms"


def _bandwidth_problems(table: MachineTable) -> Iterator[tuple[tuple[str, ...], str]]:
    bandwidth = table.memory.bandwidth
    if bandwidth is None:
        return
    if bool(bandwidth.link_cores) != bool(bandwidth.link_gbs):
        yield ("memory", "bandwidth"), "give both link_cores and link_gbs, or neither"
    elif bandwidth.link_cores and table.cpu.cores_per_socket % bandwidth.link_cores:
        yield ("memory", "bandwidth"), f"link_cores: {bandwidth.link_cores} do not divide the cores of a package"


def _turbo_problems(table: MachineTable) -> Iterator[tuple[tuple[str, ...], str]]:
    turbo = table.frequency.turbo
    if turbo is None:
        return
    key = ("frequency", "turbo")
    ascends = list(turbo.cores) == sorted(set(turbo.cores)) and len(turbo.cores) <= 8  # groups of the register
    if not ascends or turbo.cores[-1:] != (table.cpu.cores_per_socket,):
        yield key, "cores must ascend to the cores of a package in at most eight steps"
    for row in turbo.rows:
        if len(row) != len(turbo.cores) or list(row) != sorted(row, reverse=True):
            yield key, "give as many clocks as cores in each row, none above the one before"
        elif not table.frequency.min_khz <= row[-1] * 1000 <= row[0] * 1000 <= table.frequency.max_khz:
            yield key, "a clock is below min_khz or above max_khz"


def _uncore_problems(table: MachineTable) -> Iterator[tuple[tuple[str, ...], str]]:
    uncore, power = table.uncore, table.power
    if uncore is None:
        return
    if uncore.min_khz > uncore.max_khz:
        yield ("uncore", "min_khz"), f"{uncore.min_khz} is above max_khz, {uncore.max_khz}"
    if uncore.cap_low_w > uncore.cap_high_w:
        yield ("uncore", "cap_low_w"), f"{uncore.cap_low_w:g} is above cap_high_w, {uncore.cap_high_w:g}"
    if uncore.clock_w > power.uncore_idle_w:
        yield ("uncore", "clock_w"), f"more than [power] uncore_idle_w, {power.uncore_idle_w:g}, of which it is a part"


def _idle_problems(table: MachineTable) -> Iterator[tuple[tuple[str, ...], str]]:
    times = [(state.residency_us, state.latency_us) for state in table.idle]
    if times and (times[0] != (0, 0) or times != sorted(times) or not 2 <= len(times) <= 10):  # CPUIDLE_STATE_MAX
        yield ("idle",), "two to ten states, from POLL without latency to the deepest"
    if times and table.power.uncore_sleep_w > table.power.uncore_idle_w:
        yield ("power", "uncore_sleep_w"), f"above uncore_idle_w, {table.power.uncore_idle_w:g}"


def _has_a_policy_per_cpu(table: MachineTable) -> bool:
    """Whether each logical CPU has a cpufreq policy of its own, as ``[frequency] policy`` says or else the driver does.

    intel_pstate (in both modes) and amd-pstate leave a policy the one CPU that it was made for. acpi-cpufreq takes the
    dependencies that the firmware reports (_PSD): those that software coordinates make a policy of several CPUs, those
    that hardware coordinates do not. On AMD processors before family 0x19 it overrides them: one CPU each. All other
    firmware here leaves it to software, which is ours.
    Source: Linux 6.x drivers/cpufreq/{acpi-cpufreq,intel_pstate,amd-pstate}.c (their cpu_init functions).
    """
    frequency, cpu = table.frequency, table.cpu
    if frequency.policy:
        return frequency.policy == "cpu"
    if frequency.driver == "acpi-cpufreq":
        return cpu.vendor in ("AuthenticAMD", "HygonGenuine") and cpu.family < 0x19
    return frequency.driver.startswith(("intel_", "amd-pstate"))


def _members(group_of: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The logical CPUs of each group, in the groups' order."""
    members: dict[int, list[int]] = {}
    for cpu, group in enumerate(group_of):
        members.setdefault(group, []).append(cpu)
    return [tuple(cpus) for _, cpus in sorted(members.items())]


def _domains(
    domain_of: tuple[int, ...], policy_of: tuple[int, ...], frequency: FrequencyTable, steps: tuple[int, ...]
) -> tuple[Domain, ...]:
    return tuple(
        Domain(
            cpus=cpus,
            policies=tuple(sorted({policy_of[cpu] for cpu in cpus})),
            min_khz=frequency.min_khz,
            max_khz=frequency.max_khz,
            base_khz=frequency.base_khz,
            steps_khz=steps,
            lists_steps=frequency.lists_steps,
            latency_us=frequency.latency_us,
        )
        for cpus in _members(domain_of)
    )


def _zones(tables: tuple[ZoneTable, ...], packages: int) -> tuple[Zone, ...]:
    """Packages with their parts in kernel order, then psys, then the memory-mapped copies."""
    zones: list[Zone] = []

    def add(table: ZoneTable, name: str, label: str, path: str, package: int, parent: int) -> int:
        control = "intel-rapl-mmio" if table.mmio else "intel-rapl"
        zones.append(
            Zone(
                name=name,
                label=label,
                path=path,
                control_type=control,
                kind=table.kind,
                package=package,
                parent=parent,
                range_uj=table.range_uj,
                unit_uj=table.unit_uj,
                writable=table.writable,
                mmio=table.mmio,
                constraints=table.constraints,
            )
        )
        return len(zones) - 1

    number = {"intel-rapl": 0, "intel-rapl-mmio": 0}
    for mmio in (False, True):
        control = "intel-rapl-mmio" if mmio else "intel-rapl"
        own = [table for table in tables if table.mmio == mmio]
        for table in own:
            if table.kind != "package":
                continue
            for package in range(packages):
                path, label = f"{control}:{number[control]}", f"package-{package}" + ("/mmio" if mmio else "")
                parent = add(table, f"package-{package}", label, path, package, -1)
                parts = [part for part in own if part.kind not in ("package", "psys")]
                for k, part in enumerate(parts):
                    add(part, part.kind, f"{label}/{part.kind}", f"{path}/{path}:{k}", package, parent)
                number[control] += 1
        for table in own:
            if table.kind == "psys":
                add(table, "psys", "psys", f"{control}:{number[control]}", -1, -1)
                number[control] += 1
    return tuple(zones)


def _sensors(tables: tuple[SensorTable, ...], packages: int, cores_per_package: int) -> tuple[Sensor, ...]:
    def sensor(table: SensorTable, chip_index: int, index: int, shown: int) -> Sensor:
        label = table.label.replace("{n}", str(shown))
        return Sensor(table.chip, chip_index, label, table.kind, table.of, index, table.max_c, table.critical_c)

    sensors: list[Sensor] = []
    for package in range(packages):
        for table in tables:
            if table.of == "package":
                sensors.append(sensor(table, package, package, package))
            elif table.of == "core":
                first = package * cores_per_package
                sensors += [sensor(table, package, first + k, k) for k in range(cores_per_package)]
    modules = [table for table in tables if table.of == "memory"]
    sensors += [sensor(table, package, package, package) for package in range(packages) for table in modules]
    sensors += [sensor(table, 0, 0, 0) for table in tables if table.of in ("node", "inlet")]
    return tuple(sensors)

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

from twin.errors import TwinError, nearest
from twin.machine_tables import (
    Cache,
    Constraint,
    FrequencyTable,
    Gpu,
    HeatConstants,
    MachineTable,
    MemoryTable,
    PowerConstants,
    SensorTable,
    ZoneKind,
    ZoneTable,
)
from twin.toml_table import place, read_toml

__all__ = [
    "EVENTS",
    "MACHINES",
    "Cache",
    "Constraint",
    "Domain",
    "Gpu",
    "HeatConstants",
    "Machine",
    "MemoryTable",
    "PowerConstants",
    "Sensor",
    "TwinError",
    "Zone",
    "load_machine",
    "machine_names",
]

MACHINES = Path(__file__).parent / "machines"

EVENTS = ("cycles", "reference-cycles", "instructions", "stalls", "llc-misses")
"""Counter columns in the model's order."""


class Domain(msgspec.Struct, frozen=True):
    """A cpufreq policy: logical CPUs that share one clock."""

    policy: int
    cpus: tuple[int, ...]
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
    kind: Literal["temperature", "power"]
    of: Literal["package", "core", "memory", "node"]
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
    driver: str
    governors: tuple[str, ...]
    governor: str  # at boot
    min_khz: int
    max_khz: int
    base_khz: int
    steps_khz: tuple[int, ...]
    turbo_khz: int  # true clock of the top step where it is a turbo state, else 0
    latency_us: int
    tsc_khz: int
    events: tuple[str, ...]
    reference_source: Literal["cpu", "msr"]
    raw_events: dict[str, str]
    smt_throughput: float
    memory: MemoryTable
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
        domains=_domains(domain_of, frequency, steps),
        driver=frequency.driver,
        governors=frequency.governors,
        governor=frequency.governor,
        min_khz=frequency.min_khz,
        max_khz=frequency.max_khz,
        base_khz=frequency.base_khz,
        steps_khz=steps,
        turbo_khz=frequency.turbo_khz,
        latency_us=frequency.latency_us,
        tsc_khz=cpu.tsc_khz,
        events=cpu.events,
        reference_source=cpu.reference_source,
        raw_events=cpu.raw_events,
        smt_throughput=cpu.smt_throughput,
        memory=table.memory,
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
    governor, governors = frequency.governor, frequency.governors
    if governor not in governors:
        yield ("frequency", "governor"), f'"{governor}" is not among governors{nearest(governor, governors)}'
    for name, clocks in (("frequency", frequency), ("gpu", table.gpu)):
        if clocks is not None and clocks.min_khz > clocks.max_khz:
            yield (name, "min_khz"), f"{clocks.min_khz} is above max_khz, {clocks.max_khz}"
    if not frequency.steps_khz and frequency.step_khz <= 0:
        yield ("frequency",), "give steps_khz, or step_khz above 0"
    if list(frequency.steps_khz) != sorted(set(frequency.steps_khz)):
        yield ("frequency", "steps_khz"), "clocks must ascend"


def _cache_problems(table: MachineTable) -> Iterator[tuple[tuple[str, ...], str]]:
    for cache in table.memory.caches:
        if not cache.sets or table.cpu.cores_per_socket % cache.cores:
            yield ("memory", "caches"), f"level {cache.level} {cache.type}: its ways or cores do not divide"


def _domains(domain_of: tuple[int, ...], frequency: FrequencyTable, steps: tuple[int, ...]) -> tuple[Domain, ...]:
    members: dict[int, list[int]] = {}
    for cpu, domain in enumerate(domain_of):
        members.setdefault(domain, []).append(cpu)
    return tuple(
        Domain(
            policy=cpus[0],
            cpus=tuple(cpus),
            min_khz=frequency.min_khz,
            max_khz=frequency.max_khz,
            base_khz=frequency.base_khz,
            steps_khz=steps,
            lists_steps=frequency.lists_steps,
            latency_us=frequency.latency_us,
        )
        for _, cpus in sorted(members.items())
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
    sensors += [sensor(table, 0, 0, 0) for table in tables if table.of == "node"]
    return tuple(sensors)

"""Workloads: phases of work that groups of CPUs or GPUs execute, and how their counters relate to truth.

Names: a shipped workload (``workload_names()``); ``v100:NAME``, one measured row set of the V100 table; ``taurus``;
``mixed-cpu:SEED``, ``mixed-cpu-threads:SEED`` and ``mixed-gpu:SEED``, seeded phase sequences; ``trace:FILE.csv``, a
phase trace; or a path to a TOML file.

Phase trace: a CSV with a header and one row per phase, executed in order. Columns: ``unit`` (``cpu`` or ``gpu``),
``phase`` (a name; the same name is the same phase), ``seconds`` at the highest clock, and any other key of a phase
in a workload file (``twin.programs.workload_phases``): ``beta``, ``ipc``, ``traffic_gbs`` in ``cpu`` rows;
``knee_mhz``, ``occupancy``, ``sm_active``, ``dram_active``, ``gap_share`` and so on in ``gpu`` rows; ``activity``,
``iterations`` in both. An empty cell takes the key's default. ``cpu`` rows run on one thread of every core, ``gpu``
rows on every GPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from foundation.shell.errors import nearest
from twin.errors import TwinError
from twin.machine import Gpu, Machine
from twin.physics import curves, error_curves, families
from twin.physics.curves import CounterError, type_f64
from twin.physics.emulated_progress import ProgressCount, progress_count
from twin.physics.error_curves import ErrorCurve
from twin.physics.families import v100_names
from twin.programs.workload_phases import LICENSES, CpuGroup, CpuPhase, GpuGroup, GpuPhase, WorkloadTable
from twin.toml_table import read_toml

__all__ = [
    "Group",
    "GroupTruth",
    "Phase",
    "PhaseTruth",
    "Workload",
    "WorkloadTruth",
    "cpu_group",
    "duration_s",
    "gpu_group",
    "group_truth",
    "load_workload",
    "v100_names",
    "workload_names",
]

WORKLOADS = Path(__file__).parents[1] / "workloads"

HIGHEST_BIAS = 0.9
"""Ours: if the error were as large as the truth, counters would have no information."""


class PhaseTruth(msgspec.Struct, frozen=True):
    """The truth about a phase, hidden from policies; for oracles and reports.

    ``speed`` relative to the highest clock and ``power_w`` (mean board power of a GPU; empty for CPUs) at each of
    ``clocks_mhz``, with gaps included, at the temperature that these watts settle at. ``beta`` for CPUs, ``knee_mhz``
    for GPUs, else 0. ``error_curve``: the application whose measured error DRAM activity has in place of
    ``counter_error.loss``; empty if none.
    """

    name: str
    on_gpu: bool
    clocks_mhz: tuple[float, ...]
    speed: tuple[float, ...]
    power_w: tuple[float, ...]
    beta: float
    knee_mhz: float
    gap_share: float
    free_mhz: float
    free_loss: float
    counter_error: CounterError
    error_curve: str = ""


class GroupTruth(msgspec.Struct, frozen=True):
    """A group's units (CPUs or GPUs), phases, and program: (phase index, seconds at the highest clock) per round."""

    on_gpu: bool
    units: tuple[int, ...]
    phases: tuple[PhaseTruth, ...]
    program: tuple[tuple[int, float], ...]
    repeat: int
    unit_s: tuple[float, ...] = ()  # mean seconds of work of a unit of progress in each phase


class WorkloadTruth(msgspec.Struct, frozen=True):
    """The truth about a workload, with its seed and its counter errors."""

    name: str
    seed: int
    bias: float
    noise: float
    seconds: float
    groups: tuple[GroupTruth, ...]


class Phase(msgspec.Struct, frozen=True):
    """A phase as the model executes it: tables over the clock ladder, shares.

    ``memory_s``: seconds of a second's work that do not depend on the clock, in which a CPU waits for memory.
    ``license``: index of its vectors in ``LICENSES``."""

    truth: PhaseTruth
    tables: type_f64
    activity: float = 0.0
    memory_s: float = 0.0
    license: int = 0
    gap_share: float = 0.0
    gap_active: float = 0.0
    sm_active: float = 0.0
    occupancy: float = 0.0
    fp_active: float = 0.0
    free_level: int = 0
    free_loss: float = 0.0


class Group(msgspec.Struct, frozen=True):
    """Units that execute a program of (phase index, iterations, seconds) together; repeat 0 = until the others end.
    ``progress``: how it counts its progress, if it reports any. ``mig``: the MIG device of each of its GPUs;
    ``mps_share``: its part of their SMs under MPS, 0 for none."""

    on_gpu: bool
    units: tuple[int, ...]
    weight: type_f64
    phases: tuple[Phase, ...]
    program: tuple[tuple[int, int, float], ...]
    repeat: int
    spins: bool = False
    nominal_share: float = 1.0
    memory_mib: int = 0
    mig: int | None = None
    mps_share: float = 0.0
    progress: ProgressCount | None = None


class Workload(msgspec.Struct, frozen=True):
    """A workload fitted to one machine."""

    name: str
    summary: str
    source: str
    machine: str
    seed: int
    bias: float
    noise: float
    seconds: float
    groups: tuple[Group, ...]
    truth: WorkloadTruth


def workload_names() -> list[str]:
    """Shipped workloads, then the families."""
    shipped = sorted(path.stem for path in WORKLOADS.glob("*.toml"))
    return [*shipped, *(name for name, _, _ in _FAMILIES)]


_FAMILIES = (
    ("taurus", "cpu", "NAS EP class C on a Taurus node, measured at 13 clocks"),
    ("v100:NAME", "gpu", "one measured row set of the V100 table (v100_names)"),
    ("mixed-cpu:SEED", "cpu", "phases with random shares of work that scales with the clock, from the seed"),
    ("mixed-cpu-threads:SEED", "cpu", "the same on all threads of every core"),
    ("mixed-gpu:SEED", "gpu", "phases that need different clocks, random from the seed"),
    ("trace:FILE.csv", "cpu, gpu", "a phase trace (columns at the head of twin/programs/workload.py)"),
)


def workload_summaries() -> list[tuple[str, str, str]]:
    """Name, device and one-line description of each of ``workload_names()``."""
    rows = []
    for name in sorted(path.stem for path in WORKLOADS.glob("*.toml")):
        table = read_toml(WORKLOADS / f"{name}.toml", WorkloadTable)
        rows.append((name, "gpu" if table.gpu else "cpu", table.summary))
    return [*rows, *_FAMILIES]


def check_bias(bias: float) -> None:
    """TwinError unless the bias leaves information in the counters."""
    if not 0 <= bias <= HIGHEST_BIAS:
        raise TwinError(f"bias {bias:g}: the error between counters and truth is a share from 0 to {HIGHEST_BIAS:g}")


def duration_s(text: str) -> float:
    """Seconds of a duration with its unit; a bare number is seconds."""
    units = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "": 1.0}
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", text)
    if not match or match[2] not in units or float(match[1]) <= 0:
        raise TwinError(f"{text}: not a time above 0 such as 30s or 2min")
    return float(match[1]) * units[match[2]]


def load_workload(
    name: str,
    machine: Machine,
    seed: int = 1,
    bias: float = 0.2,
    duration_s: float | None = None,
    data: Path | str | None = None,
    progress_s: float | None = None,
    counter_error: str = error_curves.UNIFORM,
) -> Workload:
    """A workload fitted to ``machine``.

    ``bias`` is the half-width of the random error between counters and truth, ``duration_s`` the run time at the
    highest clocks (default: the workload's own), ``data`` a measured table to use instead of the shipped one,
    ``progress_s`` the work of a unit of progress that each program reports (default: the workload's own, mostly none).
    ``counter_error``: ``measured`` has the DRAM activity of each GPU phase err as a measured application's does, drawn
    from the seed, ``measured:NAME`` as that application's; ``bias`` then decides the other errors alone.
    """
    check_bias(bias)
    measured = error_curves.choices(counter_error)
    table = _described(name, machine, seed, Path(data) if data else None)
    if table.gpu and machine.gpu is None:
        raise TwinError(f'workload "{name}" needs a GPU; machine "{machine.name}" has none')
    if table.needs_bandwidth and machine.memory.bandwidth is None:
        raise TwinError(f'workload "{name}" needs [memory.bandwidth]; machine "{machine.name}" has none: take stream')
    groups: list[Group] = []
    for number, on_cpus in enumerate(table.cpu):
        groups.append(cpu_group(on_cpus, machine, curves.stream(seed, name, "cpu", number), bias, name))
    for number, on_gpus in enumerate(table.gpu):
        assert machine.gpu is not None
        random, drawing = (curves.stream(seed, name, key, number) for key in ("gpu", "error curve"))
        drawn = [error_curves.drawn(measured, drawing) for _ in on_gpus.phase]
        groups.append(gpu_group(on_gpus, machine.gpu, random, bias, name, drawn))
    groups = [_stretched(group, groups, duration_s) for group in groups]
    tables: tuple[CpuGroup | GpuGroup, ...] = (*table.cpu, *table.gpu)
    for number, group in enumerate(groups):
        unit_s = tables[number].progress if progress_s is None else progress_s
        groups[number] = _with_progress(group, unit_s, curves.stream(seed, name, "progress", number))
    seconds = max((_seconds(group) for group in groups), default=0.0)
    truth = WorkloadTruth(name, seed, bias, table.noise, seconds, tuple(group_truth(group) for group in groups))
    return Workload(
        name, table.summary, table.source, machine.name, seed, bias, table.noise, seconds, tuple(groups), truth
    )


def _described(name: str, machine: Machine, seed: int, data: Path | None) -> WorkloadTable:
    family, _, argument = name.partition(":")
    if family == "v100":
        return families.v100_table(argument, machine, seed, data)
    if name == "taurus":
        return families.taurus_table(data)
    if family in ("mixed-cpu", "mixed-cpu-threads"):
        return families.mixed_cpu(_integer(name, argument), "threads" if family.endswith("threads") else "cores")
    if family == "mixed-gpu":
        return families.mixed_gpu(_integer(name, argument), machine)
    if family == "trace":
        return families.trace_table(Path(argument))
    if name.endswith(".toml"):
        return read_toml(Path(name), WorkloadTable)
    path = WORKLOADS / f"{name}.toml"
    if not path.exists():
        raise TwinError(f'unknown workload "{name}"{nearest(name, workload_names())}')
    return read_toml(path, WorkloadTable)


def _integer(name: str, argument: str) -> int:
    if not argument.isdigit():
        raise TwinError(f'workload "{name}": the part after the colon is a seed, a whole number')
    return int(argument)


# --- from tables to levels ---


def _seconds(group: Group) -> float:
    return group.repeat * sum(part[2] for part in group.program)


def _stretched(group: Group, groups: Sequence[Group], duration_s: float | None) -> Group:
    """Changes the number of whole rounds, then scales the work of each phase for the remainder."""
    longest = max(_seconds(other) for other in groups)
    if duration_s is None or group.repeat == 0 or longest <= 0:
        return group
    goal = duration_s * _seconds(group) / longest
    one_round = sum(part[2] for part in group.program)
    repeat = max(1, round(goal / one_round))
    scale = goal / (repeat * one_round)
    program = tuple((phase, max(1, round(n * scale)), work * scale) for phase, n, work in group.program)
    return msgspec.structs.replace(group, repeat=repeat, program=program)


def _with_progress(group: Group, unit_s: float, random: np.random.Generator) -> Group:
    if unit_s <= 0 or group.repeat == 0:
        return group
    program = [(phase, work_s) for phase, _, work_s in group.program]
    count = progress_count(unit_s, len(group.phases), program, group.repeat, random)
    return msgspec.structs.replace(group, progress=count)


def group_truth(group: Group) -> GroupTruth:
    """The truth about a group."""
    program = tuple((phase, work) for phase, _, work in group.program)
    phases = tuple(phase.truth for phase in group.phases)
    unit_s = group.progress.unit_s if group.progress else ()
    return GroupTruth(group.on_gpu, group.units, phases, program, group.repeat, unit_s)


def _weights(random: np.random.Generator, count: int, imbalance: float) -> type_f64:
    weight = 1.0 - imbalance * random.random(count)
    return np.asarray(weight / weight.max())


def _program(phases: Sequence[CpuPhase] | Sequence[GpuPhase]) -> tuple[tuple[int, int, float], ...]:
    """Phases of one name are one phase, executed at each place of that name."""
    index: dict[str, int] = {}
    return tuple((index.setdefault(phase.name, len(index)), phase.iterations, phase.seconds) for phase in phases)


def cpu_group(group: CpuGroup, machine: Machine, random: np.random.Generator, bias: float, name: str) -> Group:
    """CPUs of a workload ``name``, fitted to ``machine``; ``random`` draws their imbalance and counter errors."""
    units = _cpus(group.cpus, machine, name)
    first: dict[str, CpuPhase] = {}
    for phase in group.phase:
        first.setdefault(phase.name, phase)
    phases = tuple(_cpu_phase(phase, machine, curves.random_counter_error(random, bias)) for phase in first.values())
    used = set(units)
    shares_core = any(sum(machine.core_of[u] == machine.core_of[v] for v in used) > 1 for u in list(used)[:4])
    return Group(
        on_gpu=False,
        units=units,
        weight=_weights(random, len(units), group.imbalance),
        phases=phases,
        program=_program(group.phase),
        repeat=0 if group.serves_gpus else group.repeat,
        spins=group.wait == "spin",
        nominal_share=machine.smt_throughput / machine.threads_per_core if shares_core else 1.0,
    )


def _cpus(which: str, machine: Machine, name: str) -> tuple[int, ...]:
    """``cores`` (one thread each), ``threads``, ``socket:N`` (one thread per core), ``one-per-gpu``, or ``0,1,2``."""
    if which == "cores":
        return tuple(range(machine.cores))
    if which == "threads":
        return tuple(range(machine.cpus))
    if which == "one-per-gpu":
        spread = machine.cores // max(machine.gpus, 1)
        return tuple(gpu * spread for gpu in range(max(machine.gpus, 1)))
    if which.startswith("socket:") and which[7:].isdigit():
        return tuple(cpu for cpu in range(machine.cores) if machine.package_of[cpu] == int(which[7:]))
    try:
        units = tuple(int(number) for number in which.split(","))
    except ValueError:
        known = ("cores", "threads", "socket:0", "one-per-gpu")
        raise TwinError(f'workload "{name}": cpus: unknown choice "{which}"{nearest(which, known)}') from None
    if any(cpu >= machine.cpus for cpu in units):
        raise TwinError(f'workload "{name}": cpus: machine "{machine.name}" has CPUs 0 to {machine.cpus - 1}')
    return units


def _cpu_phase(phase: CpuPhase, machine: Machine, counter_error: CounterError) -> Phase:
    if phase.speed_at_mhz:
        points = sorted((float(mhz), speed) for mhz, speed in phase.speed_at_mhz.items())
        mhz, speeds = (np.array(column) for column in zip(*points, strict=True))
        speed = np.interp(np.asarray(machine.steps_khz) / 1e3, mhz, speeds)
        clock = np.asarray(machine.clock_hz)
        low = int(np.argmin(speed))
        beta = float((1.0 / speed[low] - 1.0) / (clock[-1] / clock[low] - 1.0)) if low < len(speed) - 1 else 0.0
    else:
        speed, beta = curves.beta_speed(machine.clock_hz, phase.beta), phase.beta
    tables = curves.cpu_tables(machine, speed, beta, phase.ipc, phase.traffic_gbs, counter_error)
    truth = PhaseTruth(
        name=phase.name,
        on_gpu=False,
        clocks_mhz=tuple(khz / 1e3 for khz in machine.steps_khz),
        speed=tuple(float(x) for x in speed),
        power_w=(),
        beta=beta,
        knee_mhz=0.0,
        gap_share=0.0,
        free_mhz=0.0,
        free_loss=0.0,
        counter_error=counter_error,
    )
    memory_s, license_index = min(max(1.0 - beta, 0.0), 1.0), LICENSES.index(phase.vectors)
    return Phase(truth=truth, tables=tables, activity=phase.activity, memory_s=memory_s, license=license_index)


def gpu_group(
    group: GpuGroup,
    gpu: Gpu,
    random: np.random.Generator,
    bias: float,
    name: str,
    measured: Sequence[ErrorCurve | None],
) -> Group:
    """GPUs of a workload ``name``; ``measured``: for each phase the application whose measured error its DRAM activity
    has, None: that of ``bias``."""
    try:
        units = tuple(range(gpu.count)) if group.gpus == "all" else tuple(int(n) for n in group.gpus.split(","))
    except ValueError:
        raise TwinError(f'workload "{name}": gpus: "{group.gpus}" is neither "all" nor numbers with commas') from None
    if any(unit >= gpu.count for unit in units):
        raise TwinError(f'workload "{name}": gpus: the machine has GPUs 0 to {gpu.count - 1}')
    first: dict[str, GpuPhase] = {}
    for phase in group.phase:
        first.setdefault(phase.name, phase)
    phases = tuple(
        _gpu_phase(phase, gpu, curves.random_counter_error(random, bias), curve)
        for phase, curve in zip(first.values(), measured, strict=False)
    )
    return Group(
        on_gpu=True,
        units=units,
        weight=_weights(random, len(units), group.imbalance),
        phases=phases,
        program=_program(group.phase),
        repeat=group.repeat,
        memory_mib=group.memory_mib,
        mig=group.mig,
        mps_share=group.mps_percent / 100,
    )


def _gpu_phase(phase: GpuPhase, gpu: Gpu, counter_error: CounterError, curve: ErrorCurve | None) -> Phase:
    gap, clocks = phase.gap_share, gpu.clocks_khz
    mean_w = None
    if phase.speed_at_mhz:
        whole = curves.measured(clocks, phase.speed_at_mhz)
        whole = whole / whole[-1]  # on another card: relative to that card's top clock
        kernel = (1.0 - gap) / (1.0 / whole - gap)
        knee = curves.effective_knee(clocks, whole)
    else:
        kernel, knee = curves.knee_speed(clocks, phase.knee_mhz, phase.sharpness), phase.knee_mhz
    if phase.power_at_mhz:
        mean_w = curves.measured(clocks, phase.power_at_mhz, floor=0.6 * min(phase.power_at_mhz.values()))
    kernel_w = curves.gpu_kernel_w(gpu, phase.activity, phase.dram_active, kernel)
    implied = curve.at(clocks) if curve else None
    tables = curves.gpu_tables(gpu, kernel, mean_w, kernel_w, gap, phase.dram_active, knee, counter_error, implied)
    free_mhz = phase.free_mhz or gpu.max_khz / 1e3
    free_level = max(i for i, khz in enumerate(clocks) if khz / 1e3 <= free_mhz + 0.5)
    whole_speed = 1.0 / ((1.0 - gap) / kernel + gap)
    sm_active = min(phase.sm_active * (1.0 + 0.5 * counter_error.level), 1.0)
    truth = PhaseTruth(
        name=phase.name,
        on_gpu=True,
        clocks_mhz=tuple(khz / 1e3 for khz in clocks),
        speed=tuple(float(x) for x in whole_speed),
        power_w=tuple(float(x) for x in tables[3]),
        beta=0.0,
        knee_mhz=knee,
        gap_share=gap,
        free_mhz=free_mhz,
        free_loss=phase.free_loss,
        counter_error=counter_error,
        error_curve=curve.name if curve else "",
    )
    return Phase(
        truth=truth,
        tables=tables,
        activity=phase.activity,
        gap_share=gap,
        gap_active=abs(counter_error.level2),
        sm_active=sm_active,
        occupancy=min(phase.occupancy * (1.0 + counter_error.level2), 0.95 * sm_active),
        fp_active=phase.fp_active,
        free_level=free_level,
        free_loss=phase.free_loss,
    )

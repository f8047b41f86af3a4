"""Workloads: phases of work that groups of CPUs or GPUs execute, and how their counters relate to truth.

Names: a shipped workload (``workload_names()``); ``v100:NAME``, one measured row set of the V100 table; ``taurus``;
``mixed-cpu:SEED`` and ``mixed-gpu:SEED``, seeded phase sequences; ``trace:FILE.csv``, a phase trace; or a path to a
TOML file.

Phase trace: a CSV with a header and one row per phase, executed in order. Columns: ``unit`` (``cpu`` or ``gpu``),
``phase`` (a name; the same name is the same phase), ``seconds`` at the highest clock, then for ``cpu`` rows ``beta``,
``activity``, ``ipc``, ``traffic_gbs``, for ``gpu`` rows ``knee_mhz``, ``activity``, ``occupancy``, ``sm_active``,
``dram_active``, ``gap_share``; ``iterations`` for both. An empty cell takes the default of the TOML key of that name.
``cpu`` rows run on one thread of every core, ``gpu`` rows on every GPU.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import numpy as np

from twin import curves
from twin.curves import Draws, type_f64
from twin.errors import TwinError, nearest
from twin.machine import Gpu, Machine
from twin.toml_table import read_toml

HERE = Path(__file__).parent
WORKLOADS = HERE / "workloads"
DATA = HERE / "data"
SHARED = HERE.parent.parent / "shared" / "data"
"""Beside a checkout there may be the full measured tables; the shipped samples serve without them."""

_Phase = TypeVar("_Phase", "CpuPhase", "GpuPhase")

DEFAULT_NOISE = 0.02
"""Ours: deviation of the slowly varying counter noise."""


class CpuPhase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Work of a CPU group. ``ipc`` and ``traffic_gbs`` (GB/s) are those of one thread at the highest clock."""

    name: str
    seconds: float
    beta: float = 0.5
    activity: float = 0.8
    ipc: float = 1.2
    traffic_gbs: float = 1.0
    iterations: int = 1
    speed_at_mhz: dict[str, float] = {}  # measured relative speed instead of beta


class GpuPhase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Work of a GPU group. Shares are those while a kernel runs; ``gap_share`` is host or transfer time."""

    name: str
    seconds: float
    knee_mhz: float = 1000.0
    sharpness: float = curves.SHARPNESS
    activity: float = 0.7
    occupancy: float = 0.5
    sm_active: float = 0.9
    dram_active: float = 0.4
    fp_active: float = 0.3
    gap_share: float = 0.0
    iterations: int = 1
    free_mhz: float = 0.0  # where the card's own firmware runs it, unlocked; 0 = highest boost
    free_loss: float = 0.0  # share of speed that the firmware's own clock changes cost, unlocked


class _CpuGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    phase: tuple[CpuPhase, ...]
    cpus: str = "cores"
    repeat: int = 1
    wait: Literal["spin", "sleep"] = "spin"
    imbalance: float = 0.0
    serves_gpus: bool = False  # runs for as long as the GPU groups do


class _GpuGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    phase: tuple[GpuPhase, ...]
    gpus: str = "all"
    repeat: int = 1
    imbalance: float = 0.0
    memory_mib: int = 16000


class _WorkloadTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    summary: str
    source: str
    cpu: tuple[_CpuGroup, ...] = ()
    gpu: tuple[_GpuGroup, ...] = ()
    noise: float = DEFAULT_NOISE


class PhaseTruth(msgspec.Struct, frozen=True):
    """A phase as it is. Hidden from policies; for oracles and reports.

    ``speed`` relative to the highest clock and ``power_w`` (mean board power of a GPU; empty for CPUs) at each of
    ``clocks_mhz``, with gaps included. ``beta`` for CPUs, ``knee_mhz`` for GPUs, else 0.
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
    draws: Draws


class GroupTruth(msgspec.Struct, frozen=True):
    """A group's units (CPUs or GPUs), phases, and program: (phase index, seconds at the highest clock) per round."""

    on_gpu: bool
    units: tuple[int, ...]
    phases: tuple[PhaseTruth, ...]
    program: tuple[tuple[int, float], ...]
    repeat: int


class WorkloadTruth(msgspec.Struct, frozen=True):
    """What a workload really is, with the seed and the draws that stand between it and its counters."""

    name: str
    seed: int
    bias: float
    noise: float
    seconds: float
    groups: tuple[GroupTruth, ...]


class Phase(msgspec.Struct, frozen=True):
    """A phase as the model executes it: tables over the clock ladder, shares."""

    truth: PhaseTruth
    tables: type_f64
    activity: float = 0.0
    gap_share: float = 0.0
    sm_active: float = 0.0
    occupancy: float = 0.0
    fp_active: float = 0.0
    free_level: int = 0
    free_loss: float = 0.0


class Group(msgspec.Struct, frozen=True):
    """Units that execute a program of (phase index, iterations, seconds) together; repeat 0 = until the others end."""

    on_gpu: bool
    units: tuple[int, ...]
    weight: type_f64
    phases: tuple[Phase, ...]
    program: tuple[tuple[int, int, float], ...]
    repeat: int
    spins: bool = False
    nominal_share: float = 1.0
    memory_mib: int = 0


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
    return [*shipped, "taurus", "v100:NAME", "mixed-cpu:SEED", "mixed-gpu:SEED", "trace:FILE.csv"]


def v100_names(path: Path | None = None) -> list[str]:
    """Row sets of the V100 table."""
    return list(_v100_rows(path))


def load_workload(
    name: str,
    machine: Machine,
    seed: int = 1,
    bias: float = 0.2,
    duration_s: float | None = None,
    data: Path | str | None = None,
) -> Workload:
    """A workload fitted to ``machine``.

    ``bias`` is the half-width of the drawn error between counters and truth, ``duration_s`` the run time at the highest
    clocks (default: the workload's own), ``data`` a measured table to use in place of the shipped one.
    """
    family, _, argument = name.partition(":")
    table: _WorkloadTable
    fixed: dict[str, tuple[type_f64, type_f64]] = {}
    if family == "v100":
        table, fixed = _v100_table(argument, machine, seed, Path(data) if data else None)
    elif name == "taurus":
        table = _taurus_table(Path(data) if data else None)
    elif family == "mixed-cpu":
        table = _mixed_cpu(_integer(name, argument), machine)
    elif family == "mixed-gpu":
        table = _mixed_gpu(_integer(name, argument), machine)
    elif family == "trace":
        table = _trace(Path(argument))
    elif name.endswith(".toml"):
        table = read_toml(Path(name), _WorkloadTable)
    else:
        path = WORKLOADS / f"{name}.toml"
        if not path.exists():
            raise TwinError(f'unknown workload "{name}"{nearest(name, workload_names())}')
        table = read_toml(path, _WorkloadTable)
    return _fit(name, table, machine, seed, bias, duration_s, fixed)


# --- from tables to levels ---


def _fit(
    name: str,
    table: _WorkloadTable,
    machine: Machine,
    seed: int,
    bias: float,
    duration_s: float | None,
    fixed: dict[str, tuple[type_f64, type_f64]],
) -> Workload:
    if table.gpu and machine.gpu is None:
        raise TwinError(f'workload "{name}" needs a GPU; machine "{machine.name}" has none')
    groups: list[Group] = []
    for number, cpu_group in enumerate(table.cpu):
        random = curves.stream(seed, name, "cpu", number)
        groups.append(_cpu_group(cpu_group, machine, random, bias, name))
    for number, gpu_group in enumerate(table.gpu):
        assert machine.gpu is not None
        random = curves.stream(seed, name, "gpu", number)
        groups.append(_gpu_group(gpu_group, machine.gpu, random, bias, fixed))
    groups = [_stretched(group, groups, duration_s) for group in groups]
    seconds = max((_seconds(group) for group in groups), default=0.0)
    truth = WorkloadTruth(name, seed, bias, table.noise, seconds, tuple(_truth(group) for group in groups))
    return Workload(
        name, table.summary, table.source, machine.name, seed, bias, table.noise, seconds, tuple(groups), truth
    )


def _seconds(group: Group) -> float:
    return group.repeat * sum(part[2] for part in group.program)


def _stretched(group: Group, groups: Sequence[Group], duration_s: float | None) -> Group:
    """Whole rounds more or fewer, then the remainder on the work of each phase."""
    longest = max(_seconds(other) for other in groups)
    if duration_s is None or group.repeat == 0 or longest <= 0:
        return group
    goal = duration_s * _seconds(group) / longest
    one_round = sum(part[2] for part in group.program)
    repeat = max(1, round(goal / one_round))
    scale = goal / (repeat * one_round)
    program = tuple((phase, max(1, round(n * scale)), work * scale) for phase, n, work in group.program)
    return msgspec.structs.replace(group, repeat=repeat, program=program)


def _truth(group: Group) -> GroupTruth:
    program = tuple((phase, work) for phase, _, work in group.program)
    return GroupTruth(group.on_gpu, group.units, tuple(phase.truth for phase in group.phases), program, group.repeat)


def _weights(random: np.random.Generator, count: int, imbalance: float) -> type_f64:
    weight = 1.0 - imbalance * random.random(count)
    return np.asarray(weight / weight.max())


def _program(phases: Sequence[CpuPhase] | Sequence[GpuPhase]) -> tuple[dict[str, int], list[tuple[int, int, float]]]:
    """Phases of one name are one phase, executed at each place where the name stands."""
    index: dict[str, int] = {}
    program = []
    for phase in phases:
        number = index.setdefault(phase.name, len(index))
        program.append((number, phase.iterations, phase.seconds))
    return index, program


def _cpu_group(group: _CpuGroup, machine: Machine, random: np.random.Generator, bias: float, name: str) -> Group:
    units = _cpus(group.cpus, machine, name)
    first: dict[str, CpuPhase] = {}
    for phase in group.phase:
        first.setdefault(phase.name, phase)
    phases = tuple(_cpu_phase(phase, machine, curves.draw(random, bias)) for phase in first.values())
    _, program = _program(group.phase)
    used = set(units)
    shares_core = any(sum(machine.core_of[u] == machine.core_of[v] for v in used) > 1 for u in list(used)[:4])
    return Group(
        on_gpu=False,
        units=units,
        weight=_weights(random, len(units), group.imbalance),
        phases=phases,
        program=tuple(program),
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


def _cpu_phase(phase: CpuPhase, machine: Machine, draws: Draws) -> Phase:
    if phase.speed_at_mhz:
        points = sorted((float(mhz), speed) for mhz, speed in phase.speed_at_mhz.items())
        mhz, speeds = (np.array(column) for column in zip(*points, strict=True))
        speed = np.interp(np.asarray(machine.steps_khz) / 1e3, mhz, speeds)
        clock = np.asarray(machine.clock_hz)
        low = int(np.argmin(speed))
        beta = float((1.0 / speed[low] - 1.0) / (clock[-1] / clock[low] - 1.0)) if low < len(speed) - 1 else 0.0
    else:
        speed, beta = curves.beta_speed(machine.clock_hz, phase.beta), phase.beta
    tables = curves.cpu_tables(machine, speed, beta, phase.ipc, phase.traffic_gbs, draws)
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
        draws=draws,
    )
    return Phase(truth=truth, tables=tables, activity=phase.activity)


def _gpu_group(
    group: _GpuGroup,
    gpu: Gpu,
    random: np.random.Generator,
    bias: float,
    fixed: dict[str, tuple[type_f64, type_f64]],
) -> Group:
    units = tuple(range(gpu.count)) if group.gpus == "all" else tuple(int(n) for n in group.gpus.split(","))
    first: dict[str, GpuPhase] = {}
    for phase in group.phase:
        first.setdefault(phase.name, phase)
    phases = tuple(_gpu_phase(p, gpu, curves.draw(random, bias), fixed.get(p.name)) for p in first.values())
    _, program = _program(group.phase)
    return Group(
        on_gpu=True,
        units=units,
        weight=_weights(random, len(units), group.imbalance),
        phases=phases,
        program=tuple(program),
        repeat=group.repeat,
        memory_mib=group.memory_mib,
    )


def _gpu_phase(phase: GpuPhase, gpu: Gpu, draws: Draws, fixed: tuple[type_f64, type_f64] | None) -> Phase:
    gap, clocks = phase.gap_share, gpu.clocks_khz
    if fixed is None:
        kernel, mean_w, knee = curves.knee_speed(clocks, phase.knee_mhz, phase.sharpness), None, phase.knee_mhz
    else:
        whole, mean_w = fixed
        kernel = (1.0 - gap) / (1.0 / whole - gap)
        knee = curves.effective_knee(clocks, whole)
    kernel_w = curves.gpu_kernel_w(gpu, phase.activity, phase.dram_active, kernel)
    tables = curves.gpu_tables(gpu, kernel, mean_w, kernel_w, gap, phase.dram_active, knee, draws)
    free_mhz = phase.free_mhz or gpu.max_khz / 1e3
    free_level = max(i for i, khz in enumerate(clocks) if khz / 1e3 <= free_mhz + 0.5)
    whole_speed = 1.0 / ((1.0 - gap) / kernel + gap)
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
        draws=draws,
    )
    return Phase(
        truth=truth,
        tables=tables,
        activity=phase.activity,
        gap_share=gap,
        sm_active=min(phase.sm_active * (1.0 + 0.5 * draws.level), 1.0),
        occupancy=min(phase.occupancy * (1.0 + draws.level2), 1.0),
        fp_active=phase.fp_active,
        free_level=free_level,
        free_loss=phase.free_loss,
    )


# --- families ---


def _integer(name: str, argument: str) -> int:
    if not argument.isdigit():
        raise TwinError(f'workload "{name}": the part after the colon is a seed, a whole number')
    return int(argument)


def _table(path: Path | None, shared: str, sample: str) -> Path:
    """The measured table asked for, else the full one beside the checkout, else the shipped sample."""
    if path is not None:
        return path
    return SHARED / shared if (SHARED / shared).exists() else DATA / sample


def _v100_rows(path: Path | None) -> dict[str, list[tuple[float, float, float]]]:
    path = _table(path, "gpu-dvfs/v100-frequency.csv", "v100-sample.csv")
    rows: dict[str, list[tuple[float, float, float]]] = {}
    try:
        with path.open(newline="") as file:
            for row in csv.DictReader(line for line in file if not line.startswith("#")):
                point = (float(row["core_mhz"]), float(row["relative_performance"]), float(row["power_w"]))
                rows.setdefault(row["workload"], []).append(point)
    except OSError as error:
        raise TwinError(f"{path}: {error.strerror}") from None
    except (KeyError, ValueError) as error:
        raise TwinError(f"{path}: not a table of workload, core_mhz, relative_performance, power_w: {error}") from None
    return rows


def _v100_table(
    name: str, machine: Machine, seed: int, path: Path | None
) -> tuple[_WorkloadTable, dict[str, tuple[type_f64, type_f64]]]:
    """A measured row set as one phase of short iterations.

    Ours: gap share (large where the measured speed is flat, as launch-bound nets are), iteration length, and the
    levels of occupancy and memory activity, loosely correlated with where the curve bends.
    """
    rows = _v100_rows(path)
    if name not in rows:
        raise TwinError(f'unknown workload "v100:{name}"{nearest(name, rows)}')
    if machine.gpu is None:
        raise TwinError(f'workload "v100:{name}" needs a GPU; machine "{machine.name}" has none')
    clock, speed, watts = (np.array(column) for column in zip(*sorted(rows[name]), strict=True))
    clocks = machine.gpu.clocks_khz
    on_ladder = curves.measured(clocks, clock, speed, 0.0)
    power = curves.measured(clocks, clock, watts, 0.6 * float(watts[0]))
    random = curves.stream(seed, "v100", name)
    flat = float(np.clip((on_ladder[np.searchsorted(clocks, 757000)] - 0.55) / 0.45, 0.0, 1.0))
    bound = curves.boundness(machine.gpu, curves.effective_knee(clocks, on_ladder))
    gap = float(random.uniform(0.01, 0.08) + (random.uniform(0.25, 0.5) if flat > 0.8 else 0.0))
    seconds = 60.0
    phase = GpuPhase(
        name=name,
        seconds=seconds,
        activity=0.7,
        occupancy=float(np.clip(random.uniform(0.2, 0.7) - 0.25 * flat * (watts[-1] < 120), 0.04, 0.9)),
        sm_active=float(random.uniform(0.55, 0.95)),
        dram_active=float(np.clip(0.62 - 0.45 * bound + random.uniform(-0.12, 0.12), 0.08, 0.8)),
        gap_share=gap,
        iterations=round(seconds / float(random.uniform(0.02, 0.12))),
    )
    host = CpuPhase(name="host", seconds=10.0, beta=0.3, activity=0.3, ipc=1.0, traffic_gbs=0.2)
    table = _WorkloadTable(
        name=f"v100:{name}",
        summary=f"{name} as measured on a V100",
        source="GPU-DVFS-Dataset (github.com/zyjopensource/GPU-DVFS-Dataset)",
        gpu=(_GpuGroup(phase=(phase,)),),
        cpu=(_CpuGroup(phase=(host,), cpus="one-per-gpu", serves_gpus=True),),
    )
    return table, {name: (on_ladder, power)}


def _taurus_table(path: Path | None) -> _WorkloadTable:
    path = _table(path, "cpu-dvfs/taurus-nas-ep-c.csv", "taurus-nas-ep-c.csv")
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
        runtime = {row["frequency_mhz"]: float(row["runtime_s"]) for row in rows}
    except OSError as error:
        raise TwinError(f"{path}: {error.strerror}") from None
    except (KeyError, ValueError) as error:
        raise TwinError(f"{path}: not a table of frequency_mhz, runtime_s: {error}") from None
    best = min(runtime.values())
    speed = {mhz: best / seconds for mhz, seconds in runtime.items()}
    phase = CpuPhase(name="ep", seconds=best, activity=1.0, ipc=1.3, traffic_gbs=0.05, iterations=1, speed_at_mhz=speed)
    return _WorkloadTable(
        name="taurus",
        summary="NAS EP class C on a Grid'5000 Taurus node",
        source="Batsim tools/energy_pform_generator_homo_nonet.py; Dutot et al., CCGrid'17",
        cpu=(_CpuGroup(phase=(phase,)),),
    )


def _mixed_cpu(seed: int, machine: Machine) -> _WorkloadTable:
    """Ours: 3 to 6 phases of 2 to 20 s with betas spread over 0.05 to 0.95, repeated for about two minutes."""
    random = curves.stream(seed, "mixed-cpu")
    phases = []
    for number in range(int(random.integers(3, 7))):
        beta = float(random.uniform(0.05, 0.95))
        seconds = float(np.exp(random.uniform(np.log(2.0), np.log(20.0))))
        phases.append(
            CpuPhase(
                name=f"p{number}",
                seconds=seconds,
                beta=beta,
                activity=float(random.uniform(0.55, 1.0)),
                ipc=float(max(0.3 + 1.6 * beta + random.uniform(-0.3, 0.3), 0.2)),
                traffic_gbs=float(max((1.0 - beta) * 5.0 + random.uniform(-1.0, 1.0), 0.1)),
                iterations=max(1, round(seconds / float(random.uniform(0.05, 0.5)))),
            )
        )
    repeat = max(2, round(120.0 / sum(phase.seconds for phase in phases)))
    return _WorkloadTable(
        name=f"mixed-cpu:{seed}",
        summary="a seeded sequence of CPU phases",
        source="ours",
        cpu=(_CpuGroup(phase=tuple(phases), repeat=repeat, imbalance=0.02),),
    )


def _mixed_gpu(seed: int, machine: Machine) -> _WorkloadTable:
    """Ours: 3 to 6 phases of 2 to 20 s, knees from 0.55 to 1.15 of the top clock, repeated for about two minutes."""
    if machine.gpu is None:
        raise TwinError(f'workload "mixed-gpu:{seed}" needs a GPU; machine "{machine.name}" has none')
    random = curves.stream(seed, "mixed-gpu")
    top = machine.gpu.max_khz / 1e3
    phases = []
    for number in range(int(random.integers(3, 7))):
        knee = float(random.uniform(0.55, 1.15)) * top
        bound = curves.boundness(machine.gpu, knee)
        seconds = float(np.exp(random.uniform(np.log(2.0), np.log(20.0))))
        idle_half = random.random() < 0.2
        phases.append(
            GpuPhase(
                name=f"p{number}",
                seconds=seconds,
                knee_mhz=knee,
                sharpness=float(random.uniform(6.0, 16.0)),
                activity=float(random.uniform(0.35, 0.9)),
                occupancy=float(random.uniform(0.03, 0.09) if idle_half else random.uniform(0.15, 0.7)),
                sm_active=float(random.uniform(0.5, 0.95)),
                dram_active=float(np.clip(0.65 - 0.45 * bound + random.uniform(-0.15, 0.15), 0.08, 0.85)),
                gap_share=float(random.uniform(0.0, 0.35 if idle_half else 0.12)),
                iterations=max(1, round(seconds / float(random.uniform(0.02, 0.3)))),
            )
        )
    repeat = max(2, round(120.0 / sum(phase.seconds for phase in phases)))
    host = CpuPhase(name="host", seconds=10.0, beta=0.3, activity=0.3, ipc=1.0, traffic_gbs=0.2)
    return _WorkloadTable(
        name=f"mixed-gpu:{seed}",
        summary="a seeded sequence of GPU phases",
        source="ours",
        gpu=(_GpuGroup(phase=tuple(phases), repeat=repeat),),
        cpu=(_CpuGroup(phase=(host,), cpus="one-per-gpu", serves_gpus=True),),
    )


def _trace(path: Path) -> _WorkloadTable:
    cpu: list[CpuPhase] = []
    gpu: list[GpuPhase] = []
    try:
        with path.open(newline="") as file:
            for number, row in enumerate(csv.DictReader(file), start=2):
                unit = row.pop("unit", "")
                fields = {("name" if key == "phase" else key): value for key, value in row.items() if value}
                if unit not in ("cpu", "gpu"):
                    raise TwinError(f'{path}:{number}: unit: "{unit}" is neither cpu nor gpu')
                if unit == "cpu":
                    cpu.append(_trace_row(path, number, fields, CpuPhase))
                else:
                    gpu.append(_trace_row(path, number, fields, GpuPhase))
    except OSError as error:
        raise TwinError(f"{path}: {error.strerror}") from None
    return _WorkloadTable(
        name=f"trace:{path}",
        summary="a phase trace",
        source=str(path),
        cpu=(_CpuGroup(phase=tuple(cpu)),) if cpu else (),
        gpu=(_GpuGroup(phase=tuple(gpu)),) if gpu else (),
    )


def _trace_row(path: Path, number: int, fields: dict[str, str], kind: type[_Phase]) -> _Phase:
    known = [field.name for field in msgspec.structs.fields(kind)]
    for key in fields:
        if key not in known:
            raise TwinError(f'{path}:{number}: unknown column "{key}"{nearest(key, known)}')
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise TwinError(f"{path}:{number}: {error}") from None

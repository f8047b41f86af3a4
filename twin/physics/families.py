"""Families of workloads without a file of their own: measured tables, seeded sequences, phase traces."""

from __future__ import annotations

import contextlib
import csv
import math
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from foundation.foreign_text import foreign_text, rows_by_name
from foundation.shell.errors import nearest
from twin.errors import TwinError
from twin.machine import Gpu, Machine
from twin.physics import curves
from twin.programs.workload_phases import CpuGroup, CpuPhase, GpuGroup, GpuPhase, WorkloadTable
from twin.toml_table import key_and_problem

HERE = Path(__file__).parents[1]
DATA = HERE / "data"
SHARED = HERE.parent.parent / "shared" / "data"
"""The full measured tables may be next to a checkout; otherwise the shipped samples are used."""

HOST = CpuGroup(
    phase=(CpuPhase(name="host", seconds=10.0, beta=0.3, activity=0.3, ipc=1.0, traffic_gbs=0.2),),
    cpus="one-per-gpu",
    serves_gpus=True,
)
"""Ours: one polling host thread for each GPU."""

_Phase = TypeVar("_Phase", CpuPhase, GpuPhase)


def v100_names(path: Path | None = None) -> list[str]:
    """Row sets of the V100 table."""
    return list(_v100_rows(path))


def _gpu_of(machine: Machine, name: str) -> Gpu:
    if machine.gpu is None:
        raise TwinError(f'workload "{name}" needs a GPU; machine "{machine.name}" has none')
    return machine.gpu


def _table(path: Path | None, shared: str, sample: str) -> Path:
    """The requested measured table, else the full one next to the checkout, else the shipped sample."""
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


def v100_table(name: str, machine: Machine, seed: int, path: Path | None) -> WorkloadTable:
    """A measured row set as one phase of short iterations.

    Ours: gap share (large where the measured speed is flat, as of launch-bound networks), iteration length, and the
    levels of occupancy and memory activity, loosely correlated with the knee of the curve.
    """
    rows = _v100_rows(path)
    if name not in rows:
        raise TwinError(f'unknown workload "v100:{name}"{nearest(name, rows)}')
    gpu = _gpu_of(machine, f"v100:{name}")
    points = sorted(rows[name])
    slowest, watts = points[0][1], points[-1][2]
    speed = {str(mhz): relative for mhz, relative, _ in points}
    random = curves.stream(seed, "v100", name)
    flat = float(np.clip((slowest - 0.55) / 0.45, 0.0, 1.0))
    bound = curves.boundness(gpu, curves.effective_knee(gpu.clocks_khz, curves.measured(gpu.clocks_khz, speed)))
    gap = float(random.uniform(0.01, 0.08) + (random.uniform(0.25, 0.5) if flat > 0.8 else 0.0))
    seconds = 60.0
    phase = GpuPhase(
        name=name,
        seconds=seconds,
        speed_at_mhz=speed,
        power_at_mhz={str(mhz): power for mhz, _, power in points},
        occupancy=float(np.clip(random.uniform(0.2, 0.7) - 0.25 * flat * (watts < 120), 0.04, 0.9)),
        sm_active=float(random.uniform(0.55, 0.95)),
        dram_active=float(np.clip(0.62 - 0.45 * bound + random.uniform(-0.12, 0.12), 0.08, 0.8)),
        gap_share=gap,
        iterations=round(seconds / float(random.uniform(0.02, 0.12))),
    )
    return WorkloadTable(
        name=f"v100:{name}",
        summary=f"{name} as measured on a V100",
        source="GPU-DVFS-Dataset (github.com/zyjopensource/GPU-DVFS-Dataset)",
        gpu=(GpuGroup(phase=(phase,)),),
        cpu=(HOST,),
    )


def taurus_table(path: Path | None) -> WorkloadTable:
    """NAS EP class C on a Taurus node: one phase with the measured speed at each clock."""
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
    return WorkloadTable(
        name="taurus",
        summary="NAS EP class C on a Grid'5000 Taurus node",
        source="Batsim tools/energy_pform_generator_homo_nonet.py; Dutot et al., CCGrid'17",
        cpu=(CpuGroup(phase=(phase,)),),
    )


def mixed_cpu(seed: int, cpus: str = "cores") -> WorkloadTable:
    """Ours: 3 to 6 phases of 2 to 20 s with betas spread over 0.05 to 0.95, repeated for about two minutes. ``cpus``:
    one thread of each core, or all ``threads``."""
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
    return WorkloadTable(
        name=f"mixed-cpu:{seed}" if cpus == "cores" else f"mixed-cpu-{cpus}:{seed}",
        summary="a seeded sequence of CPU phases",
        source="ours",
        cpu=(CpuGroup(phase=tuple(phases), cpus=cpus, repeat=repeat, imbalance=0.02),),
    )


def mixed_gpu(seed: int, machine: Machine) -> WorkloadTable:
    """Ours: 3 to 6 phases of 2 to 20 s, knees from 0.55 to 1.15 of the top clock, repeated for about two minutes."""
    gpu = _gpu_of(machine, f"mixed-gpu:{seed}")
    random = curves.stream(seed, "mixed-gpu")
    top = gpu.max_khz / 1e3
    phases = []
    for number in range(int(random.integers(3, 7))):
        knee = float(random.uniform(0.55, 1.15)) * top
        bound = curves.boundness(gpu, knee)
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
    return WorkloadTable(
        name=f"mixed-gpu:{seed}",
        summary="a seeded sequence of GPU phases",
        source="ours",
        gpu=(GpuGroup(phase=tuple(phases), repeat=repeat),),
        cpu=(HOST,),
    )


def trace_table(path: Path) -> WorkloadTable:
    """The rows of a phase trace; see ``twin.programs.workload`` for its columns."""
    cpu: list[CpuPhase] = []
    gpu: list[GpuPhase] = []
    try:
        for number, row in rows_by_name(foreign_text(path.read_bytes()))[1]:
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
    if not cpu and not gpu:
        raise TwinError(f"{path}: has no phases")
    return WorkloadTable(
        name=f"trace:{path}",
        summary="a phase trace",
        source=str(path),
        cpu=(CpuGroup(phase=tuple(cpu)),) if cpu else (),
        gpu=(GpuGroup(phase=tuple(gpu)),) if gpu else (),
    )


@cache
def _columns(kind: type[msgspec.Struct]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(kind)]


def _trace_row(path: Path, number: int, fields: dict[str, str], kind: type[_Phase]) -> _Phase:
    known = _columns(kind)
    for key in fields:
        if key not in known:
            raise TwinError(f'{path}:{number}: unknown column "{key}"{nearest(key, known)}')
    for key, text in fields.items():
        if key == "name":
            continue
        with contextlib.suppress(ValueError):  # the type check below reports text that is not a number
            value = float(text)
            if not 0 <= value < math.inf:
                raise TwinError(f"{path}:{number}: {key}: {value:g} is negative or not a number")
            if key in ("seconds", "iterations") and not value:
                raise TwinError(f"{path}:{number}: a phase lasts longer than 0 s and has at least one iteration")
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise TwinError(f"{path}:{number}: {key_and_problem(error)}") from None

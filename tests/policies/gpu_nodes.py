"""GPUs that answer as NVML does, for the GPU policies: a ladder, a load with known curves, and noisy readings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pmu.layout import Gpu, Layout
from pmu.readings import (
    NO_PROGRESS,
    CpuSample,
    GpuSample,
    ProgressSample,
    Quality,
    Sample,
    type_f64,
    type_i64,
)

A100_CLOCKS = tuple(range(210, 1411, 15))
TICK_S = 0.1


def layout(n_gpus: int = 1, clocks: tuple[int, ...] = A100_CLOCKS, has_gpm: bool = False) -> Layout:
    gpus = tuple(
        Gpu(i, f"GPU-{i}", "NVIDIA A100-SXM4-80GB", clocks, 1593, 400.0, 100.0, 400.0, has_gpm) for i in range(n_gpus)
    )
    return Layout((0,), (0,), (0,), (), 2_000_000, (), (), gpus)


def sample(
    node: Layout,
    number: int = 1,
    progress: ProgressSample = NO_PROGRESS,
    **columns: float | Sequence[float] | type_f64,
) -> Sample:
    """A sample whose GPU columns are as given, the others quiet."""
    n_gpus = len(node.gpus)
    quiet = {
        "sm_clock_mhz": 1410.0, "memory_clock_mhz": 1593.0, "power_w": 80.0, "energy_j": 8.0, "temperature_c": 50.0,
        "gpu_utilization": 0.0, "memory_utilization": 0.0, "sm_occupancy": 0.0, "sm_active": np.nan,
        "dram_active": np.nan,
    }  # fmt: skip
    filled = {
        name: np.broadcast_to(np.asarray(columns.get(name, value), float), n_gpus).copy()
        for name, value in quiet.items()
    }
    gpu = GpuSample(
        **filled,
        throttle_reasons=np.zeros(n_gpus, np.int64),
        occupancy_quality=np.full(n_gpus, Quality.ESTIMATED, np.uint8),
        quality=np.full(n_gpus, Quality.MEASURED, np.uint8),
    )
    none = np.zeros(0)
    cpu = CpuSample(none, none, none, none, none, none, none, none, np.zeros(0, np.uint8))
    return Sample(int(number * TICK_S * 1e9), TICK_S, cpu, gpu, none, np.zeros(0, np.uint8), progress)


@dataclass(frozen=True)
class Load:
    """What a phase does at relative clock f: time 1 + loss(1/f - 1), power as a share of ``watts``, traffic at the top.

    Counters show ``1 + bias`` times the loss of speed. ``low_watts``: what it draws at six tenths of the clock and
    below, if its power follows no common curve. ``unit_s``: work of a unit of reported progress, 0 = none is reported.
    """

    loss: Callable[[float], float]
    watts: float
    traffic: float
    seconds: float = 1e9
    bias: float = 0.0
    utilization: float = 1.0
    low_watts: float = 0.0
    unit_s: float = 0.0

    def power_share(self, clock: type_f64) -> type_f64:
        """Of ``watts``, at a clock that is a share of the highest."""
        if self.low_watts:
            low = self.low_watts / self.watts
            return np.asarray(low + (1.0 - low) * np.maximum(clock - 0.6, 0.0) / 0.4)
        return np.asarray(0.3 + 0.7 * clock**2.5)


def memory_bound(watts: float = 330.0, traffic: float = 0.6, seconds: float = 1e9) -> Load:
    """Flat down to 78 % of the top clock, clock-bound below (EasyWave's kind)."""
    return Load(lambda x: max(0.0, 1.3 * (x - 0.28)), watts, traffic, seconds)


def clock_bound(watts: float = 320.0, traffic: float = 0.3, seconds: float = 1e9, bias: float = 0.0) -> Load:
    """Time as the inverse of the clock."""
    return Load(lambda x: x, watts, traffic, seconds, bias)


@dataclass
class Plant:
    """GPUs that run ``loads`` in turn, in step; readings as NVML gives them before Hopper: whole percentages."""

    node: Layout
    loads: Sequence[Load]
    seed: int = 1
    noise: float = 0.01
    now: int = 0
    part: int = 0
    part_s: float = 0.0
    work_s: float = 0.0
    joules: float = 0.0
    joules_at_top: float = 0.0
    units: float = 0.0
    program: int = 1
    lost: set[int] = field(default_factory=set)
    target: type_i64 = field(default_factory=lambda: np.zeros(0, np.int64))  # as requested last

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def step(self, target: type_i64) -> Sample:
        """One tenth of a second at the requested clocks; 0 runs at the top."""
        load = self.loads[self.part % len(self.loads)]
        top = self.node.gpus[0].clocks_mhz[-1]
        clock = np.where(target > 0, target, top).astype(float)
        losses = np.array([load.loss(top / mhz - 1.0) for mhz in clock])
        share = load.power_share(clock / top)
        self.joules += float((load.watts * share).mean()) * TICK_S
        speed = 1.0 / (1.0 + float(losses.max()))
        self.joules_at_top += load.watts * TICK_S * speed
        self.work_s += TICK_S * speed
        self.part_s += TICK_S * speed
        if self.part_s >= load.seconds:
            self.part, self.part_s = self.part + 1, 0.0
        self.now += 1
        progress = NO_PROGRESS
        if load.unit_s:
            before, self.units = self.units, self.units + TICK_S * speed / load.unit_s
            progress = ProgressSample(float(int(self.units) - int(before)), self.program, Quality.MEASURED)
        shown = (
            load.traffic / (1.0 + (1.0 + load.bias) * losses) * (1.0 + self.noise * self.random.normal(size=len(clock)))
        )
        watts = load.watts * share
        missing = np.isin(np.arange(len(clock)), list(self.lost))
        return sample(
            self.node,
            self.now,
            sm_clock_mhz=np.where(missing, np.nan, clock),
            power_w=np.where(missing, np.nan, watts),
            energy_j=np.where(missing, np.nan, watts * TICK_S),
            gpu_utilization=np.where(missing, np.nan, load.utilization),
            memory_utilization=np.where(
                missing,
                np.nan,
                np.round(np.clip(100 * shown + self.random.normal(size=len(clock)) * (shown > 0), 0, 100)) / 100,
            ),
            sm_occupancy=np.where(missing, np.nan, load.utilization),
            progress=progress,
        )

    @property
    def slowdown(self) -> float:
        return self.now * TICK_S / self.work_s - 1.0

    @property
    def saving(self) -> float:
        return 1.0 - self.joules / self.joules_at_top

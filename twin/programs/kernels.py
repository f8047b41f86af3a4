"""Calibration's kernels on the emulated node: it executes them by its own truth, which calibration never sees.

A kernel is work of one kind on some CPUs or GPUs, counted in flops, bytes or loads, without any barrier between its
threads. Here each CPU or GPU is a group of its own that executes one endless phase. The model says how many seconds of
work at the highest clock it has done; the truth of the kernel says how many units such a second is.

    fma         flops per cycle of the core; its time follows the clock alone
    stream      what a core gets from memory; of its time the share follows the clock that it does for `stream`
    chase       one miss after the other
    mix         the longer of computing and waiting, rounded where they are equal, as a roofline is in practice
    gpu-fma     single-precision flops of all cores of a card; its time follows the clock
    gpu-stream  what a card gets from its memory, from a knee of its clock on
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from foundation.shell.errors import nearest
from twin.errors import TwinError
from twin.machine import Gpu, Machine
from twin.physics import curves
from twin.physics.curves import type_f64
from twin.physics.model import Twin
from twin.programs.workload import Group, Workload, WorkloadTruth, cpu_group, gpu_group, group_truth
from twin.programs.workload_phases import DEFAULT_NOISE, CpuGroup, CpuPhase, GpuGroup, GpuPhase, Vectors

NAMES: Final = ("fma", "stream", "chase", "mix")
GPU_NAMES: Final = ("gpu-fma", "gpu-stream")

BLOCK_S: Final = 50e-6
"""Ours: units are counted in blocks of about this much work, as a real kernel's."""

_FLOPS_PER_CYCLE: Final = {
    ("GenuineIntel", 6, 45): 8,  # Sandy Bridge: an AVX add and an AVX multiply
    ("GenuineIntel", 6, 85): 32,  # Skylake-SP with two AVX-512 units; the Silver 4110 of some machines has one
    ("GenuineIntel", 6, 140): 16,  # Tiger Lake: one AVX-512 unit, or two of AVX2
    ("GenuineIntel", 6, 143): 32,  # Sapphire Rapids
    ("AuthenticAMD", 23, 49): 16,  # Zen 2: two AVX2 units
    ("AuthenticAMD", 25, 17): 16,  # Zen 4: AVX-512 in two halves
}
"""Double precision, by vendor, family and model. Source: Intel's and AMD's optimization guides (ports, widths)."""

_OTHER_FLOPS_PER_CYCLE: Final = 8  # ours
_SPLIT_MODELS: Final = ("Silver 4110",)  # one AVX-512 unit: Intel ARK

FMA_ACTIVITY: Final = 1.05  # ours: Linpack is 1
STREAM_BETA, STREAM_ACTIVITY, STREAM_IPC, STREAM_GBS = 0.208, 0.62, 0.55, 4.5  # workloads/stream.toml
CHASE_S: Final = 95e-9  # ours: DDR4 of a two-socket server, page walks included
CHASE_BETA: Final = 0.15  # ours: the levels of cache on the way, which run at the core's clock
CHASE_ACTIVITY: Final = 0.25  # ours
ROUNDING: Final = 4.0  # ours: exponent that joins computing and waiting; at their balance 84 % of the roofline

MOST_FLOPS_PER_BYTE: Final = 1000.0  # ours: far above any machine's balance

# Of the data sheet's: measured with these kernels on an H100 (docs/notes/calibration-measurements.md, GPUs)
GPU_FLOPS_SHARE, GPU_BYTES_SHARE = 0.92, 0.77
GPU_STREAM_KNEE: Final = 0.6  # ours, of the highest clock: as HPCG on an A100 (workloads/hpcg.toml)
GPU_CLOCK_BOUND: Final = 3.0  # ours: a knee this far above the highest clock is never reached
GPU_FMA_ACTIVITY, GPU_STREAM_ACTIVITY, GPU_STREAM_DRAM = 0.75, 0.3, 0.9  # ours

_ROUND_S: Final = 1.0
_ROUNDS: Final = 2**30
_IPC_FLOOR: Final = 0.005


class KernelTruth(msgspec.Struct, frozen=True):
    """A kernel on one core or card: its phase, and the units of a second of work at the highest clock."""

    phase: CpuPhase | GpuPhase
    units_per_s: float


def kernel_truth(machine: Machine, name: str, flops_per_byte: float = 0.0) -> KernelTruth:
    """The truth about a kernel here; TwinError if there is no such kernel."""
    flops_hz, gbs = _flops_hz(machine), _core_gbs(machine)
    vectors: Vectors = "avx512" if _flops_per_cycle(machine) >= 32 else "avx2"
    if name == "fma":
        phase = CpuPhase(name, _ROUND_S, 1.0, FMA_ACTIVITY, 2.2, 0.0, 10, vectors)
        return KernelTruth(phase, flops_hz)
    if name == "stream":
        phase = CpuPhase(name, _ROUND_S, STREAM_BETA, STREAM_ACTIVITY, STREAM_IPC, gbs, 10)
        return KernelTruth(phase, gbs * 1e9)
    if name == "chase":
        traffic_gbs = curves.CACHE_LINE_B / CHASE_S / 1e9
        ipc = max(1.0 / (CHASE_S * machine.tsc_khz * 1e3), _IPC_FLOOR)
        phase = CpuPhase(name, _ROUND_S, CHASE_BETA, CHASE_ACTIVITY, ipc, traffic_gbs, 10)
        return KernelTruth(phase, 1.0 / CHASE_S)
    if name == "mix" and 0 < flops_per_byte <= MOST_FLOPS_PER_BYTE:
        return _mix(machine, flops_per_byte, flops_hz, gbs, vectors)
    if name == "mix":
        raise TwinError(f"mix: {flops_per_byte:g} flops per byte: a number above 0, at most {MOST_FLOPS_PER_BYTE:g}")
    raise TwinError(f'unknown kernel "{name}"{nearest(name, NAMES)}')


def gpu_kernel_truth(gpu: Gpu, name: str) -> KernelTruth:
    """The truth about a GPU kernel on a card; TwinError if there is no such kernel."""
    top_mhz = gpu.max_khz / 1e3
    if name == "gpu-fma":
        phase = GpuPhase(
            name, _ROUND_S, GPU_CLOCK_BOUND * top_mhz, activity=GPU_FMA_ACTIVITY, occupancy=1.0, sm_active=1.0,
            dram_active=0.0, fp_active=GPU_FLOPS_SHARE,
        )  # fmt: skip
        return KernelTruth(phase, GPU_FLOPS_SHARE * 2.0 * gpu.cores * top_mhz * 1e6)
    if name == "gpu-stream":
        phase = GpuPhase(
            name, _ROUND_S, GPU_STREAM_KNEE * top_mhz, activity=GPU_STREAM_ACTIVITY, occupancy=1.0, sm_active=1.0,
            dram_active=GPU_STREAM_DRAM, fp_active=0.02,
        )  # fmt: skip
        bytes_per_s = 2.0 * gpu.memory_mhz * 1e6 * gpu.memory_bus_bits / 8  # two bits of each line per cycle
        return KernelTruth(phase, GPU_BYTES_SHARE * bytes_per_s)
    raise TwinError(f'unknown kernel "{name}"{nearest(name, GPU_NAMES)}')


def _mix(machine: Machine, flops_per_byte: float, flops_hz: float, gbs: float, vectors: Vectors) -> KernelTruth:
    clock = np.asarray(machine.clock_hz)
    compute_s = flops_per_byte / flops_hz * clock[-1] / clock
    memory_s = 1.0 / (gbs * 1e9) / curves.beta_speed(machine.clock_hz, STREAM_BETA)
    byte_s: type_f64 = (compute_s**ROUNDING + memory_s**ROUNDING) ** (1.0 / ROUNDING)
    top_s = float(byte_s[-1])
    computes = float(compute_s[-1]) / top_s  # share of a second in which the units of multiply-adds are busy
    speeds = {str(khz / 1e3): top_s / float(s) for khz, s in zip(machine.steps_khz, byte_s, strict=True)}
    phase = CpuPhase(
        name="mix",
        seconds=_ROUND_S,
        activity=STREAM_ACTIVITY + (FMA_ACTIVITY - STREAM_ACTIVITY) * computes,
        ipc=STREAM_IPC + (2.2 - STREAM_IPC) * computes,
        traffic_gbs=1e-9 / top_s,
        iterations=10,
        vectors=vectors,
        speed_at_mhz=speeds,
    )
    return KernelTruth(phase, flops_per_byte / top_s)


def _flops_per_cycle(machine: Machine) -> int:
    if any(name in machine.model_name for name in _SPLIT_MODELS):
        return 16
    return _FLOPS_PER_CYCLE.get((machine.vendor, machine.cpu_family, machine.cpu_model), _OTHER_FLOPS_PER_CYCLE)


def _flops_hz(machine: Machine) -> float:
    return _flops_per_cycle(machine) * float(machine.clock_hz[-1])


def _core_gbs(machine: Machine) -> float:
    bandwidth = machine.memory.bandwidth
    return bandwidth.core_gbs if bandwidth else STREAM_GBS


class KernelRun:
    """Runs one kernel at a time on a twin that has nothing else to do. Wrong use is a TwinError."""

    def __init__(self, twin: Twin, seed: int = 1, bias: float = 0.2) -> None:
        self._twin, self._seed, self._bias = twin, seed, bias
        self._workload: Workload | None = None
        self._units_per_s = self._units = 0.0

    @property
    def cpus(self) -> tuple[int, ...]:
        """The logical CPUs of the node."""
        return tuple(range(self._twin.machine.cpus))

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs of the node."""
        return tuple(range(self._twin.machine.gpus))

    def start(self, name: str, flops_per_byte: float, cpus: Sequence[int]) -> None:
        """Start a thread of this kernel on each of these CPUs, or a GPU kernel on these GPUs."""
        machine = self._twin.machine
        what, units = ("GPU", self.gpus) if name.startswith("gpu-") else ("CPU", self.cpus)
        if self._workload is not None:
            raise TwinError(f"a kernel runs already: {self._workload.name}")
        if self._twin.workload is not None and not self._twin.finished:
            raise TwinError(f"the emulated node runs {self._twin.workload.name}; kernels need a node without load")
        if not cpus or len(set(cpus)) < len(cpus) or not set(cpus) <= set(units):
            has = f"{what}s 0 to {units[-1]}" if units else f"no {what}"
            raise TwinError(f'kernel on {what}s {list(cpus)}: machine "{machine.name}" has {has}')
        if machine.gpu and what == "GPU":
            truth = gpu_kernel_truth(machine.gpu, name)
        else:
            truth = kernel_truth(machine, name, flops_per_byte)
        workload = self._fitted(truth, name, cpus)
        self._twin.start_workload(workload)
        self._workload, self._units_per_s, self._units = workload, truth.units_per_s, 0.0

    def units(self) -> float:
        """Units done since the start, in whole blocks; after ``stop`` those at that moment."""
        if self._workload is not None and self._twin.workload is self._workload:
            blocks = sum(int(done_s / BLOCK_S) for done_s in self._twin.work_s())
            # at the end of a round the seconds are summed again, and rounding must not reduce the count
            self._units = max(self._units, blocks * BLOCK_S * self._units_per_s)
        return self._units

    def stop(self) -> None:
        """End the kernel, if one runs."""
        if self._workload is not None and self._twin.workload is self._workload:
            self.units()
            self._twin.stop_workload()
        self._workload = None

    def _fitted(self, truth: KernelTruth, name: str, cpus: Sequence[int]) -> Workload:
        """A group for each CPU or GPU: none waits for another. The counters of all err alike: they run one code."""
        machine, where = self._twin.machine, ",".join(map(str, cpus))
        random = curves.stream(self._seed, "kernel", name, round(truth.units_per_s))
        if isinstance(truth.phase, GpuPhase):
            assert machine.gpu is not None
            on_gpus = GpuGroup((truth.phase,), gpus=where, repeat=_ROUNDS)
            whole = gpu_group(on_gpus, machine.gpu, random, self._bias, name, [None])
        else:
            whole = cpu_group(CpuGroup((truth.phase,), cpus=where, repeat=_ROUNDS), machine, random, self._bias, name)
        groups: list[Group] = [
            msgspec.structs.replace(whole, units=(cpu,), weight=np.ones(1), nominal_share=1.0) for cpu in cpus
        ]
        seconds, source = _ROUND_S * _ROUNDS, "a kernel of calibration"
        truths = WorkloadTruth(name, self._seed, self._bias, DEFAULT_NOISE, seconds, tuple(map(group_truth, groups)))
        return Workload(
            name, source, source, machine.name, self._seed, self._bias, DEFAULT_NOISE, seconds, tuple(groups), truths
        )

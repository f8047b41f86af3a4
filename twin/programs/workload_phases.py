"""The tables of a workload file: groups of CPUs or GPUs and the phases that they execute.

A file has ``[[cpu]]`` and ``[[gpu]]`` groups, each with its ``[[cpu.phase]]`` or ``[[gpu.phase]]`` tables in order.
Seconds are those at the highest clock.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from twin.physics import curves
from twin.toml_table import Count, NotNegative, Positive, Share

DEFAULT_NOISE = 0.02
"""Ours: deviation of the slowly varying counter noise."""


Vectors = Literal["scalar", "avx2", "avx512"]

LICENSES = ("scalar", "avx2", "avx512")
"""The vectors that the clocks of a machine with turbo bins depend on, in the model's order."""


class CpuPhase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Work of a CPU group. ``ipc`` and ``traffic_gbs`` (GB/s) are those of one thread at the highest clock; ``vectors``
    are the widest in heavy use."""

    name: str
    seconds: Positive
    beta: Share = 0.5
    activity: NotNegative = 0.8
    ipc: Positive = 1.2
    traffic_gbs: NotNegative = 1.0
    iterations: Count = 1
    vectors: Vectors = "scalar"
    speed_at_mhz: dict[str, float] = {}  # relative speed measured at these clocks, instead of beta


class GpuPhase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Work of a GPU group. Shares are those while a kernel runs; ``gap_share`` is host or transfer time.

    A measured curve (relative speed and mean board watts at some clocks, gaps included) replaces the knee and the
    card's power formula.
    """

    name: str
    seconds: Positive
    knee_mhz: NotNegative = 1000.0
    sharpness: Positive = curves.SHARPNESS
    activity: NotNegative = 0.7
    occupancy: Share = 0.5
    sm_active: Share = 0.9
    dram_active: Share = 0.4
    fp_active: Share = 0.3
    gap_share: Share = 0.0
    iterations: Count = 1
    free_mhz: NotNegative = 0.0  # the clock that the card's firmware chooses, unlocked; 0 = highest boost
    speed_at_mhz: dict[str, float] = {}
    power_at_mhz: dict[str, float] = {}
    free_loss: Share = 0.0  # share of speed that the firmware's clock changes cost, unlocked


class CpuGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Threads that execute phases together. ``cpus``: ``cores`` (one thread each), ``threads``, ``socket:N``,
    ``one-per-gpu``, or numbers with commas. ``imbalance``: how much less work the thread with the least work has.
    ``progress``: about how many seconds of work its program reports as one unit (``twin.physics.emulated_progress``);
    0: it reports nothing."""

    phase: tuple[CpuPhase, ...]
    cpus: str = "cores"
    repeat: Count = 1
    wait: Literal["spin", "sleep"] = "spin"
    imbalance: Share = 0.0
    progress: NotNegative = 0.0
    serves_gpus: bool = False  # runs for as long as the GPU groups do


class GpuGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """GPUs that execute phases together: ``all``, or numbers with commas. ``progress`` as of a ``CpuGroup``.

    Groups may share a GPU: each in the MIG device of the number ``mig``, as ``nvidia-smi -L`` counts them, or each with
    ``mps_percent`` of the SMs at most (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE); with neither they take turns."""

    phase: tuple[GpuPhase, ...]
    gpus: str = "all"
    repeat: Count = 1
    imbalance: Share = 0.0
    progress: NotNegative = 0.0
    memory_mib: int = 16000
    mig: Annotated[int, msgspec.Meta(ge=0)] | None = None
    mps_percent: Annotated[float, msgspec.Meta(ge=0.0, le=100.0)] = 0.0


class WorkloadTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workload file. ``noise``: deviation of the slowly varying counter noise. ``needs_bandwidth``: it asks for all
    that a core can take, which only a machine with ``[memory.bandwidth]`` bounds."""

    name: str
    summary: str
    source: str
    cpu: tuple[CpuGroup, ...] = ()
    gpu: tuple[GpuGroup, ...] = ()
    noise: Share = DEFAULT_NOISE
    needs_bandwidth: bool = False

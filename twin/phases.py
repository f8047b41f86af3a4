"""What a workload file says: groups of CPUs or GPUs and the phases they execute.

A file holds ``[[cpu]]`` and ``[[gpu]]`` groups, each with its ``[[cpu.phase]]`` or ``[[gpu.phase]]`` tables in order.
Seconds are those at the highest clock.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from twin import curves

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
    speed_at_mhz: dict[str, float] = {}  # relative speed measured at these clocks, in place of beta


class GpuPhase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Work of a GPU group. Shares are those while a kernel runs; ``gap_share`` is host or transfer time.

    A measured curve (relative speed and mean board watts at some clocks, gaps included) takes the place of the knee
    and of the card's power formula.
    """

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
    speed_at_mhz: dict[str, float] = {}
    power_at_mhz: dict[str, float] = {}
    free_loss: float = 0.0  # share of speed that the firmware's own clock changes cost, unlocked


class CpuGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Threads that execute phases together. ``cpus``: ``cores`` (one thread each), ``threads``, ``socket:N``,
    ``one-per-gpu``, or numbers with commas. ``imbalance``: how much less work the luckiest thread has. ``progress``:
    about how many seconds of work its program tells as one unit (``twin.progress``); 0: it tells nothing."""

    phase: tuple[CpuPhase, ...]
    cpus: str = "cores"
    repeat: int = 1
    wait: Literal["spin", "sleep"] = "spin"
    imbalance: float = 0.0
    progress: float = 0.0
    serves_gpus: bool = False  # runs for as long as the GPU groups do


class GpuGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """GPUs that execute phases together: ``all``, or numbers with commas. ``progress`` as of a ``CpuGroup``."""

    phase: tuple[GpuPhase, ...]
    gpus: str = "all"
    repeat: int = 1
    imbalance: float = 0.0
    progress: float = 0.0
    memory_mib: int = 16000


class WorkloadTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workload file. ``noise``: deviation of the slowly varying counter noise."""

    name: str
    summary: str
    source: str
    cpu: tuple[CpuGroup, ...] = ()
    gpu: tuple[GpuGroup, ...] = ()
    noise: float = DEFAULT_NOISE

"""The work of this node, for the cluster agent: units that its job reports, what its CPUs and GPUs counted and drew.

All are counts from this agent's start, so that a lost report loses nothing. A count that has a gap since the last
report is left out of the next one: a difference across the gap would look like a slow second. CPUs that spin while they
wait for a GPU retire instructions too, so a node with a busy GPU reports no instructions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from foundation.wire.power_messages import WORK
from nodectl.decide.load_tag import has_gpu_work
from pmu.layout import Layout
from pmu.readings import Quality, Sample

UNKNOWN: Final = -1

IDLE: Final = 0.05
"""Ours: a CPU that is busy for less of its time has no stalled cycles worth counting."""


class WorkDone:
    """``add`` every sample; ``totals`` once for every report."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(WORK, 0.0)
        self._gaps: set[str] = set()

    def add(self, sample: Sample, layout: Layout) -> None:
        """Count one interval."""
        for name, count in _counts(sample, layout).items():
            if math.isfinite(count):
                self._counts[name] += count
            else:
                self._gaps.add(name)

    def totals(self) -> dict[str, int]:
        """By the names of ``Report``; ``UNKNOWN`` where not all since the last call was counted."""
        found = {name: UNKNOWN if name in self._gaps else round(count) for name, count in self._counts.items()}
        self._gaps.clear()
        return found


def _counts(sample: Sample, layout: Layout) -> Mapping[str, float]:
    """Of one interval; NaN where a CPU or GPU could not be read, or the node has none."""
    cpu, gpu = sample.cpu, sample.gpu
    missing = float("nan")
    waited = np.where(np.isfinite(cpu.stall), cpu.stall * cpu.cycles, np.where(cpu.busy < IDLE, 0.0, missing))
    return {
        "units": sample.progress.units if sample.progress.quality == Quality.MEASURED else missing,
        "instructions": missing if has_gpu_work(sample) else float(cpu.instructions.sum()),
        "cycles": float(cpu.cycles.sum()),
        "stalled_cycles": float(waited.sum()),
        "llc_misses": float(cpu.llc_misses.sum()),
        "gpu_busy_ms": float(gpu.gpu_utilization.sum()) * sample.elapsed_s * 1e3 if len(gpu.energy_j) else missing,
        "gpu_mj": float(gpu.energy_j.sum()) * 1e3 if len(gpu.energy_j) else missing,
        "cpu_mj": _zones_mj(sample, layout, "package"),
        "memory_mj": _zones_mj(sample, layout, "dram"),
    }


def _zones_mj(sample: Sample, layout: Layout, kind: str) -> float:
    """NaN where the node has no such zone, or one of them could not be read."""
    zones = [at for at, zone in enumerate(layout.zones) if zone.kind == kind]
    return float(sample.energy_j[zones].sum()) * 1e3 if zones else float("nan")

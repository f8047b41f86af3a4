"""Which sensors have gone missing since the last sample, and which are back: one notice for each change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from nodectl.loop.notices import Notices, listed
from nodectl.loop.survey import NEEDED_EVENTS
from pmu.layout import Layout
from pmu.readings import GpuSample, Quality, Sample, type_f64

GPU_PARTS: Final[dict[str, Callable[[GpuSample], type_f64]]] = {
    "power readings of GPU": lambda gpu: gpu.power_w,
    "utilisation of GPU": lambda gpu: gpu.sm_occupancy,
    "clock readings of GPU": lambda gpu: gpu.sm_clock_mhz,
}
"""Readings that a GPU may lose while it still answers; policies and checks depend on them."""


class SensorWatch:
    """``look`` at every sample."""

    def __init__(self, layout: Layout, notices: Notices) -> None:
        self._layout, self._notices = layout, notices
        never_there = not set(NEEDED_EVENTS) <= set(layout.events)  # already said at the start
        self._cpu_gone: npt.NDArray[np.bool_] = np.full(len(layout.cpus), never_there)
        self._gpu_gone: npt.NDArray[np.bool_] = np.zeros(len(layout.gpus), np.bool_)
        self._energy_gone: npt.NDArray[np.bool_] = np.zeros(len(layout.zones), np.bool_)
        self._columns_gone: npt.NDArray[np.bool_] = np.zeros(len(layout.columns), np.bool_)
        self._parts_gone: dict[str, npt.NDArray[np.bool_]] | None = None  # None: no part of any GPU

    def look(self, sample: Sample) -> None:
        """Log once when sensors go missing and once when they are back."""
        layout = self._layout
        cpus = sample.cpu.quality == Quality.MISSING
        gpus = sample.gpu.quality == Quality.MISSING
        zones = sample.energy_quality == Quality.MISSING
        self._note_change("counters of CPU", [str(c) for c in layout.cpus], self._cpu_gone, cpus)
        self._note_change("readings of GPU", [str(g.index) for g in layout.gpus], self._gpu_gone, gpus)
        self._note_change("energy of", [z.name for z in layout.zones], self._energy_gone, zones)
        columns = sample.columns.quality == Quality.MISSING
        self._note_change("readings of", [c.name for c in layout.columns], self._columns_gone, columns)
        self._cpu_gone, self._gpu_gone, self._energy_gone, self._columns_gone = cpus, gpus, zones, columns
        self._look_at_parts(sample.gpu, gpus)

    def _look_at_parts(self, gpu: GpuSample, gone: npt.NDArray[np.bool_]) -> None:
        if self._parts_gone is None and not np.isnan(sum(values(gpu) for values in GPU_PARTS.values())).any():
            return  # nearly always: one look at the sum, in which a NaN stays
        names = [str(board.index) for board in self._layout.gpus]
        before = self._parts_gone or {what: np.zeros_like(gone) for what in GPU_PARTS}
        now = {what: np.isnan(values(gpu)) & ~gone for what, values in GPU_PARTS.items()}
        for what in GPU_PARTS:
            self._note_change(what, names, before[what], now[what])
        self._parts_gone = now if any(parts.any() for parts in now.values()) else None

    def _note_change(
        self, what: str, names: list[str], before: npt.NDArray[np.bool_], now: npt.NDArray[np.bool_]
    ) -> None:
        if np.array_equal(before, now):
            return
        for rows, verb in ((now & ~before, "went missing"), (before & ~now, "are back")):
            if rows.any():
                self._notices.add(f"{what} {listed([names[i] for i in np.flatnonzero(rows)])} {verb}")

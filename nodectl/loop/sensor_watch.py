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


RESET_NS: Final = 1_000_000_000
"""Ours: no reset of a card, and no loading of its driver, takes less."""

CARDS: Final = "readings of GPU"

MISSING: Final = int(Quality.MISSING)
"""As a plain number: NumPy compares arrays with that five times as fast."""


class SensorWatch:
    """``look`` at every sample."""

    def __init__(self, layout: Layout, notices: Notices) -> None:
        self._notices = notices
        never_there = not set(NEEDED_EVENTS) <= set(layout.events)  # already said at the start
        self._gpus = [str(board.index) for board in layout.gpus]
        self._sensors = {
            "counters of CPU": [str(cpu) for cpu in layout.cpus],
            CARDS: self._gpus,
            "energy of": [zone.name for zone in layout.zones],
            "readings of": [column.name for column in layout.columns],
        }
        self._gone = np.zeros(sum(map(len, self._sensors.values())), np.bool_)  # in the order of these
        self._gone[: len(layout.cpus)] = never_there
        self._never = self._gone.copy()
        self._silent_ns: dict[str, int] = {}
        self.cards_back: set[str] = set()
        """GPUs that gave no reading for a while: what was set of a card goes with a reset, and with its driver."""
        self._parts_gone: dict[str, npt.NDArray[np.bool_]] | None = None  # None: no part of any GPU

    def look(self, sample: Sample) -> None:
        """Log once when sensors go missing and once when they are back."""
        quality = (sample.cpu.quality, sample.gpu.quality, sample.energy_quality, sample.columns.quality)
        gone = np.concatenate(quality) == MISSING
        if (gone != self._gone).any():
            end = 0
            for what, names in self._sensors.items():
                rows = slice(end, end := end + len(names))
                self._note_change(what, names, self._gone[rows], gone[rows])
                if what == CARDS:
                    self._note_cards(sample.time_ns, self._gone[rows], gone[rows])
            self._gone = gone
        self._look_at_parts(sample.gpu)

    def _note_cards(self, time_ns: int, before: npt.NDArray[np.bool_], now: npt.NDArray[np.bool_]) -> None:
        for row in np.flatnonzero(now & ~before).tolist():
            self._silent_ns[self._gpus[row]] = time_ns
        for row in np.flatnonzero(before & ~now).tolist():
            if time_ns - self._silent_ns.pop(self._gpus[row], time_ns) >= RESET_NS:
                self.cards_back.add(self._gpus[row])

    def missing(self) -> list[str]:
        """What gives no reading now, in short; without counters that this node never had."""
        found, end = [], 0
        for what, names in self._sensors.items():
            rows = slice(end, end := end + len(names))
            gone = np.flatnonzero(self._gone[rows] & ~self._never[rows])
            found += [f"no {what} {listed([names[row] for row in gone])}"] if gone.size else []
        for what, parts in (self._parts_gone or {}).items():
            gone = np.flatnonzero(parts)
            found += [f"no {what} {listed([self._gpus[row] for row in gone])}"] if gone.size else []
        return found

    def _look_at_parts(self, gpu: GpuSample) -> None:
        if self._parts_gone is None and not np.isnan(sum(values(gpu) for values in GPU_PARTS.values())).any():
            return  # nearly always: one look at the sum, in which a NaN stays
        gone = gpu.quality == MISSING
        before = self._parts_gone or {what: np.zeros_like(gone) for what in GPU_PARTS}
        now = {what: np.isnan(values(gpu)) & ~gone for what, values in GPU_PARTS.items()}
        for what in GPU_PARTS:
            self._note_change(what, self._gpus, before[what], now[what])
        self._parts_gone = now if any(parts.any() for parts in now.values()) else None

    def _note_change(
        self, what: str, names: list[str], before: npt.NDArray[np.bool_], now: npt.NDArray[np.bool_]
    ) -> None:
        for rows, verb in ((now & ~before, "went missing"), (before & ~now, "are back")):
            if rows.any():
                self._notices.add(f"{what} {listed([names[i] for i in np.flatnonzero(rows)])} {verb}")

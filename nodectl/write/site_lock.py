"""The clock lock that the site itself has set on a GPU, which NVML cannot read back.

Locking such a card, and unlocking it at the end, would lose the site's lock. So a run locks no card before its
*baseline* is known:

- declared in the settings (``[gpu] locked_clock_mhz``), or captured by an earlier run that was killed;
- else observed before this run has locked anything. A card at its highest clock is not locked below it. A busy card
  that stays at one lower clock while the driver names no reason for that is locked there.

A card that is throttled, idle, or within ``NEAR`` of its highest clock (cards give up a few steps with temperature and
name no reason) shows neither. It is left alone until it does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from nodectl.config import GpuSettings
from nodectl.knobs.api import Knob
from nodectl.knobs.gpu_limits import ClockLock
from nodectl.knobs.kind import BUSY_SHARE
from pmu.layout import Gpu
from pmu.readings import Sample

PINNED_S: Final = 2.0
"""Ours: so long under load at one clock is no coincidence; boost clocks move within a second."""

NEAR: Final = 0.95
"""Ours, of the highest clock: what boost gives up with temperature alone is less."""

_IDLE: Final = 0x1
"""nvmlClocksEventReasonGpuIdle (nvml.h)."""


class _Watched:
    """One card whose baseline is not known yet."""

    def __init__(self, lock: ClockLock, row: int, gpu: Gpu) -> None:
        self.lock, self.row = lock, row
        self.highest_mhz = gpu.clocks_mhz[-1] if gpu.clocks_mhz else 0
        self._clock_mhz, self._since_s = 0.0, 0.0

    def look(self, sample: Sample) -> int | None:
        """The baseline if this sample has shown it."""
        clock_mhz = float(sample.gpu.sm_clock_mhz[self.row])
        if self.highest_mhz and clock_mhz >= self.highest_mhz:
            return 0
        is_busy = sample.gpu.gpu_utilization[self.row] >= BUSY_SHARE
        is_free = int(sample.gpu.throttle_reasons[self.row]) & ~_IDLE == 0
        if not is_busy or not is_free or not 0 < clock_mhz < NEAR * self.highest_mhz:
            self._clock_mhz = 0.0
        elif clock_mhz != self._clock_mhz:
            self._clock_mhz, self._since_s = clock_mhz, 0.0
        else:
            self._since_s += sample.elapsed_s
            if self._since_s >= PINNED_S:
                return round(clock_mhz)
        return None


class SiteLocks:
    """The baselines of one run's GPUs. ``known``: by the lock's name, 0 for a card that is not locked; ``unknown`` has
    the names of the locks that must not be set yet."""

    def __init__(self, knobs: Sequence[Knob], gpus: Sequence[Gpu], settings: GpuSettings) -> None:
        locks = {knob.name: knob for knob in knobs if isinstance(knob, ClockLock)}
        self.known: dict[str, int] = {}
        self.unknown: dict[str, _Watched] = {}
        for row, gpu in enumerate(gpus):
            lock = locks.get(f"gpu/{gpu.index}/sm_clock_mhz")
            if lock is None:
                continue
            declared = settings.baseline_mhz(gpu.index, gpu.uuid)
            if declared < 0:
                self.unknown[lock.name] = _Watched(lock, row, gpu)
            else:
                lock.baseline_mhz = self.known[lock.name] = declared

    def inherit(self, captured: Mapping[str, str]) -> None:
        """A killed run that could not be put back has captured these; what the cards show now may be its lock."""
        for name, text in captured.items():
            if watched := self.unknown.pop(name, None):
                watched.lock.baseline_mhz = self.known[name] = watched.lock.locked(text) or 0

    def look(self, sample: Sample) -> list[str]:
        """Look at one interval in which nothing of ours was locked; a line for each lock of the site's that it
        shows."""
        lines: list[str] = []
        for name, watched in list(self.unknown.items()):
            baseline_mhz = watched.look(sample)
            if baseline_mhz is None:
                continue
            del self.unknown[name]
            watched.lock.baseline_mhz = self.known[name] = baseline_mhz
            if baseline_mhz:
                lines.append(
                    f"{name}: stays at {baseline_mhz} MHz under load and nothing throttles it: taken as the site's own"
                    f" lock, which is not exceeded and comes back at the end ([gpu] locked_clock_mhz would declare it)"
                )
        return lines

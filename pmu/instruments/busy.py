"""An estimate of reference cycles where nothing counts them: busy time times the rate of the time-stamp counter.

Idle time comes from cpuidle: each state's ``time``, microseconds. State 0 on x86 is POLL, in which the CPU spins and
its clocks count, so it is not idle here. The kernel adds a stay in a state to ``time`` only when it *ends*: a CPU that
sleeps for seconds looks busy meanwhile, and then idle for longer than the interval. So the busy time of an interval is
limited: at least zero, and at most what the CPU's own cycles allow at its lowest clock (a sleeping CPU has none).
Without cpuidle (most virtual machines) /proc/stat is used, in steps of 10 ms: at a period of 100 ms, +-10 %.
Everything derived from this is ESTIMATED.
Sources: Documentation/admin-guide/pm/cpuidle.rst; proc(5), /proc/stat.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from pmu.findings import read_or_none
from pmu.instruments.kept import keep_integers
from pmu.ports import Files, KeptFile
from pmu.readings import RAW_MISSING, type_i64

CPU = "/sys/devices/system/cpu"
STAT = "/proc/stat"

NS_PER_TICK = 10_000_000
"""USER_HZ is 100 on every architecture we run on."""

_STAT_LINE = re.compile(rb"^cpu(\d{1,6}) \d+ \d+ \d+ (\d{1,11}) (\d{1,11})\b", re.MULTILINE)
"""Eleven digits are 31 years: a longer number is none, and would not fit into 64 bits of nanoseconds."""

MOST_US = 10**15
"""Ours: 31 years in microseconds."""


def why_not(files: Files, cpus: Sequence[int]) -> str | None:
    """None if busy time can be measured here, else the reason."""
    if cpus and (_idle_states(files, cpus[0]) or read_or_none(files, STAT)):
        return None
    return "neither cpuidle nor /proc/stat has idle time"


def source(files: Files, cpus: Sequence[int]) -> str:
    """Where the busy time comes from, for people."""
    return "cpuidle residency" if cpus and _idle_states(files, cpus[0]) else "/proc/stat, in steps of 10 ms"


class BusyTime:
    """Estimated reference cycles of each CPU since the first sweep.

    ``lowest_khz`` ``[n_cpus]`` is the lowest clock of each CPU; 0 where unknown.
    """

    def __init__(self, files: Files, cpus: Sequence[int], reference_khz: int, lowest_khz: type_i64) -> None:
        self._idle = _CpuIdle(files, cpus) if _idle_states(files, cpus[0]) else _ProcStat(files, cpus)
        self._khz = reference_khz
        self._has_lowest = lowest_khz > 0
        self._ns_per_cycle = 1e6 / np.maximum(lowest_khz, 1)
        self._before: tuple[int, type_i64, type_i64] | None = None
        self._busy_ns = np.zeros(len(cpus))

    def sweep(self, time_ns: int, cycles: type_i64, out: type_i64) -> None:
        """Fill ``out`` ``[n_cpus]`` at ``time_ns``; ``cycles`` are the CPUs' cumulative core cycles, or RAW_MISSING."""
        idle_ns = self._idle.read()
        before, self._before = self._before, (time_ns, idle_ns, cycles.copy())
        is_known = idle_ns != RAW_MISSING
        if before is not None:
            then_ns, then_idle_ns, then_cycles = before
            elapsed_ns = time_ns - then_ns
            was_known = is_known & (then_idle_ns != RAW_MISSING)
            is_counted = self._has_lowest & (cycles != RAW_MISSING) & (then_cycles != RAW_MISSING)
            bound_ns = np.where(is_counted, (cycles - then_cycles) * self._ns_per_cycle, elapsed_ns)
            busy_ns = np.where(was_known, elapsed_ns - (idle_ns - then_idle_ns), 0)
            self._busy_ns += np.clip(busy_ns, 0, np.clip(bound_ns, 0, elapsed_ns))
        out[:] = np.where(is_known, self._busy_ns * self._khz / 1e6, RAW_MISSING)

    def close(self) -> None:
        """Close the files."""
        self._idle.close()


class _CpuIdle:
    """Residency of all idle states but POLL, per CPU."""

    def __init__(self, files: Files, cpus: Sequence[int]) -> None:
        states = [_idle_states(files, cpu) for cpu in cpus]
        self._integers = keep_integers(files, [path for paths in states for path in paths])
        self._row = np.repeat(np.arange(len(cpus)), [len(paths) for paths in states])
        self._out = np.zeros(len(self._row), np.int64)
        self._has_none = np.array([not paths for paths in states])

    def read(self) -> type_i64:
        self._integers.sweep(self._out)
        idle_us = np.zeros(len(self._has_none), np.int64)
        is_missing = (self._out < 0) | (self._out > MOST_US)
        np.add.at(idle_us, self._row, np.where(is_missing, 0, self._out))
        idle_ns = idle_us * 1000
        idle_ns[self._row[is_missing]] = RAW_MISSING
        idle_ns[self._has_none] = RAW_MISSING
        return idle_ns

    def close(self) -> None:
        self._integers.close()


class _ProcStat:
    """Idle and I/O-wait time of every CPU, from one read."""

    def __init__(self, files: Files, cpus: Sequence[int]) -> None:
        self._kept: KeptFile | None = files.keep(STAT)
        self._row_of = {cpu: row for row, cpu in enumerate(cpus)}

    def read(self) -> type_i64:
        idle_ns = np.full(len(self._row_of), RAW_MISSING, np.int64)
        try:
            text = self._kept.read() if self._kept else b""
        except OSError:
            return idle_ns
        for cpu, idle, waiting in _STAT_LINE.findall(text):
            row = self._row_of.get(int(cpu))
            if row is not None:
                idle_ns[row] = (int(idle) + int(waiting)) * NS_PER_TICK
        return idle_ns

    def close(self) -> None:
        if self._kept:
            self._kept.close()
            self._kept = None


def _idle_states(files: Files, cpu: int) -> list[str]:
    folder = f"{CPU}/cpu{cpu}/cpuidle"
    try:
        states = [name for name in files.listdir(folder) if re.fullmatch(r"state\d+", name)]
    except OSError:
        return []
    return [f"{folder}/{s}/time" for s in sorted(states) if read_or_none(files, f"{folder}/{s}/name") != "POLL"]

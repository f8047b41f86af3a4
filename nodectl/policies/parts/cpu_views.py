"""What each package did in one interval, in the few numbers by which CPU policies distinguish phases.

Each number is the median over the package's busy CPUs, so that one straggler or one interrupt storm does not change it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nodectl.policies.parts.clocks import ClockLadder
from pmu.layout import Layout
from pmu.readings import Sample, type_f64, type_i64


class View(NamedTuple):
    """One package in one interval. NaN where an instrument does not exist."""

    ipc: float  # per reference cycle
    clock: float  # mean busy clock over the ladder's highest; above 1 in turbo
    beta: float  # share of time that scales with the clock, estimated from stalled cycles
    watts: float  # package and DRAM


def observe(layout: Layout, ladder: ClockLadder, sample: Sample, idle: float) -> list[View | None]:
    """One view per package, ``None`` where no CPU busier than ``idle`` has readings."""
    cpu = sample.cpu
    judged = np.isfinite(cpu.ipc) & (cpu.busy >= idle) & np.isfinite(cpu.frequency_khz)
    everyone = bool(judged.all())
    seen = np.array((cpu.ipc, cpu.frequency_khz / ladder.khz[:, 0], cpu.stall))
    energy_j = sample.energy_j.tolist()
    views: list[View | None] = []
    for package in _of(layout).each:
        members = package.cpus if everyone else package.cpus[judged[package.cpus]]
        if not len(members):
            views.append(None)
            continue
        ipc, clock, stall = _medians(seen[:, members])
        scaling = clock * (1.0 - stall)
        beta = scaling / (stall + scaling) if 0.0 <= stall <= 1.0 and clock > 0 else math.nan
        watts = sum(energy_j[zone] for zone in package.zones) / sample.elapsed_s if package.zones else math.nan
        views.append(View(ipc, clock, beta, watts if watts > 0 else math.nan))
    return views


def _medians(rows: type_f64) -> list[float]:
    """The upper median of each row; NaN where values are missing. ``numpy.median`` costs many times as much."""
    middle = rows.shape[1] // 2
    medians: list[float] = np.partition(rows, middle, axis=1)[:, middle].tolist()
    return medians


def package_of(layout: Layout) -> type_i64:
    """``layout.package_of`` as an array."""
    return _of(layout).of_cpu


def package_sizes(layout: Layout) -> type_i64:
    """Logical CPUs of each package, at least 1."""
    return _of(layout).sizes


@dataclass(frozen=True, slots=True)
class _Package:
    cpus: npt.NDArray[np.intp]
    zones: tuple[int, ...]  # those whose joules add up: package and DRAM


@dataclass(frozen=True, slots=True)
class _Packages:
    of_cpu: type_i64
    sizes: type_i64
    each: tuple[_Package, ...]


_kept: list[tuple[Layout, _Packages]] = []
"""A cache: the packages of the last layout, which is compared by identity."""


def _of(layout: Layout) -> _Packages:
    if not _kept or _kept[0][0] is not layout:
        of_cpu = np.asarray(layout.package_of, np.int64)
        each = tuple(
            _Package(np.flatnonzero(of_cpu == package), _added_zones(layout, package))
            for package in range(package_count(layout))
        )
        sizes = np.array([max(len(package.cpus), 1) for package in each], np.int64)
        _kept[:] = [(layout, _Packages(of_cpu, sizes, each))]
    return _kept[0][1]


def _added_zones(layout: Layout, package: int) -> tuple[int, ...]:
    return tuple(
        i for i, zone in enumerate(layout.zones) if zone.package == package and zone.kind in ("package", "dram")
    )


def package_count(layout: Layout) -> int:
    """Rows of every per-package array."""
    return max(layout.package_of, default=-1) + 1

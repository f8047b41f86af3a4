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

    ipc: float  # per reference cycle; not less than its misses stand for (``MISS_WORK``)
    clock: float  # mean busy clock over the ladder's highest; above 1 in turbo
    beta: float  # share of time that scales with the clock, estimated from stalled cycles
    watts: float  # package and DRAM


ALIKE, ALIKE_CLOCK = 0.06, 0.015
"""Packages do the same if IPC, relative, and beta differ by at most the first, clocks by at most the second (ours)."""

MISS_WORK = 16.0
"""Instructions that a last-level miss stands for at least. Threads that poll at a barrier execute many instructions and
miss nothing: at an IPC of 0.06, polling for 2 % of an interval adds a third. So where misses are that frequent, they
tell the pace, as all work of one kind misses equally often at any clock (ours; streaming needs 2 to 5)."""

DRAWS_WIDTH = 0.2
"""Packages that differ by more than this are taken to do other work (ours; of one pair of processors under full load,
2.6 to 5.5 % were measured: ``power9-occ``)."""

DRAWS_WEIGHT = 0.05
"""Weight of one interval in ``package_draws`` (ours)."""


def observe(layout: Layout, ladder: ClockLadder, sample: Sample, idle: float) -> list[View | None]:
    """One view per package, ``None`` where no CPU busier than ``idle`` has readings."""
    cpu = sample.cpu
    judged = np.isfinite(cpu.ipc) & (cpu.busy >= idle) & np.isfinite(cpu.frequency_khz)
    everyone = bool(judged.all())
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = np.fmax(cpu.ipc, MISS_WORK * cpu.llc_misses / cpu.reference_cycles)
        seen = np.array((pace, cpu.frequency_khz / ladder.khz[:, 0], cpu.stall))
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


def package_draws(before: type_f64 | None, views: list[View | None]) -> type_f64 | None:
    """Watts of each package over their mean while all do the same, averaged; None until they were seen to.

    Processors of one type differ by some percent. Compared by plain watts, one phase on two packages would be two.
    """
    if len(views) < 2:
        return None
    known = [view for view in views if view is not None and view.watts > 0]
    if len(known) < len(views) or not _do_the_same(known):
        return before
    watts = np.array([view.watts for view in known])
    draws: type_f64 = watts / watts.mean()
    if max(draws) - min(draws) > DRAWS_WIDTH:
        return before
    return draws if before is None else np.asarray(before + DRAWS_WEIGHT * (draws - before))


def _do_the_same(views: list[View]) -> bool:
    """Whether packages look alike in all but watts."""
    first = views[0]
    return all(
        abs(view.ipc - first.ipc) <= ALIKE * first.ipc
        and abs(view.clock - first.clock) <= ALIKE_CLOCK
        and not abs(view.beta - first.beta) > ALIKE
        for view in views[1:]
    )


def as_one_package(views: list[View | None], draws: type_f64 | None) -> list[View | None]:
    """The views with watts as the mean package would draw them."""
    if draws is None:
        return views
    return [view and view._replace(watts=view.watts / draw) for view, draw in zip(views, draws.tolist(), strict=True)]


def _medians(rows: type_f64) -> list[float]:
    """The upper median of each row; NaN where values are missing. ``numpy.median`` costs many times as much."""
    middle = rows.shape[1] // 2
    medians: list[float] = np.partition(rows, middle, axis=1)[:, middle].tolist()
    return medians


def package_of(layout: Layout) -> type_i64:
    """Per CPU the row of its package: packages by their numbers, which may have gaps (firmware of Arm machines)."""
    return _of(layout).of_cpu


def package_sizes(layout: Layout) -> type_i64:
    """Logical CPUs of each package."""
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
        numbers, of_cpu = np.unique(np.asarray(layout.package_of, np.int64), return_inverse=True)
        each = tuple(
            _Package(np.flatnonzero(of_cpu == row), _added_zones(layout, package))
            for row, package in enumerate(numbers.tolist())
        )
        sizes = np.array([len(package.cpus) for package in each], np.int64)
        _kept[:] = [(layout, _Packages(of_cpu, sizes, each))]
    return _kept[0][1]


def _added_zones(layout: Layout, package: int) -> tuple[int, ...]:
    return tuple(
        i for i, zone in enumerate(layout.zones) if zone.package == package and zone.kind in ("package", "dram")
    )


def package_count(layout: Layout) -> int:
    """Rows of every per-package array."""
    return len(_of(layout).each)

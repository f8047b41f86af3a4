"""What each of the jobs on a node has drawn, in an interval that several of them share.

| part | whose it is |
|---|---|
| a core with a meter | the job's whose cores it is one of (its cpuset) |
| cores without one | by what counters say of the job's cores (``core_watts``), where jobs have cores of their own |
| the rest of a package, with its DRAM | by the processor time on that package, where jobs have CPUs of their own |
| a GPU | the job's that names it (SLURM_JOB_GPUS) |
| what no meter reaches (``rest_w``), and whatever the above leaves open | by processor time |

Processor time takes every second for the same watts: next to one that draws ``r`` times as much for it, a frugal job
gets up to ``r`` times its joules. Meters of cores end that: ``amd_energy`` shows them (hwmon, inputs "Ecore017" by the
core's first CPU), RAPL on Intel's processors has none of one core. Without them a model of the cores does, as far as
this node has seen such programs.
Sources: Linux 5.12 Documentation/hwmon/amd_energy.rst; Slurm cgroup_v2 documentation and prolog guide.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

import numpy as np

from nodectl.config import Config
from nodectl.decide.shares import NodeShares
from nodectl.site_jobs.core_watts import CoreWatts, zones_of
from nodectl.site_jobs.job_folder import SiteJob
from pmu.instruments.hwmon import find
from pmu.layout import Layout
from pmu.ports import Files, Ports
from pmu.readings import Sample, type_f64

CORE_METER: Final = re.compile(r"hwmon\d+/amd_energy/Ecore(\d+)")

ADJACENT: Final = 1.5
"""Ours: two readings of the cores' meters belong to one interval if they are no further apart, in intervals."""


class Drawn(NamedTuple):
    """What a node drew in an interval, in joules. ``joules``: with ``rest_w``; NaN: not metered. ``metered_j``: what
    meters show, with DRAM and without ``rest_w``. ``quality``: the worst of the readings."""

    joules: float
    quality: str
    metered_j: float = math.nan

    def times(self, part: float) -> Drawn:
        """A part of it."""
        return Drawn(self.joules * part, self.quality, self.metered_j * part)


type_split = Callable[[Drawn, Mapping[str, float]], dict[str, Drawn]]
"""Of the interval's joules and each job's processor seconds in it: what each job drew."""


def by_time(drawn: Drawn, used_s: Mapping[str, float]) -> dict[str, Drawn]:
    """In proportion to processor time."""
    whole_s = sum(used_s.values())
    return {name: drawn.times(part_s / whole_s) for name, part_s in used_s.items()}


class HasCpus(Protocol):
    """Who knows which CPUs jobs have."""

    def cpus(self, job: str) -> frozenset[int]:
        """Those that it may run on; empty: not known."""


class JobParts:
    """``drawn`` of each interval, then ``split`` of it between ``jobs``, if several share it."""

    def __init__(self, ports: Ports, layout: Layout, config: Config, cgroups: HasCpus) -> None:
        self._files, self._layout, self._cgroups = ports.files, layout, cgroups
        self._shares, self._rest_w = NodeShares(layout, config), config.caps.rest_w
        self._package_of = np.array(layout.package_of)
        numbers = sorted(set(layout.package_of))
        self._packages = [self._package_of == number for number in numbers]
        self._zones, self._drams = (
            [zones_of(layout, kind, number) for number in numbers] for kind in ("package", "dram")
        )
        self._meters = _core_meters(ports, layout)
        self._core_uj: type_f64 = np.full(len(self._meters), math.nan)
        self._read_ns = 0
        self.cores = CoreWatts(layout)
        self._sample: Sample | None = None
        self._jobs: dict[str, SiteJob] = {}
        self._here: dict[str, SiteJob] = {}
        self._found: tuple[list[str], type_f64, bool] = [], np.empty(0), False

    def drawn(self, sample: Sample, jobs: Mapping[str, SiteJob]) -> Drawn:
        """What the node has drawn in an interval at whose end there are these jobs."""
        if self._here != jobs:  # another job may have the number of one that has gone
            self._found = [], np.empty(0), False
        self._sample, self._jobs, self._here = sample, {**self._here, **jobs}, dict(jobs)
        joules, quality = self._shares.node_energy(sample)
        dram_j = sum(float(sample.energy_j[zones].sum()) for zones in self._drams)
        if not self._meters:
            self.cores.add(sample, self._cpus_of(list(jobs)))
        return Drawn(joules, quality, joules - self._rest_w * sample.elapsed_s + dram_j)

    def split(self, drawn: Drawn, used_s: Mapping[str, float]) -> dict[str, Drawn]:
        """What of the last interval is whose."""
        assert self._sample
        names, whole_s = list(used_s), sum(used_s.values())
        time = np.array([used_s[name] for name in names]) / whole_s
        if not math.isfinite(drawn.joules + whole_s):
            return by_time(drawn, used_s)
        packages_j, drams_j = self._of_packages(names, time, self._sample)
        devices_j = packages_j + self._of_gpus(names, time, self._sample)
        rest_j = drawn.joules - devices_j.sum()
        joules, metered_j = devices_j + rest_j * time, devices_j + drams_j
        return {name: Drawn(float(joules[row]), drawn.quality, float(metered_j[row])) for row, name in enumerate(names)}

    def _of_packages(self, names: list[str], time: type_f64, sample: Sample) -> tuple[type_f64, type_f64]:
        """Joules of packages and of DRAM, of each job."""
        cpus = self._own_cpus(names, time)
        cores_j = self._cores_j(sample) if cpus is not None else None
        each_j = [float(sample.energy_j[zones].sum()) for zones in self._zones]
        modelled_j = None
        if cpus is not None and not self._meters:
            modelled_j = self.cores.joules(sample, dict(zip(names, cpus, strict=True)), each_j)
        packages_j, drams_j = np.zeros(len(names)), np.zeros(len(names))
        for row, (package, package_j, drams) in enumerate(zip(self._packages, each_j, self._drams, strict=True)):
            part, own_j = time, np.zeros(len(names))
            if cpus is not None:
                busy = np.nan_to_num(sample.cpu.busy) * cpus
                on_package = time * (busy * package).sum(1) / np.maximum(busy.sum(1), 1e-12)
                part = on_package / on_package.sum() if on_package.sum() > 0 else time
                if cores_j is not None:
                    own_j = (cpus * package * cores_j).sum(1)
                    own_j *= min(1.0, package_j / max(float(own_j.sum()), 1e-12))
                elif modelled_j is not None:
                    own_j = modelled_j[row]
            packages_j += own_j + part * (package_j - own_j.sum())
            drams_j += part * float(sample.energy_j[drams].sum())
        return packages_j, drams_j

    def _own_cpus(self, names: list[str], time: type_f64) -> type_f64 | None:
        """1.0 for each job's CPUs ``[n_jobs, n_cpus]``; None unless each that ran has cores that no other one has."""
        known, found, is_apart = self._found
        if known != names:  # on a big node that takes long
            own = [self._cgroups.cpus(name) for name in names]
            found = np.array([[float(cpu in cpus) for cpu in self._layout.cpus] for cpus in own])
            on_cores = sum(np.bincount(self._layout.core_of, row) > 0 for row in found)
            is_apart = bool(np.max(on_cores) <= 1)
            self._found = (list(names) if all(own) else []), found, is_apart
        return found if is_apart and found[time > 0].any(1).all() else None

    def _cpus_of(self, names: list[str]) -> dict[str, type_f64]:
        """The CPUs of each job; all of them where it is alone or nobody is here; empty where jobs are not apart."""
        if len(names) < 2:
            return {"": np.ones(len(self._layout.cpus))}
        cpus = self._own_cpus(names, np.ones(len(names)))
        return dict(zip(names, cpus, strict=True)) if cpus is not None else {}

    def _cores_j(self, sample: Sample) -> type_f64 | None:
        """Joules of each CPU's core in the interval, at the core's first CPU; None where cores have no meter."""
        if not self._meters:
            return None
        before_uj, age_ns = self._core_uj, sample.time_ns - self._read_ns
        self._core_uj, self._read_ns = (
            np.array([_number(self._files, path) for _, path in self._meters]),
            sample.time_ns,
        )
        found = np.zeros(len(self._layout.cpus))
        for (cpu, _), joules in zip(self._meters, (self._core_uj - before_uj) / 1e6, strict=True):
            found[cpu] = joules
        return found if age_ns <= ADJACENT * sample.elapsed_s * 1e9 and (found >= 0).all() else None

    def _of_gpus(self, names: list[str], time: type_f64, sample: Sample) -> type_f64:
        found = np.zeros(len(names))
        gpus_j = np.where(np.isnan(sample.gpu.energy_j), sample.gpu.power_w * sample.elapsed_s, sample.gpu.energy_j)
        for gpu, joules in zip(self._layout.gpus, gpus_j, strict=True):
            named = np.array([name in self._jobs and gpu.index in self._jobs[name].gpus for name in names])
            part = time * named if (time * named).any() else named.astype(float) if named.any() else time
            found += joules * part / part.sum()
        return found


def _core_meters(ports: Ports, layout: Layout) -> list[tuple[int, str]]:
    """The index in ``layout.cpus`` and the file of each core's meter; empty unless every core has one."""
    row = {cpu: number for number, cpu in enumerate(layout.cpus)}
    named = [(CORE_METER.fullmatch(column.name), column.source) for column in find(ports).shown]
    found = [(row[int(match[1])], path) for match, path in named if match and int(match[1]) in row]
    return found if {layout.core_of[cpu] for cpu, _ in found} == set(layout.core_of) else []


def _number(files: Files, path: str) -> float:
    try:
        return float(files.read(path))
    except (OSError, ValueError):
        return math.nan

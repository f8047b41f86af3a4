"""What part of a node's joules is each of two jobs', which have its halves: as for jobs of Slurm that share a node.

Processor time of a half is the busy time of its CPUs, which nobody else has. Method and error: ``site_jobs.job_parts``.
A job that is alone on its half has all that the node draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, TypeAlias

import numpy as np

from nodectl.config import Config
from nodectl.site_jobs.job_parts import JobParts
from pmu.layout import Layout
from pmu.ports import Ports
from pmu.readings import Sample

HalvesNow: TypeAlias = Mapping[str, frozenset[int]]
"""By run, ``JOB.ATTEMPT``: the CPUs of its half."""

_LEAST_S: Final = 1e-9
"""Both halves idle: they share alike."""


class HalfJoules:
    """``of`` each interval."""

    def __init__(self, ports: Ports, layout: Layout, config: Config) -> None:
        self._given = ports, layout, config
        self._layout = layout
        self._parts: JobParts | None = None
        self._now: HalvesNow = {}

    def cpus(self, run: str) -> frozenset[int]:
        """Of a run that is here now."""
        return self._now[run]

    def of(self, sample: Sample, now: HalvesNow) -> dict[str, float]:
        """The parts, which add up to 1; empty where no two runs have halves."""
        if len(now) < 2:
            return {}
        self._now = now
        if self._parts is None:
            self._parts = JobParts(*self._given, self)
        busy = np.nan_to_num(sample.cpu.busy) * sample.elapsed_s
        used_s = {
            run: float(busy[[cpu in cpus for cpu in self._layout.cpus]].sum()) + _LEAST_S for run, cpus in now.items()
        }
        drawn = self._parts.drawn(sample, {})
        found = {run: max(one.joules, 0.0) for run, one in self._parts.split(drawn, used_s).items()}
        whole_j = sum(found.values())
        if not math.isfinite(whole_j) or whole_j <= 0:
            found, whole_j = used_s, sum(used_s.values())
        return {run: joules / whole_j for run, joules in found.items()}

"""Cgroups of jobs of Slurm on an emulated node: their processor time and their CPUs, as the kernel shows them.

The twin knows when each CPU is busy. A job that has CPUs of its own has used what those were busy since it came; a job
on the whole node, what all were. Version 2, with ``ConstrainCores`` (Slurm cgroup.conf).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Final, NamedTuple

from pmu.cpulist import format_list
from pmu.ports import Files, KeptFile
from twin.physics.model import Twin

SCOPE: Final = "/sys/fs/cgroup/system.slice/slurmstepd.scope"


class OwnJoules(NamedTuple):
    """The truth of a job on a shared node: what its cores draw, what its traffic costs in the uncore and in DRAM, and
    its processor seconds. All else of the node is nobody's own."""

    cores_j: float
    uncore_j: float
    dram_j: float
    processor_s: float

    def since(self, before: OwnJoules) -> OwnJoules:
        """From then until now."""
        return OwnJoules(*(now - then for now, then in zip(self, before, strict=True)))


class EmulatedCgroups:
    """``pmu.ports.Files`` of the node with the cgroups of its jobs: ``begin`` and ``end`` them."""

    def __init__(self, files: Files, twin: Twin) -> None:
        self._files, self._twin = files, twin
        self._jobs: dict[str, tuple[Sequence[int], int]] = {}
        self._since: dict[str, OwnJoules] = {}

    def begin(self, job: str, cpus: Sequence[int]) -> None:
        """A job with these CPUs has come."""
        self._jobs[job] = cpus, self._busy_us(cpus)
        self._since[job] = self._own(cpus)

    def end(self, job: str) -> None:
        """It has gone, and its cgroup with it."""
        self._jobs.pop(job, None)
        self._since.pop(job, None)

    def truth(self) -> dict[str, OwnJoules]:
        """Of each job that is here, since it came."""
        return {job: self._own(cpus).since(self._since[job]) for job, (cpus, _) in self._jobs.items()}

    def read(self, path: str) -> str:
        """The whole text."""
        if not path.startswith(SCOPE):
            return self._files.read(path)
        job, _, name = path.removeprefix(f"{SCOPE}/job_").partition("/")
        if job not in self._jobs or name not in ("cpu.stat", "cpuset.cpus.effective"):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        cpus, before_us = self._jobs[job]
        if name == "cpu.stat":
            used_us = self._busy_us(cpus) - before_us
            return f"usage_usec {used_us}\nuser_usec {used_us}\nsystem_usec 0\n"
        return format_list(cpus) + "\n"

    def write(self, path: str, text: str) -> None:
        """Write ``text`` in one write(2)."""
        self._files.write(path, text)

    def keep(self, path: str) -> KeptFile:
        """Open the file to read it many times."""
        return self._files.keep(path)

    def listdir(self, path: str) -> list[str]:
        """Names in a directory."""
        above = {"/sys/fs/cgroup": "system.slice", "/sys/fs/cgroup/system.slice": "slurmstepd.scope"}
        return [above[path]] if path in above else self._files.listdir(path)

    def exists(self, path: str) -> bool:
        """Whether anything is there."""
        if not path.startswith(SCOPE):
            return self._files.exists(path)
        try:
            return bool(self.read(path))
        except OSError:
            return False

    def writable(self, path: str) -> bool:
        """Whether this process may write it."""
        return self._files.writable(path)

    def realpath(self, path: str) -> str:
        """The path with links followed."""
        return self._files.realpath(path)

    def _own(self, cpus: Sequence[int]) -> OwnJoules:
        power, cores = self._twin.machine.power, {self._twin.machine.core_of[cpu] for cpu in cpus}
        traffic_gb = sum(self._twin.core_traffic_gb(core) for core in cores)
        cores_j = sum(self._twin.core_energy_j(core) for core in cores)
        uncore_j, dram_j = power.uncore_w_per_gbs * traffic_gb, power.dram_w_per_gbs * traffic_gb
        return OwnJoules(cores_j, uncore_j, dram_j, self._busy_us(cpus) / 1e6)

    def _busy_us(self, cpus: Sequence[int]) -> int:
        return int(self._twin.busy_idle_us()[0][list(cpus)].sum())

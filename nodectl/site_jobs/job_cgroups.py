"""What the kernel counts for a job of Slurm: its processor time, and the CPUs that it may run on."""

from __future__ import annotations

import contextlib
import errno
import math
from typing import Final

from pmu.cpulist import parse_list
from pmu.ports import Files

_TIMES: Final = (("", "cpu.stat"), ("/cpuacct", "cpuacct.usage"), ("/cpu,cpuacct", "cpuacct.usage"))
_SETS: Final = (("", "cpuset.cpus.effective"), ("/cpuset", "cpuset.effective_cpus"), ("/cpuset", "cpuset.cpus"))
"""The folder below the root of all cgroups, and the file."""


class JobCgroups:
    """The cgroup of a job of Slurm (slurm.conf: ``ProctrackType=proctrack/cgroup``): its processor time, its CPUs.

    Version 2: ``cpu.stat`` and ``cpuset.cpus.effective`` of ``system.slice/slurmstepd.scope/job_N``, or of the scope of
    one node where several slurmd run (``NODE_slurmstepd.scope``); version 1: ``cpuacct.usage`` and
    ``cpuset.effective_cpus`` of ``slurm/uid_U/job_N``, also with a node's name (``slurm_NODE``).
    Sources: Slurm cgroup_v2 documentation; Linux cgroup-v1/{cpuacct,cpusets}.rst."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._paths: dict[tuple[str, str], str] = {}
        self._cpus: dict[str, frozenset[int]] = {}

    def seconds(self, job: str) -> float | None:
        """Processor time since its start; None: it has no cgroup, yet or any more; NaN: nobody can say."""
        path, text = self._read(job, _TIMES)
        if not path:
            return None
        with contextlib.suppress(ValueError, IndexError, StopIteration):
            if path.endswith("cpuacct.usage"):
                return int(text) / 1e9
            return next(int(line.split()[1]) / 1e6 for line in text.splitlines() if line.startswith("usage_usec "))
        return math.nan

    def cpus(self, job: str) -> frozenset[int]:
        """Those that it may run on; empty: not known."""
        if not self._cpus.get(job):
            with contextlib.suppress(ValueError):
                self._cpus[job] = frozenset(parse_list(self._read(job, _SETS)[1]))
        return self._cpus.get(job, frozenset())

    def forget(self, job: str) -> None:
        """It has ended; another one may get its number."""
        self._cpus.pop(job, None)
        for files in (_TIMES, _SETS):
            self._paths.pop((job, files[0][1]), None)

    def _read(self, job: str, files: tuple[tuple[str, str], ...]) -> tuple[str, str]:
        key = job, files[0][1]
        path = self._paths.get(key) or self._find(job, files)
        try:
            text = self._files.read(path) if path else ""
        except OSError as error:
            self._paths.pop(key, None)
            return "" if error.errno in (errno.ENOENT, errno.ENODEV) else path, ""
        self._paths[key] = path
        return path, text

    def _find(self, job: str, files: tuple[tuple[str, str], ...]) -> str:
        for top, name in files:
            for slice_at in self._below(f"/sys/fs/cgroup{top}", ("system.slice", "slurm")):
                for scope in self._below(slice_at, ("slurmstepd.scope", "uid_")) or [slice_at]:
                    path = f"{scope}/job_{job}/{name}"
                    if self._files.exists(path):
                        return path
        return ""

    def _below(self, folder: str, words: tuple[str, ...]) -> list[str]:
        with contextlib.suppress(OSError):
            return [f"{folder}/{name}" for name in self._files.listdir(folder) if any(word in name for word in words)]
        return []

"""Once per period: which jobs of the site's manager are here, what mode they want, and what they have drawn."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from foundation.planted_links import open_safely
from foundation.shell.errors import NodectlError
from nodectl.config import Config
from nodectl.decide.decider import Decider
from nodectl.decide.decisions import Decisions
from nodectl.decide.shares import NodeShares
from nodectl.site_jobs.job_folder import JobFolder
from nodectl.site_jobs.job_modes import JobModes
from nodectl.site_jobs.joules_page import MOST_BYTES, JobAccounts, joules_path
from pmu.layout import Layout
from pmu.ports import Files, Ports
from pmu.readings import Sample

EVERY_S: Final = 1.0
"""Ours: how often the joules of a job that runs are written; those of one that has ended are at once."""


class JobWatch:
    """``look`` at each sample; then ``decider`` and ``recorded``. ``publish`` writes the page of joules, with root's
    rights. A node that only this process reaches (no lock) has no such jobs."""

    def __init__(self, ports: Ports, layout: Layout, config: Config, publish: Callable[[str], None]) -> None:
        self._publish = publish
        self._folder = JobFolder(ports.lock_path) if ports.lock_path else None
        self._modes = JobModes(layout, config)
        self._shares = NodeShares(layout, config)
        earlier = _read(joules_path(ports.lock_path)) if self._folder else ""
        self._accounts = JobAccounts(earlier, JobCpuTime(ports.files).seconds)
        self._age_s = math.inf
        self._trouble = ""

    @property
    def keeps_journal(self) -> bool:
        """Whether the journal has this period."""
        return self._modes.keeps_journal

    def look(self, sample: Sample) -> None:
        """One interval that has just ended."""
        if self._folder is None:
            return
        jobs = self._folder.look()
        self._modes.follow(jobs)
        changed_s = self._folder.changed_s
        if math.isnan(changed_s):  # no prolog has run here yet
            return
        has_changed = self._accounts.add(jobs, changed_s, self._shares.node_energy(sample), sample.elapsed_s)
        self._age_s += sample.elapsed_s
        if has_changed or self._age_s >= EVERY_S:
            self._age_s = 0.0
            self._write()

    def decider(self, policies: Decider) -> Decider:
        """Which one decides in this period."""
        return self._modes.decider(policies)

    def recorded(self, decisions: Decisions) -> Decisions:
        """What of its decisions the journal gets."""
        return self._modes.recorded(decisions)

    def notices(self) -> list[str]:
        """What people should know, each line once."""
        return self._modes.notices()

    def _write(self) -> None:
        try:
            self._publish(self._accounts.page())
            self._trouble = ""
        except (OSError, NodectlError) as error:
            if not self._trouble:
                self._modes.say(f"the joules of jobs are not published: {error}")
            self._trouble = str(error)


class JobCpuTime:
    """The processor time of a job of Slurm, by its cgroup (slurm.conf: ``ProctrackType=proctrack/cgroup``).

    Version 2: ``cpu.stat`` of ``system.slice/slurmstepd.scope/job_N``, or of the scope of one node where several
    slurmd run (``NODE_slurmstepd.scope``); version 1: ``cpuacct.usage`` of ``slurm/uid_U/job_N``, also with a node's
    name (``slurm_NODE``). Sources: Slurm cgroup_v2 documentation; Linux cgroup-v1/cpuacct.rst."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._paths: dict[str, str] = {}

    def seconds(self, job: str) -> float:
        """Since its start; NaN: it has no cgroup here that can be read."""
        path = self._paths.get(job) or self._find(job)
        try:
            text = self._files.read(path) if path else ""
            if path.endswith("cpuacct.usage"):
                return int(text) / 1e9
            return next(int(line.split()[1]) / 1e6 for line in text.splitlines() if line.startswith("usage_usec "))
        except (OSError, ValueError, IndexError, StopIteration):
            self._paths.pop(job, None)
            return math.nan

    def _find(self, job: str) -> str:
        root = "/sys/fs/cgroup"
        for top in ("", "/cpuacct", "/cpu,cpuacct"):
            for slice_at in self._below(f"{root}{top}", ("system.slice", "slurm")):
                for scope in self._below(slice_at, ("slurmstepd.scope", "uid_")) or [slice_at]:
                    for name in ("cpu.stat", "cpuacct.usage"):
                        path = f"{scope}/job_{job}/{name}"
                        if self._files.exists(path):
                            self._paths[job] = path
                            return path
        return ""

    def _below(self, folder: str, words: tuple[str, ...]) -> list[str]:
        with contextlib.suppress(OSError):
            return [f"{folder}/{name}" for name in self._files.listdir(folder) if any(word in name for word in words)]
        return []


def _read(path: Path) -> str:
    try:
        with open(open_safely(path, os.O_RDONLY), encoding="utf-8", errors="replace") as file:
            return file.read(MOST_BYTES)
    except OSError:
        return ""

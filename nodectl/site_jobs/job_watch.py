"""Once per period: which jobs of the site's manager are here, what mode they want, and what they have drawn."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from foundation.planted_links import open_safely, replacing
from foundation.shell.errors import NodectlError
from nodectl.config import Config
from nodectl.decide.decider import Decider
from nodectl.decide.decisions import Decisions
from nodectl.site_jobs.job_cgroups import JobCgroups
from nodectl.site_jobs.job_folder import JobFolder
from nodectl.site_jobs.job_modes import JobModes
from nodectl.site_jobs.job_parts import JobParts
from nodectl.site_jobs.joules_page import MOST_BYTES, JobAccounts, joules_path
from pmu.layout import Layout
from pmu.ports import Ports
from pmu.readings import Sample

EVERY_S: Final = 1.0
"""Ours: how often the joules of a job that runs are written; those of one that has ended are at once."""

LEARNED: Final = "core-watts.json"
"""In the state directory: what the model of the cores has learned, by the last start or end of a job, but no more often
than each ``REMEMBER_S`` where others run on."""

REMEMBER_S: Final = 60.0
"""Ours."""


class JobWatch:
    """``look`` at each sample; then ``decider`` and ``recorded``. ``publish`` writes the page of joules, with root's
    rights. A node that only this process reaches (no lock) has no such jobs."""

    def __init__(self, ports: Ports, layout: Layout, config: Config, publish: Callable[[str], None]) -> None:
        self._publish = publish
        self._folder = JobFolder(ports.lock_path) if ports.lock_path else None
        self._modes = JobModes(layout, config)
        cgroups = JobCgroups(ports.files)
        self._parts = JobParts(ports, layout, config, cgroups)
        self._learned = Path(config.state_dir) / LEARNED
        if self._folder:
            self._parts.cores.restore(_read(self._learned).encode())
            for part in self._learned.parent.glob(f".{LEARNED}.*"):  # of an agent that was killed
                with contextlib.suppress(OSError):
                    part.unlink()
        self._page = joules_path(ports.lock_path) if ports.lock_path else Path()
        earlier = _read(self._page) if self._folder else ""
        self._accounts = JobAccounts(earlier, cgroups, self._parts.split)
        self._age_s, self._learned_age_s = math.inf, 0.0
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
        has_changed = self._accounts.add(jobs, changed_s, self._parts.drawn(sample, jobs), sample.elapsed_s)
        self._age_s, self._learned_age_s = self._age_s + sample.elapsed_s, self._learned_age_s + sample.elapsed_s
        if has_changed or self._age_s >= EVERY_S:
            self._age_s = 0.0
            self._write()
        if has_changed and (not jobs or self._learned_age_s >= REMEMBER_S):
            self._learned_age_s = 0.0
            self._remember()

    def joules(self) -> dict[str, tuple[int, int]]:
        """By job, mJ so far and mW now (``JobAccounts.reported``)."""
        return self._accounts.reported()

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
            why = f"{self._page}: {error.strerror}" if isinstance(error, OSError) else str(error)
            if not self._trouble:
                self._modes.say(f"the joules of jobs are not published: {why}")
            self._trouble = why

    def _remember(self) -> None:
        try:
            with replacing(self._learned, 0o640) as file:
                file.write(self._parts.cores.stored())
        except OSError as error:
            self._modes.say(f"{self._learned}: what cores draw is not remembered: {error.strerror}")


def _read(path: Path) -> str:
    try:
        with open(open_safely(path, os.O_RDONLY), encoding="utf-8", errors="replace") as file:
            return file.read(MOST_BYTES)
    except OSError:
        return ""

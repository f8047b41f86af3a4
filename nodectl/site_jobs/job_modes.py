"""What the policies do while a job is on the node: BDPO's two modes, and none, per job (REGALE D2.3 §3.4).

| mode | policies | the cap | journal |
|---|---|---|---|
| optimize | decide | in force | kept |
| monitor | rest: their knobs go back to what they were found at | in force | kept, as undecided |
| off | the same | in force | nothing of that time |

A job's comment says which (``nodectl=optimize``); without a word it is the site's (``[jobs] mode``), as without a job.
Where jobs share the node, the most careful mode counts. A run in mode monitor has no policies, whatever a job says.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from foundation.planted_links import open_safely
from nodectl.config import Config
from nodectl.decide.decider import Decider
from nodectl.decide.decisions import Decisions
from nodectl.knobs.registry import DOMAINS
from nodectl.site_jobs.job_folder import MODES, Mode, SiteJob
from pmu.layout import Layout

RECORD: Final = "job-modes.jsonl"
MOST_BYTES: Final = 1 << 20
"""Ours: some thousands of jobs; then the record becomes the older one, which is the only other one."""


class ModeEvent(msgspec.Struct, frozen=True):
    """A line of the record. ``at``: the time of day; ``event``: "start" or "end" of the job. ``mode``: in force on the
    node from then on; ``said``: what the job's comment says. ``policies``: those that decide, by domain, each with its
    name and parameters; empty: they rest."""

    at: str
    job: str
    user: str
    event: str
    mode: Mode
    said: str
    policies: dict[str, dict[str, Any]]


class JobModes:
    """``follow`` the jobs once per period; then ``decider`` is the one that decides."""

    def __init__(self, layout: Layout, config: Config) -> None:
        self._layout, self._config = layout, config
        self._jobs: dict[str, SiteJob] = {}
        self._resting: Decider | None = None
        self._notices: list[str] = []
        self._is_recorded = True
        self.mode: Mode = self._least(())

    @property
    def keeps_journal(self) -> bool:
        """Whether the journal has this period."""
        return self.mode != "off"

    def follow(self, jobs: dict[str, SiteJob]) -> None:
        """These jobs are here now."""
        if jobs.keys() == self._jobs.keys():
            return
        before, self._jobs = self._jobs, dict(jobs)
        mode = self._least(tuple(jobs.values()))
        if mode != self.mode:
            self._resting = None  # the cap's own state is of that time
        self.mode = mode
        for name in before.keys() - jobs.keys():
            self._happened("end", before[name])
        for name in jobs.keys() - before.keys():
            self._happened("start", jobs[name])

    def decider(self, policies: Decider) -> Decider:
        """``policies``, or one without any while they rest."""
        if self.mode == "optimize":
            return policies
        if self._resting is None:
            self._resting = Decider(self._layout, self._config.without(list(DOMAINS)))
        return self._resting

    def recorded(self, decisions: Decisions) -> Decisions:
        """What of it the journal gets: while policies rest, it is no decision of theirs."""
        return decisions if self.mode == "optimize" else Decisions()

    def say(self, line: str) -> None:
        """A line for people."""
        self._notices.append(line)

    def notices(self) -> list[str]:
        """What people should know, each line once."""
        lines, self._notices = self._notices, []
        return lines

    def _least(self, jobs: tuple[SiteJob, ...]) -> Mode:
        """The most careful mode of these jobs."""
        if not self._config.decides:
            return "off" if any(job.mode == "off" for job in jobs) else "monitor"
        modes = [job.mode or self._config.jobs.mode for job in jobs] or [self._config.jobs.mode]
        return min(modes, key=MODES.index)

    def _happened(self, event: str, job: SiteJob) -> None:
        policies = self._policies()
        names = [f"{domain} {one['name']}{_in_words(one['params'])}" for domain, one in policies.items()]
        what = f"mode {self.mode}{': ' if names else ''}{', '.join(names)}"
        if job.mode == "optimize" and not self._config.decides:
            what += "; this node only monitors (mode in nodectl.toml)"
        self._notices.append(f"job {job.job} of {job.user or 'nobody'}: {event}, {what}")
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        self._record(ModeEvent(at, job.job, job.user, event, self.mode, job.mode, policies))

    def _policies(self) -> dict[str, dict[str, Any]]:
        if self.mode != "optimize":
            return {}
        chosen = {domain: self._config.choice(domain) for domain in DOMAINS}
        return {
            domain: {"name": one.name, "params": dict(one.params)}
            for domain, one in chosen.items()
            if one.name != "none" and DOMAINS[domain].has_work(self._layout)
        }

    def _record(self, event: ModeEvent) -> None:
        path = Path(self._config.state_dir) / RECORD
        try:
            descriptor = open_safely(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
            with open(descriptor, "ab") as file:
                file.write(msgspec.json.encode(event) + b"\n")
                if os.fstat(descriptor).st_size > MOST_BYTES:
                    os.replace(path, path.with_name(f"{RECORD}-older"))
            self._is_recorded = True
        except OSError as error:
            if self._is_recorded:
                self._notices.append(f"{path}: the modes of jobs are not recorded: {error.strerror}")
            self._is_recorded = False


def _in_words(params: dict[str, Any]) -> str:
    return f" ({', '.join(f'{name}={value}' for name, value in params.items())})" if params else ""

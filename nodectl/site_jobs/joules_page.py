"""The joules of this node and of each job on it, in a file that only root's writer writes.

    /run/nodectl/job-joules
    # job user joules of-meters metered-s missing-s most-jobs quality end; joules as metered in this boot
    node - 17321.500 8806.100 81.100 0.000 1 measured -
    17 alice 5926.250 3091.200 27.000 0.000 1 measured 2026-11-29T10:20:03.120Z
    18 bob 113.000 60.500 0.500 0.000 2 estimated running

Words of a line: job, user, joules, those of them that meters show, seconds metered, seconds that no meter could read,
the most jobs that were here at a time, the worst quality of the readings, and the end. A job's joules run from its
prolog on this node to its epilog: an outage of the manager, which hears of the end later, adds nothing. They are those
of the whole node with ``rest_w``; meters have packages, DRAM where there is a zone for it, and GPUs ("-": not known).

**One job at a time: exact**, but for ``rest_w`` and for the straight line within the period of start and end. **Several
jobs:** ``job_parts`` says whose the joules are, by processor time where nothing better is known, and by an even part
where none used any. Where the processor time of one cannot be read, none of them gets anything, and the interval counts
as not metered. The sum is right.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from foundation.planted_links import replacing
from nodectl.site_jobs.job_folder import SiteJob
from nodectl.site_jobs.job_parts import Drawn, by_time, type_split
from pmu.readings import Quality

NAME: Final = "job-joules"
KEPT: Final = 200
"""Ours: jobs that have ended stay in the page until so many others have."""

MOST_BYTES: Final = 64 << 10
HEAD: Final = "# job user joules of-meters metered-s missing-s most-jobs quality end; joules as metered in this boot"
REPORTED_S: Final = 600.0
REPORTED: Final = 32
"""Ours: how long, and of how many jobs at most, the cluster agent gets a job's joules: it may hear late of an end."""

MOST_MISSING: Final = 0.1
"""Ours: the part of its time that may not have been metered of a job whose joules the cluster agent gets. Before the
first process of a job has its cgroup nobody can say what it uses, some tenths of a second."""

RUNNING: Final = "running"
MISSING: Final = Quality.MISSING.name.lower()
_ORDER: Final = [quality.name.lower() for quality in Quality]


def joules_path(lock_path: str) -> Path:
    """Next to the lock of the node."""
    return Path(lock_path).with_name(NAME)


def write_page(path: Path, text: str) -> None:
    """Replace the page; ``OSError`` if that is impossible."""
    with replacing(path, 0o644) as file:
        file.write(text.encode())
        os.fchmod(file.fileno(), 0o644)  # whatever the umask


class ProcessorTime(Protocol):
    """What ``job_cgroups`` counts."""

    def seconds(self, job: str) -> float | None:
        """Since its start; None: it has no processes, yet or any more; NaN: nobody can say."""

    def forget(self, job: str) -> None:
        """It has ended."""


@dataclass(slots=True)
class Account:
    """What one job, or the node, has drawn. ``most_jobs``: that shared an interval."""

    user: str
    joules: float = 0.0
    of_meters_j: float = 0.0
    metered_s: float = 0.0
    missing_s: float = 0.0
    most_jobs: int = 1
    quality: str = ""
    ended: str = RUNNING
    ended_s: float = -math.inf  # by the wall clock; of an earlier agent, or running: not known
    watts: float = 0.0  # of the last interval

    def add(self, drawn: Drawn, seconds: float, jobs: int) -> None:
        """A part of an interval; NaN joules: it was not metered."""
        self.most_jobs = max(self.most_jobs, jobs)
        if not math.isfinite(drawn.joules):
            self.missing_s += seconds
            return
        self.joules += drawn.joules
        if math.isfinite(drawn.metered_j):  # else a memory could not be read, and its joules are left out
            self.of_meters_j += drawn.metered_j
        self.metered_s += seconds
        self.quality = max(self.quality or drawn.quality, drawn.quality, key=_ORDER.index)

    @property
    def whole_j(self) -> float:
        """With its mean watts where it was not metered."""
        return self.joules * (1 + self.missing_s / self.metered_s) if self.metered_s else self.joules

    def line(self, job: str) -> str:
        """As the page has it."""
        is_known = math.isfinite(self.of_meters_j) and (self.of_meters_j > 0 or self.joules == 0)
        of_meters = f"{self.of_meters_j:.3f}" if is_known else "-"
        return (
            f"{job} {self.user or '?'} {self.joules:.3f} {of_meters} {self.metered_s:.3f} {self.missing_s:.3f}"
            f" {self.most_jobs} {self.quality or MISSING} {self.ended}"
        )


class JobAccounts:
    """``add`` each interval with the jobs of its end. ``cgroups``: of the jobs; ``split``: whose the joules of an
    interval are that several jobs share; ``earlier``: the page of the agent before, in this boot; ``wall_s``: the clock
    of the jobs' files."""

    def __init__(
        self, earlier: str = "", cgroups: ProcessorTime | None = None, split: type_split = by_time,
        wall_s: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._cgroups, self._split, self._wall_s = cgroups, split, wall_s
        self._ended = _accounts_of(earlier)
        self._node = self._ended.pop("node", Account("-", ended="-"))
        self._here: dict[str, Account] = {}
        self._used_s: dict[str, float] = {}

    def add(self, jobs: Mapping[str, SiteJob], changed_s: float, drawn: Drawn, elapsed_s: float) -> bool:
        """One interval that ends now: what the node drew, and the jobs that are here at its end.
        ``changed_s``: when one has come or gone last. True if one has, since the interval before."""
        now_s = self._wall_s()
        came, gone = jobs.keys() - self._here.keys(), self._here.keys() - jobs.keys()
        here_s = dict.fromkeys(self._here, elapsed_s)
        for name in gone:
            here_s[name] = elapsed_s - _within(now_s - changed_s, elapsed_s)
        for name in came:
            here_s[name] = _within(now_s - jobs[name].began_s, elapsed_s)
            self._here[name] = self._begin(jobs[name], now_s, here_s[name])
        for account in self._ended.values():
            if account.ended == RUNNING:  # of the agent before: it ended while there was none
                account.ended = "unknown"
        self._node.add(drawn, elapsed_s, max(len(jobs), 1))
        # those of an interval that one after the other had the node for itself do not share it
        is_shared = sum(here_s.values()) > 1.001 * elapsed_s
        if is_shared:
            parts = self._split(drawn, self._processor_s(here_s))
        else:
            self._used_s.clear()  # of an interval that was shared, maybe long ago
            parts = {name: drawn.times(part_s / elapsed_s) for name, part_s in here_s.items()}
        for name, part in parts.items():
            self._here[name].add(part, here_s[name], len(here_s) if is_shared else 1)
            self._here[name].watts = max(part.joules / elapsed_s, 0.0) if math.isfinite(part.joules) else 0.0
        for name in gone:
            account = self._ended[name] = self._here.pop(name)
            account.ended_s, account.watts = now_s - _within(now_s - changed_s, elapsed_s), 0.0
            account.ended = _time_of_day(account.ended_s)
            self._used_s.pop(name, None)
            if self._cgroups:
                self._cgroups.forget(name)
        for name in list(self._ended)[:-KEPT]:
            del self._ended[name]
        return bool(came or gone)

    def page(self) -> str:
        """The text of the file: jobs that are here, then those that have ended, the last one first, as far as there is
        room."""
        accounts = {"node": self._node, **self._here, **dict(reversed(self._ended.items()))}
        lines, size = [HEAD], len(HEAD) + 1
        for line in (account.line(name) for name, account in accounts.items()):
            size += len(line.encode()) + 1
            if size > MOST_BYTES:
                break
            lines.append(line)
        return "\n".join(lines) + "\n"

    def reported(self) -> dict[str, tuple[int, int]]:
        """For the cluster agent: mJ so far and mW now of the jobs that are here, then of those that have ended lately.
        Time that was not metered counts with the job's own mean watts; a job with more than ``MOST_MISSING`` of it is
        left out."""
        late_s = self._wall_s() - REPORTED_S
        ended = {name: one for name, one in reversed(self._ended.items()) if one.ended_s >= late_s}
        known = {name: one for name, one in {**ended, **self._here}.items()
                 if one.missing_s <= MOST_MISSING * (one.metered_s + one.missing_s)}  # fmt: skip
        first = sorted(known, key=lambda name: name not in self._here)[:REPORTED]
        return {name: (round(1000 * known[name].whole_j), round(1000 * known[name].watts)) for name in first}

    def _begin(self, job: SiteJob, now_s: float, here_s: float) -> Account:
        """The job's account; one that the agent before has begun goes on, and the time between was not metered."""
        earlier = self._ended.pop(job.job, None)
        account = earlier if earlier and earlier.ended == RUNNING else Account(job.user)
        account.missing_s = max(now_s - job.began_s - here_s - account.metered_s, account.missing_s)
        return account

    def _processor_s(self, here_s: Mapping[str, float]) -> Mapping[str, float]:
        """What each job has used in an interval; if none used any, how long each was here. NaN: nobody can say. A job
        whose first process is to come, or whose last one has gone, has used nothing, if others show that the kernel
        counts jobs here."""
        used, absent = dict[str, float](), 0
        for name in here_s:
            now_s = self._cgroups.seconds(name) if self._cgroups else None
            absent += now_s is None
            before_s = self._used_s.get(name, now_s or 0.0)
            self._used_s[name] = before_s if now_s is None else now_s
            used[name] = max(self._used_s[name] - before_s, 0.0)  # NaN stays NaN
        if absent == len(here_s):
            return dict.fromkeys(here_s, math.nan)
        return used if sum(used.values()) else here_s


def _within(ago_s: float, elapsed_s: float) -> float:
    return min(max(ago_s, 0.0), elapsed_s) if math.isfinite(ago_s) else 0.0


def _time_of_day(unix_s: float) -> str:
    text = datetime.datetime.fromtimestamp(unix_s, datetime.UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _accounts_of(page: str) -> dict[str, Account]:
    """Whole lines; what is none is left out."""
    found = {}
    for line in page.splitlines():
        words = line.split()
        if len(words) == 8 and words[6] in _ORDER:
            words.insert(3, "-")  # of an agent before this column
        if len(words) != 9 or words[0] == "#" or words[7] not in _ORDER:
            continue
        with contextlib.suppress(ValueError):
            of_meters_j = math.nan if words[3] == "-" else float(words[3])
            joules, metered_s, missing_s = (float(words[at]) for at in (2, 4, 5))
            if all(0 <= number < math.inf for number in (joules, metered_s, missing_s)):
                found[words[0]] = Account(
                    words[1], joules, of_meters_j, metered_s, missing_s, int(words[6]), words[7], words[8]
                )
    return dict(reversed(found.items()))  # the oldest first

"""The joules of this node and of each job on it, in a file that only root's writer writes.

    /run/nodectl/job-joules
    # job user joules metered-s missing-s most-jobs quality end; joules as metered in this boot
    node - 7321.500 81.100 0.000 1 measured -
    17 alice 5926.250 27.000 0.000 1 measured 2026-11-29T10:20:03.120Z
    18 bob 113.000 0.500 0.000 2 estimated running

Words of a line: job, user, joules, seconds metered, seconds that no meter could read, the most jobs that were here at
a time, the worst quality of the readings, and the end. A job's joules run from its prolog on this node to its epilog:
an outage of the manager, which hears of the end later, adds nothing. They are those of the whole node with ``rest_w``.

**One job at a time: exact**, but for ``rest_w`` and for the straight line within the period of start and end. **Several
jobs:** each has its part of the processor time that their cgroups used in that interval, an even one where none used
any; where the cgroup of one cannot be read, none of them gets anything, and the interval counts as not metered. The
sum is right. The parts take each second of processor time for the same watts: next to one that draws ``r`` times as
much for it, a frugal job gets up to ``r`` times its joules, the more so the smaller its part is.
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
from typing import Final

from foundation.planted_links import replacing
from nodectl.site_jobs.job_folder import SiteJob
from pmu.readings import Quality

NAME: Final = "job-joules"
KEPT: Final = 200
"""Ours: jobs that have ended stay in the page until so many others have."""

MOST_BYTES: Final = 64 << 10
HEAD: Final = "# job user joules metered-s missing-s most-jobs quality end; joules as metered in this boot"
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


@dataclass(slots=True)
class Account:
    """What one job, or the node, has drawn. ``most_jobs``: that shared an interval."""

    user: str
    joules: float = 0.0
    metered_s: float = 0.0
    missing_s: float = 0.0
    most_jobs: int = 1
    quality: str = ""
    ended: str = RUNNING

    def add(self, joules: float, seconds: float, quality: str, jobs: int) -> None:
        """A part of an interval; NaN joules: it was not metered."""
        self.most_jobs = max(self.most_jobs, jobs)
        if not math.isfinite(joules):
            self.missing_s += seconds
            return
        self.joules += joules
        self.metered_s += seconds
        self.quality = max(self.quality or quality, quality, key=_ORDER.index)

    def line(self, job: str) -> str:
        """As the page has it."""
        return (
            f"{job} {self.user or '?'} {self.joules:.3f} {self.metered_s:.3f} {self.missing_s:.3f} {self.most_jobs}"
            f" {self.quality or MISSING} {self.ended}"
        )


class JobAccounts:
    """``add`` each interval with the jobs of its end. ``cpu_s``: processor time that a job has used, NaN if nobody can
    say; ``earlier``: the page of the agent before, in this boot; ``wall_s``: the clock of the jobs' files."""

    def __init__(
        self, earlier: str = "", cpu_s: Callable[[str], float] = lambda job: math.nan,
        wall_s: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._cpu_s, self._wall_s = cpu_s, wall_s
        self._ended = _accounts_of(earlier)
        self._node = self._ended.pop("node", Account("-", ended="-"))
        self._here: dict[str, Account] = {}
        self._used_s: dict[str, float] = {}

    def add(self, jobs: Mapping[str, SiteJob], changed_s: float, energy: tuple[float, str], elapsed_s: float) -> bool:
        """One interval that ends now: its joules with their quality, and the jobs that are here at its end.
        ``changed_s``: when one has come or gone last. True if one has, since the interval before."""
        now_s, (joules, quality) = self._wall_s(), energy
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
        self._node.add(joules, elapsed_s, quality, max(len(jobs), 1))
        # those of an interval that one after the other had the node for itself do not share it
        is_shared = sum(here_s.values()) > 1.001 * elapsed_s
        parts = self._parts(here_s) if is_shared else {name: part_s / elapsed_s for name, part_s in here_s.items()}
        for name, part in parts.items():
            self._here[name].add(joules * part, here_s[name], quality, len(here_s) if is_shared else 1)
        for name in gone:
            account = self._ended[name] = self._here.pop(name)
            account.ended = _time_of_day(now_s - _within(now_s - changed_s, elapsed_s))
            self._used_s.pop(name, None)
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

    def _begin(self, job: SiteJob, now_s: float, here_s: float) -> Account:
        """The job's account; one that the agent before has begun goes on, and the time between was not metered."""
        earlier = self._ended.pop(job.job, None)
        account = earlier if earlier and earlier.ended == RUNNING else Account(job.user)
        account.missing_s = max(now_s - job.began_s - here_s - account.metered_s, account.missing_s)
        return account

    def _parts(self, here_s: Mapping[str, float]) -> dict[str, float]:
        """Of each job in an interval that several share, by processor time."""
        used = {name: self._used(name) for name in here_s}
        if not sum(used.values()):
            used = dict(here_s)
        whole = sum(used.values())
        return {name: part / whole for name, part in used.items()}

    def _used(self, job: str) -> float:
        """Processor seconds since the interval before; NaN: nobody can say."""
        now_s = self._cpu_s(job)
        before_s, self._used_s[job] = self._used_s.get(job, now_s), now_s
        return max(now_s - before_s, 0.0) if math.isfinite(now_s - before_s) else math.nan


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
        if len(words) != 8 or words[0] == "#" or words[6] not in _ORDER:
            continue
        with contextlib.suppress(ValueError):
            joules, metered_s, missing_s = (float(word) for word in words[2:5])
            if all(0 <= number < math.inf for number in (joules, metered_s, missing_s)):
                found[words[0]] = Account(words[1], joules, metered_s, missing_s, int(words[5]), words[6], words[7])
    return dict(reversed(found.items()))  # the oldest first

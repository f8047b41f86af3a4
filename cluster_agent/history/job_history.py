"""The history of jobs: a row for each that has ended, ours and another manager's, with what its nodes counted.

While a job runs, its counts are in memory, and on the disk every half a minute and when the agent ends. A kill loses
nothing of what nodes count from their agents' starts; it loses the distribution of watts since the last save.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from cluster_agent.errors import ClusterError
from cluster_agent.history.kept_rows import KeptRows
from cluster_agent.history.usage import Measured, Use, measured
from foundation.planted_links import open_new, replacing
from foundation.wire.power_messages import Report

SAVE_EVERY_S: Final = 30.0
MOST_RUNNING: Final = 100_000
"""Ours: jobs whose counts are in memory; the ones that began first go."""

DAY_S: Final = 86_400.0
PURGE_EVERY_S: Final = DAY_S
LONGEST_STEP_S: Final = 60.0
"""Ours: a wall clock that moved further than this against one that nobody sets was set."""

LONGEST_TEXT: Final = 256
KEY_BYTES: Final = 32


class HistoryRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that has ended. ``manager``: "" is ours, else the name that the other manager gave. Times are of the wall
    clock, ``run_s`` of one that nobody sets. ``watts``: mean of the whole job; None: not known, as where it shared a
    node. ``cores``: of each node, as requested; 0: not said."""

    job: str
    user: str
    application: str
    nodes: int
    submitted_s: float
    began_s: float
    ended_s: float
    run_s: float
    manager: str = ""
    cores: int = 0
    request_s: int = 0
    state: str = ""
    tag: str = ""
    tag_source: str = ""
    energy_j: float | None = None
    watts: float | None = None
    cap_w: float | None = None
    is_shared: bool = False
    measured: Measured = Measured()


class _Saved(msgspec.Struct):
    """What is on the disk of jobs that run."""

    running: dict[str, Use] = {}
    forgotten: list[str] = []


class JobHistory:
    """``path``: of the rows; next to it are the counts of jobs that run, and the key of pseudonyms. ``keep_days``: rows
    of jobs that ended before go; 0: all stay until there are too many."""

    def __init__(self, path: Path, keep_days: float = 0.0) -> None:
        self._path, self._keep_s = path, keep_days * DAY_S
        self._rows: KeptRows[HistoryRow] = KeptRows(path, HistoryRow, "the history of jobs")
        self._saved_s = self._purged_s = float("-inf")
        self._ahead_s: float | None = None
        self._saved = _Saved()
        with contextlib.suppress(OSError, msgspec.MsgspecError, RecursionError):
            self._saved = msgspec.json.decode(self._open.read_bytes(), type=_Saved)

    @property
    def _open(self) -> Path:
        return self._path.with_name(f"{self._path.name}-running")

    @property
    def trouble(self) -> str:
        """Why it could not be written the last time."""
        return self._rows.trouble

    def hear(self, reports: Iterable[Report], job_on: Mapping[str, str]) -> None:
        """Reports, and which job has each node alone, by the name that ``ended`` gets."""
        for report in reports:
            job = job_on.get(report.node)
            if job is not None:
                self._use(job).hear(report)

    def ended(self, job: str, row: HistoryRow, last: Iterable[Report]) -> None:
        """The job has ended. ``last``: the newest reports of its nodes."""
        use = self._saved.running.pop(job, None)
        if job in self._saved.forgotten:
            self._saved.forgotten.remove(job)
            return
        if use is not None and not row.is_shared:
            for report in last:
                if report.node in use.nodes:
                    use.hear(report, is_last=True)
            row = msgspec.structs.replace(row, measured=measured(use))
        texts = {name: getattr(row, name)[:LONGEST_TEXT] for name in ("job", "user", "application")}
        self._rows.add(msgspec.structs.replace(row, **texts))

    def step(self, now_s: float, wall_s: float) -> None:
        """Save what is due, and let old rows go. A wall clock that was set is believed after ``PURGE_EVERY_S``: until
        then nothing goes, which could not come back."""
        if now_s - self._saved_s >= SAVE_EVERY_S:
            self._saved_s = now_s
            self.save()
        ahead_s = wall_s - now_s
        if self._ahead_s is not None and abs(ahead_s - self._ahead_s) > LONGEST_STEP_S:
            self._purged_s = now_s
        self._ahead_s = ahead_s
        if self._keep_s and now_s - self._purged_s >= PURGE_EVERY_S:
            self._purged_s = now_s
            with contextlib.suppress(OSError):  # tomorrow, then
                self._rows.keep_only(lambda row: row.ended_s >= wall_s - self._keep_s)

    def save(self) -> None:
        """The counts of jobs that run. A full disk costs them only what a kill does."""
        if not (self._saved.running or self._saved.forgotten or self._open.exists()):
            return
        with contextlib.suppress(OSError), replacing(self._open, 0o600) as file:
            file.write(msgspec.json.encode(self._saved))

    def rows(self, ended_s: float, user: str, most: int) -> list[HistoryRow]:
        """``KeptRows.since``."""
        return self._rows.since(ended_s, user, most)

    def forget(self, user: str, running: Collection[str]) -> int:
        """Remove all rows of the user, from the disk as well, and keep none of the jobs that run now. How many rows
        there were; ``ClusterError`` if they cannot be removed."""
        try:
            removed = self._rows.forget(user)
        except OSError as error:
            raise ClusterError(
                f"{self._path}: cannot remove the rows: {error.strerror}; nothing is forgotten"
            ) from None
        for job in running:
            self._saved.running.pop(job, None)
        self._saved.forgotten = [*self._saved.forgotten, *running][-MOST_RUNNING:]
        self.save()
        return removed

    def _use(self, job: str) -> Use:
        found = self._saved.running.get(job)
        if found is None:
            if len(self._saved.running) >= MOST_RUNNING:
                del self._saved.running[next(iter(self._saved.running))]
            found = self._saved.running[job] = Use()
        return found


class Pseudonyms:
    """The same word for the same name, which nobody without the key can find again (HMAC-SHA-256, 48 bits shown)."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def of(cls, path: Path) -> Pseudonyms:
        """With the key of this file, which is made if there is none. ``ClusterError`` if it cannot be."""
        try:
            if not path.exists():
                with open(open_new(path), "wb") as file:
                    file.write(os.urandom(KEY_BYTES))
                os.chmod(path, 0o600)
            key = path.read_bytes()
        except OSError as error:
            raise ClusterError(f"{path}: cannot use the key of pseudonyms: {error.strerror}") from None
        if len(key) < KEY_BYTES:
            raise ClusterError(f"{path}: a key of pseudonyms has {KEY_BYTES} bytes, and this {len(key)}: remove it")
        return cls(key)

    def __call__(self, kind: str, name: str) -> str:
        """``kind``: user or application, which differ though their names are the same."""
        import hmac  # loads OpenSSL, which takes 4 MB of an agent that writes no pseudonyms

        digest = hmac.new(self._key, f"{kind}\0{name}".encode(), "sha256").hexdigest()
        return f"{kind}-{digest[:12]}" if name else ""

    def row(self, one: HistoryRow) -> HistoryRow:
        """A row without the names of its user and application."""
        user, application = self("user", one.user), self("application", one.application)
        return msgspec.structs.replace(one, user=user, application=application)

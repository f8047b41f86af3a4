"""Jobs on an emulated node: work of a given amount, which takes as long as the node's clocks allow.

A job names a twin workload and how long it takes at the highest clock, once for each of its nodes:

    clusterctl submit --nodes 2 --time 5min --tag memory -- twin-workload stream 30s

With a third word, for example ``50ms``, it reports its progress in units of about so much work.

The job ends when that work is done, so its end shows what a cap costs. A twin workload cannot clean up: any signal that
ends a program without handlers ends it at once. When the emulated node ends, so do its jobs, and the next node of that
name knows nothing of them, as after a power cut.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCHLD, SIGCONT, SIGSTOP, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH
from typing import Final, TypeAlias

from nodectl.jobs.job_files import open_output
from nodectl.jobs.processes import FORGOTTEN
from nodectl.wire.job_messages import Cause, JobForget, JobPart, JobSignal, JobStart
from pmu.instruments.job_progress import Counter
from pmu.readings import RAW_MISSING
from twin.errors import TwinError
from twin.machine import Machine
from twin.physics.model import Twin
from twin.programs.workload import Workload, duration_s, load_workload, workload_summaries

COMMAND: Final = "twin-workload"

Key: TypeAlias = tuple[int, int]

_HARMLESS: Final = {SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH}
"""Signals that do not end a program by default (signal(7)); stopping is not emulated."""


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds that jobs ran, and seconds that the work they did takes at the highest clock."""

    ran_s: float = 0.0
    done_s: float = 0.0

    @property
    def slowdown(self) -> float | None:
        """Extra time as a share; None if nothing was done."""
        return self.ran_s / self.done_s - 1 if self.done_s > 0 else None

    def __add__(self, other: Work) -> Work:
        return Work(self.ran_s + other.ran_s, self.done_s + other.done_s)


@dataclass(frozen=True, slots=True)
class _Run:
    start: JobStart
    workload: Workload
    began_s: float
    began_ns: int  # of the twin's age


class TwinJobs:
    """A ``job_runner.Backend`` of emulated work. One job at a time: it has the whole node.

    ``unix_s`` is the wall clock, for records; walltimes run on the twin's own clock. ``work`` may be called from
    another thread.
    """

    runs_only = COMMAND

    def __init__(self, twin: Twin, node: str, unix_s: Callable[[], float] = time.time) -> None:
        self._twin, self._node, self._unix_s = twin, node, unix_s
        self.runs_names = _names(twin.machine)
        self._run: _Run | None = None
        self._over: dict[Key, JobPart] = {}
        self._forgotten: deque[Key] = deque(maxlen=FORGOTTEN)
        self._work: dict[str, Work] = {}
        self._lock = threading.Lock()

    def start(self, start: JobStart) -> None:
        """Load the job's workload; it runs from now on."""
        key = start.job, start.attempt
        with self._lock:
            self._look()
            if key in self._over or key in self._forgotten or (self._run and key == _key(self._run)):
                return
            try:
                workload = self._workload(start)
            except TwinError as error:
                self._over[key] = JobPart(*key, "refused", detail=f"{self._node}: {error}"[:300])
                return
            self._twin.start_workload(workload)
            self._run = _Run(start, workload, self._unix_s(), self._twin.age_ns)

    def signal(self, signal: JobSignal) -> None:
        """End the job, unless the signal would not end a program."""
        with self._lock:
            self._look()
            if self._run and (signal.job, signal.attempt) == _key(self._run) and signal.signal not in _HARMLESS:
                self._end(-signal.signal, "told")

    def forget(self, forget: JobForget) -> None:
        """Drop the record of the job."""
        key = forget.job, forget.attempt
        with self._lock:
            if self._over.pop(key, None):
                self._forgotten.append(key)

    def parts(self) -> list[JobPart]:
        """All runs that are not forgotten; the one that runs is ended if its work is done or its walltime over."""
        with self._lock:
            self._look()
            parts = dict(self._over)
            if self._run:
                key = _key(self._run)
                parts[key] = JobPart(*key, "running", started_s=self._run.began_s)
            return [parts[key] for key in sorted(parts)]

    def counter(self, job: int, attempt: int) -> Counter | None:
        """The emulated program's progress counter; None for another job."""
        run = self._run
        if run is None or _key(run) != (job, attempt):
            return None
        return _TwinCounter(self._twin, run.workload, self._lock)

    def keep(self, record: bytes) -> None:
        """Nothing is kept: the node ends with its agent."""

    def kept(self) -> bytes:
        """Nothing."""
        return b""

    def close(self) -> None:
        """Nothing to release: the node ends with its agent."""

    def work(self) -> dict[str, Work]:
        """What has been done so far, by the tag of the jobs that did it: the truth, which no agent sees."""
        with self._lock:
            return self._with(self._run, self._done()) if self._run else self._work

    def _look(self) -> None:
        run = self._run
        if run is None:
            return
        if self._twin.finished:
            self._end(0, "")
        elif self._twin.age_ns - run.began_ns >= run.start.walltime_s * 1_000_000_000:
            self._end(-SIGTERM, "walltime")

    def _workload(self, start: JobStart) -> Workload:
        """The workload of a job; ``TwinError`` if it cannot run here."""
        if start.uid != os.geteuid():
            raise TwinError(f"runs jobs of user {os.geteuid()} only, not of {start.uid}")
        if self._run:
            raise TwinError(f"runs job {self._run.start.job} already")
        name, *rest = start.command or [""]
        if name != COMMAND or start.script or start.prolog or start.epilog or len(rest) not in (2, 3):
            raise TwinError(
                f"is an emulated node, which runs only `{COMMAND} NAME TIME [UNIT]` (`nodectl twin workloads`)"
            )
        unit_s = duration_s(rest[2]) if len(rest) > 2 else None
        return load_workload(
            rest[0], self._twin.machine, seed=start.job, duration_s=duration_s(rest[1]), progress_s=unit_s
        )

    def _end(self, status: int, cause: Cause) -> None:
        run = self._run
        if run is None:
            return
        work = self._done()
        self._work = self._with(run, work)
        self._twin.stop_workload()
        self._run = None
        key = _key(run)
        detail = self._print(run, work)
        self._over[key] = JobPart(
            *key, "ended", status, cause, run.began_s, run.began_s + work.ran_s, detail=detail, slowdown=work.slowdown
        )

    def _done(self) -> Work:
        """The work of the job that runs."""
        ran_s, done_s, _ = self._twin.progress()
        return Work(ran_s, done_s)

    def _with(self, run: _Run, work: Work) -> dict[str, Work]:
        """All work, with what this run has done."""
        tag = run.start.tag
        return {**self._work, tag: self._work.get(tag, Work()) + work}

    def _print(self, run: _Run, work: Work) -> str:
        """Write the job's output; returns why that failed, or an empty text."""
        path = Path(run.start.workdir) / run.start.output
        later = "" if work.slowdown is None else f", {work.slowdown:+.1%} against the highest clock"
        try:
            with open(open_output(path), "a") as file:
                file.write(f"EMULATED {run.workload.name} on {self._node}: {work.ran_s:.1f} s{later}\n")
        except OSError as error:
            return f"{path}: {error.strerror}"[:300]
        return ""


class _TwinCounter:
    """The progress of one emulated program, while the node runs it."""

    def __init__(self, twin: Twin, workload: Workload, lock: threading.Lock) -> None:
        self._twin, self._workload, self._lock = twin, workload, lock

    def read(self) -> int:
        """Units since its start; ``RAW_MISSING`` if it reports none, or has ended."""
        with self._lock:  # it may be replaced meanwhile
            units = self._twin.progress_units() if self._twin.workload is self._workload else None
        return RAW_MISSING if units is None else units

    def close(self) -> None:
        """Nothing to release."""


def _names(machine: Machine) -> list[str]:
    """The workloads that this machine can run; families up to their colon."""
    runs = [name for name, needs, _ in workload_summaries() if "cpu" in needs or machine.gpu is not None]
    return [f"{family}:" if colon else family for family, colon, _ in (name.partition(":") for name in runs)]


def _key(run: _Run) -> Key:
    return run.start.job, run.start.attempt

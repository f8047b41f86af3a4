"""Jobs on an emulated node: work of a given amount, which takes as long as the node's clocks allow.

A job names a twin workload and how long it takes at the highest clock, once for each of its nodes:

    clusterctl submit --nodes 2 --time 5min --tag memory -- twin-workload stream 30s

With a third word, for example ``50ms``, it reports its progress in units of about so much work.

It also runs ``nodectl calibrate run`` (``emulated_calibration``).

The job ends when that work is done, so its end shows what a cap costs. A twin workload cannot clean up: any signal that
ends a program without handlers ends it at once. When the emulated node ends, so do its jobs, and the next node of that
name knows nothing of them, as after a power cut.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCHLD, SIGCONT, SIGSTOP, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH
from typing import Final, TypeAlias

from foundation.shell.errors import NodectlError
from foundation.steady_clock import steady_time
from foundation.wire.job_messages import Cause, JobForget, JobPart, JobSignal, JobStart
from lab.emulated.emulated_calibration import COMMAND as CALIBRATE
from lab.emulated.emulated_calibration import EmulatedCalibration
from nodectl.jobs.job_files import open_output
from nodectl.jobs.processes import FORGOTTEN
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


@dataclass(slots=True)
class _Calibrating:
    start: JobStart
    began_s: float
    began_ns: int
    run: EmulatedCalibration
    signal: int = 0
    cause: Cause = ""
    printed: int = 0
    detail: str = ""


class TwinJobs:
    """A ``job_runner.Backend`` of emulated work. One job at a time: it has the whole node.

    ``unix_s`` is the wall clock, for records; walltimes run on the twin's own clock. ``work`` may be called from
    another thread. ``calibrate`` begins a calibration, given the words of its command and where it runs.
    """

    runs_only = COMMAND
    refuses = ""
    runs_uid = -1
    halves = ""

    def __init__(
        self,
        twin: Twin,
        node: str,
        unix_s: Callable[[], float] | None = None,
        calibrate: Callable[[list[str], str], EmulatedCalibration] | None = None,
    ) -> None:
        self._twin, self._node, self._unix_s, self._calibrate = twin, node, unix_s or steady_time(), calibrate
        self._calibrating: _Calibrating | None = None
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
            if key in self._over or key in self._forgotten or key == self._key:
                return
            try:
                if start.command[: len(CALIBRATE)] == CALIBRATE and not start.script:
                    self._calibrating = self._begun(start)
                    return
                workload = self._workload(start)
            except (TwinError, NodectlError) as error:
                self._over[key] = JobPart(*key, "refused", detail=f"{self._node}: {error}"[:300])
                return
            self._twin.start_workload(workload)
            self._run = _Run(start, workload, self._unix_s(), self._twin.age_ns)

    def signal(self, signal: JobSignal) -> None:
        """End the job, unless the signal would not end a program."""
        with self._lock:
            self._look()
            if (signal.job, signal.attempt) != self._key or signal.signal in _HARMLESS:
                return
            if self._calibrating:
                self._stop(self._calibrating, signal.signal, "told")
            else:
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
            if one := self._calibrating:
                key = one.start.job, one.start.attempt
                parts[key] = JobPart(*key, "ending" if one.signal else "running", started_s=one.began_s)
            return [parts[key] for key in sorted(parts)]

    def hint_page(self, job: int, attempt: int) -> None:
        """Emulated work gives no hints."""

    def counter(self, job: int, attempt: int) -> Counter | None:
        """The emulated program's progress counter; None for another job."""
        run = self._run
        if run is None or _key(run) != (job, attempt):
            return None
        return _TwinCounter(self._twin, run.workload, self._lock)

    def half_of(self, job: int, attempt: int) -> frozenset[int]:
        """A job has the whole node."""
        return frozenset()

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

    @property
    def _key(self) -> Key | None:
        """The run that the node has."""
        one = self._run or self._calibrating
        return (one.start.job, one.start.attempt) if one else None

    def _begun(self, start: JobStart) -> _Calibrating:
        self._refuse(start)
        if self._calibrate is None:
            raise TwinError("cannot be calibrated by a job")
        run = self._calibrate(start.command[len(CALIBRATE) :], start.workdir)
        return _Calibrating(start, self._unix_s(), self._twin.age_ns, run)

    def _stop(self, one: _Calibrating, number: int, cause: Cause) -> None:
        if not one.signal:
            one.signal, one.cause = number, cause
            one.run.stop()

    def _look_at_calibration(self, one: _Calibrating) -> None:
        if self._twin.age_ns - one.began_ns >= one.start.walltime_s * 1_000_000_000:
            self._stop(one, SIGTERM, "walltime")
        exit_status, lines = one.run.status, one.run.lines[one.printed :]
        if lines:
            one.printed += len(lines)
            one.detail = self._print(one.start, "".join(f"{line}\n" for line in lines)) or one.detail
        if exit_status is None:
            return
        key = one.start.job, one.start.attempt
        detail = one.detail or (one.run.lines[-1][:300] if exit_status and one.run.lines else "")
        status = -one.signal if one.signal else exit_status
        self._over[key] = JobPart(*key, "ended", status, one.cause, one.began_s, self._unix_s(), detail=detail)
        self._calibrating = None

    def _look(self) -> None:
        if self._calibrating:
            self._look_at_calibration(self._calibrating)
        run = self._run
        if run is None:
            return
        if self._twin.finished:
            self._end(0, "")
        elif self._twin.age_ns - run.began_ns >= run.start.walltime_s * 1_000_000_000:
            self._end(-SIGTERM, "walltime")

    def _workload(self, start: JobStart) -> Workload:
        """The workload of a job; ``TwinError`` if it cannot run here."""
        self._refuse(start)
        name, *rest = start.command or [""]
        if name != COMMAND or start.script or start.prolog or start.epilog or len(rest) not in (2, 3):
            raise TwinError(
                f"is an emulated node, which runs only `{COMMAND} NAME TIME [UNIT]` (`nodectl twin workloads`)"
            )
        unit_s = duration_s(rest[2]) if len(rest) > 2 else None
        return load_workload(
            rest[0], self._twin.machine, seed=start.job, duration_s=duration_s(rest[1]), progress_s=unit_s
        )

    def _refuse(self, start: JobStart) -> None:
        """``TwinError`` for a job of another user, and while another job has the node."""
        if start.uid != os.geteuid():
            raise TwinError(f"runs jobs of user {os.geteuid()} only, not of {start.uid}")
        if self._key:
            raise TwinError(f"runs job {self._key[0]} already")

    def _end(self, status: int, cause: Cause) -> None:
        run = self._run
        if run is None:
            return
        work = self._done()
        self._work = self._with(run, work)
        self._twin.stop_workload()
        self._run = None
        key = _key(run)
        later = "" if work.slowdown is None else f", {work.slowdown:+.1%} against the highest clock"
        line = f"EMULATED {run.workload.name} on {self._node}: {work.ran_s:.1f} s{later}\n"
        detail = self._print(run.start, line)
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

    def _print(self, start: JobStart, text: str) -> str:
        """Write the job's output; returns why that failed, or an empty text."""
        path = Path(start.workdir) / start.output
        try:
            with open(open_output(path), "a") as file:
                file.write(text)
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

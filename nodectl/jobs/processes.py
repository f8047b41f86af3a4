"""Jobs on this node: each is started at most once, and recovered when the agent restarts.

Each run of a job has a directory, ``JOB.ATTEMPT``, which is its whole state; a ``nodectl.jobs.job_step`` works in it. A
run is accepted once its directory is on the disk. Then it will be started, by this agent or by the next, and never
twice: a lock in the directory decides which job step runs it. ``forget`` deletes the directory, once the cluster agent
has recorded how the run ended.

Single user: a job of another user than the agent's is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from nodectl.jobs.job_files import open_new, open_output, read_plain
from nodectl.jobs.job_step import (
    ENDED,
    ENDING,
    LOCK,
    PROGRESS,
    REQUEST,
    SESSION,
    STEP,
    start_time,
    sync_directory,
    write_durably,
)
from nodectl.shell.errors import NodectlError
from nodectl.wire.job_messages import JobForget, JobPart, JobSignal, JobStart, Phase
from pmu.instruments.job_progress import Counter, CounterFile

Key: TypeAlias = tuple[int, int]

FORGOTTEN: Final = 1000
"""Ours: how many forgotten runs are remembered, so that an old message cannot start one again."""

LAUNCHES: Final = 5
"""Ours: how often starting a run is tried before it counts as lost."""

DAMAGED: Final = (OSError, ValueError, KeyError, TypeError, msgspec.DecodeError)
"""What reading a record raises that the job, which runs as the same user, has damaged or replaced."""

KEPT: Final = "energy"
_STRAY: Final = "taken"  # a run's directory while it is being made


@dataclass(slots=True)
class _Run:
    directory: Path
    child: subprocess.Popen[bytes] | None = None  # None: its parent was an earlier agent
    step: tuple[int, int] | None = None  # pid and start time
    began_s: float = 0.0
    part: JobPart | None = None  # once it is over
    launches: int = 0


class JobRunner:
    """A ``job_runner.Backend`` of processes. ``NodectlError`` if jobs cannot be kept in ``directory``."""

    runs_only = ""
    runs_names = ()

    def __init__(self, directory: Path, node: str) -> None:
        self._directory, self._node = directory.absolute(), node  # a job step has another working directory
        self._runs: dict[Key, _Run] = {}
        self._forgotten: deque[Key] = deque(maxlen=FORGOTTEN)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._find()
        except OSError as error:
            raise NodectlError(f"{directory}: cannot keep jobs there: {error.strerror}") from None

    def parts(self) -> list[JobPart]:
        """All runs that are not forgotten."""
        for key, run in self._runs.items():
            if run.part is None:
                self._look(key, run)
        return [self._part(key, run) for key, run in sorted(self._runs.items())]

    def start(self, start: JobStart) -> None:
        """Put the run on the disk, then launch its job step."""
        key = start.job, start.attempt
        if key in self._runs or key in self._forgotten:
            return
        directory = self._directory_of(key)
        if start.uid != os.geteuid():
            why = f"{self._node} runs jobs of user {os.geteuid()} only, not of {start.uid}"
            self._runs[key] = _Run(directory, part=JobPart(*key, "refused", detail=why))
            return
        part = self._directory / _STRAY
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(mode=0o700)
            write_durably(part / REQUEST, msgspec.to_builtins(start))
            os.rename(part, directory)
            sync_directory(self._directory)
        except OSError as error:
            why = f"{directory}: {error.strerror}"
            self._runs[key] = _Run(directory, part=JobPart(*key, "refused", detail=why[:300]))
            return
        self._runs[key] = run = _Run(directory)
        self._launch(run)

    def _launch(self, run: _Run) -> None:
        run.launches += 1
        run.child = subprocess.Popen(
            [sys.executable, "-m", "nodectl.jobs.job_step", str(run.directory)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            cwd="/", env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )  # fmt: skip

    def signal(self, message: JobSignal) -> None:
        """Pass the signal to the job step of the run."""
        run = self._runs.get((message.job, message.attempt))
        if run is None or run.part is not None:
            return
        self._know(run)
        number = signal.SIGQUIT if message.signal == signal.SIGKILL else message.signal
        if run.step is None:  # the job step has not begun; the message comes again
            return
        pid, began = run.step
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return
        try:
            if start_time(pid) == began:
                signal.pidfd_send_signal(descriptor, number)
        except OSError:
            pass  # it ended meanwhile
        finally:
            os.close(descriptor)

    def forget(self, message: JobForget) -> None:
        """Delete the run's directory."""
        key = message.job, message.attempt
        run = self._runs.get(key)
        if run is None or run.part is None:
            return
        self._forgotten.append(key)
        shutil.rmtree(run.directory, ignore_errors=True)
        del self._runs[key]

    def counter(self, job: int, attempt: int) -> Counter | None:
        """The run's progress file, once its job step has made it."""
        try:
            return CounterFile(self._directory_of((job, attempt)) / PROGRESS)
        except OSError:
            return None

    def keep(self, record: bytes) -> None:
        """In a file next to the runs. It need not survive the machine, so it does not wait for the disk."""
        part = self._directory / f"{KEPT}.part"
        with open(open_new(part), "wb") as file:
            file.write(record)
        os.rename(part, self._directory / KEPT)

    def kept(self) -> bytes:
        """The file's bytes."""
        try:
            return read_plain(self._directory / KEPT).encode()
        except DAMAGED:
            return b""

    def close(self) -> None:
        """Nothing to close: jobs continue without us."""

    def _directory_of(self, key: Key) -> Path:
        job, attempt = key
        return self._directory / f"{job}.{attempt}"

    def _find(self) -> None:
        """Find what an earlier agent left: running, ended, or accepted and not begun."""
        for directory in sorted(self._directory.glob("*.*")):
            job, _, attempt = directory.name.partition(".")
            if not (job.isdigit() and attempt.isdigit()):
                continue
            run = self._runs[(int(job), int(attempt))] = _Run(directory)
            if not (directory / STEP).exists() and not (directory / ENDED).exists():
                self._launch(run)  # the lock decides between this job step and one that the earlier agent launched

    def _know(self, run: _Run) -> None:
        if run.step is None and (run.directory / STEP).exists():
            with contextlib.suppress(*DAMAGED):
                step = json.loads(read_plain(run.directory / STEP))
                run.step, run.began_s = (step["pid"], step["start"]), step["began_s"]

    def _look(self, key: Key, run: _Run) -> None:
        self._know(run)
        is_alive = run.step is not None and start_time(run.step[0]) == run.step[1]
        if run.child is not None:
            is_alive |= run.child.poll() is None
        if (run.directory / ENDED).exists():
            run.part = self._ended(key, run)
            return
        if is_alive:
            return
        if run.step is None and run.launches < LAUNCHES:
            if not _is_locked(run.directory / LOCK):  # else another job step is about to begin
                self._launch(run)
            return
        _kill_session(run.directory / SESSION)
        why = "cannot be started" if run.step is None else "its job step was killed"
        run.part = JobPart(*key, "lost", detail=f"{self._node}: {why}")

    def _ended(self, key: Key, run: _Run) -> JobPart:
        """How the run ended, as its job step has recorded; lost, if the job has damaged that record."""
        try:
            record = json.loads(read_plain(run.directory / ENDED))
            return msgspec.convert({"job": key[0], "attempt": key[1], "phase": "ended", **record}, JobPart)
        except DAMAGED as error:
            _kill_session(run.directory / SESSION)
            return JobPart(*key, "lost", detail=f"{self._node}: the record of its end is damaged: {error}"[:300])

    def _part(self, key: Key, run: _Run) -> JobPart:
        if run.part is not None:
            return run.part
        phase: Phase = "ending" if (run.directory / ENDING).exists() else "running"
        return JobPart(*key, phase, started_s=run.began_s)


def _kill_session(path: Path) -> None:
    """Kill what is left of a job whose job step was killed. Its processes are still in its session, and no others
    are."""
    with contextlib.suppress(OSError, ValueError):
        session = int(read_plain(path))
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.getsid(int(name)) == session:
                    os.kill(int(name), signal.SIGKILL)


def _is_locked(path: Path) -> bool:
    try:
        with open(open_output(path), "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False

"""Jobs on this node: each is started at most once, ended in time, and recovered when the agent restarts.

Each run of a job has a directory, ``JOB.ATTEMPT``, which is its whole state; a ``nodectl.jobs.job_step`` works in it. A
run is accepted once its directory is on the disk. Then it will be started, by this agent or by the next, and never
twice: a lock in the directory decides which job step runs it. ``forget`` deletes the directory, once the cluster agent
has recorded how the run ended.

A run is over when its job step has ended **and nothing of the job lives** (``nodectl.jobs.job_group``); until then the
node says that it runs or ends, whatever is in the directory. A job step that was stopped or killed, or hangs, cannot
keep a run from its end: what it should have done ``LATE_S`` ago, this agent does.

Single user: a job that another user submitted than the one that jobs run as here is refused.
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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from foundation.boot import boottime_s
from foundation.digest import sha256_hex
from foundation.directories import sync_directory
from foundation.shell.errors import NodectlError
from foundation.steady_clock import NAME, kept_clock
from foundation.wire.job_messages import HOOK_S, HOW, JobForget, JobPart, JobSignal, JobStart, Phase
from nodectl.jobs import cgroups
from nodectl.jobs.cgroups import Cgroup
from nodectl.jobs.job_files import open_new, open_output, read_plain
from nodectl.jobs.job_group import JobGroup
from nodectl.jobs.job_half import CpusetHome
from nodectl.jobs.job_user import JobUser, user_of
from nodectl.jobs.proc import process, send_all, start_time
from nodectl.jobs.run_files import (
    DAMAGED,
    ENDED,
    ENDING,
    HINTS,
    LOCK,
    PROGRESS,
    REQUEST,
    STEP,
    STRAYED,
    read_ending,
    read_group,
    read_request,
    read_stage,
    reserve,
    write_durably,
    write_ending,
    write_group,
    write_note,
)
from pmu.core_halves import Halves
from pmu.instruments.job_hints import HintFile
from pmu.instruments.job_progress import Counter, CounterFile

Key: TypeAlias = tuple[int, int]

FORGOTTEN: Final = 1000
"""Ours: how many forgotten runs are remembered, so that an old message cannot start one again."""

LAUNCHES: Final = 5
"""Ours: how often starting a run is tried before it counts as lost."""

LATE_S: Final = 2.0
"""Ours: how long a job step may be late with the end of its job before the agent ends it; as long again until the job
step itself, which has nothing left to wait for, is killed."""

STUBBORN_S: Final = 30.0
"""Ours: processes that live for so long after SIGKILL wait for a disk or a device, and somebody has to look."""

STRAY_S: Final = 1.0
"""Ours: how often the threads of a job on half a node are looked at."""

KEPT: Final = "energy"
_STRAY: Final = "taken"  # a run's directory while it is being made
_GONE: Final = "gone"  # the same while it is being deleted


@dataclass(slots=True)
class _Run:
    directory: Path
    start: JobStart | None = None  # None: its request cannot be read
    group: JobGroup = field(default_factory=lambda: JobGroup(None, ""))
    child: subprocess.Popen[bytes] | None = None  # None: its parent was an earlier agent
    step: tuple[int, int] | None = None  # pid and start time
    began_s: float = 0.0
    part: JobPart | None = None  # once it is over
    launches: int = 0
    killed_s: float | None = None  # ``boottime_s`` of the cluster agent's SIGKILL
    killing_s: float | None = None  # the same of this agent's first attempt to end it
    is_late: bool = False  # the agent ends it, and not its job step
    is_stubborn: bool = False
    looked_s: float = 0.0  # when its threads were last looked at: are they in its half
    strayed: str = ""


class JobRunner:
    """A ``job_runner.Backend`` of processes. ``NodectlError`` if jobs cannot be kept in ``directory``."""

    runs_only = ""
    runs_names = ()

    def __init__(
        self,
        directory: Path,
        node: str,
        user: JobUser | None = None,
        log: Callable[[str], None] = lambda line: None,
        refuses: str = "",
        halves: Halves | None = None,
    ) -> None:
        """``user``: as whom jobs run, by default this process's own. ``refuses``: why no job may be started.
        ``halves``: of the node's cores; None: no job gets one."""
        self._directory, self._node = directory.absolute(), node  # a job step has another working directory
        self._user, self._log, self._why_none = user or user_of(os.geteuid()), log, refuses
        self._runs: dict[Key, _Run] = {}
        self._forgotten: deque[Key] = deque(maxlen=FORGOTTEN)
        self._strays: list[Cgroup] = []
        name = sha256_hex(os.fsencode(self._directory))[:12]
        self._home = cgroups.home(name)
        self._halves, self._cpusets = halves, CpusetHome(name, self._home)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            # others pass through it to the progress of their job; what is in it they cannot list
            self._directory.chmod(0o700 if self._user.is_agents else 0o711)
            self._clock = kept_clock(directory / NAME, is_free=not any(path.is_dir() for path in directory.iterdir()))
            self._find()
        except OSError as error:
            raise NodectlError(f"{directory}: cannot keep jobs there: {error.strerror}") from None

    @property
    def how(self) -> str:
        """As whom jobs run and how they are kept together, in words."""
        kept = f"each in a cgroup (version {self._home.version})" if self._home else "without cgroups"
        by = {"": "", "cpuset": ", two on a node by cpusets", "affinity": ", two on a node by affinity alone"}
        return f"jobs run as {self._user.name}, {kept}{by[self.halves]}"

    @property
    def halves(self) -> str:
        """How two jobs are kept on the halves of the cores (``HOW``); empty: they are not."""
        return "" if self._halves is None else HOW[0] if self._cpusets.is_there else HOW[1]

    @property
    def refuses(self) -> str:
        """Why this node starts no job now; empty: it does."""
        if self._strays:
            return f"processes of a run that is not on record do not end: {self._strays[0].path}"
        return self._why_none

    @property
    def runs_uid(self) -> int:
        """The user that jobs run as; -1 where there is none."""
        return -1 if self._why_none else self._user.uid

    def parts(self) -> list[JobPart]:
        """All runs that are not forgotten."""
        self._sweep()
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
        why = f"{self._node}: {self.refuses}" if self.refuses else ""
        if not why and start.uid != self._user.uid:
            why = f"{self._node} runs jobs of user {self._user.uid} only, not of {start.uid}"
        why = why or self._why_not_next_to(start)
        if why:
            self._runs[key] = _Run(directory, part=JobPart(*key, "refused", detail=why[:300]))
            return
        mark = f"{key[0]}.{key[1]}-{os.urandom(8).hex()}"
        half = None
        if start.half >= 0 and self._halves is not None:
            half = self._cpusets.half(directory.name, self._halves[start.half])
        group = JobGroup(self._cgroup_of(key), mark, may_leave=self._user.is_agents, half=half)
        part = self._directory / _STRAY
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            part.chmod(self._directory.stat().st_mode & 0o777)
            write_durably(part / REQUEST, msgspec.to_builtins(start))
            write_group(part, group, self._user)
            reserve(part / ENDED)
            os.rename(part, directory)
            sync_directory(self._directory)
        except OSError as error:
            why = f"{directory}: {error.strerror}"
            self._runs[key] = _Run(directory, part=JobPart(*key, "refused", detail=why[:300]))
            return
        self._runs[key] = run = _Run(directory, start, group)
        self._launch(run)

    def _launch(self, run: _Run) -> None:
        run.launches += 1
        if run.group.cgroup and self._home:
            self._home.make()
            run.group.cgroup.make()
        if run.group.half:
            with contextlib.suppress(OSError):  # then its first process does not begin, and says why
                run.group.half.make()
        run.child = subprocess.Popen(
            [sys.executable, "-m", "nodectl.jobs.job_step", str(run.directory)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            cwd="/", env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )  # fmt: skip

    def signal(self, message: JobSignal) -> None:
        """Pass the signal to the job step of the run; if that does not end the run in time, ``parts`` does."""
        run = self._runs.get((message.job, message.attempt))
        if run is None or run.part is not None:
            return
        self._know(run)
        if run.step is None:  # the job step has not begun; the message comes again
            return
        number = message.signal
        if number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(OSError):  # a full disk
                write_ending(run.directory, "told")
        if number == signal.SIGKILL:
            number = signal.SIGQUIT
            run.killed_s = boottime_s() if run.killed_s is None else run.killed_s
        _send(run.step, number)

    def forget(self, message: JobForget) -> None:
        """Delete the run's directory. A run that never came here is never started here either."""
        key = message.job, message.attempt
        run = self._runs.get(key)
        if run is not None and run.part is None:
            return
        if key not in self._forgotten:
            self._forgotten.append(key)
        if run is not None:
            gone = self._directory / _GONE  # half deleted, it would be taken for one that has not begun
            shutil.rmtree(gone, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                os.rename(run.directory, gone)
            shutil.rmtree(gone, ignore_errors=True)
            self._remove(run.group)
            del self._runs[key]

    def counter(self, job: int, attempt: int) -> Counter | None:
        """The run's progress file, once its job step has made it."""
        try:
            return CounterFile(self._directory_of((job, attempt)) / PROGRESS)
        except OSError:
            return None

    def hint_page(self, job: int, attempt: int) -> HintFile | None:
        """The run's page, once its job step has made it."""
        try:
            return HintFile(self._directory_of((job, attempt)) / HINTS, self._user.uid)
        except OSError:
            return None

    def half_of(self, job: int, attempt: int) -> frozenset[int]:
        """Of the run's group."""
        run = self._runs.get((job, attempt))
        return run.group.half.cpus if run is not None and run.group.half is not None else frozenset()

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
        """Jobs continue without us."""

    # --- inside

    def _directory_of(self, key: Key) -> Path:
        job, attempt = key
        return self._directory / f"{job}.{attempt}"

    def _cgroup_of(self, key: Key) -> Cgroup | None:
        job, attempt = key
        return Cgroup(self._home.path / f"{job}.{attempt}", self._home.version) if self._home else None

    def _find(self) -> None:
        """Find what an earlier agent left: running, ended, or accepted and not begun."""
        shutil.rmtree(self._directory / _GONE, ignore_errors=True)
        for directory in sorted(self._directory.glob("*.*")):
            job, _, attempt = directory.name.partition(".")
            if not (job.isdigit() and attempt.isdigit()):
                continue
            run = self._runs[(int(job), int(attempt))] = _Run(directory, read_request(directory), read_group(directory))
            if not (directory / STEP).exists() and not (directory / ENDED).exists():
                self._launch(run)  # the lock decides between this job step and one that the earlier agent launched
                continue
            with contextlib.suppress(*DAMAGED):
                run.strayed = read_plain(directory / STRAYED)[:300]
            if read_ending(directory):
                self._know(run)  # the earlier agent may have noted the signal and not sent it
                if run.step is not None:
                    _send(run.step, signal.SIGTERM)
        if self._home:
            known = {run.group.cgroup.path for run in self._runs.values() if run.group.cgroup}
            below = (path for path in self._home.path.iterdir() if path.is_dir() and path not in known)
            self._strays = [Cgroup(path, self._home.version) for path in below]
            self._home.remove_if_unused()

    def _sweep(self) -> None:
        """End what is in cgroups of runs that are not on record."""
        for cgroup in list(self._strays):
            if cgroup.is_empty():
                self._remove(JobGroup(cgroup, ""))
                self._strays.remove(cgroup)
            else:
                cgroup.kill()

    def _remove(self, group: JobGroup) -> None:
        """Of a run that has ended; with the last one ours goes, so that a killed agent leaves none for ever."""
        if group.cgroup:
            group.cgroup.remove()
        if group.half:
            group.half.remove()
        self._cpusets.remove_unused([run.directory.name for run in self._runs.values() if run.part is None])
        if self._home:
            self._home.remove_if_unused()

    def _why_not_next_to(self, start: JobStart) -> str:
        """Why it cannot run next to those that run; empty: it can. Half a node is had by one at a time."""
        if start.half >= 0 and self._halves is None:
            return f"{self._node} cannot keep two jobs apart: it has fewer than two cores"
        for (job, _), run in self._runs.items():
            half = -1 if run.start is None else run.start.half
            if run.part is None and max(half, start.half) >= 0 and (half == start.half or min(half, start.half) < 0):
                return f"{self._node}: job {job} has {'this half' if half >= 0 else 'all'} of its cores"
        return ""

    def _keep_to_half(self, key: Key, run: _Run, step: int) -> None:
        """Once a second: put back what has left its half, and say so once."""
        now_s = boottime_s()
        if run.group.half is None or now_s - run.looked_s < STRAY_S:
            return
        run.looked_s = now_s
        found = run.group.half.put_back(lambda: run.group.left(step))
        if found and not run.strayed:
            run.strayed = f"left its half of {self._node}: {found}"[:300]
            self._log(f"ALARM: job {key[0]} {run.strayed}")
            with contextlib.suppress(OSError):  # a full disk
                write_note(run.directory / STRAYED, run.strayed)

    def _know(self, run: _Run) -> None:
        if run.step is None and (run.directory / STEP).exists():
            with contextlib.suppress(*DAMAGED):
                step = json.loads(read_plain(run.directory / STEP))
                run.step, run.began_s = (int(step["pid"]), int(step["start"])), float(step["began_s"])

    def _look(self, key: Key, run: _Run) -> None:
        self._know(run)
        if run.step is not None and start_time(run.step[0]) == run.step[1]:
            self._watch(key, run, run.step)
            return
        if run.child is not None and run.child.poll() is None:  # it is about to begin, or to be reaped
            return
        has_begun = run.step is not None or (run.directory / ENDED).exists()
        if not has_begun and run.launches < LAUNCHES:
            if not _is_locked(run.directory / LOCK):  # else another job step is about to begin
                self._launch(run)
            return
        run.group.sessions |= read_group(run.directory).sessions
        if self._lives(key, run, None):
            return
        self._remove(run.group)
        run.part = self._ended(key, run)

    def _watch(self, key: Key, run: _Run, step: tuple[int, int]) -> None:
        """The job step lives. End what it should have ended, and at last the job step."""
        pid = step[0]
        run.group.look(pid)
        self._keep_to_half(key, run, pid)
        one = process(pid)
        if one is not None and one.state in "Tt":
            self._log(f"job {key[0]}: its job step was stopped, and goes on")
            _send(step, signal.SIGCONT)
        late_s = boottime_s() - self._due_s(run, step) - LATE_S
        if late_s < 0:
            run.is_late = False
            return
        if not run.is_late:
            run.is_late = True
            self._log(f"job {key[0]}: its job step does not end it: this agent does")
            with contextlib.suppress(OSError):
                write_ending(run.directory, "walltime")
        if not self._lives(key, run, pid) and late_s > LATE_S:
            _send(step, signal.SIGKILL)

    def _lives(self, key: Key, run: _Run, step: int | None) -> bool:
        """Whether anything of the job lives; if so, it is killed."""
        left = run.group.left(step)
        if not left:
            return False
        run.group.kill(step)
        now_s = boottime_s()
        run.killing_s = now_s if run.killing_s is None else run.killing_s
        if not run.is_stubborn and now_s - run.killing_s > STUBBORN_S:
            run.is_stubborn = True
            some = ", ".join(map(str, left[:3]))
            self._log(
                f"ALARM: job {key[0]}: {len(left)} processes do not end by SIGKILL ({some}): the node stays taken"
            )
        return True

    def _due_s(self, run: _Run, step: tuple[int, int]) -> float:
        """The time (``boottime_s``) by which the job step has to have ended what it runs now."""
        start = run.start
        if start is None:
            return float("inf")
        stage, since_s = read_stage(run.directory) or ("", step[1] / _TICKS)
        longest_s = {
            "": HOOK_S + start.walltime_s + start.grace_s + HOOK_S, "prolog": HOOK_S + start.grace_s,
            "job": start.walltime_s + start.grace_s, "epilog": HOOK_S,
        }  # fmt: skip
        due_s = since_s + longest_s[stage]
        ending = read_ending(run.directory)
        if ending and stage != "epilog":
            due_s = min(due_s, ending[1] + start.grace_s)
        if run.killed_s is not None and (stage != "epilog" or since_s < run.killed_s):
            due_s = min(due_s, run.killed_s)
        return due_s

    def _ended(self, key: Key, run: _Run) -> JobPart:
        """How the run ended: nothing of it lives. By the record of its job step; without one, by what this agent had to
        do; else it is lost."""
        if (run.directory / ENDED).exists():
            try:
                record = json.loads(read_plain(run.directory / ENDED))
                record["detail"] = record.get("detail") or run.strayed
                return msgspec.convert({"job": key[0], "attempt": key[1], "phase": "ended", **record}, JobPart)
            except DAMAGED as error:
                return JobPart(*key, "lost", detail=f"{self._node}: the record of its end is damaged: {error}"[:300])
        ending = read_ending(run.directory)
        if ending and run.step is not None:
            part = JobPart(
                *key, "ended", status=-signal.SIGKILL, cause="told" if ending[0] == "told" else "walltime",
                started_s=run.began_s, ended_s=self._clock(), detail="its job step did not end it",
            )  # fmt: skip
        else:
            why = "cannot be started" if run.step is None else "its job step was killed"
            part = JobPart(*key, "lost", detail=f"{self._node}: {why}")
        with contextlib.suppress(OSError):  # the next agent finds the same, by the same files
            write_durably(run.directory / ENDED, msgspec.to_builtins(part))
        return part

    def _part(self, key: Key, run: _Run) -> JobPart:
        if run.part is not None:
            return run.part
        phase: Phase = "ending" if run.killing_s is not None or (run.directory / ENDING).exists() else "running"
        return JobPart(*key, phase, started_s=run.began_s, detail=run.strayed)


_TICKS: Final = os.sysconf("SC_CLK_TCK")


def _send(step: tuple[int, int], number: int) -> None:
    """Send a signal to a job step, and have it go on if it was stopped."""
    for each in (number, signal.SIGCONT):
        send_all(each, lambda: [step[0]] if start_time(step[0]) == step[1] else [])


def _is_locked(path: Path) -> bool:
    try:
        with open(open_output(path), "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False

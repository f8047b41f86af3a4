"""The job step: the process that supervises one job on a node. It starts the job, ends it in time, and leaves its exit
status on the disk.

It does not depend on the node's agent, which may end, be killed and start again while the job runs. All it needs is in
a directory of its own (``nodectl.jobs.run_files``), where it also leaves what the agent needs to know:

    request.json   what to run, and
    group.json     its processes: their cgroup, mark and user (both written by the agent)
    lock           locked while this process lives: the process that locks it first runs the job
    step.json      this process: pid and start time, written before the job begins
    session        the sessions of the job's first processes
    stage          prolog, job or epilog, and since when
    progress       where the job may report its progress while it runs
    hints          where it may give hints: these two are the only files that are the job's user's to write
    ending         exists once the job has to end: by a signal, or at its walltime
    ended.json     how it ended, written when nothing of the job is left; the last thing that this process does

SIGTERM: end the job by SIGTERM, and by SIGKILL after its grace. SIGQUIT: end it by SIGKILL now. SIGINT, SIGHUP, SIGUSR1
and SIGUSR2 are passed on to the job's processes.

It runs as the agent's user, the job as its own. The run is over when its group (``nodectl.jobs.job_group``) is empty;
whatever a job leaves running, even in another session, is killed when its first process has ended. What this process
fails to do, since it was stopped, killed or hangs, the agent does (``nodectl.jobs.processes``).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from foundation.boot import boottime_s
from foundation.steady_clock import NAME, read_clock
from foundation.wire.job_messages import HOOK_S
from nodectl.jobs.hint_page import VARIABLE as HINTS_VARIABLE
from nodectl.jobs.hint_page import new_hint_page
from nodectl.jobs.job_child import NotStartedError, Program, start_child
from nodectl.jobs.job_files import let_execute, open_new
from nodectl.jobs.job_group import VARIABLE as MARK
from nodectl.jobs.job_group import JobGroup, reap
from nodectl.jobs.job_user import JobUser
from nodectl.jobs.proc import start_time
from nodectl.jobs.progress_file import VARIABLE, cut_progress_file, new_progress_file
from nodectl.jobs.run_files import (
    ENDED,
    HINTS,
    LOCK,
    PROGRESS,
    REQUEST,
    SCRIPT,
    STAGE,
    STEP,
    Stage,
    read_ending,
    read_group,
    read_user,
    write_durably,
    write_ending,
    write_note,
    write_sessions,
)

PR_SET_CHILD_SUBREAPER: Final = 36

RECORD_S: Final = 60.0
"""Ours: for how long the record of the end is tried to be written on a disk that fails."""

CUT_S: Final = 0.25
"""Ours: how often files that another user may write are cut to their size."""

_END, _KILL = signal.SIGTERM, signal.SIGQUIT
_PASSED_ON: Final = {signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
_WAITED: Final = {signal.SIGCHLD, _END, _KILL, *_PASSED_ON}
_ENDLESS: Final = float("inf")


def main(directory: Path) -> int:
    """Run the job of this directory, unless another process runs it or has run it."""
    lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    if (directory / STEP).exists() or (directory / ENDED).exists():
        return 0
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    began_s = _unix_s(directory)
    write_durably(directory / STEP, {"pid": os.getpid(), "start": start_time(os.getpid()), "began_s": began_s})
    request = json.loads((directory / REQUEST).read_text())
    ended = _Step(directory, request, read_group(directory), read_user(directory), began_s).run()
    _record(directory / ENDED, ended)
    return 0


def _record(path: Path, ended: dict[str, Any]) -> None:
    """A disk that is full now may have room in a moment; until then the run is not over."""
    until_s = time.monotonic() + RECORD_S
    while True:
        try:
            write_durably(path, ended)
            return
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(1.0)


def _unix_s(directory: Path) -> float:
    """The time by the clock of this node's jobs."""
    return read_clock(directory.parent / NAME)()


class _Step:
    def __init__(
        self, directory: Path, request: dict[str, Any], group: JobGroup, user: JobUser, began_s: float
    ) -> None:
        self._directory, self._request, self._began_s = directory, request, began_s
        self._group, self._user = group, user
        self._cause = ""
        self._written_by_job: list[int] = []  # descriptors
        self._trouble = ""

    def run(self) -> dict[str, Any]:
        """Run the job to its end; return the record for ``ended.json``."""
        request, detail, status = self._request, "", 1
        self._make_files_of_the_job()
        try:
            if request["prolog"] and self._hook("prolog"):
                detail = "its prolog failed: the job was not run"
            elif not self._cause:
                status, detail = self._job()
            self._group.end(os.getpid())
            if request["epilog"] and self._hook("epilog"):
                detail = detail or "its epilog failed"
        except NotStartedError as failed:
            detail = detail or failed.reason
        except OSError as failed_:
            detail = detail or f"{failed_.filename or self._directory}: {failed_.strerror}"
        self._group.end(os.getpid())
        for name in (PROGRESS, HINTS, SCRIPT):
            with contextlib.suppress(OSError):
                os.unlink(self._directory / name)
        noted = read_ending(self._directory)  # the agent may have ended it
        return {
            "status": status, "cause": self._cause or (noted[0] if noted else ""),
            "started_s": self._began_s, "ended_s": _unix_s(self._directory), "detail": self._said(detail),
        }  # fmt: skip

    def _make_files_of_the_job(self) -> None:
        for name, new in ((PROGRESS, new_progress_file), (HINTS, new_hint_page)):
            with contextlib.suppress(OSError):  # without this file the job runs, but cannot report
                self._written_by_job.append(new(self._directory / name, self._user.uid))

    def _said(self, detail: str) -> str:
        return (self._trouble or detail)[:300]

    def _environment(self) -> dict[str, str]:
        request, user = self._request, self._user
        standard = {"PATH": os.defpath, "HOME": user.home, "USER": user.name, "LOGNAME": user.name}
        own = {
            "NODECTL_JOB_ID": str(request["job"]), "NODECTL_ATTEMPT": str(request["attempt"]),
            "NODECTL_NODES": ",".join(request["nodes"]), "NODECTL_NODE_RANK": str(request["rank"]),
            "NODECTL_NODE": request["nodes"][request["rank"]], VARIABLE: str(self._directory / PROGRESS),
            HINTS_VARIABLE: str(self._directory / HINTS), MARK: self._group.mark,
        }  # fmt: skip
        return {**standard, **request["env"], **own}

    def _start(self, command: list[str], stage: Stage) -> int:
        request = self._request
        program = Program(command, self._environment(), request["workdir"], request["output"], request["error"])
        try:
            write_note(self._directory / STAGE, f"{stage} {boottime_s()}")
        except OSError:  # a full disk: without a stage the agent counts the longest time that a run may take
            with contextlib.suppress(OSError):
                os.unlink(self._directory / STAGE)
        if self._group.half:
            self._group.half.keep_to()
        return start_child(program, self._user, self._group, self._note_session)

    def _note_session(self, pid: int) -> None:
        """Before the program's first instruction: it never runs without its session on record."""
        self._group.sessions[pid] = start_time(pid) or 0
        write_sessions(self._directory, self._group)

    def _hook(self, stage: Stage) -> bool:
        """Run a prolog or epilog; True if it failed."""
        child = self._start(["/bin/sh", "-c", self._request[stage]], stage)
        return self._watch(child, stage, HOOK_S) != 0

    def _job(self) -> tuple[int, str]:
        request = self._request
        command = list(request["command"])
        if request["script"]:
            script = self._directory / SCRIPT
            with open(open_new(script, 0o500), "w") as file:
                file.write(request["script"])
                if not self._user.is_agents:
                    let_execute(file.fileno(), self._user.uid, self._user.gid)
            command = (
                [str(script), *command] if request["script"].startswith("#!") else ["/bin/sh", str(script), *command]
            )
        try:
            child = self._start(command, "job")
        except NotStartedError as failed:
            return failed.status, failed.reason
        return self._watch(child, "job", request["walltime_s"]), ""

    def _watch(self, child: int, stage: Stage, limit_s: float) -> int:
        """Wait until the first process of this stage has ended; return its status.

        At its limit it gets SIGTERM and, after the grace, SIGKILL; a prolog or epilog SIGKILL at once. A cancel ends
        prolog and job; an epilog is ended by SIGQUIT alone.
        """
        limit_at_s, kill_s = time.monotonic() + limit_s, _ENDLESS
        while (status := _status(child)) is None:
            wait_s = max(min(limit_at_s, kill_s) - time.monotonic(), 0.0)
            news = signal.sigtimedwait(_WAITED, min(wait_s, self._cut(child)))
            now_s = time.monotonic()
            number = news.si_signo if news else 0
            is_late = now_s >= limit_at_s
            if number in _PASSED_ON:
                self._group.signal(number, os.getpid())
            if number == _KILL or now_s >= kill_s or (is_late and stage != "job"):
                self._has_to_end("told" if number == _KILL else "")
                kill_s = limit_at_s = _ENDLESS
                self._group.end(os.getpid(), kept=[child])
            elif ((number == _END and stage != "epilog") or is_late) and kill_s == _ENDLESS and not self._cause:
                self._has_to_end("walltime" if is_late else "told")
                limit_at_s, kill_s = _ENDLESS, now_s + self._request["grace_s"]
                self._group.signal(signal.SIGTERM, os.getpid())
            reap(kept=[child])
        return status

    def _cut(self, child: int) -> float:
        """Cut the files that the job writes, if it is another user's; returns after how many seconds to do so again.
        Who has filled one with so many attributes that they cannot be removed is ended."""
        if not self._written_by_job or self._user.is_agents:
            return 3600.0
        for descriptor in self._written_by_job:
            with contextlib.suppress(OSError):
                if not cut_progress_file(descriptor):
                    self._trouble = "ended: it filled the disk by attributes of its progress file"
                    self._group.end(os.getpid(), kept=[child])
        return CUT_S

    def _has_to_end(self, cause: str) -> None:
        """The first cause stays. What the agent has noted before it sent the signal comes first."""
        noted = read_ending(self._directory)
        self._cause = self._cause or (noted[0] if noted else cause)
        if self._cause:
            with contextlib.suppress(OSError):
                write_ending(self._directory, self._cause)


def _status(pid: int) -> int | None:
    """The exit status of a child, minus the signal that ended it; None while it runs. It is not reaped twice."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return None if found == 0 else os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

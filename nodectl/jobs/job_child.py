"""Starting a process of a job: in the job's group, as the job's user, with the job's output.

What the job's user names is opened by the child when it is that user already: an agent that is root would open, for
whoever submits a job, every file there is.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from nodectl.jobs.job_files import open_output
from nodectl.jobs.job_group import JobGroup
from nodectl.jobs.job_user import JobUser

NO_COMMAND: Final = 127
"""The exit status of a command that cannot be started, as shells report it."""

STANDARD: Final = {signal.SIGPIPE, signal.SIGXFSZ}
"""Python ignores these; a program expects that they end it."""


class NotStartedError(Exception):
    """A program could not be started: the exit status that stands for it, and why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True, slots=True)
class Program:
    """What to start. ``output`` and ``error``: paths, relative to ``workdir``; "" as error: the same file."""

    command: Sequence[str]
    environment: Mapping[str, str]
    workdir: str
    output: str
    error: str


def start_child(program: Program, user: JobUser, group: JobGroup, note: Callable[[int], None]) -> int:
    """Start it in a session of its own; returns its pid. ``note`` is called with that before the program begins, and
    may raise. ``NotStartedError`` where the program cannot be started."""
    failed, report = os.pipe()  # both are closed in the program: PEP 446
    begins, begin = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            _be_program(program, user, group, begins, begin, report)
        os.close(report)
        report = -1
        try:
            note(pid)
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        os.write(begin, b"!")
        with open(failed, "rb", closefd=False) as file:
            trouble = file.read()
    finally:
        for descriptor in (failed, report, begins, begin):
            if descriptor >= 0:
                os.close(descriptor)
    if trouble:
        os.waitpid(pid, 0)
        raise NotStartedError(*json.loads(trouble))
    return pid


def _be_program(program: Program, user: JobUser, group: JobGroup, begins: int, begin: int, report: int) -> NoReturn:
    try:
        os.close(begin)
        os.setsid()
        group.enter()
        if os.read(begins, 1) != b"!":
            os._exit(1)  # the job step was killed
        be_ordinary()
        user.become()
        os.chdir(program.workdir)
        output = open_output(Path(program.workdir, program.output))
        error = open_output(Path(program.workdir, program.error)) if program.error else output
        null = os.open(os.devnull, os.O_RDONLY)
        for descriptor, place in ((null, 0), (output, 1), (error, 2)):
            os.dup2(descriptor, place, inheritable=True)
        for number in STANDARD:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
    except OSError as failed:
        _give_up(report, 1, f"{failed.filename or program.workdir}: {failed.strerror}")
    except BaseException as failed:  # a null byte; this process must never go on as a job step
        _give_up(report, 1, f"{program.workdir}, {program.output}: {failed}")
    try:
        os.execvpe(program.command[0], list(program.command), dict(program.environment))
    except BaseException as failed:  # not there; a null byte; no command
        name = program.command[0] if program.command else "no command"
        _give_up(report, NO_COMMAND, f"{name}: {getattr(failed, 'strerror', None) or failed}")


def _give_up(report: int, status: int, reason: str) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(report, json.dumps([status, reason[:1000]]).encode())
    os._exit(NO_COMMAND)


def be_ordinary() -> None:
    """Take from a job what the agent's unit gives the agent: its higher priority, its protection from the kernel's
    out-of-memory killer, and its umask.

    A job may take the protection back, down to the lowest value that was ever set with CAP_SYS_RESOURCE: so the agent
    needs this right to take it for good. Source: proc(5), oom_score_adj.
    """
    os.umask(0o022)
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        if int(score.read_text()) < 0:
            score.write_text("0")

"""The job step: the process that supervises one job on a node. It starts the job, ends it in time, and leaves its exit
status on the disk.

It does not depend on the node's agent, which may end, be killed and start again while the job runs. All it needs is in
a directory of its own, where it also leaves what the agent needs to know:

    request.json   what to run (written by the agent)
    lock           locked while this process lives: the process that locks it first runs the job
    step.json      this process: pid and start time, written before the job begins
    session        the job's session, to be killed if this process is
    progress       where the job may report its progress while it runs
    ending         exists once the job has to end: by a signal, or at its walltime
    ended.json     how it ended, written when nothing of the job is left

SIGTERM: end the job by SIGTERM, and by SIGKILL after its grace. SIGQUIT: end it by SIGKILL now. SIGINT, SIGHUP, SIGUSR1
and SIGUSR2 are passed on to the job's processes. Whatever a job leaves running, even in another session, is a
descendant of this process (PR_SET_CHILD_SUBREAPER) and is killed at the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from nodectl.jobs.job_files import open_new, open_output
from nodectl.jobs.progress_file import VARIABLE, make_progress_file

REQUEST, LOCK, STEP, SESSION, ENDING, ENDED = "request.json", "lock", "step.json", "session", "ending", "ended.json"
PROGRESS: Final = "progress"
PR_SET_CHILD_SUBREAPER: Final = 36
HOOK_S: Final = 60.0
"""Ours: how long a prolog or an epilog may take."""

_END, _KILL = signal.SIGTERM, signal.SIGQUIT
_PASSED_ON: Final = {signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
_WAITED: Final = {signal.SIGCHLD, _END, _KILL, *_PASSED_ON}


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot. A pid may be used again; pid and start time together are
    unique within a boot. Source: proc(5)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    after_name = text.rpartition(")")[2].split()
    return None if after_name[0] == "Z" else int(after_name[19])


def write_durably(path: Path, record: dict[str, Any]) -> None:
    """Write the whole file or nothing; on return it is on the disk."""
    part = path.with_name(path.name + ".part")
    with open(open_new(part), "w") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(part, path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """On return, what was made, renamed or removed in this directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    began_s = time.time()
    write_durably(directory / STEP, {"pid": os.getpid(), "start": start_time(os.getpid()), "began_s": began_s})
    request = json.loads((directory / REQUEST).read_text())
    ended = _Step(directory, request, began_s).run()
    write_durably(directory / ENDED, ended)
    return 0


class _Step:
    def __init__(self, directory: Path, request: dict[str, Any], began_s: float) -> None:
        self._directory, self._request, self._began_s = directory, request, began_s
        self._cause = ""

    def run(self) -> dict[str, Any]:
        """Run the job to its end; return the record for ``ended.json``."""
        request, detail, status = self._request, "", 1
        try:
            with self._output() as (output, error):
                with contextlib.suppress(OSError):  # without this file the job runs, but cannot report progress
                    make_progress_file(self._directory / PROGRESS)
                environment = self._environment()
                if request["prolog"] and self._hook(request["prolog"], environment, output, error):
                    detail = "its prolog failed: the job was not run"
                else:
                    status, detail = self._job(environment, output, error)
                if request["epilog"] and self._hook(request["epilog"], environment, output, error):
                    detail = detail or "its epilog failed"
        except OSError as error_:
            detail = f"{error_.filename or request['workdir']}: {error_.strerror}"
        _kill_all(signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.unlink(self._directory / PROGRESS)
        return {
            "status": status, "cause": self._cause, "started_s": self._began_s, "ended_s": time.time(),
            "detail": detail[:300],
        }  # fmt: skip

    @contextlib.contextmanager
    def _output(self) -> Any:
        place = Path(self._request["workdir"])
        with open(open_output(place / self._request["output"]), "ab") as output:
            if not self._request["error"]:
                yield output, output
                return
            with open(open_output(place / self._request["error"]), "ab") as error:
                yield output, error

    def _environment(self) -> dict[str, str]:
        request = self._request
        own = {
            "NODECTL_JOB_ID": str(request["job"]), "NODECTL_ATTEMPT": str(request["attempt"]),
            "NODECTL_NODES": ",".join(request["nodes"]), "NODECTL_NODE_RANK": str(request["rank"]),
            "NODECTL_NODE": request["nodes"][request["rank"]], VARIABLE: str(self._directory / PROGRESS),
        }  # fmt: skip
        return {"PATH": os.defpath, "HOME": os.path.expanduser("~"), **request["env"], **own}

    def _start(
        self, command: list[str], environment: dict[str, str], output: Any, error: Any
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=error, env=environment,
            cwd=self._request["workdir"], start_new_session=True, preexec_fn=self._before_exec,
        )  # fmt: skip

    def _before_exec(self) -> None:
        """In the child, before the job's first instruction: a job never runs without its session on record."""
        with open(open_new(self._directory / SESSION), "w") as session:
            session.write(str(os.getpid()))
        _be_ordinary()
        signal.pthread_sigmask(signal.SIG_SETMASK, set())

    def _hook(self, command: str, environment: dict[str, str], output: Any, error: Any) -> bool:
        """Run a prolog or epilog; True if it failed."""
        child = self._start(["/bin/sh", "-c", command], environment, output, error)
        try:
            return child.wait(HOOK_S) != 0
        except subprocess.TimeoutExpired:
            _kill_all(signal.SIGKILL)
            child.wait()
            return True

    def _job(self, environment: dict[str, str], output: Any, error: Any) -> tuple[int, str]:
        request = self._request
        command = list(request["command"])
        if request["script"]:
            script = self._directory / "script"
            with open(open_new(script, 0o700), "w") as file:
                file.write(request["script"])
            command = (
                [str(script), *command] if request["script"].startswith("#!") else ["/bin/sh", str(script), *command]
            )
        try:
            child = self._start(command, environment, output, error)
        except OSError as failed:
            return 127, f"{command[0]}: {failed.strerror}"
        return self._watch(child), ""

    def _watch(self, child: subprocess.Popen[bytes]) -> int:
        """Wait until the job's first process has ended; return its status."""
        now_s = time.monotonic()
        walltime_end_s, kill_s = now_s + self._request["walltime_s"], float("inf")
        while child.poll() is None:
            wait_s = max(min(walltime_end_s, kill_s) - time.monotonic(), 0.0)
            news = signal.sigtimedwait(_WAITED, min(wait_s, 3600.0))
            now_s = time.monotonic()
            number = news.si_signo if news else 0
            if number in _PASSED_ON:
                _kill_all(signal.Signals(number))
            if number == _KILL or now_s >= kill_s:
                self._cause, kill_s = self._cause or "told", float("inf")
                walltime_end_s = float("inf")
                _kill_all(signal.SIGKILL)
            elif (number == _END or now_s >= walltime_end_s) and not self._cause:
                self._cause = "told" if number == _END else "walltime"
                (self._directory / ENDING).touch()
                walltime_end_s, kill_s = float("inf"), now_s + self._request["grace_s"]
                _kill_all(signal.SIGTERM)
            _reap(child.pid)
        return child.returncode


def _be_ordinary() -> None:
    """Take from a job what the agent's unit gives the agent: its higher priority, its protection from the kernel's
    out-of-memory killer, and its umask."""
    os.umask(0o022)
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        if int(score.read_text()) < 0:
            score.write_text("0")


def descendants(pid: int) -> list[int]:
    """All processes below this one, parents first. Source: /proc/PID/task/TID/children of proc(5)."""
    found: list[int] = []
    below = [pid]
    while below:
        for children in _children_by_thread(below.pop()):
            found += children
            below += children
    return found


def _children_by_thread(pid: int) -> Iterator[list[int]]:
    """The children of each thread. A thread or process that ends meanwhile has none."""
    tasks = Path(f"/proc/{pid}/task")
    try:
        threads = os.listdir(tasks)
    except OSError:
        return
    for thread in threads:
        try:
            children = (tasks / thread / "children").read_text()
        except OSError:
            continue
        yield [int(word) for word in children.split()]


def _kill_all(number: signal.Signals) -> None:
    """Send the signal to all that is left of the job. SIGKILL: repeat until nothing is left, since a process may fork
    meanwhile."""
    while True:
        left = [pid for pid in descendants(os.getpid()) if start_time(pid) is not None]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number != signal.SIGKILL or not left:
            return
        time.sleep(0.005)


def _reap(kept: int) -> None:
    """Reap orphans that became our children; not the job's first process, whose status is still needed."""
    for pid in descendants(os.getpid()):
        if pid != kept and start_time(pid) is None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

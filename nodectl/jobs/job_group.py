"""All processes of one run of a job: to be signalled, ended, and counted until none is left.

Where the node has cgroups (``nodectl.jobs.cgroups``), the run's cgroup is emptied, and that alone is the end of a run.

Without cgroups its processes are found by what they inherit, which is **weaker**: they are below the job step, to which
the kernel gives all orphans of the job (PR_SET_CHILD_SUBREAPER), or were seen there; or they are in a session that is
the job's; or they have its mark in their environment. A job of the agent's own user can kill its job step, and a
process that it started within the last tenth of a second before that, in a new session and with an empty environment,
is then not found. A job of another user cannot kill its job step.

With cgroups both are looked for at the end of a job of the agent's own user, which can leave its cgroup. A job of
another user cannot; there a number of a session that was used again would only name somebody else's processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from nodectl.jobs.cgroups import Cgroup
from nodectl.jobs.job_half import Half
from nodectl.jobs.proc import Process, all_processes, descendants, has_in_environment, send_all, start_time

VARIABLE: Final = "NODECTL_RUN"
"""The mark of a run, in the environment of its processes."""

ROUNDS: Final = 20
"""Ours: how often the processes of a job are looked for while they are stopped, one after the other, to be killed."""


@dataclass(slots=True)
class JobGroup:
    """``cgroup``: None where the node has none. ``mark``: the value of ``VARIABLE``, "" for a run of a version without
    marks. ``sessions``: those of the job's first processes, by number, with the start of each: another process
    may get the number later. ``may_leave``: whether its user may take a process out of the cgroup. ``half``: of the
    node's cores, to which it is kept; None: it has all."""

    cgroup: Cgroup | None
    mark: str
    sessions: dict[int, int] = field(default_factory=dict)
    may_leave: bool = True
    half: Half | None = None
    _seen: dict[int, int] = field(default_factory=dict)  # by pid, its start: what was below the job step

    def enter(self) -> None:
        """Move this process into it; it has the mark by its environment."""
        if self.cgroup:
            self.cgroup.enter()
        if self.half:
            self.half.enter()

    def look(self, step: int) -> None:
        """Note what is below the job step now, where nothing else will tell if that is killed."""
        if self.cgroup is None:
            below = ((pid, start_time(pid)) for pid in descendants(step))
            self._seen = {pid: start for pid, start in below if start is not None}

    def left(self, step: int | None) -> list[int]:
        """What is left of the job; with the job step, which lives, without a search among all processes."""
        if self.cgroup is not None and not self.cgroup.is_empty():
            return self.cgroup.pids() or [0]
        if step is not None:
            return [pid for pid in descendants(step) if start_time(pid) is not None]
        return self._found() if self.cgroup is None or self.may_leave else []

    def signal(self, number: int, step: int) -> None:
        """Send a signal to all that is left, to who began first before those that he started: a shell that sees its
        command end by the signal before it gets the signal itself ends with a status of its own. The job step lives."""
        send_all(number, lambda: sorted(self.left(step), key=lambda pid: (start_time(pid) or 0, pid)))

    def kill(self, step: int | None) -> None:
        """Kill all that is left. Repeat this until nothing is: a process may take a moment to end, and where there is
        no cgroup it may have started others meanwhile."""
        if self.cgroup is not None and not self.cgroup.is_empty():
            self.cgroup.kill()
            return
        _stop_and_kill(lambda: self.left(step))

    def end(self, step: int, kept: Iterable[int] = ()) -> None:
        """Kill until nothing is left, and reap all but ``kept``; only the job step does this."""
        while self.left(step):
            self.kill(step)
            reap(kept)
            time.sleep(0.005)
        reap(kept)

    def _found(self) -> list[int]:
        """By session, by mark, by what was seen below the job step, and all that is below these."""
        processes = all_processes()
        found = {one.pid for one in processes if self._is_own(one)}
        is_more = True
        while is_more:
            more = {one.pid for one in processes if one.parent in found} - found
            found |= more
            is_more = bool(more)
        return sorted(found - {os.getpid()})

    def _is_own(self, one: Process) -> bool:
        began = self.sessions.get(one.session)
        if began is not None and start_time(one.session) in (None, began) and one.start >= began:
            return True
        if self._seen.get(one.pid) == one.start:
            return True
        return bool(self.mark) and has_in_environment(one.pid, f"{VARIABLE}={self.mark}".encode())


def reap(kept: Iterable[int] = ()) -> None:
    """Reap children that have ended, orphans of the job among them; not those whose status is still needed."""
    for pid in descendants(os.getpid()):
        if pid not in kept and start_time(pid) is None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _stop_and_kill(left: Callable[[], list[int]]) -> None:
    """Stop all first, until no new one is found: what is stopped cannot start another."""
    stopped: set[int] = set()
    for _ in range(ROUNDS):
        found = set(send_all(signal.SIGSTOP, left))
        if found <= stopped:
            break
        stopped |= found
    send_all(signal.SIGKILL, left)

"""Switching nodes off and on: the site's commands, as processes, and the watts that a boot needs.

``jobs.power_switching`` decides which command is to run. This module runs it as a child process, without blocking the
loop, and passes its result back. Two things are the ledger's: a node counts nothing once it is off, and it is switched
on when its boot fits into the budget with all that other nodes may draw, which is committed before the command runs.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Final

from cluster_agent.budget.kept_counts import DeposedError
from cluster_agent.budget.ledger import Ledger
from cluster_agent.errors import ClusterError
from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.power_switching import Switched
from cluster_agent.serve.config import JobSettings, PowerSettings
from cluster_agent.serve.job_service import JobService

STEP_S: Final = 0.25
"""Ours: how often to check whether commands have ended and nodes have fallen silent."""

MOST_COMMANDS: Final = 32
"""Ours: how many commands run at the same time; each is a process."""


@dataclass(slots=True)
class Command:
    """A running command and its time limit. ``state`` and ``tries``: the try of the node for which it runs."""

    state: str
    tries: int
    until_s: float

    def is_for(self, one: Switched) -> bool:
        """Whether the node is still at this try."""
        return (one.state, one.tries, one.is_done) == (self.state, self.tries, False)


@dataclass(slots=True)
class _Running(Command):
    process: subprocess.Popen[bytes]
    errors: IO[bytes]


class PowerCommands:
    """``stale`` is called when caps are to be planned again. Times are those of the ledger."""

    def __init__(
        self, jobs: JobSettings, power: PowerSettings, service: JobService, ledger: Ledger, stale: Callable[[], None]
    ) -> None:
        self._jobs, self._settings, self._service, self._ledger, self._stale = jobs, power, service, ledger, stale
        self._running: dict[str, _Running] = {}
        self._next_s = float("-inf")
        self._is_doubted = ledger.is_certain
        self._awaited: list[str] = []

    def due_s(self, now_s: float) -> float:
        """How long until ``step`` has something to do."""
        return max(self._next_s - now_s, 0.0)

    def step(self, now_s: float) -> None:
        """Do all that is due. ``DeposedError``: another cluster agent has taken over."""
        if now_s < self._next_s or not self._service.is_open:
            return
        switched = [node for node in self._service.live.nodes.values() if node.switched is not None]
        self._next_s = now_s + (STEP_S if switched or self._running else 1.0)
        self._service.live.power.silence_s = max(self._jobs.down_after_s, self._ledger.settle_s)
        ended = self._ended(now_s)
        self._record(switched, ended)
        self._count_off(now_s, switched)
        self._boot(now_s, switched)
        self._await(switched)
        self._start(now_s, switched)  # what was decided is on the disk

    def close(self) -> None:
        """End what runs; the next agent runs it again."""
        for one in self._running.values():
            _kill(one.process)
            one.errors.close()
        self._running.clear()

    # --- inside

    def _ended(self, now_s: float) -> list[tuple[str, _Running, str]]:
        """The commands that have ended since the last call, and what was wrong."""
        found = []
        for name, one in list(self._running.items()):
            status = one.process.poll()
            if status is None and now_s < one.until_s:
                continue
            problem = "" if status == 0 else _last_line(one.errors) or f"its command ended with status {status}"
            if status is None:
                _kill(one.process)
                problem = "its command took too long"
            one.errors.close()
            del self._running[name]
            found.append((name, one, problem))
        return found

    def _record(self, switched: list[Node], ended: list[tuple[str, _Running, str]]) -> None:
        """Put on the disk which commands have ended, and which nodes are off."""
        power, problems = self._service.live.power, {name: (one, problem) for name, one, problem in ended}
        if self._is_doubted and not ended and not any(power.can_confirm_off(node) for node in switched):
            return
        with self._service.updating() as live:
            for node in switched:
                one, problem = problems.get(node.name, (None, ""))
                if one is not None and node.switched is not None and one.is_for(node.switched):
                    live.power.ended(node.switched, problem)
                if not self._is_doubted:
                    live.power.doubt(node)
                live.power.confirm_off(node)
            self._is_doubted = True

    def _count_off(self, now_s: float, switched: list[Node]) -> None:
        """Let nodes that are off count nothing, except one that has just reported, which may not be on the disk yet."""
        accounts = self._ledger.accounts
        is_silent = self._ledger.is_silent(now_s)
        for node in switched if self._service.is_open else ():
            at = accounts.places.get(node.name)
            if at is None or node.switched is None or node.switched.state != "off":
                continue
            if not accounts.is_off[at] and is_silent[at]:
                self._ledger.switched_off(now_s, node.name)
                self._stale()

    def _boot(self, now_s: float, switched: list[Node]) -> None:
        """Switch on the wanted nodes, as far as there are watts."""
        for node in self._wanted(switched):
            try:
                if not self._ledger.switch_on(now_s, node.name):
                    continue
            except DeposedError:
                raise
            except ClusterError:
                return  # a full disk: the ledger grants nothing either, and raises an alarm
            if self._service.is_open:
                with self._service.updating() as live:
                    live.power.boot(node)
            self._stale()

    def _await(self, switched: list[Node]) -> None:
        """Let the plan set watts aside for the nodes that are still wanted."""
        awaited = [node.name for node in self._wanted(switched)]
        if awaited != self._awaited:
            self._awaited = awaited
            self._ledger.await_boots(awaited)
            self._stale()

    def _wanted(self, switched: list[Node]) -> list[Node]:
        if not self._service.is_open:
            return []
        power, places = self._service.live.power, self._ledger.accounts.places
        return [
            node
            for node in switched
            if node.switched is not None
            and node.switched.is_wanted
            and node.name in places
            and (node.switched.state == "off" or (node.switched.state == "failed" and power.is_silent(node)))
        ]

    def _start(self, now_s: float, switched: list[Node]) -> None:
        for one in self._service.live.power.to_run(switched) if self._service.is_open else ():
            if not self._service.is_open or one.name in self._running or len(self._running) >= MOST_COMMANDS:
                continue
            is_off = one.state == "powering-off"
            command = self._settings.off_command if is_off else self._settings.on_command
            within_s = self._settings.off_within_s if is_off else self._settings.boot_within_s
            import tempfile  # not before a node is switched

            errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the command
            try:
                process = subprocess.Popen(
                    arguments(command, one.name), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                errors.close()
                with self._service.updating() as live:
                    live.power.ended(one, f"its command cannot be run: {error.strerror}")
                continue
            self._running[one.name] = _Running(one.state, one.tries, now_s + within_s, process, errors)


def arguments(command: str, node: str) -> list[str]:
    """The words of the command with the node's name for ``%N``; no shell. ``ValueError`` if a quotation is not
    closed."""
    return [word.replace("%N", node) for word in shlex.split(command)]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the command with all processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0, os.SEEK_END)
    errors.seek(max(errors.tell() - 1000, 0))
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    return "".join(c for c in lines[-1][:200] if c.isprintable()) if lines else ""

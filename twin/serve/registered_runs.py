"""The registered runs of this host, each a small file in /run/nodectl-twin, and cleaning up after dead ones.

A run works without its file. The file names the server for requests from outside the run's namespace, and gives the
start times of the processes, so that a reused process number is not mistaken for the run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec
import psutil

from twin.errors import TwinError
from twin.serve import namespace


class Process(msgspec.Struct, frozen=True):
    """A process, distinguished from a later one with the same number by its start time."""

    number: int
    started_s: float

    @staticmethod
    def of(number: int) -> Process:
        """The living process with this number."""
        return Process(number, psutil.Process(number).create_time())

    @property
    def lives(self) -> bool:
        """Whether the same process is alive and not a zombie."""
        try:
            process = psutil.Process(self.number)
            return process.create_time() == self.started_s and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


class Run(msgspec.Struct, frozen=True):
    """One served twin."""

    launcher: Process
    server: Process
    machine: str
    command: list[str]

    @property
    def lives(self) -> bool:
        """Whether launcher and server are both alive."""
        return self.launcher.lives and self.server.lives

    @property
    def control(self) -> str:
        """Path of the run's control socket that works from any namespace."""
        return f"/proc/{self.server.number}/root{namespace.CONTROL}"


class Register:
    """A descriptor of the host's directory of runs, since its path leads elsewhere inside a run."""

    def __init__(self) -> None:
        try:
            os.makedirs(namespace.RUN_DIRECTORY, mode=0o755, exist_ok=True)
            self._directory = os.open(namespace.RUN_DIRECTORY, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise TwinError(f"{namespace.RUN_DIRECTORY} cannot be used: {error.strerror}") from None

    def enter(self, run: Run) -> None:
        """Record a run under its launcher's number."""
        name = _file(run)
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=self._directory)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(run))

    def leave(self, run: Run) -> None:
        """Remove a run's record."""
        os.unlink(_file(run), dir_fd=self._directory)

    def runs(self) -> Iterator[Run]:
        """Every registered run, alive or dead. Skips unreadable records; ``clean`` removes them."""
        for name in sorted(os.listdir(self._directory)):
            try:
                with os.fdopen(os.open(name, os.O_RDONLY, dir_fd=self._directory), "rb") as file:
                    yield msgspec.json.decode(file.read(), type=Run)
            except (OSError, msgspec.MsgspecError):
                continue

    def clean(self) -> list[str]:
        """Remove the records of dead runs and return one line for each. Their mounts and processes have ended with
        them."""
        living = {_file(run) for run in self.runs() if run.lives}
        done = []
        for name in sorted(os.listdir(self._directory)):
            if name.endswith(".json") and name not in living:
                os.unlink(name, dir_fd=self._directory)
                done.append(f"removed the record {namespace.RUN_DIRECTORY}/{name}")
        return done


def _file(run: Run) -> str:
    return f"{run.launcher.number}.json"


def find(number: int | None = None) -> str:
    """The control socket of this namespace's run, of the run with this launcher, or of the only run."""
    if number is None and os.path.exists(namespace.CONTROL):
        return namespace.CONTROL
    runs = {run.launcher.number: run for run in Register().runs() if run.lives}
    if number is not None:
        if number not in runs:
            raise TwinError(f"no run {number} is alive; alive: {_list(runs)}")
        return runs[number].control
    if len(runs) != 1:
        raise TwinError(f"give --run with one of: {_list(runs)}" if runs else "no twin is being served on this host")
    return next(iter(runs.values())).control


def _list(runs: dict[int, Run]) -> str:
    return ", ".join(f"{number} ({run.machine})" for number, run in runs.items()) or "none"

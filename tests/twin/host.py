"""The host as it is now, for tests that compare it before and after: settings, mounts, /run, processes."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from twin.serve.namespace import RUN_DIRECTORY

_LONGEST = 4096
_NOT_SETTINGS = (
    *("/sys/fs/cgroup", "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/fs/bpf"),
    "/sys/kernel/mm/damon",  # follows the size of a virtual machine's memory, which its host changes
    "/sys/devices/virtual/bdi",  # comes and goes with each FUSE mount, of other runs too
)

MARK = "NODECTL_TEST_OF_THE_HOST"
_LAST_PID = "/proc/sys/kernel/ns_last_pid"  # counts what anybody on the host starts


@dataclass(frozen=True)
class Host:
    """``settings`` are all files that root can both read and write below /proc/sys, /proc/irq and /sys; ``processes``
    those of this PID namespace: another test's run of the same programs has its own. ``marked``: those started with
    ``MARK`` in their environment, in any PID namespace."""

    settings: dict[str, str]
    mounts: str
    run: tuple[str, ...]
    processes: frozenset[tuple[int, float, str]]
    marked: frozenset[tuple[int, float, str]]

    @staticmethod
    def now() -> Host:
        """Reads it all: about a second."""
        settings = {}
        for top in ("/proc/sys", "/proc/irq", "/sys"):
            for folder, folders, names in os.walk(top):
                folders[:] = [name for name in folders if os.path.join(folder, name) not in _NOT_SETTINGS]
                settings.update(_settings(folder, names))
        here, mark = _pid_namespace(os.getpid()), os.environ.get(MARK)
        found = [(each, (each.pid, each.create_time(), each.name())) for each in _processes()]
        return Host(
            settings,
            Path("/proc/self/mountinfo").read_text(),
            tuple(sorted(str(path) for path in Path("/run").rglob("*") if not _is_of_register(path))),
            frozenset(row for each, row in found if _pid_namespace(each.pid) in (here, None)),
            frozenset(row for each, row in found if mark and _environment(each).get(MARK) == mark),
        )

    def changed_to(self, after: Host, steady: Host, programs: tuple[str, ...] = ()) -> list[str]:
        """What is not as it was: a line each. ``steady`` was taken just after this one: what changed between the two
        changes by itself. Of new processes those with the mark count, and those named in ``programs``.
        """
        restless = {path for path, text in self.settings.items() if steady.settings.get(path) != text}
        lines = [
            f"{path}: {text!r} is {after.settings.get(path)!r}"
            for path, text in self.settings.items()
            if path not in restless and after.settings.get(path) != text
        ]
        if self.mounts != after.mounts:
            lines.append("mountinfo")
        lines += [f"{path} is new" for path in set(after.run) - set(self.run)]
        lines += [f"{path} is gone" for path in set(self.run) - set(after.run)]
        new = {row for row in after.processes - self.processes if row[2] in programs} | after.marked
        return lines + [f"process {number} {name} is new" for number, _, name in sorted(new)]


@contextmanager
def unchanged_host(*programs: str) -> Iterator[None]:
    """The host is afterwards as it was: ``Host.changed_to`` finds nothing. If the body fails, that failure is the one
    to see. Whatever the body starts inherits the mark, unless it clears its environment: name such ``programs``."""
    before, steady = Host.now(), Host.now()
    os.environ[MARK] = str(uuid.uuid4())
    try:
        yield
        after = Host.now()
    finally:
        del os.environ[MARK]
    changed = before.changed_to(after, steady, programs)
    assert changed == [], changed


def _is_of_register(path: Path) -> bool:
    """Runs are registered there, this one and those of other tests; the directory comes with a host's first run."""
    return path == Path(RUN_DIRECTORY) or path.suffix == ".json"


def _processes() -> Iterator[psutil.Process]:
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            each.name(), each.create_time()  # kept from now on, whatever becomes of the process
            yield each


def _environment(process: psutil.Process) -> dict[str, str]:
    """None of a process that has ended."""
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def _pid_namespace(pid: int) -> str | None:
    """None where the process has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def _settings(folder: str, names: list[str]) -> dict[str, str]:
    found = {}
    for name in names:
        path = os.path.join(folder, name)
        try:
            mode = os.lstat(path).st_mode
            if path != _LAST_PID and mode & 0o600 == 0o600 and mode & 0o170000 == 0o100000:
                with open(path, "rb") as file:
                    found[path] = file.read(_LONGEST).decode(errors="replace")
        except OSError:
            continue  # not to be read in this state of the device
    return found

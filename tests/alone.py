"""Tests that look at the whole machine run alone, also where test files run side by side (``make test``)."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

ALONE: Final = (
    *(f"tests/twin/test_served_{name}" for name in ("daemons", "escapes", "foreign", "slurm")),
    "tests/twin/test_host.py",
)
"""What the paths of their files begin with. Other served nodes are seen from inside alone."""

LONGEST: Final = (
    "tests/fabric/test_chaos.py",
    "tests/cluster_agent/test_clusterctl_service.py",  # first of those that want the wheel: it is built meanwhile
    "tests/cluster_agent/test_engine_sanitizers.py",
    "tests/fuzzing/test_odd_drivers.py",
    "tests/fuzzing/test_readers.py",
    "tests/test_tutorial.py",
    "tests/test_published.py",
    "tests/test_operations.py",
    "tests/nodectl/test_node_",
    "tests/test_extending.py",
)
"""What the paths of those begin with that take longest: they begin first, so that the others run meanwhile."""

# Locked, never written: a lock file of its own would have to be removed by somebody.
_TURNSTILE: Final = Path(__file__).with_name("conftest.py")
_TURN: Final = Path(__file__)


@contextlib.contextmanager
def turn(is_alone: bool) -> Iterator[None]:
    """Wait until no test runs (``is_alone``), or none that runs alone. Who waits lets no other begin first."""
    with _TURNSTILE.open() as turnstile, _TURN.open() as held:
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        fcntl.flock(held, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        fcntl.flock(turnstile, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(held, fcntl.LOCK_UN)  # closing does not do: a child that has not ended may have the file open


class Turns:
    """The plugin of each process of pytest-xdist."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """A test, with the set-up and the end of what its file's tests share."""
        with turn(item.nodeid.startswith(ALONE)):
            return (yield)


class FilesSideBySide(LoadFileScheduling):  # type: ignore[misc]
    """A file's tests in one process, and those of all files that run alone: what such a file's tests share (a node, a
    socket of the host) stays between two of them, and another such file would see it."""

    def _split_scope(self, nodeid: str) -> str:
        return "alone" if nodeid.startswith(ALONE) else str(super()._split_scope(nodeid))

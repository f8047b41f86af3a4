"""One agent per node: an exclusive lock on the node, and one on the state directory.

The node's lock (``Ports.lock_path``) keeps two agents with different state directories from moving the same knobs: each
would capture the other's values. The lock of the state directory keeps two processes from writing one save; an emulated
node in this process has only that one.

The kernel releases a lock when its owner dies, however it dies, so there is no stale lock to clean up. The process id
in the file only serves the message, and is left out when the disk is full; the lock itself is ``flock(2)`` on the open
file, which no child inherits.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import Final

from foundation.planted_links import open_safely
from foundation.shell.errors import NodectlError
from nodectl.write.generation import Generation

LOCK_NAME: Final = "lock"

LOCK_FD: Final = "NODECTL_LOCK_FD"
"""Environment: the descriptor of the node's lock file that the restorer has locked and passes on to its child, so that
the lock outlives the child."""

MOMENT_S, BETWEEN_TRIES_S = 0.05, 0.01
"""Ours: ``is_locked`` takes a lock for an instant; a start that meets it tries again."""

LEAVING_S: Final = 2.0
"""A lease and a second (ours): in this time the writer process of an agent that was killed has put the knobs back. Who
restores or takes over the node waits for the lock so long."""


class LockError(NodectlError):
    """Another process has the lock, or it cannot be taken; the message names its process id and the file."""


class FileLock:
    """One file, locked from ``acquire`` to ``release``. ``claim``, for messages: what the owner of the lock does;
    ``fix``: what to do where permission is missing."""

    def __init__(self, path: str, claim: str, fix: str = "moving clocks needs root") -> None:
        self._path = path
        self._claim = claim
        self._fix = fix
        self._fd = -1
        self._is_parents = False

    def acquire(self, patience_s: float = MOMENT_S) -> None:
        """Take the lock, creating the file and its directory if need be; ``LockError`` if it is still taken after
        ``patience_s``."""
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            fd = self._passed_on()
            self._is_parents = fd is not None
            if fd is None:
                fd = open_safely(self._path, os.O_RDWR | os.O_CREAT)
        except FileExistsError as error:
            raise LockError(f"cannot use the lock {self._path}: its directory is a file") from error
        except OSError as error:
            fix = f"; {self._fix}" if isinstance(error, PermissionError) else ""
            raise LockError(f"cannot use the lock {self._path}: {error.strerror}{fix}") from error
        try:
            self._lock(fd, time.monotonic() + patience_s)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def release(self) -> None:
        """Release the lock; harmless where it was not taken. The file stays: removing it would race with the next
        ``acquire``."""
        if self._fd >= 0:
            if not self._is_parents:
                with contextlib.suppress(OSError):  # the lock goes with the descriptor, whatever the file system says
                    os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1

    @property
    def is_taken(self) -> bool:
        """Whether this process has it by ``acquire``."""
        return self._fd >= 0

    def _passed_on(self) -> int | None:
        """A descriptor of this very file that the restorer has locked for this process; it stays the restorer's."""
        with contextlib.suppress(OSError):  # a number that was meant for another process
            for number in passed_on():
                if os.path.samestat(os.fstat(number), os.stat(self._path)):
                    return os.dup(number)
        return None

    def _lock(self, fd: int, deadline_s: float) -> None:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline_s:
                    who = f"pid {_pid_in(fd)} {self._claim} (it has locked {self._path})"
                    raise LockError(f"{who}; stop it first") from error
                time.sleep(BETWEEN_TRIES_S)
            except OSError as error:
                raise LockError(f"cannot lock {self._path}: {error.strerror}") from error
        if self._is_parents:
            return  # the file has the parent's number, who has the lock for longer
        with contextlib.suppress(OSError):  # a full disk takes the number out of a message, and nothing else
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)


def passed_on() -> list[int]:
    """The descriptor of a lock that the restorer has taken for this process, to be passed on to one that locks the node
    for it; none otherwise."""
    number = os.environ.get(LOCK_FD, "")
    with contextlib.suppress(OSError):
        if number.isdigit() and os.fstat(int(number)):
            return [int(number)]
    return []


class NodeLock:
    """All locks that a process needs to move a node's knobs; also a context manager.

    ``node_path`` is the node's own lock (``Ports.lock_path``), empty where nobody else can reach the node.
    ``patience_s``: how long ``acquire`` waits for another process that has a lock.
    """

    def __init__(self, state_dir: str, node_path: str = "", patience_s: float = MOMENT_S) -> None:
        self._patience_s = patience_s
        paths = [node_path] if node_path else []
        self._locks = [FileLock(path, "already runs this node") for path in (*paths, lock_path(state_dir))]
        self._generation = Generation(f"{node_path}.generation") if node_path else None

    def acquire(self) -> None:
        """Lock the node, then the state directory; ``LockError``, and neither is locked, if either is taken."""
        deadline_s = time.monotonic() + self._patience_s
        try:
            for lock in self._locks:
                lock.acquire(deadline_s - time.monotonic())
            if self._generation:
                self._begin(self._generation)
        except BaseException:
            self.release()
            raise

    @property
    def is_taken(self) -> bool:
        """Whether ``acquire`` has taken all of them, and nobody released them since."""
        return all(lock.is_taken for lock in self._locks)

    def is_current(self) -> bool:
        """Whether nobody has taken the node since ``acquire``: the restorer does so from a process that is stopped."""
        return self._generation is None or self._generation.is_mine()

    def renew(self, lease_s: float) -> None:
        """Claim the node for so long from now on; a restorer that is the parent takes it when that is over."""
        if self._generation:
            self._generation.renew(lease_s)

    def _begin(self, generation: Generation) -> None:
        try:
            generation.begin()
        except OSError as error:
            raise LockError(f"cannot use {generation.path}: {error.strerror}") from error

    def release(self) -> None:
        """Release both; harmless where they were not taken."""
        if self._generation:
            self._generation.end()
        for lock in reversed(self._locks):
            lock.release()

    def __enter__(self) -> NodeLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def lock_path(state_dir: str) -> str:
    """The lock of a state directory."""
    return os.path.join(state_dir, LOCK_NAME)


def is_locked(path: str) -> bool:
    """Whether some process has that lock now; False too where this process may not read the file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _pid_in(fd: int) -> str:
    try:
        return os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
    except OSError:
        return "unknown"

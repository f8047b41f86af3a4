"""One agent per node: an exclusive lock on a file in the state directory.

The kernel drops the lock when its holder dies, however it dies, so there is no stale lock to clean up. The process id
in the file only serves the message; the lock itself is ``flock(2)`` on the open file, which no child inherits.
"""

from __future__ import annotations

import contextlib
import fcntl
import os

from nodectl.errors import NodectlError

LOCK_NAME = "lock"


class LockError(NodectlError):
    """Another process holds this node; the message names its process id and the file."""


class NodeLock:
    """Held from ``acquire`` to ``release``; also a context manager."""

    def __init__(self, state_dir: str) -> None:
        self._dir = state_dir
        self._path = os.path.join(state_dir, LOCK_NAME)
        self._fd = -1

    def acquire(self) -> None:
        """Take the node, creating the state directory if need be; ``LockError`` at once if it is taken."""
        try:
            os.makedirs(self._dir, mode=0o700, exist_ok=True)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LockError(f"cannot use the state directory {self._dir}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise LockError(f"pid {holder} already runs this node (it holds {self._path}); stop it first") from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Give the node up; harmless when it is not held. The file stays: removing it would race with the next."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # the lock goes with the descriptor, whatever the file system says
                os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> NodeLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

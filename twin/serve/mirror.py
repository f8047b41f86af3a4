"""Private copies of the host's settings below /proc: what a program writes it reads back, and the host keeps its own.

tuned, TLP and their kin write ``/proc/sys/vm/*`` and interrupt affinities, and read them back to see whether it worked.
So a write is kept here, in memory, until the run ends; what was not written shows what the host has now. A file that
shows integers takes integers only, as the kernel's does (kernel/sysctl.c, proc_dointvec): at most as many as it has,
and those left out stay. Bounds of a single file are not known here, so a number that the kernel would refuse as too
large is kept.

Files of ``REFUSED`` act once and show nothing; writing them gives EPERM. ``/proc/sys/net`` is that of the host's
network namespace, whatever the caller's is.
"""

from __future__ import annotations

import errno
import os
import stat
import threading

ROOTS = (
    *("/proc/acpi", "/proc/bus", "/proc/driver", "/proc/fs", "/proc/irq", "/proc/mtrr", "/proc/scsi", "/proc/sys"),
    "/proc/sysrq-trigger",
)
"""Where the kernel takes settings outside of processes' own directories. The list is that of container runtimes (OCI
runtime specification, ``readonlyPaths`` and ``maskedPaths``), and mtrr and driver."""

REFUSED = ("/proc/sysrq-trigger",)

_PAGE = 4096
_LONGEST = 1 << 20  # a file of /proc may be longer than a page


class Mirror:
    """The host's files below ``ROOTS`` by absolute path, written ones as they were written.

    To be made while these paths still lead to the host's procfs: each root is kept by descriptor. Errors are OSErrors.
    """

    def __init__(self, roots: tuple[str, ...] = ROOTS) -> None:
        self._host = {root: os.open(root, os.O_PATH | os.O_CLOEXEC) for root in roots if os.path.exists(root)}
        self.roots = tuple(self._host)
        self._written: dict[str, bytes] = {}
        self._writing = threading.Lock()

    def has(self, path: str) -> bool:
        """Whether ``path`` is one of the roots or below one; it need not exist."""
        return any(path == root or path.startswith(f"{root}/") for root in self.roots)

    def kind(self, path: str) -> str | None:
        """ "dir", "file", "link", or None."""
        try:
            mode = self._status(path).st_mode
        except OSError:
            return None
        return "dir" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "file"

    def mode(self, path: str) -> int:
        """Permission bits as the host has them."""
        return stat.S_IMODE(self._status(path).st_mode)

    def listdir(self, path: str) -> list[str]:
        """Names in a directory."""
        fd = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)

    def readlink(self, path: str) -> str:
        """The target of a link."""
        root, rest = self._split(path)
        return os.readlink(rest, dir_fd=self._host[root])

    def read(self, path: str) -> bytes:
        """What was written in this run, else what the host has now."""
        written = self._written.get(path)
        return self._of_host(path) if written is None else written

    def write(self, path: str, data: bytes) -> int:
        """Keep what is written; EINVAL where the kernel would not take it for integers, EPERM for ``REFUSED``."""
        if path in REFUSED:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)
        if not self.mode(path) & 0o222:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
        with self._writing:
            shown = self.read(path) if self.mode(path) & 0o444 else b""
            self._written[path] = _merged(shown, data[:_PAGE], path)
        return len(data)

    def delay_s(self, path: str) -> float:
        """No file of the host is slow here."""
        return 0.0

    def _of_host(self, path: str) -> bytes:
        fd = self._open(path, os.O_RDONLY)
        try:
            parts: list[bytes] = []
            while sum(map(len, parts)) < _LONGEST and (part := os.read(fd, 1 << 16)):
                parts.append(part)
            return b"".join(parts)
        finally:
            os.close(fd)

    def _split(self, path: str) -> tuple[str, str]:
        for root in self.roots:
            if path == root or path.startswith(f"{root}/"):
                return root, path[len(root) + 1 :]
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _status(self, path: str) -> os.stat_result:
        root, rest = self._split(path)
        if not rest:
            return os.fstat(self._host[root])
        return os.stat(rest, dir_fd=self._host[root], follow_symlinks=False)

    def _open(self, path: str, flags: int) -> int:
        root, rest = self._split(path)
        if rest:
            return os.open(rest, flags | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._host[root])
        return os.open(f"/proc/self/fd/{self._host[root]}", flags | os.O_CLOEXEC)


def _merged(shown: bytes, data: bytes, path: str) -> bytes:
    """What the file shows after ``data`` has been written over ``shown``."""
    text = data.partition(b"\0")[0]
    had = shown.split()
    if not had or not all(_is_integer(word) for word in had):
        return text.rstrip(b"\n") + b"\n"
    words = text.split()
    if not words:
        return shown  # the kernel takes an empty write as none
    if len(words) > len(had) or not all(_is_integer(word) for word in words):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    values = [str(int(word, 0)).encode() for word in words]
    return b"\t".join(values + had[len(values) :]) + b"\n"


def _is_integer(word: bytes) -> bool:
    try:
        int(word, 0)
    except ValueError:
        return False
    return True

"""Private copies of the host's settings below /proc: a program reads back what it writes, and the host is unchanged.

Tools such as tuned and TLP write ``/proc/sys/vm/*`` and interrupt affinities, and read them back as a check. So a write
is kept in memory until the run ends; an unwritten file shows the host's present value. A file of integers accepts
integers only, as in the kernel (kernel/sysctl.c, proc_dointvec): at most as many as it has, and omitted ones stay
unchanged. The limits of single files are not known here, so a number that the kernel would refuse as too large is
accepted.

Files of ``REFUSED`` trigger actions and have no value; writing them gives EPERM. ``/proc/sys/net`` shows the host's
network namespace, not the caller's.
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
"""Places of kernel settings outside the directories of processes: the list of container runtimes (OCI runtime
specification, ``readonlyPaths`` and ``maskedPaths``), with mtrr and driver."""

REFUSED = ("/proc/sysrq-trigger",)

_PAGE = 4096
_LONGEST = 1 << 20  # a file of /proc may be longer than a page


class Mirror:
    """The host's files below ``ROOTS`` by absolute path; written files show the written text.

    Create it while these paths still lead to the host's procfs: it keeps a descriptor of each root. Errors are
    OSErrors.
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
        """Permission bits, as on the host."""
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
        """The text written in this run, else the host's present text."""
        written = self._written.get(path)
        return self._of_host(path) if written is None else written

    def write(self, path: str, data: bytes) -> int:
        """Store the text; EINVAL if the kernel would not accept it as integers, EPERM for ``REFUSED``."""
        if path in REFUSED:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)
        if not self.mode(path) & 0o222:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
        with self._writing:
            shown = self.read(path) if self.mode(path) & 0o444 else b""
            self._written[path] = _merged(shown, data[:_PAGE], path)
        return len(data)

    def delay_s(self, path: str) -> float:
        """No delay: faults do not apply to the host's files."""
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
    """The file's text after ``data`` was written over ``shown``."""
    text = data.partition(b"\0")[0]
    had = shown.split()
    if not had or not all(_is_integer(word) for word in had):
        return text.rstrip(b"\n") + b"\n"
    words = text.split()
    if not words:
        return shown  # the kernel ignores an empty write
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

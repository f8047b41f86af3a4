"""Whose turn it is to write: a number in shared memory that changes whenever somebody else takes the node.

A lock says who may *begin*. It does not help against a writer that was stopped (SIGSTOP) in the middle of its work: the
restorer has put the knobs back meanwhile, and the writer would go on as if nothing had happened. So whoever takes the
node's lock counts this number up, the restorer too before it puts anything back, and a writer looks at it before each
knob. Looking costs less than a microsecond: the file is mapped.

24 bytes, little-endian: ``nodectlG``, the number, and until when (CLOCK_BOOTTIME, ns; 0: for good) its writer claims to
be at work. ``nodectl/csrc/restorer`` reads and writes the same.
"""

from __future__ import annotations

import mmap
import os
import time
from typing import Final

from foundation.planted_links import open_safely

MAGIC: Final = b"nodectlG"
SIZE: Final = 24
_NUMBER, _UNTIL = 1, 2
"""Of the eight-byte words; the machines that nodectl runs on are little-endian."""


class Generation:
    """This process's turn on the node: from ``begin`` until somebody else's. ``path``: next to the node's lock."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self._numbers: memoryview | None = None
        self._mine = 0

    def begin(self) -> None:
        """Count up. Call it with the node's lock taken. Raises ``OSError``."""
        fd = open_safely(self.path, os.O_RDWR | os.O_CREAT)
        try:
            if os.fstat(fd).st_size != SIZE or os.pread(fd, len(MAGIC), 0) != MAGIC:
                os.ftruncate(fd, 0)
                os.pwrite(fd, MAGIC + bytes(SIZE - len(MAGIC)), 0)
            self._map = mmap.mmap(fd, SIZE)
        finally:
            os.close(fd)
        self._numbers = memoryview(self._map).cast("Q")
        self._mine = self._numbers[_NUMBER] + 1
        self._numbers[_UNTIL] = 0
        self._numbers[_NUMBER] = self._mine

    def is_mine(self) -> bool:
        """Whether nobody has taken the node since ``begin``. Before ``begin`` always, after ``end`` never."""
        return not self._mine if self._numbers is None else self._numbers[_NUMBER] == self._mine

    def renew(self, lease_s: float) -> None:
        """Claim the node for so long from now on; without another claim the restorer takes it then."""
        if self._numbers is not None and self.is_mine():
            self._numbers[_UNTIL] = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + round(lease_s * 1e9)

    def end(self) -> None:
        """No claim any more; harmless where there is none."""
        if self._map is not None and self._numbers is not None:
            if self.is_mine():
                self._numbers[_UNTIL] = 0
            self._numbers.release()
            self._map.close()
        self._map = self._numbers = None

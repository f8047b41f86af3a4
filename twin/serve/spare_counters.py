"""Counters whose files are open before a program asks for one.

Opening a file of our own file system is a request to the thread that serves it: two hand-overs between threads, most
of them to another CPU that sleeps. That is the larger part of what perf_event_open(2) takes on a served twin. So a
thread opens ``STOCK`` files in advance, and again when no call has come for ``CALM_S``: while calls come, it would
only take the CPU from them. When the stock is empty a file is opened at the call. Either way the thread of
``csrc/serve_opener.c`` opens it, so that this process can be killed meanwhile.
"""

from __future__ import annotations

import collections
import os
import resource
import threading
import time
from typing import Any, Final

from twin._serve import ffi, lib
from twin.errors import TwinError

STOCK: Final = 2048
"""Ours: five events on each of 384 CPUs. Less, a quarter of it, where the process may have few descriptors."""

CALM_S: Final = 0.01


class SpareCounters:
    """Spare events of a table: pairs of an event's id and the descriptor of its file. For several threads.

    ``size``: how many are kept. The limit of open descriptors is raised to the hard one. Raises TwinError if the thread
    that opens cannot start.
    """

    def __init__(self, table: Any, mount_fd: int) -> None:
        self._table = table
        self._opener = lib.opener_start(mount_fd)
        if self._opener == ffi.NULL:
            raise TwinError(f"no thread to open counters: {os.strerror(ffi.errno)}")
        self._spare: collections.deque[tuple[int, int]] = collections.deque()
        self._was_used = threading.Event()
        self._n_taken = 0
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.size = STOCK if hard == resource.RLIM_INFINITY else min(STOCK, hard // 4)
        threading.Thread(target=self._refill, name="spare counters", daemon=True).start()

    def __len__(self) -> int:
        return len(self._spare)

    def take(self) -> tuple[int, int]:
        """The id and the descriptor of a spare event; its errno as a negative id if there is none."""
        try:
            spare = self._spare.popleft()
        except IndexError:
            spare = self._open()
        self._n_taken += 1
        if not self._was_used.is_set():  # the thread sleeps; in a burst of calls only the first wakes it
            self._was_used.set()
        return spare

    def give_back(self, spare: tuple[int, int]) -> None:
        """It was not used after all."""
        self._spare.append(spare)

    def _open(self) -> tuple[int, int]:
        number = int(lib.events_spare(self._table))
        if number < 0:
            return number, -1
        fd = int(lib.opener_open(self._opener, number))
        if fd < 0:
            lib.events_release(self._table, number)
            return fd, -1
        return number, fd

    def _refill(self) -> None:
        while True:
            while len(self._spare) < self.size:
                spare = self._open()
                if spare[0] < 0:
                    break  # no descriptors or slots left: the next call says so
                self._spare.append(spare)
            self._was_used.wait()
            before = -1
            while before != self._n_taken:
                before = self._n_taken
                time.sleep(CALM_S)
            self._was_used.clear()

"""The threads that answer the system calls that the seccomp filter stops (csrc/serve_syscalls.c)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from twin._serve import ffi, lib
from twin.errors import TwinError
from twin.serve import namespace

_THREADS = 4
"""Ours: a path lookup on a file system that hangs blocks one of them, and the others go on."""


class SyscallServer:
    """Create and open it in the server's namespace, where /sys, /proc and /dev always are the twin's.

    ``covers`` are the files and directories of /proc that the twin replaces, ``node_of`` the NUMA node of each emulated
    CPU.
    """

    def __init__(self, tree_device: int, covers: Iterable[str], node_of: Sequence[int]) -> None:
        self._covers = [ffi.new("char[]", path.encode()) for path in covers]
        places = {"tree": namespace.TREE, "spare": namespace.SPARE, "empty": namespace.EMPTY}
        self._places = {name: ffi.new("char[]", path.encode()) for name, path in places.items()}
        self._tree_device = tree_device
        self._node_of = ffi.new("int32_t[]", list(node_of))

    def open(self, listener: int, count: Callable[[int, Any], None]) -> None:
        """Answer the calls at this seccomp listener. ``count`` gets the listener and each perf_event_open."""
        self._count = ffi.new_handle((listener, count))
        covers = ffi.new("char *[]", self._covers)
        plan = self._places | {"covers": covers, "n_covers": len(self._covers), "tree_device": self._tree_device}
        plan |= {"node_of": self._node_of, "n_cpus": len(self._node_of)}
        server = lib.syscall_server_new(listener, lib.perf_called, self._count, ffi.new("syscall_plan_t *", plan))
        if server == ffi.NULL:
            raise TwinError("no memory for the threads that answer system calls")
        for _ in range(_THREADS):
            threading.Thread(target=lib.syscall_server_run, args=(server,), name="system calls", daemon=True).start()


@ffi.def_extern()  # type: ignore[untyped-decorator]  # cffi is untyped
def perf_called(to: Any, call: Any) -> None:
    """Passes on one perf_event_open, on the thread that received it."""
    listener, count = ffi.from_handle(to)
    count(listener, call)

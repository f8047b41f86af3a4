"""The threads that answer the calls which the seccomp filter stops (csrc/kernel_doors.c)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from twin._kernel import ffi, lib
from twin.errors import TwinError
from twin.serve import namespace

_THREADS = 4
"""Ours: a lookup below a file system that hangs holds up one of them, and the others go on."""


class Doors:
    """To be made, and opened, where /sys, /proc and /dev are the twin's and stay so: in the server's namespace.

    ``covers`` are the files and directories of /proc that are the twin's.
    """

    def __init__(self, tree_device: int, covers: Iterable[str]) -> None:
        self._covers = [ffi.new("char[]", path.encode()) for path in covers]
        places = {"tree": namespace.TREE, "spare": namespace.SPARE, "empty": namespace.EMPTY}
        self._places = {name: ffi.new("char[]", path.encode()) for name, path in places.items()}
        self._tree_device = tree_device

    def open(self, listener: int, count: Callable[[int, Any], None]) -> None:
        """Answer what arrives at this seccomp listener; ``count`` gets it and each perf_event_open."""
        self._count = ffi.new_handle((listener, count))
        covers = ffi.new("char *[]", self._covers)
        plan = self._places | {"covers": covers, "n_covers": len(self._covers), "tree_device": self._tree_device}
        doors = lib.doors_new(listener, lib.perf_called, self._count, ffi.new("doors_plan_t *", plan))
        if doors == ffi.NULL:
            raise TwinError("no memory for the doors of the twin")
        for _ in range(_THREADS):
            threading.Thread(target=lib.doors_serve, args=(doors,), name="doors", daemon=True).start()


@ffi.def_extern()  # type: ignore[untyped-decorator]  # cffi is untyped
def perf_called(to: Any, call: Any) -> None:
    """One perf_event_open, on the thread that received it."""
    listener, count = ffi.from_handle(to)
    count(listener, call)

"""File descriptors: a large node needs more than the usual soft limit of 1024.

Five events on 384 CPUs are 1920 descriptors, and cpuidle's files another thousand. The administrator sets the hard
limit; up to it a process may raise its soft limit (setrlimit(2)). A program that the process starts gets the original
soft limit: some programs use select(2), which supports no descriptor above 1023, and some close every possible one.
"""

from __future__ import annotations

import os
import resource

from pmu.readings import PmuError

SPARE_DESCRIPTORS = 64
"""Ours: left for files, sockets and what a library may open later."""


_given: list[int] = []
"""Soft limits before they were raised here; the first is the one that this process was started with."""


def raise_descriptor_limit(needed: int, purpose: str) -> None:
    """Raise the soft limit of descriptors to the hard one; PmuError if ``needed`` more do not fit then."""
    if not needed:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        _given.append(soft)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    total = needed + len(os.listdir("/proc/self/fd")) + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < total:
        raise PmuError(
            f"{purpose} needs {needed} file descriptors, {total} with those in use, but the hard limit is {hard}; "
            f"raise it (LimitNOFILE={total} in the service's unit, or ulimit -Hn {total})"
        )


def give_back_descriptor_limit() -> None:
    """Restore the soft limit that this process was started with; called in a child between fork and exec."""
    if _given:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_given[0], resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

"""Waiting for what other processes do, in real time."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = float(os.environ.get("PATIENCE_S", "180"))
"""What takes longer is taken for hung. Long enough for a machine on which many others run."""


LONG_S: Final = 3600
"""For ``pytest.mark.timeout`` of a test whose programs are limited by processor time."""


def processor_time(seconds: int) -> Callable[[], None]:
    """For ``preexec_fn``: the kernel ends a program that computes for longer (SIGXCPU). Unlike a limit of wall time it
    does not depend on what else the machine does."""
    return lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether it is true at some time before this time is over; checked every 5 ms, and once more at the end."""
    deadline_s = time.monotonic() + seconds
    while not holds():
        if time.monotonic() >= deadline_s:
            return holds()
        time.sleep(0.005)
    return True

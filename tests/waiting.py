"""Waiting for what other processes do, in real time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = float(os.environ.get("PATIENCE_S", "180"))
"""What takes longer is taken for hung. Long enough for a machine on which many others run."""


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether it is true at some time before this time is over; checked every 5 ms, and once more at the end."""
    deadline_s = time.monotonic() + seconds
    while not holds():
        if time.monotonic() >= deadline_s:
            return holds()
        time.sleep(0.005)
    return True

"""How many descriptors this process has open."""

from __future__ import annotations

import gc
import os


def n_open() -> int:
    """Without those of objects that nobody has any more: their end between two counts would look like a closed file."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))

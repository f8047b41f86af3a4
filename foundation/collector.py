"""Python's garbage collector, paused while modules are imported.

What an import makes lives as long as the process. A collection in the middle of it looks through all of that and frees
nothing: of a short replay that is some 3 % of the processor time.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[bool]:
    """Without collections until the end; true: it was this that paused them. What an import made then counts as old, so
    that only full collections look at it, unless the program has exempted objects itself (``gc.freeze``)."""
    if not gc.isenabled():
        yield False
        return
    known = len(sys.modules)
    gc.disable()
    try:
        yield True
    finally:
        if len(sys.modules) > known and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # into the oldest generation, and nothing was looked through
        gc.enable()

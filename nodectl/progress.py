"""For programs in Python: say how far they have come, so that the node's agent knows what its clocks truly cost.

    from nodectl.progress import tick

    for step in range(steps):
        work(step)
        tick()

Does nothing where nobody asked (``NODECTL_PROGRESS`` is not set). Programs in C include ``nodectl_progress.h``, which
``header()`` finds; this module is that header, compiled. docs/progress.md.
"""

from __future__ import annotations

from pathlib import Path

from nodectl._progress import lib


def tick(units: int = 1) -> None:
    """So many more units of work are finished: one atomic addition, from any thread or process of the job.

    ``OverflowError`` for what is no number of units.
    """
    lib.progress_tick(units)


def header() -> Path:
    """The directory of ``nodectl_progress.h``: ``cc -I$(python -m nodectl.progress) app.c``."""
    return Path(__file__).parent / "include"


if __name__ == "__main__":
    print(header())

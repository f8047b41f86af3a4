"""For programs in Python: report progress, so that the node's agent knows what its clocks truly cost.

    from nodectl.progress import tick

    for step in range(steps):
        work(step)
        tick()

Does nothing where ``NODECTL_PROGRESS`` is not set. Programs in C include ``nodectl_progress.h``, which ``header()``
finds; this module is that header, compiled. docs/progress.md.
"""

from __future__ import annotations

from pathlib import Path

from nodectl._progress import lib


def tick(units: int = 1) -> None:
    """Report so many more finished units of work: one atomic addition, from any thread or process of the job.

    ``OverflowError`` for a negative number or one of more than 64 bits.
    """
    lib.progress_tick(units)


def header() -> Path:
    """The directory of ``nodectl_progress.h``: ``cc -I$(python -m nodectl.progress) app.c``."""
    return Path(__file__).parent / "include"


if __name__ == "__main__":
    print(header())

"""How far long work is: a bar with the time left on a terminal, nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


@contextmanager
def progress(jobs: int, label: str = "replaying") -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of jobs, or other pieces of work, that have ended so far."""
    if not sys.stderr.isatty():
        yield lambda ended: None
        return
    with click.progressbar(length=jobs, label=label, file=sys.stderr) as bar:

        def advance(ended: int) -> None:
            bar.update(ended - bar.pos)

        yield advance

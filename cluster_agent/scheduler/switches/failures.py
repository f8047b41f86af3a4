"""Nodes that fail: the processors of each are away for a time, and jobs on them are killed and wait again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from cluster_agent._native import ffi
from cluster_agent.scheduler.native.native_tables import pointer

AFTER_S: Final = 30 * 24 * 3600
"""Ours: so long after the last submission nodes go on to fail; then none does, so that every replay ends."""


DRAWN: Final = ("mtbf", "repair", "processors")
"""What failures are drawn by: hours, hours, and processors of a node."""


class Failure(NamedTuple):
    """Processors ``first`` to ``last`` are away from ``at_s`` until ``back_s``; where both are the same, their jobs
    are lost, and they are there."""

    at_s: int
    back_s: int
    first: int
    last: int


class Failures(msgspec.Struct, frozen=True):
    """Of a world; ``sha256``: of the file that they are in."""

    failures: Sequence[Failure]
    sha256: str = ""


class CFailures:
    """``failure_t *``, in order of time."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        self.count = len(failures)
        self.c = ffi.new("failure_t[]", sorted(failures))
        self._mattered = np.zeros(max(self.count, 1), np.uint8)
        self.c_mattered = pointer("uint8_t", self._mattered)

    @property
    def switches(self) -> dict[str, int]:
        """How many failures killed a job, or had a job wait before they were over."""
        return {"failures": int(self._mattered.sum())}


def are_drawn(text: str | None) -> bool:
    """Whether these failures (``--failures``) are drawn, by ``--seed``; else they are in a file, or there are none."""
    return text is not None and text.startswith(tuple(f"{key}=" for key in DRAWN))


def drawn(
    processors: int, width: int, mean_s: float, back_s: int, first_s: int, last_s: int, seed: int
) -> list[Failure]:
    """Nodes of ``width`` processors that fail by themselves, each ``mean_s`` after it was back on average
    (exponential), and are back after ``back_s``."""
    found = []
    for first in range(0, processors, width):
        random = np.random.default_rng([seed, first])
        at_s = float(first_s)
        while (at_s := at_s + float(random.exponential(mean_s))) < last_s:
            begins_s = int(at_s)
            found.append(Failure(begins_s, begins_s + back_s, first, min(first + width, processors) - 1))
            at_s = float(begins_s + back_s)
    return found

"""Where a job's tag comes from: its user, the jobs before it, or what its nodes count. The source is always named.

A source is a function from what is known of a job to a tag, or None if it cannot say; ``resolve`` asks them in the
order in which they are configured. A user's word goes first by default, as the source has it (REGALE D2.3 §4.2, D11).
All thresholds are ours: rough marks between Linpack, the NAS benchmarks and STREAM on two-socket x86 nodes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from cluster_agent.budget.sharers.view import Tag


@dataclass(frozen=True, slots=True)
class Counted:
    """What a job's nodes counted over a report, as far as they have it: the share of cycles in which cores waited for
    memory, instructions per reference cycle, and the share of DRAM in the watts of processors and DRAM."""

    stalled: float | None = None
    ipc: float | None = None
    dram: float | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What a source may look at."""

    user: str
    name: str
    declared: Tag | None = None
    measured: Tag | None = None


Source: TypeAlias = Callable[[Known], Tag | None]


def from_user(job: Known) -> Tag | None:
    """As it was submitted."""
    return job.declared


def from_counters(job: Known) -> Tag | None:
    """As ``Witness`` found it while it runs."""
    return job.measured


class History:
    """The tag that most of the last jobs of the same user and name were measured to have."""

    def __init__(self, last: int = 8, fewest: int = 2) -> None:
        self._fewest = fewest
        self._last = last
        self._tags: dict[tuple[str, str], deque[Tag]] = {}

    def ended(self, user: str, name: str, measured: Tag) -> None:
        """A job ended as this."""
        self._tags.setdefault((user, name), deque(maxlen=self._last)).append(measured)

    def __call__(self, job: Known) -> Tag | None:
        """The more sensitive of equally frequent ones; None with too few jobs."""
        seen = self._tags.get((job.user, job.name), ())
        if len(seen) < self._fewest:
            return None
        return max(Counter(seen).items(), key=lambda found: (found[1], found[0]))[0]


def resolve(job: Known, sources: Sequence[tuple[str, Source]]) -> tuple[Tag | None, str]:
    """The first tag that a source has, and that source's name; (None, "") if none has one."""
    for name, source in sources:
        tag = source(job)
        if tag is not None:
            return tag, name
    return None, ""


# --- measured

STALLED: Final = (0.5, 0.2)
IPC: Final = (0.8, 1.6)
DRAM: Final = (0.2, 0.08)
"""At or beyond the first it is memory-bound, at or beyond the second compute-bound."""
MARGIN: Final = 0.1
"""To leave a tag a value has to be past the mark by this part of the distance between the two."""
HOLD: Final = 5
"""So many reports in a row have to say so."""


@dataclass(frozen=True, slots=True)
class Witness:
    """What a job is measured to be. Pure: ``after`` is the next state. The first tag needs as many reports as any."""

    tag: Tag | None = None
    candidate: Tag | None = None
    n: int = 0

    def after(self, counted: Counted) -> Witness:
        """Stalls say most, then watts of DRAM, then IPC; a report without any of them says nothing."""
        seen = classify(counted, self.tag)
        if seen is None:
            return self
        if seen == self.tag:
            return replace(self, candidate=None, n=0)
        n = self.n + 1 if seen == self.candidate else 1
        return Witness(seen) if n >= HOLD else Witness(self.tag, seen, n)


def classify(counted: Counted, present: Tag | None) -> Tag | None:
    """One report's tag, seen from the present one."""
    marks = ((counted.stalled, STALLED), (counted.dram, DRAM), (counted.ipc, IPC))
    for value, (memory, compute) in marks:
        if value is not None:
            return _tag((value - compute) / (memory - compute), present)
    return None


def _tag(boundness: float, present: Tag | None) -> Tag:
    """``boundness``: 0 at the mark of compute, 1 at that of memory."""
    lower = -MARGIN if present == Tag.MIXED else MARGIN if present == Tag.COMPUTE else 0.0
    upper = 1 + (MARGIN if present == Tag.MIXED else -MARGIN if present == Tag.MEMORY else 0.0)
    if boundness <= lower:
        return Tag.COMPUTE
    return Tag.MEMORY if boundness >= upper else Tag.MIXED

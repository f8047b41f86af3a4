"""A portfolio: some ways to order the queue and to backfill, of which one is in force until the next look.

A look replays the waiting jobs under each member from the present state on, in C (``csrc/replay/portfolio.h``). It
knows what a scheduler knows: run times are estimates, or are drawn from how far estimates were off, and the jobs that
come are those of the last hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import msgspec

if TYPE_CHECKING:
    from cluster_agent.scheduler.policy_phases import Composition

Objective: TypeAlias = Literal["slowdown", "wait", "longest"]
"""Of the jobs that wait at the look and that come in it: the mean bounded slowdown, the mean wait, the longest wait.
Who has not started by the end of the look counts as if it started then."""

Arrivals: TypeAlias = Literal["again", "none"]
"""Which jobs come in a look: those of the last ``hours`` again, in the same order and at the same intervals; or
none."""

MOST_MEMBERS: Final = 32
MOST_DRAWS: Final = 100
LONGEST_H: Final = 100_000.0
"""Ours: more than eleven years."""


class Look(NamedTuple):
    """From ``at_s`` on the member with this number is in force. ``costs``: what each member cost, by the objective."""

    at_s: int
    member: int
    costs: tuple[float, ...]


class Portfolio(msgspec.Struct, frozen=True):
    """Members with their names, and how they are judged. The first is in force until the first look."""

    names: tuple[str, ...]
    members: tuple[Composition, ...]
    every: int
    """A look comes at the first of so many passes in which two jobs or more wait, and one may fit."""
    hours: float
    objective: Objective
    arrivals: Arrivals
    draws: int
    seed: int

    def __post_init__(self) -> None:
        bounds = {"every": (1, 1 << 30), "draws": (0, MOST_DRAWS), "seed": (0, 1 << 62)}
        for name, (least, most) in bounds.items():
            if not least <= (value := getattr(self, name)) <= most:
                raise ValueError(f"{name}={value}: give {least} to {most}")
        if not 0 < self.hours <= LONGEST_H:
            raise ValueError(f"hours={self.hours:g}: give more than 0, at most {LONGEST_H:g}")
        if len(self.members) > MOST_MEMBERS:
            raise ValueError(f"members: {len(self.members)}, and {MOST_MEMBERS} are the most")


def looks_of(looks: Sequence[Look], names: Sequence[str]) -> dict[str, object]:
    """How many looks there were, how many of them changed the member, and after how many each was in force."""
    changes = sum(before != after for before, after in pairwise([0, *(one.member for one in looks)]))
    return {
        "looks": len(looks),
        "changes": changes,
        "chosen": {name: sum(one.member == member for one in looks) for member, name in enumerate(names)},
    }

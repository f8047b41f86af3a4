"""When does a unit of a job fit on a node, and how well? The rule is in ``csrc/dispatch/fitting_index.h``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

from cluster_agent._native import ffi, lib

MANY: Final = 2**62


class Need(NamedTuple):
    """What a unit takes of its node, or what a node has."""

    cores: int
    mw: int


class Booked(NamedTuple):
    """In the slots from ``first`` to ``last`` - 1 so much is reserved."""

    first: int
    last: int
    need: Need


class Desired(NamedTuple):
    """From slot ``first`` on so much is desired; the first step goes for all earlier slots, too."""

    first: int
    most: Need


Fitting: TypeAlias = tuple[int, int, float, float]
"""A unit that starts in one of the slots from the first number to the second - 1 fits the profile so many times, and
the capacity so many."""


class _Scratch:
    """Memory of the C function, which grows with the largest call and is used again."""

    def __init__(self) -> None:
        self.segments: Any = None
        self.minima: Any = None
        self.out: Any = None
        self._size = 0
        numbers = ffi.new("int64_t[7]")
        self.unit, self.capacity, self._numbers = ffi.cast("unit_t *", numbers), numbers + 5, numbers
        self.unit_bytes = ffi.buffer(numbers)
        self.grow(64)

    def grow(self, size: int) -> None:
        if size <= self._size:
            return
        self._size = 2 * size
        self.segments = ffi.new("segment_t[]", 2 * self._size + 2)
        self.minima = ffi.new("int32_t[]", 4 * self._size + 4)
        self.out = ffi.new("fitting_t[]", 4 * self._size + 4)


_SCRATCH: Final = _Scratch()
_RESERVED, _UNIT, _FITTING = Struct("=4q"), Struct("=7q"), Struct("=2q2d")
"""``reserved_t``; ``unit_t`` and a capacity; ``fitting_t``."""


class Profile:
    """The desired use of a node over time, ascending; ``ValueError`` for none, or out of order."""

    def __init__(self, steps: Sequence[Desired]) -> None:
        if not steps or any(after.first <= before.first for before, after in pairwise(steps)):
            raise ValueError("a profile needs steps, each later than the one before")
        self.steps = tuple(steps)
        self.c = ffi.new("desired_t[]", [(step.first, step.most) for step in steps])


class Window(NamedTuple):
    """A unit of ``length`` slots may start in the slots from ``first`` to ``last`` - 1."""

    length: int
    first: int
    last: int


def packed(booked: Booked) -> bytes:
    """As ``fittings`` takes it."""
    first, last, (cores, mw) = booked
    return _RESERVED.pack(first, last, cores, mw)


def fittings(
    booked: bytes, profile: Profile, capacity: Need, need: Need, window: Window, within: bool, enough: int = MANY
) -> list[Fitting]:
    """The starts that fit, in order: ``within`` the profile, or else the capacity alone; the earliest, until they are
    ``enough`` slots. ``booked``: what is ``packed``, joined."""
    rows = len(booked) // _RESERVED.size
    _SCRATCH.grow(rows + len(profile.steps))
    _UNIT.pack_into(_SCRATCH.unit_bytes, 0, *need, *window, *capacity)
    made = lib.fitting_index(
        *(ffi.cast("reserved_t *", ffi.from_buffer(booked)), rows, profile.c, len(profile.steps)),
        *(_SCRATCH.capacity, _SCRATCH.unit, within, enough, _SCRATCH.segments, _SCRATCH.minima, _SCRATCH.out),
    )
    return list(_FITTING.iter_unpack(ffi.buffer(_SCRATCH.out, made * _FITTING.size)))

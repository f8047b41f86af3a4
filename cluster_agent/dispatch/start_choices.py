"""Which starts does a node offer, and which does a job take? The three draws and three choices of Bridi (§5, §7).

*first* are the earliest starts that fit. *uniform* and *exponential* are random: a start is as likely as it fits well,
and with *exponential* the earlier the likelier, with 1 / (slots of the window) as the rate. Starts that fit the profile
come first; only where there is none, and the job lets it, those that fit the capacity alone.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from cluster_agent.dispatch.fitting_index import MANY, Fitting, Need, Profile, Window, fittings
from cluster_agent.dispatch.messages import Candidates, Way

Choice: TypeAlias = Literal["earliest", "random", "best"]
"""The earliest start that enough nodes offer, any of these, or that with the highest sum of fitting indices."""

Span: TypeAlias = tuple[int, int, float]
_TRIES = 4
"""Ours: so many random values are drawn for each start that is wanted, until all of them differ."""


def offered(
    booked: bytes,
    profile: Profile,
    capacity: Need,
    need: Need,
    window: Window,
    starts: int,
    way: Way,
    within: bool,
    seed: int,
) -> tuple[Span, ...]:
    """At most ``starts`` starts, in spans with their fitting index."""
    if way == "first":
        if not within:
            return _earliest(fittings(booked, profile, capacity, need, window, False, starts), starts)
        begin = fittings(booked, profile, capacity, need, window._replace(length=1), True)
        return _earliest(_both(begin, fittings(booked, profile, capacity, need, window, False)), starts)
    found = fittings(booked, profile, capacity, need, window, True, MANY)
    if found:
        return _random(found, [one[2] for one in found], window, starts, way, seed)
    if within:
        return ()
    found = fittings(booked, profile, capacity, need, window, False, MANY)
    return _random(found, [one[3] for one in found], window, starts, way, seed) if found else ()


def _earliest(found: Sequence[Fitting], starts: int) -> tuple[Span, ...]:
    spans: list[Span] = []
    for first, last, profile, capacity in found:
        if starts <= 0:
            break
        last = min(last, first + starts)
        spans.append((first, last, profile if profile >= 1 else capacity))
        starts -= last - first
    return tuple(spans)


def _both(begin: Sequence[Fitting], whole: Sequence[Fitting]) -> list[Fitting]:
    """The starts that are in both, with the profile's index of the first and the capacity's of the second."""
    found: list[Fitting] = []
    one = two = 0
    while one < len(begin) and two < len(whole):
        first, last = max(begin[one][0], whole[two][0]), min(begin[one][1], whole[two][1])
        if first < last:
            found.append((first, last, begin[one][2], whole[two][3]))
        one, two = (one, two + 1) if whole[two][1] < begin[one][1] else (one + 1, two)
    return found


def _random(
    found: Sequence[Fitting], index: Sequence[float], window: Window, starts: int, way: Way, seed: int
) -> tuple[Span, ...]:
    if sum(last - first for first, last, _, _ in found) <= starts:
        return tuple((one[0], one[1], value) for one, value in zip(found, index, strict=True))
    rate = 1 / (window.last - window.first)
    if way == "uniform":
        weights = [(one[1] - one[0]) * value for one, value in zip(found, index, strict=True)]
    else:
        ends = [(math.exp(rate * (window.first - one[0])), math.exp(rate * (window.first - one[1]))) for one in found]
        weights = [(begin - end) * value for (begin, end), value in zip(ends, index, strict=True)]
    sums, random, chosen = list(accumulate(weights)), Random(seed), dict[int, float]()
    for _ in range(_TRIES * starts):
        at = min(bisect_right(sums, random.random() * sums[-1]), len(sums) - 1)
        chosen[_inside(found[at], rate, way, random.random())] = index[at]
        if len(chosen) == starts:
            break
    return tuple((slot, slot + 1, value) for slot, value in sorted(chosen.items()))


def _inside(one: Fitting, rate: float, way: Way, share: float) -> int:
    first, last = one[0], one[1]
    if way == "uniform":
        return first + int(share * (last - first))
    whole = 1 - math.exp(-rate * (last - first))
    return min(first + int(-math.log(1 - share * whole) / rate), last - 1)


def chosen(
    replies: Sequence[Candidates], window: Window, units: int, choice: Choice, seed: int
) -> tuple[int, list[int]] | None:
    """The start and the places in ``replies`` of as many nodes as there are units; None: too few offer the same
    start."""
    spans = [span for reply in replies for span in reply.spans]
    if not spans:
        return None
    first, last, index = (np.array(column) for column in zip(*spans, strict=True))
    enough = np.flatnonzero(_by_slot(first, last, None, window) >= units)
    if not len(enough):
        return None
    random = Random(seed)
    if choice == "earliest":
        slot = int(enough[0])
    elif choice == "random":
        slot = int(enough[random.randrange(len(enough))])
    else:
        slot = int(enough[np.argmax(_by_slot(first, last, index, window)[enough])])
    slot += window.first
    fits = [
        (value, place)
        for place, reply in enumerate(replies)
        for from_slot, to_slot, value in reply.spans
        if from_slot <= slot < to_slot
    ]
    if choice == "random":
        random.shuffle(fits)
    elif choice == "best":
        fits.sort(reverse=True)
    return slot, [place for _, place in fits[:units]]


def _by_slot(first: npt.NDArray[Any], last: npt.NDArray[Any], weight: Any, window: Window) -> npt.NDArray[Any]:
    """The sum of weights (None: of ones) of the spans that have each slot of the window."""
    slots = window.last - window.first + 1
    begin = np.bincount(first - window.first, weight, slots)
    return np.cumsum(begin - np.bincount(last - window.first, weight, slots))[:-1]

"""How far a job may be from its prediction: a band that a stated share of jobs stays within.

What ended jobs drew, over what had been predicted for them, is remembered for each user and each origin of a
prediction. The band lies between two quantiles of these ratios, each of rank (n + 1) times its share (split conformal
prediction: Vovk et al., Algorithmic Learning in a Random World, 2005). That is right as long as jobs to come are like
those that ended. Users change what they run, so the shares that are left out below and above are corrected with each
job that ends: a job outside of its band widens the next bands, one inside narrows them a little, and in the long run
the stated share is inside whatever the jobs do (Gibbs and Candès, Adaptive Conformal Inference Under Distribution
Shift, NeurIPS 2021). Until a user has enough ended jobs, those of all users count.
"""

from __future__ import annotations

import bisect
import math
from collections import OrderedDict, deque
from typing import Final, TypeAlias

import msgspec

COVERAGE: Final = 0.9
"""The share of jobs within a band."""

LAST: Final = 1000
"""Ours: ended jobs that a band rests on, per user and origin.
Chosen, as ``STEP``, on the first halves of Eurora's and the generated jobs."""

STEP: Final = 0.005
"""Ours: by how much of its error a share is corrected with each job. A larger one swings with bursts of
jobs, whose errors all come at once."""

LEAST_SHARE: Final = -0.08
"""Ours, chosen as ``STEP``: how far a share may go below 0. There the band is all that was seen, and what was missed is
not forgotten: without that, bursts of jobs outside were forgotten as soon as the first one inside came."""

USERS_KEPT: Final = 10_000

Key: TypeAlias = tuple[str | None, str]
"""User and origin; None: all users."""


class Band(msgspec.Struct, frozen=True):
    """Factors of the typical watts, and whose jobs they rest on."""

    low: float
    high: float
    key: Key


class _Ratios:
    """The last ratios of one key, in the order of their ends and sorted; and the shares that are left out now."""

    def __init__(self, share: float, last: int) -> None:
        self._target = share
        self._below = self._above = share
        self._last: deque[float] = deque(maxlen=last)
        self._sorted: list[float] = []

    @property
    def says(self) -> bool:
        """Whether so many jobs have ended that a quantile exists."""
        return (len(self._sorted) + 1) * self._target > 1 - 1e-9

    def add(self, ratio: float) -> None:
        if len(self._last) == self._last.maxlen:
            del self._sorted[bisect.bisect_left(self._sorted, self._last[0])]
        self._last.append(ratio)
        bisect.insort(self._sorted, ratio)

    def correct(self, ratio: float, band: Band, step: float) -> None:
        self._below = _within(self._below + step * (self._target - (ratio < band.low)))
        self._above = _within(self._above + step * (self._target - (ratio > band.high)))

    def band(self, key: Key) -> Band:
        count, below, above = len(self._sorted), max(self._below, 0.0), max(self._above, 0.0)
        high = min(math.ceil((count + 1) * (1 - above) - 1e-9), count) - 1
        low = max(math.floor((count + 1) * below + 1e-9), 1) - 1
        return Band(self._sorted[min(low, high)], self._sorted[high], key)


def _within(share: float) -> float:
    return min(max(share, LEAST_SHARE), 0.5)


class Bands:
    """``of`` a prediction at its job's submission, ``learn`` at the job's end. Memory is bounded."""

    def __init__(self, coverage: float = COVERAGE, last: int = LAST, step: float = STEP) -> None:
        self._share, self._last, self._step = (1 - coverage) / 2, last, step
        self._ratios: OrderedDict[Key, _Ratios] = OrderedDict()

    def of(self, user: str, origin: str) -> Band | None:
        """None: too few jobs have ended to say anything."""
        for key in ((user, origin), (None, origin)):
            ratios = self._ratios.get(key)
            if ratios is not None and ratios.says:
                return ratios.band(key)
        return None

    def learn(self, user: str, origin: str, ratio: float, band: Band | None) -> None:
        """A job has drawn ``ratio`` times the typical watts that were predicted. ``band``: what was said of it."""
        if band is not None and (said := self._ratios.get(band.key)) is not None:
            said.correct(ratio, band, self._step)
        for key in ((user, origin), (None, origin)):
            if key not in self._ratios:
                self._ratios[key] = _Ratios(self._share, self._last)
            self._ratios.move_to_end(key)
            self._ratios[key].add(ratio)
        if len(self._ratios) > USERS_KEPT:
            self._ratios.popitem(last=False)

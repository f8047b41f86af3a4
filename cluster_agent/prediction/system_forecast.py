"""The watts of a partition's jobs in the next hours: those that run, those that wait, and those that nobody has
submitted yet.

A forecast made at t for t + h begins with the running jobs that will still run: each job's watts (metered, or expected
where it has just begun) times the chance that a job which has used so much of its requested time uses that much more,
from how the last jobs ended. What starts after t takes the place of what ends, and nobody knows it. How much of it that
is has been seen at earlier times of this partition, so it is fitted: a share of the watts that end, a share of the
watts that wait, and a constant, for each h on its own, with less weight for older times. Until something has been seen,
what ends is taken to be replaced.

The band is conformal like those of jobs (``bands``), from the errors of earlier forecasts for the same h, so it
includes whatever was not foreseen: arrivals, nights, crashes. Each error counts as a multiple of the size that errors
had just before it: a partition has wild days and calm ones, and errors of a wild day, taken as they are, make the bands
of all calm days after it too wide. Nothing is used at t that was not known at t.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from cluster_agent.prediction.bands import COVERAGE, Band, Bands
from cluster_agent.prediction.job_power import METERED_AFTER_S

EVERY_S: Final = 900.0
"""Ours: how often the past is looked at."""

ENDS: Final = 1000
"""Ours: ended jobs from which the chance to go on is taken."""

FEWEST_ENDS: Final = 8

FORGETTING: Final = 0.998
"""Ours: the weight of an earlier look, for each one since. Chosen, as ``LAST`` and ``STEP``,
on the first forty days of KTH-SP2 with generated watts and on made-up days."""

PRIOR: Final = 5.0
"""Ours: how many looks the assumption that what ends is replaced is worth."""

LAST: Final = 2000
"""Ours: errors that a band rests on."""

STEP: Final = 0.003
"""As in ``bands``; errors of the same hours come one after the other, and a larger one swings with them."""

HALF: Final = 48.0
"""Ours: after so many looks, half a day, an error counts half for the size of errors. Chosen among a quarter of a day
to four days on the first forty days of KTH-SP2 and the first half of Eurora's log."""

PRIOR_SIZE, PRIOR_ERRORS = 0.1, 5.0
"""Ours: the size of errors before any is known, as a share of what the partition draws, and how many errors that is
worth."""

MOST_SIZES: Final = 5.0
"""Ours: an error counts for at most so many times the present size, so that a meter's one false figure is over soon."""

Float64s = npt.NDArray[np.float64]


class Runs(msgspec.Struct, frozen=True):
    """Jobs as columns. ``start_s``, ``end_s``: infinite where that has not happened; ``request_s``: the walltime.
    ``watts``: what the job draws, as far as it is metered, else what is expected; ``expected_w``: at submission."""

    submit_s: Float64s
    start_s: Float64s
    end_s: Float64s
    request_s: Float64s
    watts: Float64s
    expected_w: Float64s

    @classmethod
    def of(
        cls, times_s: Sequence[tuple[float, float, float]], request_s: Sequence[float], watts: Float64s,
        expected_w: Float64s,
    ) -> Runs:  # fmt: skip
        """``times_s``: submission, start and end of each job. A request counts as a minute at least."""
        submit_s, start_s, end_s = np.array(times_s, np.float64).reshape(-1, 3).T.copy()
        return cls(submit_s, start_s, end_s, np.maximum(np.array(request_s, np.float64), 60.0), watts, expected_w)


class Hour(msgspec.Struct, frozen=True):
    """What is said at ``made_s`` of ``at_s``; None: too few earlier forecasts to give a band. ``lasting_w``: of that,
    jobs that run already. ``now_w``: the watts when it was made. ``seen_w``: what it was then; None: not yet known."""

    made_s: float
    at_s: float
    now_w: float
    lasting_w: float
    expected_w: float
    low_w: float | None
    high_w: float | None
    seen_w: float | None


class _Fit:
    """Least squares with forgetting, for one h, around the assumption that what ends is replaced."""

    def __init__(self) -> None:
        self._squares, self._products = np.zeros((3, 3)), np.zeros(3)
        self._assumed = np.array([1.0, 0.0, 0.0])

    def learn(self, inputs: Float64s, seen: float) -> None:
        self._squares = FORGETTING * self._squares + np.outer(inputs, inputs)
        self._products = FORGETTING * self._products + inputs * seen

    def __call__(self, inputs: Float64s) -> float:
        prior = PRIOR * np.eye(3)
        shares = np.linalg.solve(self._squares + prior, self._products + prior @ self._assumed)
        return float(shares @ inputs)


class _Size:
    """How large errors are now, for one h: root of the mean square, with less weight for older ones."""

    def __init__(self) -> None:
        self._squares = self._weight = 0.0

    def learn(self, error: float) -> None:
        keep, most = 0.5 ** (1.0 / HALF), MOST_SIZES * self()
        self._squares = keep * self._squares + min(most, abs(error)) ** 2  # the limit, if the error is no number
        self._weight = keep * self._weight + 1.0

    def __call__(self) -> float:
        squares = self._squares + PRIOR_ERRORS * PRIOR_SIZE**2
        return math.sqrt(squares / (self._weight + PRIOR_ERRORS))


class Looks:
    """What is said at one look after the other, and learned from how earlier ones turned out. ``ahead_s``: multiples of
    ``EVERY_S``, ascending; ``unit_w``: about what the partition draws."""

    def __init__(self, ahead_s: Sequence[float], unit_w: float) -> None:
        self._ahead_s, self._unit_w = ahead_s, max(unit_w, 1.0)
        self._fits, self._bands = [_Fit() for _ in ahead_s], Bands(COVERAGE, LAST, STEP)
        self._sizes = [_Size() for _ in ahead_s]
        self._said: OrderedDict[int, list[tuple[Float64s, float, float, float, Band | None]]] = OrderedDict()

    def look(self, number: int, at_s: float, now_w: float, waiting_w: float, lasting_w: Sequence[float]) -> list[Hour]:
        """``number``: looks are ``EVERY_S`` apart, and one may be missing. ``now_w``: of the running jobs; of these,
        ``lasting_w`` for each time ahead; ``waiting_w``: of jobs that wait."""
        unit_w, seen = self._unit_w, now_w / self._unit_w
        for place, h_s in enumerate(self._ahead_s):
            if (earlier := self._said.get(number - round(h_s / EVERY_S))) is not None:
                inputs, lasting, expected, size, band = earlier[place]
                self._fits[place].learn(inputs, seen - lasting)
                self._bands.learn("", str(place), (seen - expected) / size, band)
                self._sizes[place].learn(seen - expected)
        said, found = [], []
        for place, (h_s, of_h_w) in enumerate(zip(self._ahead_s, lasting_w, strict=True)):
            lasting = of_h_w / unit_w
            inputs, band = np.array([seen - lasting, waiting_w / unit_w, 1.0]), self._bands.of("", str(place))
            expected = max(lasting + self._fits[place](inputs), 0.0)
            size = self._sizes[place]()
            said.append((inputs, lasting, expected, size, band))
            low_w, high_w = (
                (None, None) if band is None
                else (max(expected + size * times, 0.0) * unit_w for times in (band.low, band.high))
            )  # fmt: skip
            found.append(Hour(at_s, at_s + h_s, now_w, of_h_w, expected * unit_w, low_w, high_w, None))
        self._said[number] = said
        while number - next(iter(self._said)) > round(self._ahead_s[-1] / EVERY_S):
            self._said.popitem(last=False)
        return found


class Shares:
    """Which share of their walltimes the last jobs have used."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=ENDS)

    def ended(self, run_s: float, request_s: float) -> None:
        """A job has ended."""
        self._last.append(run_s / request_s)

    def lasting_w(self, runs: Runs, at_s: float, ahead_s: Sequence[float]) -> list[float]:
        """For each time ahead, the watts of running jobs times the chance that they still run."""
        lasting: list[float] = _lasting_w(runs, at_s, ahead_s, self._last).tolist()
        return lasting


def forecasts(
    runs: Runs, from_s: float, now_s: float, ahead_s: Sequence[float], looks: Looks | None = None
) -> list[Hour]:  # fmt: skip
    """What would have been said every ``EVERY_S`` from ``from_s`` until ``now_s``, and is said at ``now_s``, which is
    the last ``len(ahead_s)`` rows. ``ahead_s``: multiples of ``EVERY_S``, ascending. ``looks``: by whom; its numbers
    then end with that of ``now_s`` (``number_of``)."""
    count = int((now_s - from_s) // EVERY_S) + 1
    looks_s = now_s - EVERY_S * np.arange(count - 1, -1, -1)
    power_w = np.array([_power_w(runs, at_s) for at_s in looks_s])
    looks = looks or Looks(ahead_s, float(power_w.max(initial=0.0)))
    ended, shares = np.argsort(runs.end_s, kind="stable"), Shares()
    found: list[Hour] = []
    next_end, first = 0, number_of(now_s) - count + 1
    for look, at_s in enumerate(looks_s.tolist()):
        while next_end < len(ended) and runs.end_s[ended[next_end]] <= at_s:
            job = ended[next_end]
            shares.ended(float(runs.end_s[job] - runs.start_s[job]), float(runs.request_s[job]))
            next_end += 1
        waiting_w = float(runs.expected_w[(runs.submit_s <= at_s) & (runs.start_s > at_s)].sum())
        said = looks.look(
            first + look, at_s, float(power_w[look]), waiting_w, shares.lasting_w(runs, at_s, ahead_s)
        )  # fmt: skip
        for one, h_s in zip(said, ahead_s, strict=True):
            later = look + round(h_s / EVERY_S)
            found.append(replace(one, seen_w=float(power_w[later])) if later < count else one)
    return found


def number_of(at_s: float) -> int:
    """Of the look at this time."""
    return round(at_s / EVERY_S)


def _power_w(runs: Runs, at_s: float) -> float:
    return float(runs.watts[(runs.start_s <= at_s) & (runs.end_s > at_s)].sum())


def _lasting_w(runs: Runs, at_s: float, ahead_s: Sequence[float], shares: Sequence[float]) -> Float64s:
    """For each time ahead, the watts of running jobs times the chance that they still run."""
    job = np.flatnonzero((runs.start_s <= at_s) & (runs.end_s > at_s))
    used_s, request_s = at_s - runs.start_s[job], runs.request_s[job]
    watts = np.where(used_s >= METERED_AFTER_S, runs.watts[job], runs.expected_w[job])
    until = (used_s[:, None] + np.array(ahead_s)[None, :]) / request_s[:, None]
    known = np.sort(np.array(shares, np.float64))
    beyond = (len(known) - np.searchsorted(known, used_s / request_s, "right"))[:, None]
    as_seen = (len(known) - np.searchsorted(known, until, "right")) / np.maximum(beyond, 1)
    evenly = np.clip(1 - np.array(ahead_s)[None, :] / np.maximum(request_s - used_s, 1.0)[:, None], 0.0, 1.0)
    lasting: Float64s = (watts[:, None] * np.where(beyond >= FEWEST_ENDS, as_seen, evenly)).sum(axis=0)
    return lasting


class Kept(msgspec.Struct, frozen=True):
    """How forecasts for one time ahead turned out. ``within``: the share of bands; per cent of the mean watts: mean
    |error|, and that of saying that nothing changes."""

    ahead_s: float
    forecasts: int
    within: float
    error_pct: float
    unchanged_pct: float


def kept(hours: Sequence[Hour], from_s: float = 0.0) -> list[Kept]:
    """Of forecasts with a band that were made from ``from_s`` on and whose time has come."""
    found = []
    for ahead_s in sorted({one.at_s - one.made_s for one in hours}):
        known = [
            one for one in hours
            if one.at_s - one.made_s == ahead_s and one.made_s >= from_s and one.seen_w is not None
            and one.low_w is not None
        ]  # fmt: skip
        if not known:
            continue
        seen = np.array([one.seen_w for one in known], np.float64)
        low, high = (np.array([getattr(one, name) for one in known], np.float64) for name in ("low_w", "high_w"))
        error = np.abs(np.array([one.expected_w for one in known]) - seen).sum()
        unchanged = np.abs(np.array([one.now_w for one in known]) - seen).sum()
        whole = max(float(seen.sum()), 1e-9)
        found.append(
            Kept(
                ahead_s, len(known), float(((low <= seen) & (seen <= high)).mean()), 100 * float(error) / whole,
                100 * float(unchanged) / whole,
            )
        )  # fmt: skip
    return found

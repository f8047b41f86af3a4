"""How good predictions of power are, on any log: each job is predicted at its submission, from what had ended by then.

A job's errors have three figures, since each alone misleads: the mean of |error| / truth (MAPE) is dominated by small
jobs, the median says nothing of the tail, and the sum of errors over the sum of watts is dominated by large jobs. What
a partition needs is none of these: it is the error of the *sum* over the jobs that run, minute by minute, in which
errors of single jobs cancel if they are not biased.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent.prediction.job_power import METERED_AFTER_S, Submission
from cluster_agent.prediction.on_line import Forecast

GRID_S: Final = 60.0
"""Ours: the sum of running jobs is compared once a minute."""

FEWEST_JOBS: Final = 20
"""Ours: users with fewer jobs are one line of the coverage table."""

Float64s = npt.NDArray[np.float64]


class LoggedJob(msgspec.Struct, frozen=True):
    """A job of a log, times in seconds. ``maximum_w``: None where the log has one figure per job."""

    submit_s: float
    start_s: float
    end_s: float
    submission: Submission
    watts: float
    maximum_w: float | None = None


class Forecaster(Protocol):
    """What is evaluated."""

    def predict(self, job: int, submission: Submission) -> Forecast:
        """At submission."""
        ...

    def learn(self, job: int, submission: Submission, average_w: float, maximum_w: float | None = None) -> None:
        """At the end, or once its meters have said enough."""
        ...


class Errors(msgspec.Struct, frozen=True):
    """Per cent: of single jobs. ``bias_pct``: the sum of predictions over the sum of truth, less 1."""

    jobs: int
    median_pct: float
    mape_pct: float
    weighted_pct: float
    bias_pct: float


class SumErrors(msgspec.Struct, frozen=True):
    """Per cent: of the sum of all running jobs, on a grid of time. ``mean_pct`` and ``maximum_pct`` of its mean and of
    its highest value; ``absolute_pct``: mean |error| over the mean."""

    mean_pct: float
    maximum_pct: float
    absolute_pct: float


class Coverage(msgspec.Struct, frozen=True):
    """How many jobs had a band, how many of these were within, and the median of highest over lowest watts."""

    user: str
    jobs: int
    share: float
    median_ratio: float


class Evaluation(msgspec.Struct, frozen=True):
    """``origins``: how many jobs were predicted from what; those by TDP were cold starts. ``maximum``: None where the
    log has no highest watts. ``typical`` sums are what adding ``typical_w`` would give."""

    jobs: int
    judged: int
    origins: dict[str, int]
    average: Errors
    maximum: Errors | None
    typical_sum: SumErrors
    expected_sum: SumErrors
    metered_sum: SumErrors
    without_band: int
    coverage: list[Coverage]


def on_line(forecaster: Forecaster, jobs: Sequence[LoggedJob], metered_after_s: float | None = None) -> list[Forecast]:
    """Predict each job at its submission, from those that have ended by then, or have run for ``metered_after_s``.
    ``jobs``: in the order of submission."""
    running: list[tuple[float, int]] = []
    found = []
    for at, job in enumerate(jobs):
        while running and running[0][0] <= job.submit_s:
            number = heapq.heappop(running)[1]
            known = jobs[number]
            forecaster.learn(number, known.submission, known.watts, known.maximum_w)
        found.append(forecaster.predict(at, job.submission))
        known_s = job.end_s if metered_after_s is None else min(job.end_s, job.start_s + metered_after_s)
        heapq.heappush(running, (known_s, at))
    return found


def evaluate(
    forecaster: Forecaster, jobs: Sequence[LoggedJob], judged_from: float = 0.5, metered_after_s: float | None = None
) -> Evaluation:
    """Of the jobs behind the share ``judged_from``; all are learned from, as in ``on_line``."""
    return judge(on_line(forecaster, jobs, metered_after_s), jobs, judged_from)


def judge(found: Sequence[Forecast], jobs: Sequence[LoggedJob], judged_from: float = 0.5) -> Evaluation:
    """The same of predictions that were made: ``found`` has one for each job."""
    first = int(len(jobs) * judged_from)
    jobs_judged, said = jobs[first:], found[first:]
    watts = np.array([job.watts for job in jobs_judged])
    highest = np.array([np.nan if job.maximum_w is None else job.maximum_w for job in jobs_judged])
    knows = np.isfinite(highest)
    sums = RunningSums(jobs, jobs[first].submit_s)
    expected_w = np.array([one.expected_w for one in found])
    return Evaluation(
        jobs=len(jobs),
        judged=len(jobs_judged),
        origins=dict(Counter(one.origin for one in said).most_common()),
        average=_errors(np.array([one.typical_w for one in said]), watts),
        maximum=_errors(np.array([one.maximum_w for one in said])[knows], highest[knows]) if knows.any() else None,
        typical_sum=sums.errors(np.array([one.typical_w for one in found])),
        expected_sum=sums.errors(expected_w),
        metered_sum=sums.errors(expected_w, METERED_AFTER_S),
        without_band=sum(one.low_w is None for one in said),
        coverage=_coverage(said, jobs_judged),
    )


def _errors(said_w: Float64s, watts: Float64s) -> Errors:
    error = np.abs(said_w - watts)
    share = error / watts
    return Errors(
        len(watts), 100 * float(np.median(share)), 100 * float(share.mean()), 100 * float(error.sum() / watts.sum()),
        100 * float(said_w.sum() / watts.sum() - 1),
    )  # fmt: skip


def _coverage(said: Sequence[Forecast], jobs: Sequence[LoggedJob]) -> list[Coverage]:
    """All users first, then those with the most jobs; the rest are one line."""
    within: dict[str, list[tuple[bool, float]]] = {}
    for one, job in zip(said, jobs, strict=True):
        if one.low_w is not None and one.high_w is not None:
            row = one.low_w <= job.watts <= one.high_w, one.high_w / one.low_w
            within.setdefault(job.submission.user, []).append(row)

    def row_of(user: str, rows: list[tuple[bool, float]]) -> Coverage:
        return Coverage(
            user, len(rows), float(np.mean([one for one, _ in rows])), float(np.median([ratio for _, ratio in rows]))
        )

    rows = [row for rows in within.values() for row in rows]
    if not rows:
        return []
    many = {user: rows for user, rows in within.items() if len(rows) >= FEWEST_JOBS}
    few = [row for user, rows in within.items() if user not in many for row in rows]
    ranked = sorted(many, key=lambda user: (-len(many[user]), user))
    found = [row_of("all", rows), *(row_of(user, many[user]) for user in ranked)]
    return [*found, row_of(f"with fewer than {FEWEST_JOBS} jobs", few)] if few else found


class RunningSums:
    """The sum over running jobs on a grid that begins at ``from_s``: of the truth, and of predictions."""

    def __init__(self, jobs: Sequence[LoggedJob], from_s: float) -> None:
        end_s = np.array([job.end_s for job in jobs])
        self._times_s = np.arange(from_s, max(float(end_s.max()), from_s + GRID_S), GRID_S)
        self._start_s = np.array([job.start_s for job in jobs])
        self._end_s = end_s
        self._watts = np.array([job.watts for job in jobs])
        self.truth = self._sum(self._watts, self._start_s, end_s)

    def errors(self, said_w: Float64s, metered_after_s: float = np.inf) -> SumErrors:
        """``metered_after_s``: from then on the truth stands in for a job's prediction."""
        said, truth = self.said(said_w, metered_after_s), self.truth
        whole = float(truth.sum())
        return SumErrors(
            100 * (float(said.sum()) / whole - 1),
            100 * (float(said.max()) / float(truth.max()) - 1),
            100 * float(np.abs(said - truth).sum()) / whole,
        )

    def said(self, said_w: Float64s, metered_after_s: float = np.inf) -> Float64s:
        """At each time of the grid, as ``truth``."""
        metered_s = np.minimum(self._start_s + metered_after_s, self._end_s)
        return self._sum(said_w, self._start_s, metered_s) + self._sum(self._watts, metered_s, self._end_s)

    def _sum(self, watts: Float64s, from_s: Float64s, until_s: Float64s) -> Float64s:
        steps = np.zeros(len(self._times_s) + 1)
        for sign, when_s in ((1, from_s), (-1, until_s)):
            np.add.at(steps, np.searchsorted(self._times_s, when_s), sign * watts)
        summed: Float64s = np.cumsum(steps)[:-1]
        return summed

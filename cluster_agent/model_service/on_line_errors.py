"""How well a model does on jobs that it had not seen, next to another, and whether today's jobs are still its own.

The *error* of a prediction is how far it is from the watts that were drawn, as a share of the larger of both: 0 is
right, 0.5 is twice or half, and it never exceeds 1, so no single job decides. Two models are compared job by job. Jobs
of one user and day are alike, often copies, so these are taken together: the interval is that of a mean over clusters
(Cochran, Sampling Techniques, 1977, 9.3), with Student's t.

*Drift* is that errors or inputs are no longer those of the training. For inputs it is the population stability index,
sum (p - q) ln(p / q) over bins, of the newest jobs against the training's; above 0.25 by convention the population is
another one (Siddiqi, Credit Risk Scorecards, 2006). Of real logs it is above that most of the time, since users come in
bursts, while errors stay what they were (``benchmarks models_service``). So it decides nothing alone: where inputs have
drifted, half as large a rise of the error is an alarm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent.model_service.group_table import Float64s, GroupTable, Kinds
from cluster_agent.model_service.job_ring import Records
from foundation.student import student_t

LEAST_CLUSTERS: Final = 10
LEAST_JOBS: Final = 100
"""Ours: fewer say nothing of two models."""

MOST_CLUSTERS: Final = 5000
"""Ours: the latest days count."""

FEW_CODES: Final = 1 << 20
"""Ours: up to so many pairs of user and day counting needs no sort."""

WINDOW: Final = 1000
"""Ours: drift is of the newest jobs, so many;"""
LEAST_WINDOW: Final = 300
"""ours: with fewer it is not known: by chance alone the index of ten bins is 0.03 then."""

MOST_PSI: Final = 0.25
ALARM_STEP: Final = 0.08
"""Ours: an error that is so much above that on unseen jobs of the training is an alarm. On the first halves of
KTH-SP2's, Eurora's and the generated jobs errors rose by 0.07 at most without a change. It was chosen with their second
halves in view, too, so how often it alarms there (``benchmarks models_service``) is not judged on data of its own."""

DAY_S: Final = 86_400.0
BINS: Final = 10
_FLOOR: Final = 1e-4
"""Of a share, so that an empty bin has a logarithm."""


def errors(typical_w: Float64s, drawn_w: Float64s) -> Float64s:
    """Of each job, 0 to 1."""
    found: Float64s = 1.0 - np.minimum(typical_w, drawn_w) / np.maximum(typical_w, drawn_w)
    return found


class Interval(msgspec.Struct, frozen=True):
    """A mean and its 95 % interval, of so many jobs in so many clusters."""

    mean: float
    low: float
    high: float
    jobs: int
    clusters: int


class Pairs(msgspec.Struct):
    """Errors of two models on the same jobs. ``clusters``: by user and day the jobs and both sums of errors."""

    clusters: dict[str, list[float]] = {}

    def add(self, records: Records, kinds: Kinds, champion: Float64s, candidate: Float64s) -> None:
        """Errors of these jobs; ``kinds``: theirs."""
        users, user = np.unique(kinds.records["user"], return_inverse=True)
        days = (records["ended_s"] // DAY_S).astype(np.int64)
        first_day = int(days.min())
        span = int(days.max()) - first_day + 1
        codes = user[kinds.place] * span + (days - first_day)
        found, place = (np.unique(codes, return_inverse=True) if span * len(users) > FEW_CODES
                        else (np.arange(span * len(users)), codes))  # fmt: skip
        sums = [np.bincount(place, weights, len(found)) for weights in (None, champion, candidate)]
        for at in np.flatnonzero(sums[0]).tolist():
            code = int(found[at])
            row = self.clusters.setdefault(f"{first_day + code % span}/{int(users[code // span]):016x}", [0.0] * 3)
            for column, values in enumerate(sums):
                row[column] += float(values[at])
        if len(self.clusters) > 2 * MOST_CLUSTERS:
            self.trim()

    def trim(self) -> None:
        """Forget the oldest days."""
        for name in sorted(self.clusters, key=lambda name: int(name.partition("/")[0]))[:-MOST_CLUSTERS]:
            del self.clusters[name]

    @property
    def jobs(self) -> int:
        """How many."""
        return int(sum(row[0] for row in self.clusters.values()))

    def means(self) -> tuple[float, float] | None:
        """The mean errors of champion and candidate; None: no job."""
        if not (jobs := self.jobs):
            return None
        first, second = (sum(row[column] for row in self.clusters.values()) / jobs for column in (1, 2))
        return first, second

    def gain(self) -> Interval | None:
        """By how much the candidate's error is lower; None: too few jobs or clusters."""
        rows = np.array(list(self.clusters.values()), np.float64).reshape(-1, 3)
        count, jobs = len(rows), self.jobs
        if count < LEAST_CLUSTERS or jobs < LEAST_JOBS:
            return None
        sizes, sums = rows[:, 0], rows[:, 1] - rows[:, 2]
        mean = float(sums.sum() / jobs)
        spread = float(((sums - mean * sizes) ** 2).sum()) * count / (count - 1)
        half = student_t(count - 1) * math.sqrt(spread) / jobs
        return Interval(mean, mean - half, mean + half, jobs, count)


def shares_of(records: Records) -> dict[str, list[float]]:
    """The shares of jobs by bins of what a prediction rests on: nodes, walltime (both by doublings)."""
    columns = {
        "nodes": np.log2(np.maximum(records["nodes"], 1)).astype(np.int64),
        "walltime": np.log2(np.maximum(records["request_s"], 60) / 60.0).astype(np.int64),
    }
    return {
        name: (np.bincount(np.clip(bins, 0, BINS - 1), minlength=BINS) / max(len(records), 1)).tolist()
        for name, bins in columns.items()
    }


def psi(was: Sequence[float], now: Sequence[float]) -> float:
    """The population stability index of two lists of shares."""
    first, second = np.maximum(was, _FLOOR), np.maximum(now, _FLOOR)
    return float(((second - first) * np.log(second / first)).sum())


class Drift(msgspec.Struct, frozen=True):
    """Of the newest jobs. ``psi``: by input; ``most_error``: above it is an alarm. ``by_nearest``: that follows from
    the nearest past jobs, since the training had too few jobs to judge the model. ``noun``: hours, where a hazard is
    predicted."""

    jobs: int
    psi: dict[str, float]
    error: float | None
    most_error: float | None
    by_nearest: bool = False
    noun: str = "jobs"

    @property
    def problem(self) -> str:
        """Why the model should not predict any more; empty: it may."""
        if self.jobs < LEAST_WINDOW or self.error is None or self.most_error is None or self.error <= self.most_error:
            return ""
        what = f"its error on the last {self.jobs} {self.noun} is {self.error:.3f}"
        what += f", above the alarm of {self.most_error:.3f}"
        if self.by_nearest:
            what += " that the nearest past jobs set, as its training had too few jobs to judge it"
        return f"{what}; {drifted} are not those of its training" if (drifted := self.drifted) else what

    @property
    def drifted(self) -> str:
        """Inputs that are others than in the training, with their index; empty: none."""
        return " and ".join(f"their {name} (PSI {value:.2f})" for name, value in self.psi.items() if value > MOST_PSI)


def unseen(newest: Records, known_s: float) -> Records:
    """Those of the newest jobs by which drift is judged."""
    return newest[newest["submitted_s"] > known_s][-WINDOW:]


def drift(
    table: GroupTable, shares: Mapping[str, Sequence[float]], known_s: float, error: float | None, newest: Records
) -> Drift:
    """Of the newest jobs, those that were submitted after the training ended. ``error``: on unseen jobs of it."""
    records = unseen(newest, known_s)
    if not len(records):
        return Drift(0, {}, None, None)
    now = shares_of(records)
    found = {name: psi(was, now[name]) for name, was in shares.items() if name in now}
    is_other = any(value > MOST_PSI for value in found.values())
    most = None if error is None else error + (ALARM_STEP / 2 if is_other else ALARM_STEP)
    typical_w = table.predict(records).watts[:, 0]
    return Drift(len(records), found, float(errors_of(records, typical_w).mean()), most)


def errors_of(records: Records, typical_w: npt.NDArray[np.float64]) -> Float64s:
    """A group that the table does not have counts as wrong."""
    return np.nan_to_num(errors(typical_w, records["node_w"].astype(np.float64)), nan=1.0)

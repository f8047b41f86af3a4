"""What the partition's jobs will draw in the next hours, in the cluster agent, next to the budget that is announced.

It decides nothing: caps keep the budget, whatever jobs would like to draw. It says beforehand where they will be slowed
or wait, and how much of a budget nobody is expected to use. Forecasts are those of ``prediction.system_forecast``, made
every quarter of an hour; a running job counts with its metered watts once it has some, else with those that were
expected of it at its submission. What was learned before a restart is learned again from the history of jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from cluster_agent.history.job_history import LONGEST_TEXT, HistoryRow
from cluster_agent.jobs.foreign_jobs import ForeignJob
from cluster_agent.jobs.job import ACTIVE, Job
from cluster_agent.prediction.job_power import METERED_AFTER_S, Submission
from cluster_agent.prediction.on_line import OnLinePower
from cluster_agent.prediction.system_forecast import EVERY_S, Hour, Looks, Runs, Shares, forecasts, number_of
from cluster_agent.serve.people_protocol import Ahead

HOURS: Final = 6
AHEAD_S: Final = tuple(3600.0 * hour for hour in range(1, HOURS + 1))
PAST_S: Final = 2 * 86_400.0
PAST_JOBS: Final = 5000
"""Ours: of the history at a start, which takes a second of a processor then."""

PREDICTED_AT_ONCE: Final = 20
"""Ours: jobs that are predicted in one step of the loop, some 10 ms."""


class Alive(msgspec.Struct, frozen=True):
    """A job that waits or runs. Times of the wall clock; ``began_s``: infinite while it waits. ``watts``: of the whole
    job, as metered; None: not yet."""

    key: str
    submission: Submission
    submitted_s: float
    began_s: float
    watts: float | None


class WattsAhead:
    """``ended`` for each job, ``step`` from time to time; ``ahead`` has what was said last."""

    def __init__(self, budget_w: float, past: Sequence[HistoryRow], wall_s: float) -> None:
        """``budget_w``: about what the partition draws; ``past``: jobs that ended, in the order of their ends."""
        self._looks = Looks(AHEAD_S, budget_w)
        self._looked = -1
        self.hours: list[Hour] = []
        """What was said last; empty: nothing yet."""
        expected_w = self.learn_again(past)
        since_s = max(wall_s - PAST_S, min((row.submitted_s for row in past), default=wall_s))
        if past:
            watts = [_metered(row) or said for row, said in zip(past, expected_w, strict=True)]
            times_s = [(row.submitted_s, row.began_s, row.ended_s) for row in past]
            requests_s = [float(row.request_s) for row in past]
            runs = Runs.of(times_s, requests_s, np.array(watts), np.array(expected_w))
            forecasts(runs, since_s, wall_s, AHEAD_S, self._looks)
            self._looked = number_of(wall_s)

    def learn_again(self, past: Sequence[HistoryRow]) -> list[float]:
        """From these jobs alone, since others have been forgotten; what would have been expected of each."""
        self._power, self._shares = OnLinePower(lambda submission: math.nan), Shares()
        self._expected_w: dict[str, float] = {}
        self._node_w = (0.0, 0)  # of jobs that were metered: watts, nodes
        return [self._learn(row) for row in past]

    def ended(self, row: HistoryRow) -> None:
        """A job has ended."""
        self._learn(row)

    def step(self, wall_s: float, alive: Callable[[], Iterable[Alive]]) -> None:
        """Say what is ahead, if it is time."""
        number = number_of(wall_s)
        if number == self._looked:
            return
        jobs = list(alive())
        unknown = [job for job in jobs if job.key not in self._expected_w]
        for job in unknown[:PREDICTED_AT_ONCE]:
            self._expected_w[job.key] = self._expected(job.key, job.submission)
        if len(unknown) > PREDICTED_AT_ONCE and wall_s < (number + 0.25) * EVERY_S:
            return  # the rest in the next steps
        self._looked = number
        said = np.array([self._expected_w.get(job.key, self._mean_w(job.submission)) for job in jobs], np.float64)
        self._expected_w = {job.key: self._expected_w[job.key] for job in jobs if job.key in self._expected_w}
        watts = np.array(
            [expected if job.watts is None else job.watts for job, expected in zip(jobs, said, strict=True)]
        )
        runs = Runs.of(
            [(job.submitted_s, job.began_s, math.inf) for job in jobs],
            [float(job.submission.request_s) for job in jobs], watts, said,
        )  # fmt: skip
        is_running = runs.start_s <= wall_s
        now_w, waiting_w = float(watts[is_running].sum()), float(said[~is_running].sum())
        lasting_w = self._shares.lasting_w(runs, wall_s, AHEAD_S)
        self.hours = self._looks.look(number, wall_s, now_w, waiting_w, lasting_w)

    def ahead(self, wall_s: float) -> list[Ahead]:
        """For people: of the hours to come, those that are not over."""
        return [
            Ahead(one.at_s - wall_s, one.expected_w, one.low_w, one.high_w) for one in self.hours if one.at_s > wall_s
        ]

    def over(self, steps: Iterable[tuple[float, float]], wall_s: float) -> list[str]:
        """In sentences: which of the steps (in seconds from now, watts for jobs) are less than jobs are expected to
        draw then."""
        lines = []
        for in_s, watts in steps:
            near = [one for one in self.ahead(wall_s) if abs(one.in_s - in_s) <= AHEAD_S[0] / 2]
            if near and near[0].expected_w > watts:
                one = near[0]
                band = "" if one.low_w is None else f" (nine of ten: {one.low_w:.0f} to {one.high_w:.0f})"
                lines.append(
                    f"in {in_s / 3600:.1f} h jobs are expected to draw {one.expected_w:.0f} W{band}, and may draw"
                    f" {max(watts, 0.0):.0f} W: they will be slowed or wait"
                )
        return lines

    def _learn(self, row: HistoryRow) -> float:
        """Learn from it; what was expected of it."""
        submission = request(row.user, row.application, row.nodes, row.request_s)
        key = row.job if not row.manager else f"{row.manager}/{row.job}"
        expected_w = self._expected_w.pop(key, None)
        if expected_w is None:
            expected_w = self._expected(key, submission)
        if row.request_s > 0 and row.run_s > 0:
            self._shares.ended(row.run_s, max(row.request_s, 60.0))
        if (drawn_w := _metered(row)) is not None:
            self._power.learn(key, submission, drawn_w)
            watts, nodes = self._node_w
            self._node_w = watts + drawn_w, nodes + row.nodes
        return expected_w

    def _expected(self, key: str, submission: Submission) -> float:
        said = self._power.predict(key, submission).expected_w
        return said if math.isfinite(said) else self._mean_w(submission)

    def _mean_w(self, submission: Submission) -> float:
        """Where nothing is known of such a job."""
        watts, nodes = self._node_w
        return submission.units * watts / nodes if nodes else 0.0


def _metered(row: HistoryRow) -> float | None:
    return row.watts if row.watts is not None and 0 < row.watts < math.inf else None


def request(user: str, title: str, nodes: int, walltime_s: int) -> Submission:
    """What is known of a job before it runs, names as the history keeps them. Tags are left out: some are measured
    while it runs."""
    user, title = user[:LONGEST_TEXT], title[:LONGEST_TEXT]
    return Submission(user, title, max(nodes, 1), max(nodes, 1), 0, 0, 0, walltime_s)


def alive(own: Iterable[Job], foreign: Iterable[ForeignJob], shown: Callable[[float], float]) -> list[Alive]:
    """Jobs of ours that wait or run, and those of another manager that run. ``shown``: the wall clock of our times."""
    found = []
    for job in own:
        runs, account = job.state in ACTIVE and job.started_s is not None, job.account
        is_metered = runs and bool(account.joules) and account.covered_s >= METERED_AFTER_S * len(job.nodes)
        watts = (account.joules or 0.0) / account.covered_s * len(job.nodes) if is_metered else None
        submission = request(job.user, job.title, len(job.nodes) or job.spec.nodes, job.spec.walltime_s)
        began_s = shown(job.started_s or 0.0) if runs else math.inf
        found.append(Alive(str(job.id), submission, shown(job.submitted_s), began_s, watts))
    for one in foreign:
        submission = request(one.user, one.title, len(one.nodes), 0)
        key = f"{one.cluster or 'another'}/{one.job}"
        found.append(Alive(key, submission, float(one.submitted_s) or one.began_s, one.began_s, None))
    return found

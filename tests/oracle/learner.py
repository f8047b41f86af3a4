"""Run times learned on line: a linear model of degree-2 features of a job, fitted to each job as it ends.

From Gaussier, Glesser, Reis, Trystram, "Improving backfilling by using machine learning to predict running times",
SC'15, and Glesser's thesis (Grenoble 2016, ch. 7). What the thesis leaves open (step, regularisation, where predictions
are cut) is from the published configurations of its simulator, and named so below. ``model=thesis`` has the features
that the thesis lists; ``model=sc15`` those that the simulator had, from which the published figures come.

This is the reference for ``csrc/learner.c``: sums run one by one in the order of their index, so that the two are equal
to the bit.
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import numpy.typing as npt

from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.policy_phases import Learning

ETA = 5000.0
"""The step. Not in the thesis; from the simulator's configurations, like the next."""

LAMBDA = 4e9
"""The weight of half the squared norm of the model's weights."""

DAY_S, WEEK_S = 86400.0, 7 * 86400.0

Floats = npt.NDArray[np.float64]


class OnlineLearner:
    """What is known of the users, and the model."""

    def __init__(self, learning: Learning, jobs: Jobs) -> None:
        self.learning = learning
        self.jobs = jobs
        self.submitted_s: dict[int, int] = {}
        self.started_s: dict[int, int] = {}
        self.ended: dict[int, list[int]] = defaultdict(list)  # by user, in order of their ends
        self.running: dict[int, list[int]] = defaultdict(list)
        self.last_end_s: dict[int, int] = {}
        self.terms: dict[int, Floats] = {}  # of each job, as they were at its submission
        count = 157 if learning.model == "sc15" else 231
        self.weight, self.scale, self.slopes = np.zeros(count), np.zeros(count), np.zeros(count)
        self.norm = 0.0
        self.fits = 0

    # --- what happens

    def estimate(self, now_s: int, job: int) -> int:
        """The job is submitted: its run time by the model, 1 s to its request."""
        self.submitted_s[job] = now_s
        x = self._features_of_sc15(now_s, job) if self.learning.model == "sc15" else self._features(now_s, job)
        self.terms[job] = terms(x, len(x) - 2 if self.learning.model == "sc15" else len(x))
        estimate_s, request_s = abs(self._value(job)), int(self.jobs.request_s[job])
        return max(int(estimate_s), 1) if estimate_s < request_s else request_s

    def start(self, now_s: int, job: int) -> None:
        """The job runs from now on."""
        self.started_s[job] = now_s
        self.running[self._user(job)].append(job)

    def kill(self, job: int) -> None:
        """The job runs no more, and nothing is learned from it."""
        self.running[self._user(job)].remove(job)

    def end(self, job: int) -> None:
        """The running job has ended: the model is fitted to it, and its user's history has one more."""
        user = self._user(job)
        self.running[user].remove(job)
        self.ended[user].append(job)
        self.last_end_s[user] = self.started_s[job] + int(self.jobs.run_s[job])
        self._fit(job)

    # --- features

    def _features(self, now_s: int, job: int) -> list[float]:
        """The 20 features of the thesis, in its order; 0 where there is no history."""
        user, width = self._user(job), float(self.jobs.width[job])
        ended = self.ended[user]
        last_s = [float(self.jobs.run_s[past]) for past in reversed(ended[-3:])] + [0.0] * (3 - len(ended[-3:]))
        mean_width = mean(math.fsum(self.jobs.width[past] for past in ended), len(ended))
        count, processors, elapsed_s, longest_s = self._present(user, now_s)
        return [
            float(self.jobs.request_s[job]),
            *last_s,
            mean(last_s[0] + last_s[1], min(len(ended), 2)),
            mean(last_s[0] + last_s[1] + last_s[2], min(len(ended), 3)),
            mean(math.fsum(self.jobs.run_s[past] for past in ended), len(ended)),
            width,
            mean_width,
            width / mean_width if mean_width else 0.0,
            processors / count if count else 0.0,
            count,
            longest_s,
            elapsed_s,
            processors,
            float(now_s - self.last_end_s[user]) if ended else 0.0,
            *clock(now_s),
        ]

    def _features_of_sc15(self, now_s: int, job: int) -> list[float]:
        """The 18 features of the campaign's simulator.

        A past run time is there the longer of that job's run time and the time since its submission, at most the
        present job's request; without a past job it is that request. The mean of three uses 0.33 for a third.
        """
        user, width, request_s = self._user(job), float(self.jobs.width[job]), float(self.jobs.request_s[job])
        ended = self.ended[user]
        last_s = [request_s] * 3
        for i, past in enumerate(reversed(ended[-3:])):
            age_s = now_s - self.submitted_s[past]
            last_s[i] = min(request_s, float(max(age_s, int(self.jobs.run_s[past]))))
        mean2_s = last_s[0] if len(ended) == 1 else 0.5 * (last_s[0] + last_s[1])
        mean_width = mean(math.fsum(self.jobs.width[past] for past in ended), len(ended))
        count, processors, elapsed_s, longest_s = self._present(user, now_s)
        return [
            *last_s,
            request_s,
            mean2_s,
            mean2_s if len(ended) < 3 else 0.33 * (last_s[0] + last_s[1] + last_s[2]),
            mean(math.fsum(self.jobs.run_s[past] for past in ended), len(ended)),
            float(now_s - self.last_end_s[user]) if self.last_end_s.get(user) else 0.0,
            width / mean_width if mean_width else 0.0,
            processors,
            elapsed_s,
            count,
            longest_s,
            *clock(now_s),
            width,
        ]

    def _present(self, user: int, now_s: int) -> tuple[float, float, float, float]:
        """Count, processors, summed and longest age of the user's running jobs, without those started in this
        second."""
        running = [job for job in self.running[user] if self.started_s[job] != now_s]
        elapsed_s = [now_s - self.started_s[job] for job in running]
        processors = sum(int(self.jobs.width[job]) for job in running)
        return float(len(running)), float(processors), float(sum(elapsed_s)), float(max(elapsed_s, default=0))

    # --- the model

    def _value(self, job: int) -> float:
        return float(np.cumsum(self.weight * self.terms[job])[-1])

    def _importance(self, job: int) -> float:
        """The weight of an error: gamma of the thesis, whose log(r p) must mean log(q p)."""
        q, p = float(self.jobs.width[job]), float(self.jobs.run_s[job])
        match self.learning.weight:
            case "short-wide":
                return 5.0 + math.log(q / p)
            case "long-narrow":
                return 5.0 + math.log(p / q)
            case "small":
                return 11.0 + math.log(1.0 / (p * q))
            case "large":
                return 1.0 + math.log(q * p)
            case _:
                return 1.0

    def _fit(self, job: int) -> None:
        """One step of normalised adaptive gradient descent (Ross, Mineiro, Langford, Normalized online learning, UAI
        2013). The campaign's simulator counts every fit but the first twice, which makes its steps longer."""
        x = self.terms[job]
        size = np.abs(x)
        grows = size > self.scale
        self.weight[grows] *= self.scale[grows] / size[grows]
        self.scale[grows] = size[grows]
        is_used = self.scale > 0
        self.norm += float(np.cumsum(x[is_used] * x[is_used] / (self.scale[is_used] * self.scale[is_used]))[-1])
        self.fits += 1
        count = float(2 * self.fits - 1 if self.learning.model == "sc15" else self.fits)

        error_s = self._value(job) - float(self.jobs.run_s[job])
        over, under = self.learning.loss.split("-")
        gamma = self._importance(job)
        if (over if error_s > 0 else under) == "squared":
            slope = gamma * (2.0 * x * error_s)
        else:
            slope = gamma * x * np.sign(error_s)
        slope = slope + LAMBDA * self.weight
        self.slopes += slope * slope
        moves = self.slopes > 0
        step = np.sqrt(self.norm * self.slopes[moves] / count) * self.scale[moves]
        self.weight[moves] -= ETA * slope[moves] / step

    def _user(self, job: int) -> int:
        return int(self.jobs.user[job])


def terms(x: list[float], paired: int) -> Floats:
    """1, the features, the products in pairs of the first ``paired``, and all squares."""
    pairs = [x[i] * x[j] for i in range(paired) for j in range(i + 1, paired)]
    return np.array([1.0, *x, *pairs, *(value * value for value in x)])


def mean(total: float, count: int) -> float:
    """0 for a count of 0."""
    return total / count if count else 0.0


def clock(now_s: int) -> list[float]:
    """Cosine and sine of the time of day and of the week."""
    day, week = 2 * math.pi * (now_s % DAY_S) / DAY_S, 2 * math.pi * (now_s % WEEK_S) / WEEK_S
    return [math.cos(day), math.sin(day), math.cos(week), math.sin(week)]

"""The scheduler in plain Python, as the papers tell it.

It works on lists, looks at every waiting job in every pass and keeps nothing between passes that could be worked out
again. The native scheduler is tested against it. Read this one to know what the other does.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np

from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.orders.score_formula import Score
from cluster_agent.scheduler.policy_phases import Composition, Queue
from cluster_agent.scheduler.queue import served
from cluster_agent.scheduler.recorded import Recorded
from tests.oracle.learner import OnlineLearner
from tests.oracle.one_frequency import OneFrequency
from tests.oracle.usage import Usage

INCREMENTS_S = [60 * minutes for minutes in (1, 5, 15, 30, 60, 120, 300, 600, 1200, 3000, 6000)]
"""Tsafrir, Etzion, Feitelson 2007, §3.3. Each step replaces the one before."""

TAU_S = 10
"""Bounded slowdowns count from this run time on (Feitelson et al., JSSPP 1997)."""


def _positive(exact: Callable[[float], float], rule: Callable[[np.float64], np.float64]) -> Callable[..., np.float64]:
    """NumPy's own logarithms may differ from the C library's in the last bit."""
    return lambda a: np.float64(exact(float(a))) if 0 < a < math.inf else rule(a)


OF_ONE: dict[str, Callable[..., np.float64]] = {
    "negate": np.negative,
    "log": _positive(math.log, np.log),
    "log2": _positive(math.log2, np.log2),
    "log10": _positive(math.log10, np.log10),
    "sqrt": np.sqrt,
    "square": lambda a: a * a,
    "cube": lambda a: a * (a * a),
}
OF_TWO: dict[str, Callable[..., np.float64]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
    "least": np.fmin,
    "greatest": np.fmax,
}
"""The steps of a score, by the rules of IEEE 754: a division by zero is no error."""


def worked_out(score: Score, known: Mapping[str, int]) -> float:
    """The formula's value for a job of which this is known."""
    stack: list[np.float64] = []
    for step in score.steps:
        if step.op == "number" or step.op in known:
            stack.append(np.float64(known.get(step.op, step.number)))
            continue
        one = step.op in OF_ONE
        taken = 1 if one else 2
        with np.errstate(all="ignore"):
            stack[-taken:] = [np.float64((OF_ONE if one else OF_TWO)[step.op](*stack[-taken:]))]
    return float(stack[0])


class Profile:
    """How many processors are expected to be free from when on: steps of (time, free), the last one without end."""

    def __init__(self, now_s: int, free: int) -> None:
        self.steps = [(now_s, free)]

    def add(self, from_s: int, free: int) -> None:
        """``free`` processors more from ``from_s`` on, without end."""
        self._split(from_s)
        self.steps = [(at_s, have + free if at_s >= from_s else have) for at_s, have in self.steps]

    def take(self, from_s: int, length_s: int, width: int) -> None:
        """``width`` processors less for ``length_s``."""
        self.add(from_s, -width)
        self.add(from_s + length_s, width)

    def earliest(self, length_s: int, width: int) -> int:
        """The first time from which ``width`` processors are free for ``length_s``."""
        return next(at_s for at_s, _ in self.steps if self.least(at_s, at_s + length_s) >= width)

    def least(self, from_s: int, to_s: int) -> int:
        """The fewest that are free in these seconds."""
        ends_s = [at_s for at_s, _ in self.steps[1:]] + [to_s]
        return min(
            free for (at_s, free), end_s in zip(self.steps, ends_s, strict=True) if at_s < to_s and end_s > from_s
        )

    def _split(self, at_s: int) -> None:
        before = [step for step in self.steps if step[0] <= at_s]
        if before[-1][0] != at_s:
            self.steps = [*before, (at_s, before[-1][1]), *self.steps[len(before) :]]


class ReferenceScheduler(OneFrequency):
    """The queue, the running jobs and the phases (see ``interfaces.Scheduler``)."""

    def __init__(self, composition: Composition, jobs: Jobs, processors: int, recorded: Recorded | None = None) -> None:
        self.composition = composition
        self.jobs = jobs
        self.recorded = recorded
        self.processors = processors
        self.queue: list[int] = []
        self.running: dict[int, int] = {}  # job: when it was started
        self.estimate_s: dict[int, int] = {}
        self.first_estimate_s: dict[int, int] = {}
        self.corrections: dict[int, int] = defaultdict(int)
        self.reserved_s: dict[int, int] = {}  # only where places are kept
        self.ended_run_s: dict[int, list[int]] = defaultdict(list)  # by user
        self.alike_run_s: dict[tuple[int, int, int], list[int]] = defaultdict(list)  # by user, width and request
        self.learner = OnlineLearner(composition.learning, jobs) if composition.estimate == "learned" else None
        given = composition.priority
        self.usage = Usage(given, processors, range(jobs.n_users)) if given else None
        self.uncharged: list[tuple[int, int]] = []  # job and start of those that ended since the last pass

    # --- what happens

    def submit(self, now_s: int, job: int) -> bool:
        """The job joins the queue; True if this calls for a pass."""
        self.estimate_s[job] = self.first_estimate_s[job] = self._estimate(now_s, job)
        self.queue.append(job)
        if self.usage:
            self.usage.submit(now_s)
        return not self.composition.passes_if_new_fits or self._width(job) <= self._free(now_s)

    def end(self, job: int) -> None:
        """The running job has ended, and its user's history has one more."""
        self.uncharged.append((job, self.running.pop(job)))
        self.ended_run_s[int(self.jobs.user[job])].append(int(self.jobs.run_s[job]))
        self.alike_run_s[self._alike(job)].append(int(self.jobs.run_s[job]))
        if self.learner:
            self.learner.end(job)

    def overrun(self, job: int) -> int:
        """Correct the job's estimate."""
        self.estimate_s[job] = self._corrected(job)
        self.corrections[job] += 1
        return self.expected_end_s(job)

    def expected_end_s(self, job: int) -> int:
        """When a running job is expected to end."""
        return self.running[job] + self.estimate_s[job]

    def carry_out(self, now_s: int, job: int) -> None:
        """The waiting job starts now, as recorded."""
        self._start(now_s, job)

    # --- a pass

    def decide(self, now_s: int) -> list[int]:
        """Start heads while they fit; then whoever may overtake the head."""
        self._estimate_again(now_s)
        if self.recorded is not None and now_s < self.recorded.until_s:
            self._charge(now_s)
            return []
        self._order(now_s)
        if self.composition.backfill == "compress":
            return self._backfill_compress(now_s)
        started: list[int] = []
        self._guard_where_one_fits(now_s)
        while self.queue and self._width(self.queue[0]) <= self._free(now_s):
            started.append(self._start(now_s, self.queue[0]))
            self._guard(now_s)
        if self.composition.backfill == "list":
            started += [self._start(now_s, job) for job in list(self.queue) if self._width(job) <= self._free(now_s)]
        elif self.composition.backfill == "easy":
            started += self._backfill_easy(now_s)
        elif self.composition.backfill == "conservative":
            started += self._backfill_conservative(now_s)
        return started

    def _columns(self) -> Queue:
        jobs, job = self.jobs, np.array(self.queue, np.int32)
        estimate_s = np.array([self.estimate_s[one] for one in self.queue], np.int64)
        return Queue(job, jobs.submit_s[job], jobs.request_s[job], estimate_s, jobs.width[job], jobs.user[job])

    def _order(self, now_s: int) -> None:
        if self.composition.order is not None:
            positions = served(self.composition.order, self._columns(), now_s)
            self.queue = [self.queue[position] for position in positions]
        if self.composition.score is not None:
            self.queue.sort(key=lambda job: (self._score(now_s, job), job))
        if self.usage:
            self._charge(now_s)
            self.queue.sort(key=lambda job: (-self._priority(now_s, job), job))

    def _charge(self, now_s: int) -> None:
        if self.usage:
            for job, start_s in self.uncharged:
                self.usage.charge(now_s, int(self.jobs.user[job]), (now_s - start_s) * self._width(job))
            self.uncharged = []

    def _score(self, now_s: int, job: int) -> float:
        """What is not a number comes last."""
        assert self.composition.score is not None
        submit_s = int(self.jobs.submit_s[job])
        known = {
            "wait": now_s - submit_s,
            "estimate": self.estimate_s[job],
            "request": int(self.jobs.request_s[job]),
            "width": self._width(job),
            "submit": submit_s - int(self.jobs.submit_s[0]),
        }
        value = worked_out(self.composition.score, known)
        return math.inf if math.isnan(value) else value

    def _priority(self, now_s: int, job: int) -> float:
        assert self.usage is not None
        user, submit_s = int(self.jobs.user[job]), int(self.jobs.submit_s[job])
        return self.usage.priority_of(now_s, user, submit_s, self._width(job))

    def _estimate_again(self, now_s: int) -> None:
        """With ``fixed=start`` estimates follow what the user's jobs that end tell."""
        if self.composition.fixed == "start" and self.composition.estimate == "mean2":
            for job in self.queue:
                self.estimate_s[job] = self.first_estimate_s[job] = self._estimate(now_s, job)

    def _guard_where_one_fits(self, now_s: int) -> None:
        """Where nobody does it would move jobs for nothing."""
        if any(self._width(job) <= self._free(now_s) for job in self.queue):
            self._guard(now_s)

    def _guard(self, now_s: int) -> None:
        """Of the jobs whose bounded slowdown would pass the bound even if they started now, the highest goes ahead."""
        bound = self.composition.guard
        if bound is None:
            return
        slowdowns = [(self._slowdown(now_s, job), -place) for place, job in enumerate(self.queue)]
        highest, place = max(slowdowns, default=(0.0, 0))
        if highest > bound:
            self.queue.insert(0, self.queue.pop(-place))

    def _slowdown(self, now_s: int, job: int) -> float:
        estimate_s = self.estimate_s[job]
        return (now_s - int(self.jobs.submit_s[job]) + estimate_s) / max(estimate_s, TAU_S)

    def _backfill_easy(self, now_s: int) -> list[int]:
        """EASY (Lifka 1995): reserve for the head, then start every other job that fits next to the reservation."""
        if not self.queue:
            return []
        head, *others = self.queue
        profile = self._profile(now_s)
        profile.take(profile.earliest(*self._shape(head)), *self._shape(head))
        if self.composition.scan == "shortest":
            others = sorted(sorted(others), key=self.estimate_s.__getitem__)
        started = []
        for job in others:
            if profile.earliest(*self._shape(job)) == now_s:
                profile.take(now_s, *self._shape(job))
                started.append(self._start(now_s, job))
        return started

    def _backfill_conservative(self, now_s: int) -> list[int]:
        """Every job in turn gets the earliest place next to all before it (Mu'alem and Feitelson 2001)."""
        profile = self._profile(now_s)
        started = []
        for job in list(self.queue):
            from_s = profile.earliest(*self._shape(job))
            profile.take(from_s, *self._shape(job))
            if from_s == now_s:
                started.append(self._start(now_s, job))
        return started

    def _backfill_compress(self, now_s: int) -> list[int]:
        """Every job in turn gives up its place and takes the earliest one next to the others (Mu'alem, Feitelson)."""
        profile = self._profile(now_s)
        self.reserved_s = {job: self.reserved_s[job] for job in self.queue if self.reserved_s.get(job, -1) >= now_s}
        for job, from_s in self.reserved_s.items():
            profile.take(from_s, *self._shape(job))
        started = []
        for job in list(self.queue):
            if job in self.reserved_s:
                estimate_s, width = self._shape(job)
                profile.take(self.reserved_s[job], estimate_s, -width)
            self.reserved_s[job] = profile.earliest(*self._shape(job))
            profile.take(self.reserved_s[job], *self._shape(job))
            if self.reserved_s[job] == now_s:
                started.append(self._start_in_place(now_s, job))
        return started

    def _start_in_place(self, now_s: int, job: int) -> int:
        return self._start(now_s, job)

    def _start(self, now_s: int, job: int) -> int:
        self.queue.remove(job)
        self.running[job] = now_s
        if self.composition.shadow > 1:
            planned_s = self.composition.shadow * self.estimate_s[job]
            request_s = int(self.jobs.request_s[job])
            self.estimate_s[job] = int(planned_s) if planned_s < request_s else request_s
        if self.learner:
            self.learner.start(now_s, job)
        return job

    # --- what is known

    def _width(self, job: int) -> int:
        return int(self.jobs.width[job])

    def _shape(self, job: int) -> tuple[int, int]:
        return self.estimate_s[job], self._width(job)

    def _holds(self, now_s: int, job: int) -> bool:
        return not self.composition.frees_at_estimate or self.expected_end_s(job) > now_s

    def _free(self, now_s: int) -> int:
        return self.processors - sum(self._width(job) for job in self.running if self._holds(now_s, job))

    def _profile(self, now_s: int) -> Profile:
        """What will be free if every job ends as expected, one that is overdue in the next instant."""
        profile = Profile(now_s, self._free(now_s))
        for job in self.running:
            if self._holds(now_s, job):
                profile.add(max(self.expected_end_s(job), now_s + 1), self._width(job))
        return profile

    def _estimate(self, now_s: int, job: int) -> int:
        request_s = int(self.jobs.request_s[job])
        ended_s = self.ended_run_s[int(self.jobs.user[job])]
        if self.composition.history == "similar" and len(self.alike_run_s[self._alike(job)]) >= 2:
            ended_s = self.alike_run_s[self._alike(job)]
        if self.composition.estimate == "clairvoyant":
            return int(self.jobs.run_s[job])
        if self.learner:
            return self.learner.estimate(now_s, job)
        if self.composition.estimate == "mean2" and len(ended_s) >= 2:
            return min((ended_s[-1] + ended_s[-2]) // 2, request_s)
        return request_s

    def _alike(self, job: int) -> tuple[int, int, int]:
        return int(self.jobs.user[job]), self._width(job), int(self.jobs.request_s[job])

    def _corrected(self, job: int) -> int:
        request_s = int(self.jobs.request_s[job])
        if self.composition.correct == "doubling":
            return 2 * self.estimate_s[job]
        if self.composition.correct == "doubling-capped":
            return min(2 * self.estimate_s[job], request_s)
        if self.composition.correct == "incremental" and self.corrections[job] < len(INCREMENTS_S):
            return min(self.first_estimate_s[job] + INCREMENTS_S[self.corrections[job]], request_s)
        return request_s

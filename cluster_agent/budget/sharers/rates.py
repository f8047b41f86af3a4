"""How much time a job loses under caps, learned from the rate at which it works, as its nodes report it.

A rate has no unit here: only ratios between rates of one job are used. The job's table gives the time lost under a cap
that binds, ``lost`` (0 without one); the true loss is ``loss`` times that. When a cap moves a node from one point to
another, its rate should change by ``(1 + loss * lost before) / (1 + loss * lost after)``. The measured ratio corrects
``loss``, by as much as it can be trusted (a Kalman filter of one number). Changes of a rate without a change of the cap
are noise, for instance phases of the job; so a window is only compared with the one just before it.

Progress (units of work that the application counts) is work. Instructions are only an approximation: a process that
busy-waits retires them too. Their correction counts half, as the table is as likely to be right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from cluster_agent.budget.sharers.speed import SpeedModel, levels

TABLE_ERROR: Final = 0.12
"""Ours: the standard deviation of ``loss`` about 1: tables are off by up to ±20 %."""
TRUST: Final = {"progress": 1.0, "instructions": 0.5}
"""How much of the measured ``loss`` is believed, by the kind of rate."""
NOISE: Final = 0.02
LEAST_NOISE: Final = 0.007
"""Ours: standard deviation of the logarithm of two windows' ratio: the value before any comparison, and the least
one."""
NOISE_OF: Final = 10
"""The noise is the mean of about this many comparisons."""
MOST_LOSS: Final = 2.0
"""Ours: the highest ``loss``: whoever reports false progress to get watts is taken as twice as sensitive at most."""
LIKE_ERROR: Final = 0.04
"""Ours: the least standard deviation of ``loss`` between jobs of one name."""
REMEMBERED: Final = 10_000
SAME: Final = 0.05
"""Ours: two windows whose lost times differ by less are taken as equal."""
SURPRISE: Final = 3.0
"""A ratio further from its expected value, in standard deviations, is cut to this: most likely the job changed
phase."""


@dataclass(slots=True)
class _Window:
    """Sums over what a node reported under one cap."""

    cap_mw: int  # -1: not cap-bound
    begin_s: float
    n: int = 0
    rate: float = 0.0
    power_mw: float = 0.0


@dataclass(slots=True)
class _Node:
    now: _Window
    before: _Window | None = None


@dataclass(slots=True)
class _Job:
    kind: str
    model: SpeedModel
    like: str
    variance: float
    loss: float = 1.0  # as measured, before only a part of it is believed
    noise: float = NOISE**2
    n_noise: int = 1
    nodes: dict[str, _Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Learned:
    """``loss``: the true lost time over that of its table; ``doubt``: its standard deviation."""

    loss: float
    doubt: float
    kind: str

    @property
    def words(self) -> str:
        """Empty as long as nothing has been learned."""
        if self.doubt > 0.9 * TABLE_ERROR:
            return ""
        return f"by its {self.kind} it loses {self.loss:.2f} ± {self.doubt:.2f} times its table's time"


class Rates:
    """``hear`` takes reports; ``learned`` is a job's result. Times are seconds of any clock that does not go back.

    ``settle_s``: how long a node's rate is ignored after a change of its cap; ``window_s``: what is compared.
    """

    def __init__(self, settle_s: float = 3.0, window_s: float = 10.0) -> None:
        self._settle_s, self._window_s = settle_s, window_s
        self._jobs: dict[str, _Job] = {}
        self._job_on: dict[str, str] = {}
        self._past: dict[tuple[str, str, SpeedModel], tuple[float, float]] = {}

    def hear(
        self, now_s: float, node: str, job: str, rate: float = -1, kind: str = "", model: SpeedModel | None = None,
        power_mw: int = -1, cap_mw: int = -1, tdp_mw: int = 0, need_mw: int = -1, like: str = "",
    ) -> None:  # fmt: skip
        """A node worked at ``rate`` (per second; -1: not known) on ``job`` (empty: none), whose table is ``model``, and
        drew ``power_mw``. ``cap_mw``: the cap that bound it, -1 if none did. ``need_mw``: from ``needs``.
        ``like``: jobs of this name are alike, so the next one begins with what the last one taught."""
        self._forget_other(node, job)
        if not job or model is None or rate < 0 or power_mw < 0 or kind not in TRUST:
            return
        known = self._job(job, kind, model, like)
        if TRUST[kind] < TRUST[known.kind]:
            return
        self._job_on[node] = job
        one = known.nodes.get(node)
        if one is None:
            one = known.nodes[node] = _Node(_Window(cap_mw, now_s + self._settle_s))
        window = self._filled(one, now_s, rate, power_mw, cap_mw)
        if window is None or window.rate <= 0:  # 0: none of its units was finished
            return
        last, one.before = one.before, window
        if last is None:
            return
        observed = math.log(window.rate / window.n) - math.log(last.rate / last.n)
        if last.cap_mw == cap_mw:
            _compare(known, 0.0, 0.0, observed)
        elif need_mw >= 0:  # with an unknown need the loss cannot be computed
            _compare(known, _lost(model, last, tdp_mw, need_mw), _lost(model, window, tdp_mw, need_mw), observed)

    def _forget_other(self, node: str, job: str) -> None:
        """The node has left the job that it worked on before; the last node of a job ends it."""
        before = self._job_on.get(node)
        if before is None or before == job:
            return
        del self._job_on[node]
        left = self._jobs.get(before)
        if left is not None and left.nodes.pop(node, None) is not None and not left.nodes:
            self._end(self._jobs.pop(before))

    def _job(self, job: str, kind: str, model: SpeedModel, like: str) -> _Job:
        """What is known of the job. It begins again with another table, or with a kind of rate that is trusted more."""
        known = self._jobs.get(job)
        if known is None or known.model is not model or TRUST[kind] > TRUST[known.kind]:
            loss, variance = self._past.get((like, kind, model), (1.0, TABLE_ERROR**2 / TRUST[kind]))
            known = self._jobs[job] = _Job(kind, model, like, variance, loss)
        return known

    def _filled(self, one: _Node, now_s: float, rate: float, power_mw: int, cap_mw: int) -> _Window | None:
        """Add a report to the node's window; the window, once it is as long as it is to be. The next follows it."""
        window = one.now
        if abs(cap_mw - window.cap_mw) > 0.01 * max(cap_mw, 0):
            window = one.now = _Window(cap_mw, now_s + self._settle_s)
        if now_s < window.begin_s:
            return None
        window.n += 1
        window.rate += rate
        window.power_mw += power_mw
        if now_s - window.begin_s < self._window_s:
            return None
        one.now = _Window(cap_mw, now_s)
        return window

    def learned(self, job: str) -> Learned | None:
        """None: no rate is known."""
        known = self._jobs.get(job)
        if known is None:
            return None
        trust = TRUST[known.kind]
        variance = (1 - trust) * TABLE_ERROR**2 + trust**2 * known.variance
        return Learned(1 + trust * (known.loss - 1), math.sqrt(variance), known.kind)

    def _end(self, job: _Job) -> None:
        if not job.like or job.variance > TABLE_ERROR**2 / TRUST[job.kind] / 2:
            return
        key = job.like, job.kind, job.model
        self._past.pop(key, None)
        self._past[key] = job.loss, max(job.variance, LIKE_ERROR**2)
        if len(self._past) > REMEMBERED:
            del self._past[next(iter(self._past))]


def _lost(model: SpeedModel, window: _Window, tdp_mw: int, need_mw: int) -> float:
    """The lost time that the table expects at the power that the node drew, given its need."""
    if window.cap_mw < 0:
        return 0.0
    speed, part = levels(model)
    idle_mw = model.idle * tdp_mw
    top_mw = max(need_mw, idle_mw + 1)
    return 1 / float(np.interp((window.power_mw / window.n - idle_mw) / (top_mw - idle_mw), part, speed)) - 1


def _compare(job: _Job, before: float, after: float, observed: float) -> None:
    """Compare two consecutive windows: their lost times by the table, and the logarithm of the ratio of their rates."""
    surprise = observed - math.log((1 + job.loss * before) / (1 + job.loss * after))
    if abs(before - after) < SAME:
        job.n_noise = min(job.n_noise + 1, NOISE_OF)
        job.noise += (surprise**2 - job.noise) / job.n_noise
        return
    slope = before / (1 + job.loss * before) - after / (1 + job.loss * after)
    noise = max(job.noise, LEAST_NOISE**2) * len(job.nodes)  # noise that a job's nodes share does not average out
    spread = slope**2 * job.variance + noise
    surprise = math.copysign(min(abs(surprise), SURPRISE * math.sqrt(spread)), surprise)
    job.loss = min(max(job.loss + job.variance * slope / spread * surprise, 0.0), MOST_LOSS)
    job.variance -= (job.variance * slope) ** 2 / spread

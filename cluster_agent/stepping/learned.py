"""A trained baseline: the weights of an order of three logarithms, by the cross-entropy method on windows of one log.

The order is a formula that ``score`` takes, so what was learned runs anywhere: in a replay, and live. A window is
stepped to its first decision once; each trial of weights is a fork of that, run to the end in C.
Source of the method: Rubinstein 1999; Szita and Lorincz, Neural Computation 18(12), 2006 (their added noise).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from cluster_agent.replay.measures import bounded_slowdown
from cluster_agent.scheduler.job_columns import Float64s
from cluster_agent.scheduler.orders.score_formula import score
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.world import World
from cluster_agent.stepping.steps import Steps

TERMS: Final = ("log10(estimate)", "log10(width)", "log10(wait + 1)")
SHARE, NOISE, SHRINK = 0.25, 0.2, 0.03
"""The best so many of a generation make the next one; the deviation that is added to theirs at first, and by how much
less in each generation. Ours."""


def formula(weights: Sequence[float] | Float64s) -> str:
    """The weights as a formula of ``score``."""
    return " + ".join(f"{weight:.4f} * {term}" for weight, term in zip(weights, TERMS, strict=True))


def windows(world: World, jobs: int, count: int, seed: int) -> list[Steps]:
    """``count`` windows of so many jobs each, at their first decision; where nobody ever waits there is none."""
    random, found = np.random.default_rng(seed), []
    for first in random.integers(0, len(world.jobs) - jobs + 1, count).tolist():
        steps = Steps(world.only(np.arange(first, first + jobs)), Composition(backfill="easy"), "choices")
        if not steps.is_over:
            found.append(steps)
    return found


def mean_slowdown(window: Steps, order: str) -> float:
    """The mean bounded slowdown of the jobs of a window that had not started at its first decision."""
    fork = window.fork(Composition(score=score(order), backfill="easy"))
    fork.run()
    return float(bounded_slowdown(fork.wait_s, fork.jobs.run_s[fork.started]).mean())


def train(at: Sequence[Steps], seed: int, generations: int, trials: int) -> Iterator[tuple[str, float]]:
    """After each generation its mean as a formula, and the cost of its best trial: the mean over the windows of the
    slowdown over that of the smallest area first."""
    random = np.random.default_rng(seed)
    yardstick = [mean_slowdown(window, "estimate * width") for window in at]
    mean, deviation = np.zeros(len(TERMS)), np.ones(len(TERMS))
    for generation in range(generations):
        tried = mean + deviation * random.standard_normal((trials, len(TERMS)))
        tried /= np.linalg.norm(tried, axis=1, keepdims=True)  # an order is the same at any scale
        costs = [
            float(
                np.mean(
                    [mean_slowdown(window, formula(one)) / base for window, base in zip(at, yardstick, strict=True)]
                )
            )
            for one in tried
        ]
        best = tried[np.argsort(costs)[: max(int(SHARE * trials), 2)]]
        mean, deviation = best.mean(axis=0), best.std(axis=0) + max(NOISE - SHRINK * generation, 0.0)
        yield formula(mean), min(costs)

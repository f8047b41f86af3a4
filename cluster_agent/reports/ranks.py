"""Mean ranks of policies and how far two must be apart (Nemenyi's test; Demsar, JMLR 7, 2006, 3.2.2).

In every draw (a log, a block of weeks or a seed, as for the interval of an effect) the policies are ranked by their
mean, 1 the lowest. The mean ranks of two policies differ at 5 % if they are further apart than

    CD = q / sqrt(2) * sqrt(k (k + 1) / (6 N))       k policies, N draws, q: the studentized range of k normal values

This counts for all pairs at once. Ranks ignore by how much, and the rank of two policies depends on which others are
there (Benavoli et al., JMLR 17, 2016): the paired effects come first, ranks second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from cluster_agent.reports import effects
from cluster_agent.reports.effects import Sums
from cluster_agent.scheduler.job_columns import Float64s

LEAST_DRAWS: Final = 5
"""Ours."""


class Ranks(msgspec.Struct, frozen=True):
    """Mean rank by policy, lowest first, and what two must be apart."""

    mean: dict[str, float]
    critical: float
    draws: int
    over: str


def ranks(policies: Mapping[str, Sequence[Sums]], baseline: str) -> Ranks | None:
    """Of two or more policies that were compared with the baseline in the same conditions; None with too few draws
    that all of them have."""
    every = [one for found in policies.values() for one in found]
    if not every or len({len(found) for found in policies.values()}) > 1:
        return None
    drawn = _drawn(policies)
    if drawn is None:
        return None
    over, scores = drawn
    table = np.array([next(iter(scores.values()))[1], *(value for value, _ in scores.values())])
    draws = table.shape[1]
    if draws < LEAST_DRAWS:
        return None
    found = dict(zip([baseline, *scores], np.mean([_ranked(column) for column in table.T], axis=0), strict=True))
    named = {name: float(rank) for name, rank in sorted(found.items(), key=lambda one: one[1])}
    return Ranks(named, critical_difference(len(named), draws), draws, over)


Scores = tuple[Float64s, Float64s]
"""Logarithms of a policy's and the baseline's mean, for each draw."""


def _drawn(policies: Mapping[str, Sequence[Sums]]) -> tuple[str, dict[str, Scores]] | None:
    """What is drawn, and the scores of each policy; None if that is seeds, and the policies have none in common."""
    every = [one for found in policies.values() for one in found]
    if len({one.trace for one in every}) >= effects.LEAST_LOGS:
        return "logs", {name: _by_log(found, is_whole=True) for name, found in policies.items()}
    if min(one.weeks for one in every) >= effects.LEAST_WEEKS:
        return "blocks of weeks", {name: _by_log(found, is_whole=False) for name, found in policies.items()}
    seeds = effects.common_seeds(every)
    if not all(set(seeds) <= set(one.seeds) for one in every):  # no seed is common to all
        return None
    return "seeds", {name: _by_seed(found, seeds) for name, found in policies.items()}


def _by_log(found: Sequence[Sums], is_whole: bool) -> Scores:
    """Of each log as a whole, or of each of its blocks of weeks."""
    of_logs = []
    for log in effects.by_log(found):
        of_log = [_means([column.sum(0) for column in _columns(found[at])], is_whole) for at in log]
        of_logs.append(np.mean(of_log, axis=0))
    value, base = np.concatenate(of_logs, axis=1)
    return value, base


def _by_seed(found: Sequence[Sums], seeds: Sequence[int]) -> Scores:
    of_logs = []
    for log in effects.by_log(found):
        of_log = []
        for one in (found[at] for at in log):
            rows = [one.seeds.index(seed) for seed in seeds]
            of_log.append(_means([column[rows].sum(1) for column in _columns(one)], False))
        of_logs.append(np.mean(of_log, axis=0))
    value, base = np.mean(of_logs, axis=0)
    return value, base


def _columns(one: Sums) -> tuple[Float64s, Float64s, Float64s]:
    return one.value, one.base, one.jobs


def _means(sums: Sequence[Float64s], is_whole: bool) -> Float64s:
    value, base, jobs = (column.sum(keepdims=True) for column in sums) if is_whole else sums
    return np.asarray(np.log([value / jobs, base / jobs]), np.float64)


def _ranked(values: Float64s) -> Float64s:
    """1 for the lowest; equal ones share the mean of their ranks."""
    below = (values[:, None] > values).sum(1)
    return np.asarray(below + ((values[:, None] == values).sum(1) + 1) / 2, np.float64)


def critical_difference(policies: int, draws: int) -> float:
    """At 5 %, for two or more policies."""
    return studentized_range(policies) / math.sqrt(2) * math.sqrt(policies * (policies + 1) / (6 * draws))


def studentized_range(values: int) -> float:
    """What the range of so many independent standard normal values exceeds in 5 of 100 cases.

    P(range <= q) = k * integral of f(z) (F(z + q) - F(z))^(k - 1) over the lowest z (David and Nagaraja, Order
    Statistics, 2.3), summed in steps of 0.01 and solved by bisection.
    """
    z = np.arange(-8.0, 8.0, 0.01)
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    below = np.cumsum(density) * 0.01 - density * 0.005
    low, high = 0.0, 8.0
    while high - low > 1e-5:
        q = (low + high) / 2
        above = np.interp(z + q, z, below, right=1.0) - below
        is_below = values * float((density * above ** (values - 1)).sum()) * 0.01 < 0.95
        low, high = (q, high) if is_below else (low, q)
    return high

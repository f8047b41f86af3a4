"""Waiting jobs, window by window: who shares a GPU with whom, why, and what it saves.

The first W jobs of the queue are matched, then the next W. A pair of which both speeds were measured counts with these.
Another one counts as a trial (``pair_savings``), and only if the memory of both jobs is known and fits into the card:
memory is a hard limit, and nothing but a measurement or the jobs' own figures says that two fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent.sharing.completion import completed, partners_to_measure, prediction_error
from cluster_agent.sharing.gpu_jobs import GpuJob
from cluster_agent.sharing.matching import matched
from cluster_agent.sharing.pair_savings import Savings, savings
from cluster_agent.sharing.pair_table import PairTable, Variant

Float64s = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

LEAST_CHANCE: Final = 0.05
"""Of a trial to succeed; less is not tried. Chosen on the V100, where less gains nothing (``benchmarks/gpu_pairs.py``).
"""


class Rules(msgspec.Struct, frozen=True):
    """``floor``: the least speed of a job, as a share of its speed alone. ``card_gib``: NaN, not known."""

    floor: float = 0.7
    window: int = 12
    card_gib: float = math.nan
    least_chance: float = LEAST_CHANCE


class SharedGpu(msgspec.Struct, frozen=True):
    """Two jobs that share a GPU, or one that has it alone. ``speeds``: of each, as a share of its speed alone.
    ``saved_h``: GPU hours, on average. ``is_trial``: its speeds are predicted, and ``chance`` is how likely it keeps
    its floors."""

    window: int
    jobs: tuple[str, ...]
    applications: tuple[str, ...]
    speeds: tuple[float, ...]
    hours: float
    saved_h: float
    is_trial: bool
    chance: float
    why: str


class _Window(msgspec.Struct, frozen=True):
    """Jobs that are matched with each other; arrays are (W, W). ``pairs``: speeds, 0 where memory forbids."""

    number: int
    jobs: Sequence[GpuJob]
    speed: Float64s
    is_predicted: Bools
    pairs: Float64s
    saved: Savings


class _Known(msgspec.Struct, frozen=True):
    """What is known of pairs, (n, n) by variant; ``error``: of those speeds that are predicted."""

    at: dict[Variant, int]
    speed: Float64s
    is_predicted: Bools
    error: float


def shared(table: PairTable, jobs: Sequence[GpuJob], rules: Rules) -> list[SharedGpu]:
    """All jobs, in the order of the queue by the first of each GPU. ``WrongUseError`` if a window is too long."""
    speed, is_predicted = completed(table.speed, table.variants)
    error = prediction_error(table.speed, table.variants) if is_predicted.any() else 0.0
    known = _Known({one: index for index, one in enumerate(table.variants)}, speed, is_predicted, error)
    found: list[SharedGpu] = []
    for number, begin in enumerate(range(0, len(jobs), rules.window), 1):
        window = _window(number, jobs[begin : begin + rules.window], known, rules)
        for i, j in enumerate(matched(window.saved.hours).tolist()):
            if i < j:
                found.append(_together(window, i, j))
            elif i == j:
                found.append(_alone(window, i, table, rules))
    return found


def _window(number: int, jobs: Sequence[GpuJob], known: _Known, rules: Rules) -> _Window:
    rows = np.array([known.at.get(job.variant, -1) for job in jobs])
    is_known = (rows >= 0)[:, None] & (rows >= 0)
    here = np.where(is_known, known.speed[np.ix_(rows, rows)], math.nan)
    predicted = known.is_predicted[np.ix_(rows, rows)] & is_known
    predicted |= predicted.T
    memory_gib = np.array([job.memory_gib for job in jobs])
    both_gib = memory_gib[:, None] + memory_gib
    fits = np.where(predicted, both_gib <= rules.card_gib, ~(both_gib > rules.card_gib))  # False for NaN
    pairs = np.where(fits, np.nan_to_num(here), 0.0)
    np.fill_diagonal(pairs, 0.0)  # a job is no partner of its own
    floor = np.array([rules.floor if math.isnan(job.floor) else job.floor for job in jobs])
    hours = np.array([job.hours for job in jobs])
    saved = savings(pairs, np.where(predicted, known.error, 0.0), hours, floor)
    saved = Savings(np.where(saved.chance < rules.least_chance, 0.0, saved.hours), saved.chance)
    return _Window(number, jobs, here, predicted, pairs, saved)


def _together(window: _Window, i: int, j: int) -> SharedGpu:
    chance, two = float(window.saved.chance[i, j]), (window.jobs[i], window.jobs[j])
    trial = bool(window.is_predicted[i, j])
    return SharedGpu(
        window.number,
        tuple(job.job for job in two),
        tuple(str(job.variant) for job in two),
        (float(window.speed[i, j]), float(window.speed[j, i])),
        sum(job.hours for job in two),
        float(window.saved.hours[i, j]),
        trial,
        chance,
        f"a trial: predicted, keeps its floors with a chance of {100 * chance:.0f} %" if trial else "measured",
    )


def _alone(window: _Window, i: int, table: PairTable, rules: Rules) -> SharedGpu:
    job = window.jobs[i]
    why = _why_alone(window, i, table, rules)
    return SharedGpu(
        window.number, (job.job,), (str(job.variant),), (1.0,), job.hours, 0.0, False, 1.0, f"alone: {why}"
    )


def _why_alone(window: _Window, i: int, table: PairTable, rules: Rules) -> str:
    job, others = window.jobs[i], np.arange(len(window.jobs)) != i
    if job.floor > 1:
        return "exclusive"
    if job.variant not in table.variants or not np.isfinite(table.speed[_row(table, job)]).any():
        return f"never measured; {_advice(table)}"
    if (window.saved.hours[i] > 0).any():
        return "its partners save more with others"
    if not np.isfinite(window.speed[i][others]).any():
        return (
            f"not measured with these jobs, nor with enough others; {_advice(table)}"
            if others.any()
            else "no other job"
        )
    if ((window.pairs[i] == 0) & (window.speed[i] > 0) & others).any() and not (window.pairs[i] > 0).any():
        return "memory: not known, or too little for two"
    return "no job of its window keeps both floors and saves time"


def _row(table: PairTable, job: GpuJob) -> int:
    return table.variants.index(job.variant)


def _advice(table: PairTable) -> str:
    best = partners_to_measure(table.speed, 1)[0]
    names = [str(table.variants[at]) for at in best]
    return f"measure it next to {', '.join(names)}" if names else "measure it next to three others"

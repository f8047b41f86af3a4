"""How much a policy changes against the baseline, and how sure that is.

Two replays of one condition (trace, machine, cap, loop) and one seed are compared job by job. Chance could have drawn
other seeds, other weeks of the log, or another log. The interval is over the widest of these of which there are enough:

    logs     5 or more: Student's t over logs. Each is one draw, with however many caps and seeds it was replayed
    weeks    24 or more of each log: they are put into 8 blocks of consecutive weeks, and the blocks are drawn with
             replacement (Künsch, Annals of Statistics 17(3), 1989). With 5 or more seeds, these are drawn too, crossed
             with the blocks (Owen, The pigeonhole bootstrap, Annals of Applied Statistics 1(2), 2007)
    seeds    5 or more: Student's t over seeds; other seeds, but the same log

Below these sizes there is no interval, and the text says why. Eight long blocks are better than many short ones: a week
with a long queue is followed by another, and blocks longer than that dependence, with Student's t for their small
number, have the truth more often (Ibragimov and Müller, Journal of Business & Economic Statistics 28(4), 2010). The
bootstrap gives the standard error and t its factor: the 2.5 and 97.5 % points of the resamples are too close together.
How often the intervals have the truth is counted (docs/notes/intervals.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from cluster_agent.scheduler.job_columns import Float64s, Int64s
from foundation.student import mean_interval, student_t

LEAST_LOGS: Final = 5
LEAST_WEEKS: Final = 24
LEAST_SEEDS: Final = 5
BLOCKS: Final = 8
RESAMPLES: Final = 1000
SEED: Final = 1
"""Ours."""
WEEK_S: Final = 7 * 86_400


class PerJob(NamedTuple):
    """A value of each job of a replay that was started."""

    job: Sequence[str]
    submit_s: Int64s
    value: Float64s


class Sums(msgspec.Struct, frozen=True):
    """What two policies have of the jobs that both started, in one condition: [seed, block of weeks]."""

    trace: str
    seeds: tuple[int, ...]  # one of them if nothing was drawn: then all are the same replay
    weeks: int
    value: Float64s
    base: Float64s
    jobs: Float64s


class Effect(msgspec.Struct, frozen=True):
    """An estimate and its 95 % interval; without one, ``over`` says why there is none."""

    value: float
    low: float | None
    high: float | None
    over: str

    def map(self, of: Callable[[float], float]) -> Effect:
        """Of all three values."""
        low, high = (None if one is None else of(one) for one in (self.low, self.high))
        return Effect(of(self.value), low, high, self.over)


Statistic = Callable[[Float64s, Float64s, Float64s], Float64s]
"""Of sums over jobs: the policy's, the baseline's, the number of jobs."""


def log_ratio(value: Float64s, base: Float64s, jobs: Float64s) -> Float64s:
    """Logarithm of mean by mean. Means over conditions are geometric ones: half and double cancel."""
    return np.asarray(np.log(value / base), np.float64)


def difference(value: Float64s, base: Float64s, jobs: Float64s) -> Float64s:
    """Mean less mean."""
    return np.asarray((value - base) / jobs, np.float64)


def sums(trace: str, pairs: Sequence[tuple[int, PerJob, PerJob]]) -> Sums | None:
    """Of (seed, replay, the baseline's replay); None if fewer than two jobs are in both of any."""
    seeds, weeks_of, rows = [], [], []
    for seed, run, base in pairs:
        mine, theirs = _common(run.job, base.job)
        if len(mine) < 2:
            continue
        submit_s = base.submit_s[theirs]
        seeds.append(seed)
        weeks_of.append((submit_s - submit_s.min()) // WEEK_S)
        rows.append((run.value[mine], base.value[theirs]))
    if not rows:
        return None
    weeks = np.unique(np.concatenate(weeks_of))
    blocks = np.arange(len(weeks)) * BLOCKS // len(weeks) if len(weeks) >= LEAST_WEEKS else np.zeros(len(weeks), int)
    shape = len(rows), int(blocks[-1]) + 1
    value, against, jobs = (np.zeros(shape) for _ in range(3))
    for at, (of_run, of_base) in enumerate(rows):
        block = blocks[np.searchsorted(weeks, weeks_of[at])]
        for into, weight in ((value, of_run), (against, of_base), (jobs, None)):
            into[at] = np.bincount(block, weight, shape[1])
    return drawn(Sums(trace, tuple(seeds), len(weeks), value, against, jobs))


def drawn(one: Sums) -> Sums:
    """With one seed if all of them gave the same: then nothing was drawn, and they are one replay."""
    if not all((column == column[0]).all() for column in (one.value, one.base)):
        return one
    return Sums(one.trace, one.seeds[:1], one.weeks, one.value[:1], one.base[:1], one.jobs[:1])


def _common(jobs: Sequence[str], base: Sequence[str]) -> tuple[Int64s, Int64s]:
    """Where the jobs of both are in the one and in the other, in order of the latter."""
    if list(jobs) == list(base):
        return np.arange(len(base)), np.arange(len(base))
    at = {job: i for i, job in enumerate(jobs)}
    found = np.array([(at[job], i) for i, job in enumerate(base) if job in at], np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def effect(conditions: Sequence[Sums], statistic: Statistic) -> Effect:
    """The mean over logs of the mean over each log's conditions."""
    logs = by_log(conditions)
    whole = [float(statistic(*(column.sum() for column in (one.value, one.base, one.jobs)))) for one in conditions]
    value = _mean(logs, whole)
    seeds, fewest = common_seeds(conditions), min(one.weeks for one in conditions)
    if len(logs) >= LEAST_LOGS:
        return _interval(value, mean_interval([_mean([log], whole) for log in logs])[1], f"{len(logs)} logs")
    if fewest >= LEAST_WEEKS:
        is_crossed = len(seeds) >= LEAST_SEEDS
        draws = min(BLOCKS, len(seeds)) if is_crossed else BLOCKS
        half = student_t(draws - 1) * math.sqrt(draws / (draws - 1)) * _scatter(conditions, statistic, is_crossed)
        weeks = sum(max(conditions[at].weeks for at in log) for log in logs)
        return _interval(value, half, f"{weeks} weeks" + (f" and {len(seeds)} seeds" if is_crossed else ""))
    if len(seeds) >= LEAST_SEEDS:
        means = [_mean(logs, [_of_seed(one, seed, statistic) for one in conditions]) for seed in seeds]
        return _interval(value, mean_interval(means)[1], f"{len(seeds)} seeds")
    return Effect(value, None, None, _too_few(len(logs), fewest, len(seeds)))


def by_log(conditions: Sequence[Sums]) -> list[list[int]]:
    """Which of the conditions are of the same log."""
    found: dict[str, list[int]] = {}
    for at, one in enumerate(conditions):
        found.setdefault(one.trace, []).append(at)
    return list(found.values())


def common_seeds(conditions: Sequence[Sums]) -> list[int]:
    """Those with which every condition was replayed; one where nothing is drawn."""
    return sorted(set[int].intersection(*(set(one.seeds) for one in conditions))) or [0]


def _mean(logs: Sequence[Sequence[int]], values: Sequence[float]) -> float:
    return float(np.mean([np.mean([values[at] for at in log]) for log in logs]))


def _of_seed(one: Sums, seed: int, statistic: Statistic) -> float:
    at = one.seeds.index(seed)
    return float(statistic(one.value[at].sum(), one.base[at].sum(), one.jobs[at].sum()))


def _scatter(conditions: Sequence[Sums], statistic: Statistic, is_crossed: bool) -> float:
    """The standard deviation of the effect over resamples. Conditions of one log get the same weeks, and those with as
    many seeds the same seeds: they are replays of the same draws."""
    draw = np.random.default_rng(SEED).multinomial
    seeds: dict[int, Float64s] = {}
    of_logs = []
    for log in by_log(conditions):
        blocks = draw(BLOCKS, [1 / BLOCKS] * BLOCKS, RESAMPLES)
        of_log = []
        for one in (conditions[at] for at in log):
            n = len(one.seeds)
            if n not in seeds:
                drawn_seeds = draw(n, [1 / n] * n, RESAMPLES) if is_crossed else np.ones((RESAMPLES, n))
                seeds[n] = np.asarray(drawn_seeds, np.float64)
            columns = (((seeds[n] @ column) * blocks).sum(1) for column in (one.value, one.base, one.jobs))
            of_log.append(statistic(*columns))
        of_logs.append(np.mean(of_log, axis=0))
    return float(np.std(np.mean(of_logs, axis=0), ddof=1))


def _interval(value: float, half: float, over: str) -> Effect:
    return Effect(value, value - half, value + half, f"over {over}")


def _too_few(logs: int, weeks: int, seeds: int) -> str:
    have = [f"{n} {what}{'' if n == 1 else 's'}" for n, what in ((logs, "log"), (weeks, "week"), (seeds, "seed"))]
    least = f"{LEAST_LOGS} logs, {LEAST_WEEKS} weeks of each log or {LEAST_SEEDS} seeds that differ"
    return f"none, from {', '.join(have)}: it takes {least}"

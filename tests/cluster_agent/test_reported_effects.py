"""The statistics of a report next to values worked out by hand, and how often its intervals have the truth."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from cluster_agent.reports.effects import WEEK_S, Effect, PerJob, Sums, difference, effect, log_ratio, sums
from cluster_agent.reports.ranks import critical_difference, ranks, studentized_range
from cluster_agent.scheduler.job_columns import Float64s


def jobs(names: str, values: Sequence[float], week: Sequence[int] | None = None) -> PerJob:
    weeks = np.array(week or [0] * len(values), np.int64)
    return PerJob(names.split(), weeks * WEEK_S, np.array(values, np.float64))


def table(
    value: Sequence[Sequence[float]], base: Sequence[Sequence[float]], trace: str = "log", weeks: int = 1
) -> Sums:
    """A job for each value."""
    made, against = np.array(value, np.float64), np.array(base, np.float64)
    return Sums(trace, tuple(range(len(made))), weeks, made, against, np.ones_like(made))


def test_paired_sums_are_over_the_jobs_of_both() -> None:
    found = sums("log", [(3, jobs("a b x", [5, 1, 9]), jobs("b a y", [1, 2, 0]))])
    assert found is not None
    assert (found.value.tolist(), found.base.tolist(), found.jobs.tolist()) == ([[6.0]], [[3.0]], [[2.0]])
    assert effect([found], difference).value == 1.5  # (1 - 1 + 5 - 2) / 2
    assert effect([found], log_ratio).map(math.exp).value == pytest.approx(2.0)  # (5 + 1) / (1 + 2)
    assert sums("log", [(3, jobs("a x", [5, 1]), jobs("a y", [1, 2]))]) is None, "one job in both"


def test_weeks_are_put_into_eight_blocks_of_consecutive_ones_and_empty_weeks_do_not_count() -> None:
    weeks = [*range(16), *range(30, 46)]  # 32 with jobs
    names = " ".join(map(str, weeks))
    run, base = jobs(names, [1.0] * 32, weeks), jobs(names, [2.0] * 32, weeks)
    found = sums("log", [(0, run, base)])
    assert found is not None
    assert found.weeks == 32
    assert found.jobs.tolist() == [[4.0] * 8]
    short = sums("log", [(0, jobs(" ".join(map(str, weeks[:23])), [1.0] * 23, weeks[:23]), base)])
    assert short is not None and short.jobs.tolist() == [[23.0]]


def test_seeds_that_drew_nothing_are_one_replay() -> None:
    run, base = jobs("a b", [1, 2]), jobs("a b", [2, 2])
    found = sums("log", [(seed, run, base) for seed in range(10)])
    assert found is not None and found.seeds == (0,)
    assert effect([found], log_ratio).over.startswith("none, from 1 log, 1 week, 1 seed: it takes ")


def test_five_seeds_have_student_s_interval_of_their_log_ratios() -> None:
    ratios = [0.5, 0.8, 0.7, 0.9, 0.6]
    found = effect([table([[ratio] for ratio in ratios], [[1.0]] * 5)], log_ratio)
    logs = [math.log(ratio) for ratio in ratios]
    half = 2.7764 * statistics.stdev(logs) / math.sqrt(5)  # t of 4 degrees of freedom, 97.5 %
    middle = math.log(statistics.fmean(ratios))
    assert found.over == "over 5 seeds"
    assert (found.value, found.low, found.high) == pytest.approx((middle, middle - half, middle + half), rel=1e-3)
    few = effect([table([[ratio] for ratio in ratios[:4]], [[1.0]] * 4)], log_ratio)
    assert (few.low, few.high) == (None, None)
    assert few.over == "none, from 1 log, 1 week, 4 seeds: it takes 5 logs, 24 weeks of each log or 5 seeds that differ"


def test_half_and_double_cancel_over_conditions_and_a_log_counts_once_with_however_many_caps() -> None:
    both = [table([[1.0]], [[2.0]]), table([[2.0]], [[1.0]])]
    assert effect(both, log_ratio).value == pytest.approx(0.0)
    other = table([[4.0]], [[1.0]], "another log")
    assert math.exp(effect([*both, other], log_ratio).value) == pytest.approx(2.0)  # sqrt(1 * 4)
    logs = [table([[ratio]], [[1.0]], f"log {ratio}") for ratio in (1.0, 2.0, 4.0, 8.0, 16.0)]
    found = effect([*logs, *logs], log_ratio).map(math.exp)
    half = math.exp(2.7764 * math.log(2) * math.sqrt(2.5) / math.sqrt(5))  # the variance of 0 1 2 3 4 is 2.5
    assert found.over == "over 5 logs"
    assert (found.value, found.low, found.high) == pytest.approx((4, 4 / half, 4 * half), rel=1e-3)


def test_the_bootstrap_over_blocks_has_the_error_that_follows_from_drawing_them() -> None:
    """Of a mean it is known: the scatter of the blocks by the root of their number."""
    values = [1.0, 2.0, 4.0, 3.0, 8.0, 5.0, 7.0, 6.0]
    found = effect([table([values], [[0.0] * 8], weeks=24)], difference)
    half = 2.3646 * statistics.stdev(values) / math.sqrt(8)  # t of 7 degrees of freedom
    assert found.over == "over 24 weeks"
    assert found.value == 4.5
    assert found.high is not None and found.low is not None
    assert found.high - found.value == pytest.approx(half, rel=0.05)  # 1000 resamples
    assert found.value - found.low == pytest.approx(found.high - found.value)


def test_conditions_of_one_log_are_replays_of_the_same_weeks() -> None:
    """So the interval of two that are alike is no narrower than that of one; of another log it is."""
    values = [[1.0, 2.0, 4.0, 3.0, 8.0, 5.0, 7.0, 6.0]]
    one = table(values, [[1.0] * 8], weeks=24)
    other = table(values, [[1.0] * 8], "another log", weeks=24)
    alone, twice, two_logs = (effect(each, difference) for each in ([one], [one, one], [one, other]))
    assert twice == alone
    assert alone.high is not None and two_logs.high is not None
    assert (two_logs.high - 3.5) / (alone.high - 3.5) == pytest.approx(math.sqrt(0.5), rel=0.1)


def test_seeds_that_differ_as_a_whole_widen_the_interval_over_weeks() -> None:
    draw = np.random.default_rng(3)
    weeks = draw.lognormal(0, 0.2, (1, 8))
    alike = table((weeks * draw.lognormal(0, 0.01, (6, 1))).tolist(), [[1.0] * 8] * 6, weeks=40)
    apart = table((weeks * draw.lognormal(0, 0.8, (6, 1))).tolist(), [[1.0] * 8] * 6, weeks=40)
    narrow, wide = (effect([one], log_ratio) for one in (alike, apart))
    assert narrow.over == wide.over == "over 40 weeks and 6 seeds"
    assert width(wide) > 2 * width(narrow)


def width(one: Effect) -> float:
    assert one.low is not None and one.high is not None
    return one.high - one.low


def share_covered(draws: int, weeks: int, seeds: int, seed: int) -> float:
    """How often the interval has the truth, -0.2 in the logarithm, of made-up weeks with heavy tails, each a third like
    the one before. What the number of blocks was chosen on is another population (docs/notes/intervals.md)."""
    draw = np.random.default_rng(seed)

    def autocorrelated(scatter: float) -> Float64s:
        noise = draw.normal(size=weeks)
        for at in range(1, weeks):
            noise[at] = 0.3 * noise[at - 1] + math.sqrt(1 - 0.09) * noise[at]
        return scatter * noise

    of_seeds = 0.1 if seeds > 1 else 0.0
    covered = 0
    blocks = np.arange(weeks) * 8 // weeks
    for _ in range(draws):
        base = np.exp(autocorrelated(0.5))
        ratios = np.exp(-0.2 + autocorrelated(0.2)) * draw.lognormal(-(of_seeds**2) / 2, of_seeds, (seeds, 1))
        value = np.array([np.bincount(blocks, row) for row in base * ratios * math.exp(-0.02)])
        against = np.tile(np.bincount(blocks, base), (seeds, 1))
        found = effect([Sums("log", tuple(range(seeds)), weeks, value, against, np.ones_like(value))], log_ratio)
        assert found.low is not None and found.high is not None
        covered += found.low <= -0.2 <= found.high
    return covered / draws


@pytest.mark.parametrize(("weeks", "seeds", "least"), [(24, 1, 0.88), (48, 1, 0.91), (48, 6, 0.91)])
def test_intervals_over_weeks_have_the_truth_about_as_often_as_they_say(weeks: int, seeds: int, least: float) -> None:
    """Of 24 weeks that depend on each other they have it in some 91 of 100 cases, and the page says so."""
    assert least <= share_covered(300, weeks, seeds, 11) <= 0.985


def test_the_studentized_range_is_that_of_published_tables() -> None:
    """Demsar, JMLR 7 (2006), Table 5a: the range by the root of two, for 2 to 10 policies."""
    published = [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]
    found = [studentized_range(k) / math.sqrt(2) for k in range(2, 11)]
    assert found == pytest.approx(published, abs=0.0011)
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.01)  # his example, 3.2.4


def test_equal_policies_share_ranks_and_the_lowest_mean_is_first() -> None:
    seeds = [1.0, 1.1, 1.2, 1.3, 1.4]

    def policy(factor: float) -> list[Sums]:
        return [table([[factor * one] for one in seeds], [[one] for one in seeds])]

    found = ranks({"half": policy(0.5), "same": policy(1.0), "double": policy(2.0)}, "base")
    assert found is not None
    assert list(found.mean.items()) == [("half", 1.0), ("base", 2.5), ("same", 2.5), ("double", 4.0)]
    assert (found.draws, found.over) == (5, "seeds")
    assert found.critical == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 5)), abs=0.002)
    assert ranks({"half": [table([[0.5]], [[1.0]])]}, "base") is None, "one draw"


def test_policies_without_a_seed_in_common_have_no_ranks() -> None:
    one = table([[value] for value in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)], [[1.0]] * 6)
    earlier = msgspec.structs.replace(one, seeds=(1, 2, 3, 4, 5, 6))
    later = msgspec.structs.replace(one, seeds=(7, 8, 9, 10, 11, 12))
    assert ranks({"earlier": [earlier], "later": [later]}, "base") is None
    assert ranks({"earlier": [earlier], "again": [earlier]}, "base") is not None


def test_ranks_of_policies_that_do_not_differ_are_told_apart_in_one_case_of_twenty() -> None:
    draw = np.random.default_rng(5)
    apart = 0
    for _ in range(200):
        values = draw.lognormal(0, 0.3, (4, 8, 1))
        policies = {str(at): [table(values[at].tolist(), values[0].tolist())] for at in (1, 2, 3)}
        found = ranks(policies, "0")
        assert found is not None
        apart += any(abs(one - two) > found.critical for one, two in itertools.combinations(found.mean.values(), 2))
    assert 0.01 <= apart / 200 <= 0.08

"""What is said of a job's power, and of the partition's, before it is known: expected watts, bands, hours ahead."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from cluster_agent.prediction.bands import Bands
from cluster_agent.prediction.evaluation import LoggedJob, evaluate
from cluster_agent.prediction.job_power import PowerPredictor, Submission
from cluster_agent.prediction.on_line import OnLinePower
from cluster_agent.prediction.system_forecast import EVERY_S, Looks, Runs, _Size, forecasts, kept

TDP_W = 400.0


def request(user: str = "ada", units: int = 1) -> Submission:
    return Submission(user, "cfd", units, 16 * units, 0, 0, units << 20, 3600)


def jobs_of(count: int, seed: int = 3, users: int = 4, drift: float = 0.0) -> list[LoggedJob]:
    """Jobs every 30 s that run for 10 to 50 minutes; most draw about 100 W, one of five three times as much, and what
    a user's jobs draw grows by ``drift`` over the log."""
    random, found = np.random.default_rng(seed), []
    for at in range(count):
        watts = float(
            (300.0 if random.random() < 0.2 else 100.0) * random.lognormal(0.0, 0.1) * (1 + drift * at / count)
        )
        start_s = 30.0 * at
        run_s = float(random.uniform(600.0, 3000.0))
        found.append(LoggedJob(start_s, start_s, start_s + run_s, request(f"user{at % users}"), watts, 1.2 * watts))
    return found


def test_what_is_expected_is_the_mean_and_what_is_typical_is_below_it() -> None:
    power = PowerPredictor(lambda job: TDP_W)
    for watts in (100.0, 100.0, 100.0, 400.0):
        power.learn(request(), watts)
    found = power.predict(request(units=2))
    assert found.expected_w == pytest.approx(2 * 175.0, rel=0.05)
    assert found.typical_w == pytest.approx(2 * 141.4, rel=0.05)
    assert (found.origin, found.similar, found.maximum_w) == ("user", 4, 800.0)


def test_expected_watts_add_up_and_typical_ones_do_not() -> None:
    found = evaluate(OnLinePower(lambda job: TDP_W), jobs_of(3000))
    assert abs(found.expected_sum.mean_pct) < 3.0
    assert found.typical_sum.mean_pct < -8.0
    assert found.metered_sum.absolute_pct < 0.5 * found.expected_sum.absolute_pct
    assert found.average.median_pct < found.average.mape_pct  # the tail


@pytest.mark.parametrize("drift", (0.0, 1.5))
def test_nine_of_ten_jobs_are_within_their_bands_also_while_users_change(drift: float) -> None:
    found = evaluate(OnLinePower(lambda job: TDP_W), jobs_of(3000, drift=drift))
    assert found.coverage[0].user == "all" and found.without_band == 0
    assert 0.88 <= found.coverage[0].share <= 0.92
    assert len(found.coverage) == 5


def test_what_is_expected_follows_a_burst_of_jobs_of_one_request_and_what_is_typical_does_not() -> None:
    power, plain = OnLinePower(lambda job: TDP_W), PowerPredictor(lambda job: TDP_W)
    for at in range(53):
        watts = 100.0 if at < 50 else 200.0
        power.predict(at, request())
        power.learn(at, request(), watts)
        plain.learn(request(), watts)
    found, neighbours = power.predict(99, request()), plain.predict(request())
    assert found.expected_w > 1.2 * neighbours.expected_w, "three of the last five were twice as hungry"
    assert found.typical_w == neighbours.typical_w
    other = msgspec.structs.replace(request(), request_s=3599)
    assert power.predict(100, other).expected_w == plain.predict(other).expected_w, "nothing is known of that walltime"


@pytest.mark.parametrize("tdp_w", [float("nan"), 4000.0])
def test_the_power_limit_that_a_first_job_was_predicted_by_corrects_none_after_it(tdp_w: float) -> None:
    power = OnLinePower(lambda job: tdp_w)
    for at in range(2):
        assert power.predict(at, request()).expected_w == pytest.approx((tdp_w, 300.0)[at], nan_ok=True)
        power.learn(at, request(), 300.0)


def test_until_a_users_own_jobs_say_something_those_of_all_do_and_before_that_nothing() -> None:
    bands = Bands()
    for at in range(18):
        bands.learn("ada", "user", 1.0 + at / 100, None)
    assert bands.of("ada", "user") is None
    bands.learn("ada", "user", 1.2, None)
    own, others = bands.of("ada", "user"), bands.of("bob", "user")
    assert own is not None and (own.low, own.high, own.key) == (1.0, 1.2, ("ada", "user"))
    assert others is not None and others.key == (None, "user")
    assert bands.of("bob", "TDP") is None


def test_a_user_with_one_job_and_names_of_any_length_and_script_are_predicted() -> None:
    power = OnLinePower(lambda job: TDP_W)
    for name in ("x" * 10_000, "计算流体力学", "\0", ""):
        one = Submission("ada", name, 1, 1, 0, 0, 0, 0)
        power.learn(name, one, 100.0)
        assert power.predict(name, one).expected_w == pytest.approx(100.0)


def test_jobs_are_predicted_from_what_had_ended_by_their_submission_alone() -> None:
    first = LoggedJob(0.0, 0.0, 100.0, request(), 100.0)
    early, late = (LoggedJob(at_s, at_s, 200.0, request(), 100.0) for at_s in (99.0, 100.0))
    found = evaluate(OnLinePower(lambda job: TDP_W), [first, early, late], 0.0)
    assert found.origins == {"TDP": 2, "user": 1}
    assert found.without_band == 3 and found.coverage == []


def day_of_jobs(days: int, seed: int = 5) -> Runs:
    """More jobs by day than at night, of 10 minutes to 4 hours, as columns."""
    random, start_s, now_s = np.random.default_rng(seed), list[float](), 0.0
    while now_s < 86_400 * days:
        now_s += random.exponential(400.0 if (now_s // 43_200) % 2 else 150.0)
        start_s.append(now_s)
    starts = np.array(start_s)
    request_s = random.choice([3600.0, 14_400.0], len(starts))
    watts = random.lognormal(5.0, 0.5, len(starts))
    ends = starts + np.maximum(request_s * random.uniform(0.1, 1.0, len(starts)), 60.0)
    return Runs(starts, starts, ends, request_s, watts, np.full(len(starts), float(watts.mean())))


def test_bands_of_the_hours_to_come_include_jobs_that_nobody_has_submitted_yet() -> None:
    runs = day_of_jobs(12)
    found = forecasts(runs, 0.0, 86_400.0 * 12, [3600.0, 10_800.0])
    for one in kept(found, 86_400.0 * 4):
        assert 0.87 <= one.within <= 0.93
        assert one.error_pct < one.unchanged_pct
    last = found[-2:]
    assert [one.at_s - one.made_s for one in last] == [3600.0, 10_800.0]
    assert last[0].lasting_w > last[1].lasting_w > 0 and last[0].seen_w is None


def test_bands_of_calm_days_are_not_as_wide_as_those_of_the_wild_days_before() -> None:
    random, looks = np.random.default_rng(2), Looks([EVERY_S], 1000.0)
    wild, calm = 4 * 96, 8 * 96
    seen_w = 1000.0 + random.normal(0.0, np.where(np.arange(calm) < wild, 200.0, 20.0))
    said = [looks.look(at, EVERY_S * at, watts, 0.0, [0.0])[0] for at, watts in enumerate(seen_w.tolist())]
    widths = [one.high_w - one.low_w for one in said if one.low_w is not None and one.high_w is not None]
    assert np.mean(widths[-96:]) < 0.2 * np.mean(widths[wild - 96 : wild])
    rows = [replace(one, seen_w=then) for one, then in zip(said[:-1], seen_w[1:].tolist(), strict=True)]
    (found,) = kept(rows, EVERY_S * (wild + 96))
    assert 0.85 <= found.within <= 0.97


def test_one_absurd_error_is_over_soon() -> None:
    size = _Size()
    for error in [0.1] * 96 + [1e300, float("nan")]:
        size.learn(error)
    assert size() < 0.2
    for _ in range(192):
        size.learn(0.1)
    assert size() == pytest.approx(0.1, rel=0.1)


def test_a_forecast_knows_nothing_that_happened_after_it() -> None:
    runs = day_of_jobs(4)
    until_s = 86_400.0 * 3
    known = runs.start_s <= until_s
    ended_s = np.where(runs.end_s <= until_s, runs.end_s, np.inf)
    columns = (runs.submit_s, runs.start_s, ended_s, runs.request_s, runs.watts, runs.expected_w)
    submit_s, start_s, end_s, request_s, watts, expected_w = (column[known] for column in columns)
    cut = Runs(submit_s, start_s, end_s, request_s, watts, expected_w)
    whole = [one for one in forecasts(runs, 0.0, 86_400.0 * 4, [4 * EVERY_S]) if one.made_s == until_s]
    alone = forecasts(cut, 0.0, until_s, [4 * EVERY_S])[-1]
    assert whole[0].lasting_w == pytest.approx(alone.lasting_w)
    assert whole[0].expected_w == pytest.approx(alone.expected_w, rel=0.02)  # up to the unit of the fit


def test_an_empty_partition_is_forecast_too() -> None:
    nothing = np.array([])
    found = forecasts(Runs(nothing, nothing, nothing, nothing, nothing, nothing), 0.0, 86_400.0, [3600.0])
    assert found[-1].expected_w == 0.0 and found[-1].high_w == 0.0

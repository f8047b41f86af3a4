"""Jobs that share a GPU: the matching is exact, floors and memory are kept, unknown speeds are predicted, the command
says what is wrong with a table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.cli import main
from cluster_agent.errors import WrongUseError
from cluster_agent.sharing.completion import PARTNERS, completed, partners_to_measure, prediction_error
from cluster_agent.sharing.gpu_jobs import EXCLUSIVE, GpuJob
from cluster_agent.sharing.matching import MOST_JOBS, matched
from cluster_agent.sharing.pair_savings import TRIAL_H, saved_hours, savings
from cluster_agent.sharing.pair_table import PairTable, Variant, read_pairs
from cluster_agent.sharing.pair_windows import Rules, shared
from tests.recorded import RECORDED, needs_recorded

SAMPLES = Path(__file__).parents[2] / "cluster_agent" / "samples"
PAIRS, JOBS = SAMPLES / "gpu-pairs-v100.csv", SAMPLES / "gpu-jobs.csv"
REAL = RECORDED / "gpu-pairs" / "gpu-pairs.csv"
HEADER = "application,batch_size,partner,partner_batch_size,steps_per_s,partner_steps_per_s"

Float64s = npt.NDArray[np.float64]


def matchings(jobs: list[int]) -> Iterator[list[tuple[int, int]]]:
    if not jobs:
        yield []
        return
    first, *rest = jobs
    yield from matchings(rest)
    for other in rest:
        yield from ([(first, other), *more] for more in matchings([job for job in rest if job != other]))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_no_matching_of_a_window_saves_more_than_the_one_that_is_found(jobs: int, seed: int) -> None:
    saved = np.random.default_rng(seed).normal(0.2, 0.5, (jobs, jobs)).round(1)  # rounded: with ties
    saved = np.maximum(saved, saved.T)
    partner = matched(saved)
    assert [partner[partner[at]] for at in range(jobs)] == list(range(jobs))
    found = sum(saved[at, partner[at]] for at in range(jobs) if partner[at] > at)
    best = max(sum(saved[pair] for pair in pairs) for pairs in matchings(list(range(jobs))))
    assert found == pytest.approx(best)
    assert all(saved[at, partner[at]] > 0 for at in range(jobs) if partner[at] != at)


def test_windows_are_matched_together_as_they_are_one_by_one_and_too_long_ones_are_refused() -> None:
    saved = np.random.default_rng(1).normal(0, 1, (5, 8, 8))
    saved += saved.transpose(0, 2, 1)
    assert [row.tolist() for row in matched(saved)] == [matched(one).tolist() for one in saved]
    with pytest.raises(WrongUseError, match=r"17 jobs: at most 16 are matched at once"):
        matched(np.zeros((MOST_JOBS + 1, MOST_JOBS + 1)))


def test_a_pair_saves_the_hours_that_it_needs_less_than_one_after_the_other() -> None:
    speed = np.array([[1.0, 0.8], [0.5, 1.0]])
    hours = np.array([2.0, 1.0])
    together_h = 1.0 / 0.5  # until the second has ended, the first has done 1.6 of its 2 hours
    assert saved_hours(speed, speed.T, hours)[0, 1] == pytest.approx(3 - (together_h + 2 - 0.8 * together_h))


def test_a_trial_counts_with_what_it_saves_if_it_succeeds_and_costs_if_it_fails() -> None:
    speed, none = np.array([[0.0, 0.7], [0.7, 0.0]]), np.zeros((2, 2))
    ones = np.ones(2)
    sure = savings(speed, none, ones, 0.6 * ones)
    assert sure.chance[0, 1] == 1.0 and sure.hours[0, 1] == pytest.approx(2 - 1 / 0.7)
    assert savings(speed, none, ones, 0.8 * ones).hours[0, 1] == pytest.approx(-TRIAL_H)
    drawn = np.random.default_rng(0).normal(0.7, 0.1, (2, 200_000)).clip(0, 1)
    good = (drawn >= 0.65).all(0)
    mean = np.where(good, 2 - 1 / drawn.max(0) - 1 + drawn.min(0) / drawn.max(0), -TRIAL_H).mean()
    trial = savings(speed, np.full((2, 2), 0.1), ones, 0.65 * ones)
    assert trial.chance[0, 1] == pytest.approx(good.mean(), abs=0.08)
    assert trial.hours[0, 1] == pytest.approx(mean, abs=0.05)


def real_like(random: np.random.Generator, applications: int, sizes: int) -> PairTable:
    """Speeds of a model with sensitivity and pressure, and a little noise."""
    names = tuple(Variant(f"app{a}", str(2**s)) for a in range(applications) for s in range(1, sizes + 1))
    suffers, presses = random.uniform(0.1, 0.6, (2, len(names)))
    speed = 1 - np.outer(suffers, presses) - 0.2 * presses + random.normal(0, 0.01, (len(names), len(names)))
    return PairTable("drawn", names, speed.clip(0.05, 1))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.5, 0.7, 0.9]))
def test_no_job_of_a_measured_pair_is_below_its_floor_and_no_two_need_more_than_the_card(
    seed: int, floor: float
) -> None:
    random = np.random.default_rng(seed)
    table = real_like(random, 4, 2)
    own = [math.nan, 0.0, EXCLUSIVE]
    jobs = [
        GpuJob(str(n), table.variants[random.integers(8)], random.uniform(0.1, 9), random.uniform(1, 9), own[n % 3])
        for n in range(12)
    ]
    by_name = {job.job: job for job in jobs}
    found = shared(table, jobs, Rules(floor, 6, 10.0))
    assert sorted(name for one in found for name in one.jobs) == sorted(by_name)
    for one in found:
        if len(one.jobs) == 2:
            two = [by_name[name] for name in one.jobs]
            floors = [floor if math.isnan(job.floor) else job.floor for job in two]
            assert all(speed >= least for speed, least in zip(one.speeds, floors, strict=True))
            assert sum(job.memory_gib for job in two) <= 10
            assert one.saved_h > 0
        else:
            assert one.saved_h == 0 and one.why.startswith("alone: ")


def hidden(table: PairTable, application: str) -> tuple[PairTable, npt.NDArray[np.bool_]]:
    """Only three measured partners of each variant of this application are left."""
    is_new = np.array([one.application == application for one in table.variants])
    known, new = np.flatnonzero(~is_new), np.flatnonzero(is_new)
    speed = table.speed.copy()
    speed[is_new] = speed[:, is_new] = math.nan
    for one, turn in zip(new, partners_to_measure(table.speed[np.ix_(known, known)], len(new)), strict=True):
        assert len(set(turn)) == PARTNERS
        speed[one, known[turn]], speed[known[turn], one] = table.speed[one, known[turn]], table.speed[known[turn], one]
    return PairTable(table.gpu, table.variants, speed), np.isnan(speed)


def test_three_measured_partners_predict_the_speeds_of_an_application_of_the_same_kind() -> None:
    table = real_like(np.random.default_rng(3), 6, 2)
    given_, unknown = hidden(table, "app5")
    speed, predicted = completed(given_.speed, table.variants)
    assert (predicted == unknown).all() and not np.isnan(speed).any()
    error = np.abs(speed - table.speed)[unknown]
    blind = np.abs(np.nanmean(given_.speed) - table.speed)[unknown]
    assert error.mean() < 0.6 * blind.mean()
    again, _ = completed(given_.speed, table.variants)
    assert (again == speed).all(), "deterministic"
    assert (speed[~unknown] == table.speed[~unknown]).all(), "measured speeds stay"
    assert 0 < prediction_error(given_.speed, table.variants) < 0.1


def test_what_has_fewer_partners_is_not_predicted_and_what_does_not_fit_is_no_speed() -> None:
    table = real_like(np.random.default_rng(4), 5, 1)
    speed = table.speed.copy()
    speed[4], speed[:, 4] = math.nan, math.nan
    speed[4, :2] = speed[:2, 4] = 0.5
    assert np.isnan(completed(speed, table.variants)[0][4, 2:]).all()
    speed[4, :3] = speed[:3, 4] = 0.0  # ran with none
    assert np.isnan(completed(speed, table.variants)[0][4, 3:]).all()


def queue(tmp_path: Path, *rows: str) -> str:
    path = tmp_path / "jobs.csv"
    path.write_text("\n".join(["job,application,batch_size,hours,memory_gib,share", *rows, ""]))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, list[str]]:
    """Of each job, by its name, its partner's name and the reason."""
    assert main(["pairs", str(PAIRS), "--json", *words]) == 0
    gpus = json.loads(capsys.readouterr().out)["gpus"]
    return {name: [*(set(one["jobs"]) - {name}), one["why"]] for one in gpus for name in one["jobs"]}


def test_the_command_pairs_the_sample_and_says_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # no line is broken
    assert main(["pairs", str(PAIRS), "--jobs", str(JOBS), "--memory", "16"]) == 0
    out = capsys.readouterr().out
    assert "10 jobs: one after the other 21.00 GPU hours, shared 1" in out
    assert "trials among them: " in out and "never measured; measure it next to ResNet-18:16" in out
    said = run(capsys, "--jobs", str(JOBS), "--memory", "16")
    assert said["103"] == ["106", "measured"] and said["109"] == ["alone: exclusive"]
    without = run(capsys, "--jobs", str(JOBS))
    assert not any("trial" in words[-1] for words in without.values()), "the card's memory is not known"


def test_a_floor_of_its_own_lets_a_job_share_where_it_would_be_slower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "1,A3C,,1,,{}", "2,ResNet-18,64,1,,"  # A3C runs at 0.75
    for share, partner in (("", []), ("0.5", ["2"]), ("exclusive", [])):
        path = queue(tmp_path, *(row.format(share) for row in rows))
        assert run(capsys, "--jobs", path, "--floor", "0.8")["1"][:-1] == partner


A, B = "a,,,,10,", "b,,,,20,"

WRONG_TABLES = [
    ([A, B, "a,,b,,25,10"], ":4: a runs at 2.50 times its speed alone next to b: correct this row, or "),
    ([A, B, A], ":4: a runs alone here and in "),
    ([A, B, "a,,b,,5,10", "a,,b,,5,10"], ":5: a next to b is also in "),
    ([A, B, "a,,b,,5,10", "b,,a,,15,5"], ":5: b runs at 0.75 times its speed alone next to a, and at 0.50 by "),
    ([A, "a,,b,,5,10"], ":3: b has no speed alone: add its row without a partner"),
    ([A, B, "a,,b,,nan,10"], ":4: steps_per_s cannot be 'nan': a number from 0 is needed"),
    ([A, B, "a,,b,,5,"], ":4: partner_steps_per_s cannot be '': a number from 0 is needed"),
    ([A, B, "a,,b,,-5,3"], ":4: steps_per_s cannot be '-5': a number from 0 is needed"),
    ([A, B, "a,,,32,5,3"], ":4: has values of a partner, and names none"),
    ([A, "b,,,,0,"], ":3: b does not run alone: delete it, or give its steps_per_s"),
    ([",,,,5,"], ":2: names no application"),
    ([], ": has no row"),
    (["a,,a,,5,5"], ": no speed alone: a row without a partner is needed for each application"),
]


@pytest.mark.parametrize(("rows", "message"), WRONG_TABLES)
def test_a_wrong_table_is_one_line_with_its_row(
    rows: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("\n".join([HEADER, *rows, ""]))
    assert main(["pairs", str(path)]) == 2
    error = capsys.readouterr().err
    assert f"{path}{message}" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["1,A3C,,1,17,"], ":2: job 1 needs 17 GiB, and the card has 16 GiB"),
        (["1,A3C,,1,2,2"], ":2: share cannot be '2': give auto, exclusive, or the least speed from 0 to 1"),
        (["1,A3C,,1,2,", "1,LM,20,1,2,"], ":3: job 1 is there twice"),
        (["1,A3C,,0,2,"], ":2: hours cannot be 0"),
        (["1,A3C,,nan,2,"], ":2: hours cannot be 'nan'"),
        (["1,,,1,2,"], ":2: application is empty"),
        ([], ": has no job"),
    ],
)
def test_a_wrong_queue_is_one_line_with_its_row(
    rows: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = queue(tmp_path, *rows)
    assert main(["pairs", str(PAIRS), "--jobs", path, "--memory", "16"]) == 2
    error = capsys.readouterr().err
    assert f"{path}{message}" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--floor", "2"], "--floor 2: give a number from 0 to 1; alone is 1"),
        (["--chance", "nan"], "--chance nan: give a number from 0 to 1"),
        (["--window", "17"], "--window 17: give 1 to 16 jobs"),
        (["--memory", "0"], "--memory 0: give the GiB of the card"),
        (["--gpu", "k80"], "has no pairs of --gpu k80"),
    ],
)
def test_a_wrong_option_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pairs", str(PAIRS), *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@needs_recorded("gpu-pairs/gpu-pairs.csv")
def test_exact_matching_needs_what_was_published_for_windows_of_eight() -> None:
    """README of the data: 5.62 GPU hours on the V100 and 7.30 on the K80, of 300 windows."""
    for gpu, published, noise in (("v100", 5.62, 0.1), ("k80", 7.30, 0.05)):
        table = read_pairs(str(REAL), gpu)
        windows = np.random.default_rng(0).integers(len(table.variants), size=(1000, 8))
        ones, none = np.ones(len(table.speed)), np.zeros(table.speed.shape)
        saved = savings(table.speed, none, ones, 0 * ones).hours
        here = saved[windows[:, :, None], windows[:, None]] * ~np.eye(8, dtype=bool)
        partner = matched(here)
        hours = 8 - np.take_along_axis(here, partner[:, :, None], 2).sum((1, 2)) / 2
        assert hours.mean() == pytest.approx(published, abs=noise)

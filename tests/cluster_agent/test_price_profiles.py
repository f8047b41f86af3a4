"""``clusterctl budget from-price`` and ``from-carbon``: the profile, who reads it, and what is wrong with a tariff."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from cluster_agent.cap_steps import FOREVER_S, Cap, read_caps
from cluster_agent.cli import main
from cluster_agent.errors import WrongUseError
from cluster_agent.replay.compare import find, name_of
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.serve.live_budget.budget_schedule import read_schedule
from tests.recorded import RECORDED, needs_recorded

HOURS = [(0, 40), (1, 30), (2, 90), (3, 200)]
SAMPLES = Path(__file__).parents[2] / "cluster_agent" / "samples"
REAL = RECORDED / "rte-load" / "rte-eco2mix-15min-2008-2013.parquet"
BOUNDS = ("--least", "100", "--most", "1000")


def tariff(tmp_path: Path, *rows: str, names: str = "time,price") -> str:
    path = tmp_path / "tariff.csv"
    path.write_text("\n".join([names, *rows, ""]))
    return str(path)


def of_hours(tmp_path: Path) -> str:
    return tariff(tmp_path, *(f"2030-01-31T0{hour}:00:00+01:00,{price}" for hour, price in HOURS))


def profile(tmp_path: Path, *words: str, command: str = "from-price") -> Path:
    path = tmp_path / "profile.csv"
    assert main(["budget", command, *BOUNDS, *words, "--out", str(path)]) == 0
    return path


def test_watts_follow_the_share_of_time_in_which_power_is_cheaper_and_end_with_the_most(tmp_path: Path) -> None:
    path = profile(tmp_path, of_hours(tmp_path), "--begin", "2030-01-31T00:00+01:00", "--cores", "10")
    caps = read_caps(str(path))
    assert caps == [
        Cap(0, 3600, 700),
        Cap(3600, 7200, 1000),
        Cap(7200, 10800, 400),
        Cap(10800, 14400, 100),
        Cap(14400, FOREVER_S, 1000),
    ]
    assert [line.split(",")[2] for line in path.read_text().splitlines()[1:]] == ["cores", "7", "10", "4", "1", "10"]


def test_the_profile_is_a_cap_a_budget_of_joules_and_a_schedule(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = profile(tmp_path, of_hours(tmp_path), "--begin", "2030-01-31T00:00+01:00", "--cores", "10")
    for policy, stays_below in (("easy-capped", True), ("fcfs", False)):  # fcfs knows no watts
        assert main(["replay", str(SAMPLES / "eurora-100.csv"), "--policy", policy, "--cap", str(path)]) == 0
        assert ("above the cap 0 W s;" in capsys.readouterr().out) is stays_below
    power = choose(f"energy-budget:profile={path}").on("processors").power
    assert power is not None and power.budget is not None
    assert (power.budget.joules, power.budget.from_s, power.budget.to_s) == (2200 * 3600, 0, 14400)
    part = choose(f"energy-budget:profile={path},from_s=1800,to_s=7200").on("processors").power
    assert part is not None and part.budget is not None and part.budget.joules == 700 * 1800 + 1000 * 3600
    live = read_schedule(profile(tmp_path, of_hours(tmp_path), "--cores", "10"))
    assert live[:2] == [(1896044400.0, 700_000), (1896048000.0, 1_000_000)] and len(live) == 5


def test_an_hour_that_comes_twice_is_two_hours_if_the_table_has_both(tmp_path: Path) -> None:
    rows = [f"2025-10-26T{hour},{price}" for hour, price in (("01:00", 1), ("02:00", 2), ("02:00", 3), ("03:00", 4))]
    path = profile(tmp_path, tariff(tmp_path, *rows), "--zone", "Europe/Paris")
    times = [cap.from_s for cap in read_caps(str(path))]
    assert times == list(range(1761433200, 1761433200 + 5 * 3600, 3600))


def test_negative_prices_rank_as_cheapest_and_are_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = profile(tmp_path, tariff(tmp_path, "0,5", "3600,-20", "7200,9"))
    assert [cap.watts for cap in read_caps(str(path))] == [550, 1000, 100, 1000]
    assert "1 h have a negative price, from second 3600 on; they rank as cheapest" in capsys.readouterr().err


def test_watts_of_a_gap_may_be_given(tmp_path: Path) -> None:
    path = profile(tmp_path, tariff(tmp_path, "0,5", "3600,", "7200,9", "18000,7", "21600,7"), "--gap", "300")
    found = {cap.from_s: cap.watts for cap in read_caps(str(path))}
    assert found[3600] == found[10800] == 300 and found[0] == 1000 and found[7200] == 100


@pytest.mark.parametrize(
    ("rows", "more", "message"),
    [
        (
            ("0,5", "3600,6", "10800,7"),
            (),
            "no value from 7200 to 10800 s: complete the table, or give watts for it with --gap",
        ),
        (
            ("0,5", "3600,", "7200,7"),
            (),
            "no value from 3600 to 7200 s: complete the table, or give watts for it with --gap",
        ),
        (("0,5", "3600,six"), (), ":3: price cannot be 'six': a number is needed"),
        (("0,5", '3600,"6,25"'), (), ":3: price cannot be '6,25': a number is needed; write decimals with a point"),
        (("0,5", "3600,inf"), (), ":3: price cannot be inf: a number is needed"),
        (("3600,5", "0,6"), (), ":3: 0 is not later than the row above; sort the rows, and delete doubles"),
        (("noon,5",), (), ":2: 'noon' is no time: write 2030-01-31T08:00:00+01:00"),
        (("0,5",), (), "has 1 rows with a time; a profile needs two or more"),
        (
            ("2025-03-30T01:00,5", "2025-03-30T02:00,5"),
            ("--zone", "Europe/Paris"),
            ":3: 2025-03-30T02:00 does not exist: clocks are put forward over it; write the offset, or --zone",
        ),
        (
            ("2025-10-26T02:00,5", "2025-10-26T03:00,5", "2025-10-26T04:00,5", "2025-10-26T05:00,5"),
            ("--zone", "Europe/Paris"),
            "no value from 1761440400 to 1761444000 s",
        ),
        (("0,5", "3600,6"), ("--zone", "Mars"), "--zone Mars: no such time zone; give one such as Europe/Paris"),
        (("0,5", "3600,6"), ("--column", "load_mw"), "needs the columns time and load_mw; it has time, price"),
        (("0,5", "3600,6"), ("--begin", "99999"), "has no row from --begin 99999 on for so long; choose another"),
        (("100,5", "3700,6"), ("--begin", "0"), "begins 100 s after --begin 0; choose a later one"),
        (
            ("0,5", "3600,6"),
            ("--least", "2000"),
            "--least 2000 --most 1000: give watts above 0, with --least the lower",
        ),
    ],
)
def test_a_bad_tariff_is_answered_in_one_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture, rows: tuple[str, ...], more: tuple[str, ...], message: str
) -> None:
    out = tmp_path / "profile.csv"
    assert main(["budget", "from-price", tariff(tmp_path, *rows), *BOUNDS, *more, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not out.exists()


@pytest.mark.parametrize(
    ("window", "problem"),
    [
        ("to_s=14401", "ends at 14400 s, before to_s=14401; give an earlier to_s"),
        ("from_s=14400", "ends at 14400 s, not after from_s=14400; give an earlier from_s"),
    ],
)
def test_a_window_that_a_profile_does_not_reach_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture, window: str, problem: str
) -> None:
    path = profile(tmp_path, of_hours(tmp_path), "--begin", "2030-01-31T00:00+01:00")
    given = ["--machine", "taurus", "--policy", f"energy-budget:profile={path},{window}"]
    assert main(["replay", str(SAMPLES / "generated-500.swf"), *given]) == 2
    assert f"profile={path}: {problem}\n" in capsys.readouterr().err


def test_a_replay_says_that_jobs_come_after_the_profile_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path, log = tmp_path / "profile.csv", SAMPLES / "generated-500.swf"
    for last_s, is_named in ((40_417, True), (40_418, False)):
        path.write_text(f"from_s,watts\n0,400000\n{last_s},1\n")
        assert main(["replay", str(log), "--machine", "taurus", "--policy", f"energy-budget:profile={path}"]) == 0
        words = f"{log}: jobs come until 40417 s, and the budget by {path} ends at {last_s} s\n"
        assert (words in capsys.readouterr().err) is is_named


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("from_s,watts\n0,10\n100,20\n300,30\n", (5000, 0, 300)),
        ("from_s,watts\n0,10\n100,20\n300,\n", (5000, 0, 300)),  # a cap is lifted there
        ("from_s,watts\n50,10\n100,\n", (500, 50, 100)),
        ("from_s,to_s,watts\n0,100,10\n100,300,20\n", (5000, 0, 300)),
        ("from_s,watts\n0,10\n", "has one step, and none says when the window ends; add one"),
        ("from_s,watts\n0,\n", "has no watts"),
        ("from_s,to_s,watts\n0,100,10\n200,300,20\n", "has no watts for a part of 0 to 300 s; complete it"),
    ],
)
def test_a_profile_ends_with_its_last_step_that_has_no_end(
    tmp_path: Path, text: str, window: tuple[int, int, int] | str
) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(text)
    if isinstance(window, str):
        with pytest.raises(WrongUseError, match=window):
            choose(f"energy-budget:profile={path}")
        return
    power = choose(f"energy-budget:profile={path}").on("processors").power
    assert power is not None and power.budget is not None
    assert (power.budget.joules, power.budget.from_s, power.budget.to_s) == window


@needs_recorded("rte-load")
def test_a_grids_carbon_becomes_a_profile_and_its_load_is_called_a_proxy(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    window = (str(REAL), "--zone", "Etc/GMT-1", "--begin", "2011-03-26", "--days", "3")
    caps = read_caps(str(profile(tmp_path, *window, command="from-carbon")))
    assert caps[-1] == Cap(3 * 86400, FOREVER_S, 1000) and {100, 1000} <= {cap.watts for cap in caps}
    load = tariff(tmp_path, "0,50000", "900,51000", names="time,load_mw")
    path = profile(tmp_path, load, "--column", "load_mw")
    assert "# load_mw stands for a price, which it is not: a proxy" in path.read_text()
    assert main(["budget", "from-carbon", tariff(tmp_path, "0,5", "9,-1", names="time,co2_g_per_kwh"), *BOUNDS]) == 2
    assert "co2_g_per_kwh is -1 at second 9, and no grid emits less than nothing" in capsys.readouterr().err


def test_a_replay_records_the_profile_of_its_budget_and_another_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path, log, out = tmp_path / "profile.csv", tmp_path / "events.log", tmp_path / "out"
    path.write_text("from_s,watts\n0,400000\n90000,500000\n180000,1\n")
    policy = f"energy-budget:profile={path}"
    given = ["--machine", "generic:nodes=16,cores=16", "--policy", policy, "--log", str(log), "--out", str(out)]
    assert main(["replay", str(SAMPLES / "generated-500.swf"), *given]) == 0
    origin = {"file": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    assert json.loads((out / "manifest.json").read_text())["policy"]["profile_file"] == origin
    assert json.loads(log.read_text().splitlines()[0])["profile"] == origin
    assert [run.policy for run in find([str(out)])] == [policy] == [name_of(policy)], (
        "as --baseline of a report takes it"
    )
    assert main(["check-log", str(log)]) == 0
    path.write_text(path.read_text() + "# no other decision follows\n")
    capsys.readouterr()
    assert main(["check-log", str(log)]) == 1
    assert capsys.readouterr().err == (
        f"clusterctl check-log: {path}: not the profile that {log} was made with; put that back\n"
    )


def test_a_schedule_names_a_time_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "week.csv"
    path.write_text("from_s,watts\nnan,100\n")
    with pytest.raises(WrongUseError, match=r"week\.csv:2: nan is no time"):
        read_schedule(path)

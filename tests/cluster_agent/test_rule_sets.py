"""Which set of rules is in force when, whatever overlaps, ends together, or falls on a change of clocks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from cluster_agent.budget.levels import Group, Levels
from cluster_agent.budget_rules.group_limits import GroupLimits
from cluster_agent.budget_rules.rule_sets import RuleSets, RuleSettings, problems


@pytest.fixture(autouse=True)
def zone() -> Iterator[None]:
    """Central European time, whose clocks change."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Europe/Berlin"
    time.tzset()
    yield
    os.environ.pop("TZ") if before is None else os.environ.__setitem__("TZ", before)
    time.tzset()


def made(tmp_path: Path, *sets: RuleSettings) -> RuleSets:
    return RuleSets(sets, tmp_path / "rules", lambda line: None)


def s(text: str) -> float:
    """2030-01-07 is a Monday."""
    return datetime.fromisoformat(text).timestamp()


def names(rules: RuleSets, day: str, *clocks: str) -> list[str]:
    found = [rules.in_force(s(f"{day}T{clock}")) for clock in clocks]
    return ["" if one is None else one.name for one in found]


DAY = RuleSettings("day", "08:00", "20:00", budget_w=900.0)
NIGHT = RuleSettings("night", "20:00", "06:00", budget_w=700.0)
NOON = RuleSettings("noon", "12:00", "13:00", budget_w=500.0)


def test_one_that_begins_while_another_ends_is_in_force_from_that_instant(tmp_path: Path) -> None:
    rules = made(tmp_path, NIGHT, DAY)
    assert names(rules, "2030-01-07", "19:59:59", "20:00", "05:59:59", "06:00", "07:59", "08:00") == [
        "day", "night", "night", "", "", "day",
    ]  # fmt: skip
    ahead = rules.coming(s("2030-01-07T12:00"))[:3]
    assert [(time.strftime("%a %H:%M", time.localtime(at_s)), one and one.name) for at_s, one in ahead] == [
        ("Mon 20:00", "night"), ("Tue 06:00", None), ("Tue 08:00", "day"),
    ]  # fmt: skip


def test_of_two_that_overlap_the_later_one_counts_and_then_the_earlier_one_again(tmp_path: Path) -> None:
    rules = made(tmp_path, NOON, DAY)
    assert names(rules, "2030-01-07", "11:59", "12:30", "13:00") == ["day", "noon", "day"]
    together = made(tmp_path, DAY, RuleSettings("other", "08:00", "09:00", budget_w=1.0))
    assert names(together, "2030-01-07", "08:30", "09:00") == ["other", "day"], "the last one of the settings"


def test_one_that_keeps_lasts_until_another_begins(tmp_path: Path) -> None:
    keeps = RuleSettings("evening", "18:00", "19:00", days="fri", budget_w=600.0, then="keep")
    rules = made(tmp_path, keeps, RuleSettings("monday", "06:00", "07:00", days="mon", sharer="aapc"))
    assert names(rules, "2030-01-11", "17:59", "18:30", "23:00") == ["", "evening", "evening"]
    assert names(rules, "2030-01-13", "12:00") == ["evening"]
    assert names(rules, "2030-01-14", "06:30", "07:00") == ["monday", ""]


def test_days_are_those_on_which_it_begins(tmp_path: Path) -> None:
    rules = made(tmp_path, RuleSettings("weekend", "20:00", "06:00", days="fri-sun", budget_w=600.0))
    assert names(rules, "2030-01-11", "05:00", "21:00") == ["", "weekend"]
    assert names(rules, "2030-01-14", "05:00", "21:00") == ["weekend", ""]


def test_budgets_and_limits_are_at_most_those_of_the_set_in_force_and_steps_are_merged(tmp_path: Path) -> None:
    rules = made(tmp_path, RuleSettings("night", "20:00", "06:00", budget_w=700.0, groups={"rack": 90.0}))
    noon, evening, morning = s("2030-01-07T12:00"), s("2030-01-07T20:00"), s("2030-01-08T06:00")
    steps = [(s("2030-01-07T22:00"), 500_000), (s("2030-01-08T02:00"), 2_000_000)]
    now_mw, found = rules.lowered(1_000_000, steps, noon)
    assert now_mw == 1_000_000
    assert found[:4] == [(evening, 700_000), (steps[0][0], 500_000), (steps[1][0], 700_000), (morning, 2_000_000)]
    assert rules.lowered(100_000, [], evening, "rack")[0] == 90_000
    assert rules.lowered(80_000, [], evening, "rack") == (80_000, []), "it only lowers"
    assert rules.lowered(100_000, [], evening, "other") == (100_000, [])


def test_where_clocks_change_a_time_is_the_first_of_two_or_later_by_the_change(tmp_path: Path) -> None:
    rules = made(tmp_path, RuleSettings("early", "02:30", "04:00", budget_w=600.0))
    (begin_s, _), *_ = rules.coming(s("2030-03-31T00:00"))  # 02:00 is followed by 03:00
    assert time.strftime("%H:%M", time.localtime(begin_s)) == "03:30"
    (begin_s, _), (end_s, _), *_ = rules.coming(s("2030-10-27T00:00"))  # 02:00 to 03:00 comes twice
    assert end_s - begin_s == 2.5 * 3600


def test_a_set_in_the_hour_that_is_left_out_is_never_in_force_and_a_clock_that_was_ahead_delays_none(
    tmp_path: Path,
) -> None:
    early = RuleSettings("early", "02:30", "03:00", budget_w=1.0)
    rules = made(tmp_path, early, RuleSettings("siren", budget_w=5.0, on=False))
    assert names(rules, "2030-03-31", "01:00", "03:15", "05:00", "23:00") == [""] * 4
    assert names(rules, "2030-04-01", "02:45", "05:00") == ["early", ""]
    rules.switch("siren", True, s("2030-06-01T00:00"))
    assert names(rules, "2030-04-02", "12:00") == ["siren"]
    assert rules.lowered(9_000, [(s("2030-04-02T13:00"), 4_000)], s("2030-04-02T12:00")) == (
        5_000, [(s("2030-04-02T13:00"), 4_000)],
    )  # fmt: skip


def test_gear_and_milliwatts_bound_what_a_set_may_have() -> None:
    def found(one: RuleSettings) -> list[str]:
        return [problem for _, problem in problems([one], {"rack": 50.0}, 10.0, lambda sharer: "")]

    assert found(RuleSettings("x", groups={"rack": 50.0})) == [
        "set x: group rack: 50 W is not above what its gear draws (50 W)"
    ]
    assert "no limit of a group" in found(RuleSettings("x", groups={"rack": 1e-5}))[0]
    assert "is not above what nobody can cap" in found(RuleSettings("x", budget_w=1e-5))[0]
    assert found(RuleSettings("x", groups={"rack": 51.0}, budget_w=11.0)) == []


def test_limits_by_hand_end_with_the_settings_that_they_were_set_under(tmp_path: Path) -> None:
    rules, path = made(tmp_path), tmp_path / "limits"

    def limits(settings_w: int) -> GroupLimits:
        return GroupLimits(Levels([Group("rack", settings_w * 1000, ("a",))]), rules, path, lambda line: None)

    assert limits(8).set("rack", 12_000, []) == ""
    assert limits(8).set_now("rack", 0.0) == (12_000, [])
    assert limits(6).set_now("rack", 0.0) == (6_000, [])
    assert limits(8).set_now("rack", 0.0) == (8_000, []), "for good"


def test_what_was_switched_is_kept_and_a_file_that_is_none_is_said(tmp_path: Path) -> None:
    rules = made(tmp_path, NIGHT)
    at_s = s("2030-01-07T21:00")
    rules.switch("night", False, at_s)
    assert made(tmp_path, NIGHT).in_force(at_s) is None
    (tmp_path / "rules").write_text("{")
    said: list[str] = []
    assert RuleSets([NIGHT], tmp_path / "rules", said.append).in_force(at_s) is NIGHT
    assert said == [f"{tmp_path}/rules: cannot be read: all sets of rules are on or off as the settings have them"]

"""The budget lowered ahead of a thermal hazard: bounded whoever predicts, said, and undone by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cluster_agent.errors import WrongUseError
from cluster_agent.serve.config import HazardSettings
from cluster_agent.serve.people_protocol import (
    ListBudgetChanges,
    ListNodes,
    LowerBudget,
    SetBudget,
    SetSchedule,
    ShowBudget,
)
from cluster_agent.serve.server import Server
from tests.fabric.test_forgetting import Site

HOUR_S = 3600.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A budget of 1000 W, lowered to 80 % for at most 6 of 24 hours; two nodes have a MOP of 200 W each."""
    made = Site(tmp_path, hazard=HazardSettings(lower_to=0.8, hours=6.0))
    made.hear("n0", "n1")
    yield made
    made.server.close()


def restarted(site: Site, **more: object) -> None:
    site.settings = msgspec.structs.replace(site.settings, **more)
    site.restart()


def wall_s(site: Site) -> float:
    return 1e9 + site.now_s


def budget_w(site: Site, in_hours: float = 0.0) -> float:
    """In force after so many hours, after a turn of the agent."""
    site.now_s += in_hours * HOUR_S
    site.server._turn(site.now_s, [])
    return site.request(ShowBudget()).budget_w


def lower(site: Site, hours: float = 1.0) -> list[str]:
    return site.request(LowerBudget(hours, "chance 0.9"))


def test_a_lowering_has_its_owner_and_its_end_and_the_budget_is_then_what_it_was(site: Site) -> None:
    lowered, now = lower(site)
    assert lowered.startswith("the budget is lowered to 80 % until ") and lowered.endswith("hazard: chance 0.9")
    assert now == "800 W now"
    view = site.request(ShowBudget())
    assert view.budget_w == 800 and view.steps == [(pytest.approx(HOUR_S), 1000.0)]
    assert view.alarms == [lowered] and view.alarm_kinds == ["hazard"]
    (change,) = site.request(ListBudgetChanges())
    assert (change.who, change.what) == ("hazard", f"alice: {lowered}")
    assert budget_w(site, 0.9) == 800 and budget_w(site, 0.2) == 1000
    assert site.request(ShowBudget()).alarm_kinds == ["silent"], "time passes here without reports"
    assert f"the alarm is over: {lowered}" in site.said


def test_a_model_that_says_1_for_ever_lowers_six_of_any_24_hours(site: Site) -> None:
    """It asks every hour for an hour and more, for three days."""
    lowered, refused = list[bool](), set[str]()
    for _ in range(3 * 24):
        try:
            lower(site, 1.25)
        except WrongUseError as error:
            refused.add(str(error).partition(" before ")[2][16:])
        lowered.append(site.request(ShowBudget()).budget_w < 1000)
        site.now_s += HOUR_S
        site.server._turn(site.now_s, [])
    assert max(sum(lowered[at : at + 24]) for at in range(48)) == 6
    assert refused == {": at most 6 of 24 hours are lowered"}


def test_it_is_never_below_the_mop_of_every_node_also_of_one_that_comes_later(site: Site) -> None:
    site.request(SetBudget(450.0))
    lower(site)
    assert budget_w(site) == 400
    restarted(site, budget=msgspec.structs.replace(site.settings.budget, fixed_w=40.0))
    assert budget_w(site) == 440
    site.request(SetBudget(800.0))
    site.now_s += 25 * HOUR_S
    site.server.partition.reports.clear()
    lower(site)
    assert budget_w(site) == 640
    accounts = site.server.partition.ledger.accounts
    accounts.mop_mw[accounts.places["n1"]] = 450_000
    assert budget_w(site, 0.01) == 690


def test_a_schedule_goes_on_below_it_and_a_hand_ends_it_for_the_day(site: Site) -> None:
    site.request(
        SetSchedule(source="s.csv", steps=[(wall_s(site) + HOUR_S, 900_000), (wall_s(site) + 4 * HOUR_S, 700_000)])
    )
    lower(site, 3.0)
    assert [budget_w(site, hours) for hours in (0.0, 1.5, 2.0, 1.0)] == [800, 720, 900, 700]
    lower(site, 1.0)
    assert budget_w(site) == 560
    site.request(SetBudget(950.0))
    assert budget_w(site) == 950 and site.request(ShowBudget()).alarm_kinds == ["silent"]
    with pytest.raises(WrongUseError, match=r"is not lowered for a hazard before .*: it was set by hand"):
        lower(site)
    assert budget_w(site, 24.1) == 950 and lower(site)[1] == "760 W now"


def test_a_restart_goes_on_with_it_and_a_lost_record_or_a_clock_that_was_ahead_leaves_none(site: Site) -> None:
    lower(site, 2.0)
    site.restart()
    assert budget_w(site) == 800
    record = site.at / "a.db.hazard"
    content = record.read_bytes()
    record.write_bytes(content[:-3])
    site.restart()
    assert budget_w(site) == 1000 and "a.db.hazard: cannot be read" in " ".join(site.said)
    record.write_bytes(content)
    site.server.close()
    site.server = Server(site.settings, site.said.append, lambda: site.now_s, lambda: 1e9 + site.now_s - HOUR_S)
    assert budget_w(site) == 1000
    assert lower(site)[1] == "800 W now"


def test_it_can_be_taken_back_and_is_refused_where_the_settings_do_not_allow_it(site: Site) -> None:
    lower(site, 2.0)
    assert site.request(LowerBudget(0.0, "no hazard is predicted")) == [
        "the budget is not lowered for a hazard any more: no hazard is predicted", "1000 W now",
    ]  # fmt: skip
    assert budget_w(site) == 1000
    lower(site, 2.0)
    restarted(site, hazard=HazardSettings())
    assert budget_w(site) == 1000
    with pytest.raises(WrongUseError, match=r"unless the settings have \[hazard\] lower_to"):
        lower(site)


def test_nothing_is_lowered_that_cannot_be_recorded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    (site.at / "a.db.hazard").mkdir()
    with pytest.raises(WrongUseError, match=r"a\.db\.hazard: cannot be written: .*; the budget stays as it was"):
        lower(site)
    assert budget_w(site) == 1000


def test_each_node_is_listed_with_the_warmest_air_that_it_takes_in(site: Site) -> None:
    report = msgspec.structs.replace(site.leases["n0"].report(round(site.now_s * 1e9) + 1, 0), inlet_mk=297_650)
    site.server.partition.hear(site.now_s, [report])
    assert [row.inlet_c for row in site.request(ListNodes())] == [24.5, None]

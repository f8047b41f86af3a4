"""What nodes declare is kept within the site's bounds, and what they have drawn is counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cluster_agent.budget.declared_bounds import DeclaredBounds
from cluster_agent.serve.config import NodeSettings, Settings, read_settings
from cluster_agent.serve.node_meter import NodeEnergy
from foundation.shell.settings import ConfigError
from foundation.wire.power_messages import Declaration
from nodectl.member.lease import NodeLease
from tests.fabric.links import report
from tests.fabric.test_forgetting import DECLARED, Site

MEGAWATT = 1_000_000_000
GREEDY = Declaration(MEGAWATT, 200_000, 250_000, 300_000, "os", watchdog_ms=0)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, budget_w=1500.0)
    yield made
    made.server.close()


def declares(site: Site, name: str, declared: Declaration, limit_mw: int = 500_000) -> None:
    site.leases[name] = NodeLease(name, "boot-2", declared, limit_mw, 0)


def alarms(site: Site) -> list[str]:
    return [text for text in site.server.partition.budget_view(site.now_s).alarms if "declare" in text]


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (GREEDY, "n1 tdp 1e+06 W"),
        (msgspec.structs.replace(GREEDY, tdp_mw=500_000, mop_mw=MEGAWATT), "n1 mop 1e+06 W"),
        (msgspec.structs.replace(GREEDY, tdp_mw=500_000, safe_mw=MEGAWATT), "n1 safe 1e+06 W"),
        (msgspec.structs.replace(GREEDY, tdp_mw=500_000, boot_mw=MEGAWATT), "n1 boot 1e+06 W"),
        (msgspec.structs.replace(GREEDY, tdp_mw=0, mop_mw=0), "n1 a TDP of 0 W"),
    ],
)
def test_one_key_cannot_take_the_watts_of_all_others_by_what_it_declares(
    site: Site, declared: Declaration, words: str
) -> None:
    site.hear("n0", "n1")
    declares(site, "n1", declared)
    for _ in range(20):
        site.hear("n0", "n1")
    accounts = site.server.partition.ledger.accounts
    assert accounts["n1"].target_mw <= 1_000_000, "twice tdp_w"
    assert accounts["n0"].target_mw >= DECLARED.mop_mw
    assert accounts["n1"].count_mw >= accounts["n1"].limit_mw, "its watts count"
    assert site.counts_w() <= 1500.0
    assert [text for text in alarms(site) if words in text and "set nodes.most_w" in text]
    declares(site, "n1", DECLARED)
    site.leases["n1"] = NodeLease("n1", "boot-3", DECLARED, 500_000, 0)
    site.hear("n0", "n1")
    assert alarms(site) == []


def test_a_node_that_says_that_no_cap_limits_it_counts_what_it_may_draw(site: Site) -> None:
    """It may be true, whatever the bound: the budget is kept first."""
    site.hear("n0", "n1")
    declares(site, "n1", GREEDY, MEGAWATT)
    site.server.partition.hear(site.now_s, [site.leases["n1"].report(round(site.now_s * 1e9), 0)])
    assert site.server.partition.ledger.accounts["n1"].count_mw == MEGAWATT
    assert any("exceed the budget" in text for text in site.server.partition.budget_view(site.now_s).alarms)


def test_the_alarm_is_over_once_the_node_is_forgotten_and_names_few_nodes() -> None:
    bounds = DeclaredBounds(500_000, 1_000_000)
    within = bounds.bounded([report(f"n{at}", declaration=GREEDY) for at in range(5)])
    assert {one.declaration.tdp_mw for one in within} == {1_000_000}
    assert {one.declaration.mop_mw for one in within} == {GREEDY.mop_mw}
    assert bounds.alarm.startswith("5 nodes declare") and "n2 tdp 1e+06 W, ..." in bounds.alarm
    for at in range(5):
        bounds.forget(f"n{at}")
    assert bounds.alarm == ""


def test_the_bound_is_a_setting_and_twice_the_usual_tdp_without_one(tmp_path: Path) -> None:
    for given_w, most_mw in ((0.0, 1_000_000), (3000.0, 3_000_000)):
        bounds = Settings(nodes=NodeSettings(tdp_w=500.0, most_w=given_w)).bounds
        assert bounds.within(report(declaration=GREEDY)).declaration.tdp_mw == most_mw
    path = tmp_path / "cluster.toml"
    path.write_text("[budget]\nw = 1000\n[nodes]\ntdp_w = 500\nmost_w = 400\n")
    with pytest.raises(ConfigError, match=r"cluster\.toml:5: nodes\.most_w: 400 W is less than tdp_w \(500 W\)"):
        read_settings(path)


# --- what nodes have drawn


def test_joules_of_a_node_are_counted_from_its_reports_and_never_fall() -> None:
    energy = NodeEnergy()
    energy.hear(0.0, report(energy_mj=5_000_000))
    assert energy.joules("n0") == 0.0, "what it drew before this began is not counted"
    energy.hear(1.0, report(energy_mj=5_300_000))
    assert energy.joules("n0") == 300.0
    energy.hear(2.0, report(energy_mj=100_000))
    assert energy.joules("n0") == 400.0, "its counter began again"
    energy.hear(60.0, report(energy_mj=900_000, boot_id="boot-2"))
    assert energy.joules("n0") == 1300.0, "and in another boot"
    energy.hear(61.0, report(energy_mj=-1, power_mw=200_000, boot_id="boot-2"))
    assert energy.joules("n0") == 1500.0
    energy.hear(161.0, report(energy_mj=-1, power_mw=200_000, boot_id="boot-2"))
    assert energy.joules("n0") == 4500.0, "a mean says nothing of a silence"
    energy.hear(162.0, report(energy_mj=1 << 61, power_mw=200_000, boot_id="boot-2"))
    energy.hear(163.0, report(energy_mj=0, power_mw=100_000, boot_id="boot-2"))
    energy.hear(164.0, report(energy_mj=1 << 61, power_mw=100_000, boot_id="boot-2"))
    assert energy.joules("n0") == 4800.0, "no node draws that much"
    energy.forget("n0")
    assert energy.joules("n0") is None and energy.total_j == 4800.0


def test_a_node_that_measures_nothing_has_no_joules_rather_than_none_drawn() -> None:
    energy = NodeEnergy()
    for now_s in (0.0, 1.0):
        energy.hear(now_s, report(power_mw=-1, energy_mj=-1))
    assert energy.joules("n0") is None and energy.joules("n7") is None and energy.total_j == 0.0

"""The budget as a policy that owns watts sees it, and its caps on the way to the ledger."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.ledger_store import FaultyStore
from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.ledger import Ledger, Terms
from cluster_agent.budget.sharers.view import View
from cluster_agent.serve.config import read_settings
from cluster_agent.serve.policy_watts import caps_sharer, declared_mops, node_budget
from foundation.shell.settings import ConfigError
from foundation.wire.power_messages import Declaration, Report

DECLARED = Declaration(tdp_mw=500_000, mop_mw=200_000, safe_mw=200_000, boot_mw=450_000, lease_class="hw")
LATER_S = 1_000_000.0
HEAD = 'sharer = "none"\n[budget]\nw = 1000\n[nodes]\ntdp_w = 400\n'


def ledger_of(*nodes: str, budget_w: int = 2000, k: int = 0) -> Ledger:
    ledger = Ledger(FaultyStore(), Terms(100_000, k), BudgetLine(budget_w * 1000), 0.0)
    ledger.expect(0.0, dict.fromkeys(nodes, DECLARED))
    hear(ledger, 0.0, *nodes)
    ledger.want(ledger.accounts.at(list(nodes)), np.full(len(nodes), 200_000))
    for number, grant in enumerate(ledger.grants(0.0)):
        heard = Report(
            grant.node, "b", 2 + number, ledger.epoch, ledger.epoch, grant.sequence, 200_000, "seen", -1, DECLARED
        )
        ledger.hear(0.0, heard)
    return ledger


def hear(ledger: Ledger, now_s: float, *nodes: str) -> None:
    at = int(now_s * 1000) + 1
    for node in nodes:
        ledger.hear(now_s, Report(node, "b", at, 0, 0, 0, 500_000, "seen", -1, DECLARED))


def test_the_policy_gets_the_budget_less_what_is_fixed_and_what_reboots_may_draw() -> None:
    budget = node_budget(ledger_of("a", "b", "c"), 1.0, {}, 200_000, LATER_S)
    assert (budget.steps, budget.aside_w) == (((0.0, 1900.0),), 0.0)
    budget = node_budget(ledger_of("a", "b", "c", k=2), 1.0, {}, 200_000, LATER_S)
    assert budget.aside_w == 2 * (450 - 200)


def test_nodes_that_may_draw_more_than_is_planned_are_set_aside() -> None:
    assert node_budget(ledger_of("a", "b"), 1.0, {}, 150_000, LATER_S).aside_w == 2 * (200 - 150), "MOP above the plan"
    assert node_budget(ledger_of("a", "b"), 1.0, {"a": 400_000}, 150_000, LATER_S).aside_w == 200 - 150
    ledger = ledger_of("a")
    ledger.expect(1.0, {"unheard": DECLARED})
    assert node_budget(ledger, 1.0, {}, 200_000, LATER_S).aside_w == 500 - 200


def test_the_policy_hears_the_mops_of_nodes_that_have_declared_theirs() -> None:
    ledger = ledger_of("a", "b")
    ledger.expect(1.0, {"unheard": DECLARED})
    assert declared_mops(ledger) == {"a": 200_000, "b": 200_000}
    assert node_budget(ledger, 1.0, {}, 200_000, LATER_S).aside_w == 500 - 200, "of the one never heard"


def test_a_drop_counts_one_settle_time_before_it_comes_and_a_rise_when_it_does() -> None:
    ledger = ledger_of("a")
    settle_s = ledger.settle_s
    ledger.budget.announce(100.0, 1_000_000)
    ledger.budget.announce(200.0, 2_000_000)
    steps = node_budget(ledger, 1.0, {}, 200_000, LATER_S).steps
    assert [watts for _, watts in steps] == [1900.0, 900.0, 1900.0]
    assert [at_s - LATER_S for at_s, _ in steps[1:]] == pytest.approx([100 - settle_s, 200.0], abs=0.06)
    caps = node_budget(ledger, 1.0, {}, 200_000, LATER_S).caps(int(LATER_S) + 1)
    assert caps[0].to_s <= LATER_S + 100 - settle_s and caps[1].to_s >= LATER_S + 200
    assert node_budget(ledger, 100 - settle_s / 2, {}, 200_000, LATER_S).steps[0][1] == 900.0


def caps(given: dict[str, int], available_mw: int, wanted: dict[str, int] | None = None) -> list[int]:
    service: Any = SimpleNamespace(
        caps_mw=lambda: given, planned_mw=lambda: given, wanted_mw=lambda: wanted or given, idle_mw=150_000
    )
    names = ["a", "b", "c"]
    view = View.of(names, np.full(3, 500_000), np.full(3, 200_000), [])
    return [int(cap) for cap in caps_sharer(lambda: service)(view, available_mw).caps_mw]


def test_caps_are_the_policys_within_each_nodes_limits_and_the_budget() -> None:
    assert caps({"a": 400_000, "b": 600_000}, 2_000_000) == [400_000, 500_000, 200_000]
    short = caps({"a": 400_000, "b": 600_000}, 850_000)
    assert short == [300_000, 350_000, 200_000], "of what is above MOP everybody loses the same part"


def test_where_the_policy_plans_with_less_than_it_wants_jobs_share_what_is_left_and_lose_it_first() -> None:
    planned, wanted = {"a": 250_000, "b": 250_000, "c": 220_000}, {"a": 450_000, "b": 350_000, "c": 220_000}
    assert caps(planned, 1_020_000, wanted) == [450_000, 350_000, 220_000]
    assert caps(planned, 870_000, wanted) == [350_000, 300_000, 220_000]
    assert caps(planned, 720_000, wanted) == [250_000, 250_000, 220_000]
    assert caps(planned, 660_000, wanted) == [225_000, 225_000, 210_000], "less than it has planned with"


@pytest.mark.parametrize(
    ("jobs", "problem"),
    [
        ("", "sharer: none leaves the watts to the policy of [jobs], and there is no [jobs]"),
        ("[jobs]\n", "jobs.policy: policy easy and no sharer would leave the partition's watts to nobody"),
        ("[jobs]\npolicy = 'eco'", "needs watts, and a live partition without `machine` does not know them"),
        (
            "[jobs]\npolicy = 'eco'\nmachine = 'curi'",
            "jobs.machine: curi: no machine is called 'curi' (nearest: curie)",
        ),
        ("[jobs]\npolicy = 'eco'\nmachine = 'dark.toml'", "dark: the machine has no watts; give busy_w"),
        ("[jobs]\npolicy = 'powercap'\nmachine = 'curie'", "a live partition without [jobs.power] has none: choose"),
        (
            "[jobs]\npolicy = 'eco'\nmachine = 'curie'\n[jobs.power]\noff_command = 'off'",
            "jobs.power.off_command: must",
        ),
        ("[jobs]\npolicy = 'powercap:mode=dvfs,floor_mhz=9000'\nmachine = 'curie'", "jobs.machine: curie: 9000 MHz"),
        ("[jobs]\npolicy = 'prb'", "jobs.policy: a policy that knows watts needs watts, and a live partition without"),
        ("[jobs]\npolicy = 'prb'\nmachine = 'eurora'", "jobs.machine: eurora: the machine has no watts; give busy_w"),
        (
            "[jobs]\npolicy = 'rmap'\nmachine = 'curie'",
            "jobs.policy: a choice among configurations needs a table of configurations, and a live partition without"
            " `configurations` has none: give a file in [jobs]",
        ),
        (
            "[jobs]\npolicy = 'moldable'\nconfigurations = 'table.csv'",
            "jobs.policy: a choice among configurations needs watts, and a live partition without `machine` does not",
        ),
        (
            "[jobs]\npolicy = 'moldable'\nmachine = 'curie'\nconfigurations = 'tabel.csv'",
            "tabel.csv: there is no such file",
        ),
        (
            "[jobs]\npolicy = 'moldable'\nmachine = 'curie'\nconfigurations = 'cab'",
            "jobs.configurations: cab is generated, and of another machine: give a file",
        ),
        (
            "[jobs]\npolicy = 'moldable'\nmachine = 'curie'\nconfigurations = 'table.csv'",
            "jobs.machine: curie: a configuration has 99 cores, a node 16",
        ),
        (
            "[jobs]\npolicy = 'planned:time_s=2'\nmachine = 'curie'",
            "jobs.policy: time_s=2: a live partition waits for no plan longer than 0.5 s",
        ),
    ],
)
def test_what_does_not_go_with_a_policy_that_owns_the_watts_is_one_line(
    tmp_path: Path, jobs: str, problem: str
) -> None:
    settings = tmp_path / "cluster.toml"
    settings.write_text(HEAD + jobs)
    (tmp_path / "table.csv").write_text("application,nodes,cores,cap_w,time_s,watts\nlu,1,99,115,10,100\n")
    (tmp_path / "dark.toml").write_text('name = "dark"\nsummary = ""\n[[nodes]]\ncount = 1\ncores = 1\n')
    with pytest.raises(ConfigError) as caught:
        read_settings(settings)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sharer", "jobs"),
    [("fspc", "policy = 'easy:idle_off_s=300'\n"), ("none", "policy = 'prb:idle_off_s=300'\nmachine = 'curie'\n")],
)
def test_a_policys_idle_off_s_is_that_of_the_commands(tmp_path: Path, sharer: str, jobs: str) -> None:
    settings = tmp_path / "cluster.toml"
    head = HEAD.replace("none", sharer) + "[jobs]\n" + jobs
    settings.write_text(head)
    with pytest.raises(ConfigError, match="idle_off_s needs commands that switch nodes"):
        read_settings(settings)
    commands = "[jobs.power]\noff_command = 'off %N'\non_command = 'on %N'\n"
    settings.write_text(head.replace("300", "5") + commands)
    with pytest.raises(ConfigError, match="idle_off_s=5 is not a time of at least 30 s"):
        read_settings(settings)
    settings.write_text(head + commands)
    found = read_settings(settings).jobs
    assert found is not None and found.power_times is not None
    assert found.power_times.idle_off_s == 300 and found.composition.idle_off_s is None


def test_a_policy_that_owns_the_watts_is_accepted_with_a_machine(tmp_path: Path) -> None:
    settings = tmp_path / "cluster.toml"
    for policy in (
        "eco",
        "fcfs-killer",
        "powercap:mode=dvfs",
        "powercap:mode=idle",
        "energy-budget:joules=1e9,from_s=1,to_s=9",
        "easy-power:rule=est",
        "prb:rule=est",
        "easy-capped",
    ):
        settings.write_text(f"{HEAD}[jobs]\npolicy = '{policy}'\nmachine = 'curie'\n")
        assert read_settings(settings).jobs is not None

"""What is said when nodes could draw more than the budget: a lowering under way is information, the rest an alarm."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import msgspec
import pytest

from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.kept_counts import LedgerStore
from cluster_agent.budget.ledger import Terms
from cluster_agent.serve.alarms import KINDS
from cluster_agent.serve.budget_service import Partition
from cluster_agent.serve.live_sharing import Sharing
from cluster_agent.serve.server import Unstored
from cluster_agent.store.database import Database
from cluster_agent.store.ledger_store import SqliteLedgerStore
from nodectl.member.lease import NodeLease
from tests.fabric.links import DECLARED, S


class Capped:
    """Two nodes that share ``budget_w``; ``pass_to`` lets time go by, in which nodes report and obey."""

    def __init__(self, budget_w: float = 800.0, is_observing: bool = False, store: LedgerStore | None = None) -> None:
        self.said: list[str] = []
        line = BudgetLine(round(budget_w * 1000))
        self.made = Partition(
            store or Unstored(), Terms(failing_together=0), line, Sharing("fspc"), 0.0, is_observing, self.said.append
        )
        self.leases = [NodeLease(f"n{n}", "boot-1", DECLARED, 200_000, 0) for n in range(2)]
        self.draws_mw = [100_000, 100_000]
        self.energy_mj = [0, 0]
        self.deaf: set[str] = set()
        self.raised_by: dict[str, str] = {}
        self.now_s = 0.0
        self.made.expect(0.0, {"n0": DECLARED, "n1": DECLARED})
        self.pass_to(12.0)
        self.begun = list(self.said)
        self.said.clear()

    def pass_to(self, end_s: float) -> None:
        while self.now_s < end_s:
            self.now_s += 1.0
            reports = []
            for n, lease in enumerate(self.leases):
                self.energy_mj[n] += self.draws_mw[n]
                report = lease.report(round(self.now_s * S), self.draws_mw[n])
                by = self.raised_by.get(report.node, "")
                reports.append(msgspec.structs.replace(report, energy_mj=self.energy_mj[n], raised_by=by))
            heard = [report for report in reports if report.node not in self.deaf]
            for grant in self.made.hear(self.now_s, heard):
                self.leases[int(grant.node[1])].take(round(self.now_s * S), grant)
            for lease in self.leases:
                lease.lapse(round(self.now_s * S))
                lease.confirm("provisional")

    def lower_to(self, watts: float) -> None:
        ledger = self.made.ledger
        ledger.budget.change(self.now_s, round(watts * 1000), [], ledger.settle_s)
        self.made.replan(self.now_s)

    @property
    def alarms(self) -> list[str]:
        return self.made.budget_view(self.now_s).alarms


def test_a_start_waits_for_its_nodes_without_an_alarm():
    assert Capped().begun == [
        "lowering to 800 W within 9.5 s: 200 W still to be confirmed",
        "lowered to 800 W: all of it is confirmed",
    ]


def test_a_lowering_by_hand_is_information_until_it_is_confirmed():
    capped = Capped()
    settle_s = capped.made.ledger.settle_s
    capped.lower_to(600.0)
    assert capped.said == [f"lowering to 600 W within {settle_s:.1f} s: 200 W still to be confirmed"]
    assert capped.made.budget_view(capped.now_s).lowering_s == pytest.approx(settle_s)
    capped.pass_to(16.0)
    assert capped.said[1:] == ["lowered to 600 W: all of it is confirmed"]
    assert capped.made.budget_view(capped.now_s).lowering_s is None
    capped.pass_to(60.0)
    assert len(capped.said) == 2 and capped.alarms == []


def test_a_lowering_that_is_not_confirmed_within_the_settle_time_is_an_alarm():
    capped = Capped()
    sticky = msgspec.structs.replace(DECLARED, lease_class="sticky")
    capped.leases[1].declaration = sticky
    capped.pass_to(14.0)
    capped.deaf = {"n1"}
    capped.lower_to(450.0)
    deadline_s = capped.now_s + capped.made.ledger.settle_s
    capped.pass_to(deadline_s - 1.0)
    assert capped.alarms == [] and "lowering to 450 W" in capped.said[0]
    capped.pass_to(deadline_s + 6.0)
    assert any(line.startswith("ALARM: nodes could exceed the budget by ") for line in capped.said)
    assert any("could exceed" in alarm for alarm in capped.alarms)
    view = capped.made.budget_view(capped.now_s)
    assert view.lowering_s is None and set(view.alarm_kinds) == {"over", "short"}


def test_a_node_that_wakes_under_a_higher_cap_is_an_alarm_at_once():
    capped = Capped()
    capped.pass_to(15.0)
    woken = NodeLease("n1", "boot-1", DECLARED, 500_000, 16 * S)
    capped.made.hear(16.0, [woken.report(16 * S, 450_000)])
    capped.made.turn(16.1)
    assert any("nodes could exceed the budget by 100 W" in alarm for alarm in capped.alarms)


def test_power_within_the_tolerance_of_a_cap_in_force_is_no_alarm_and_power_above_it_is():
    capped = Capped()
    capped.draws_mw[0] = 403_000
    capped.pass_to(30.0)
    assert capped.made.budget_view(capped.now_s).over_w == pytest.approx(3.0)
    assert capped.said == []
    capped.draws_mw[0] = 440_000
    capped.pass_to(45.0)
    assert capped.said == ["ALARM: nodes could exceed the budget by 40 W"], "a cap that does not act, and once"


def test_nodes_that_came_onto_the_list_are_waited_for_one_settle_time():
    capped = Capped()
    capped.made.expect(capped.now_s, {"n2": DECLARED})
    capped.made.replan(capped.now_s)
    assert capped.said == [f"lowering to 800 W within {capped.made.ledger.settle_s:.1f} s: 500 W still to be confirmed"]
    capped.pass_to(12.0 + capped.made.ledger.settle_s + 6.0)
    assert "1 node that cannot be reached counts 500.0 W: start its agent" in " ".join(capped.alarms)


def test_a_restart_after_a_lowering_raises_no_alarm_of_counts_that_are_older_than_it(tmp_path):
    store = SqliteLedgerStore(Database(tmp_path / "a.db"), "boot-1")
    capped = Capped(1000.0, store=store)
    capped.lower_to(600.0)
    capped.pass_to(20.0)
    assert capped.made.ledger.total_mw == 600_000
    said: list[str] = []
    line, sharing = BudgetLine(600_000), Sharing("fspc")
    again = Partition(store, Terms(failing_together=0), line, sharing, 21.0, say=said.append)
    assert again.ledger.total_mw == 1_000_000, "what was stored last is from before the lowering"
    again.expect(21.0, {"n0": DECLARED, "n1": DECLARED})
    again.replan(21.0)
    again.hear(21.5, [lease.report(round(21.5 * S), 100_000) for lease in capped.leases])
    again.turn(60.0)
    assert not any("ALARM" in line for line in said), said


def test_an_alarm_that_is_on_is_not_hidden_by_a_node_that_comes_onto_the_list():
    capped = Capped()
    capped.pass_to(15.0)
    woken = NodeLease("n1", "boot-1", DECLARED, 500_000, 16 * S)
    capped.made.hear(16.0, [woken.report(16 * S, 450_000)])
    capped.made.expect(16.0, {"n2": DECLARED})
    capped.made.replan(16.1)
    assert any("nodes could exceed the budget by 600 W" in alarm for alarm in capped.alarms)


def test_a_budget_below_what_nodes_can_be_capped_to_says_how_many_watts_which_nodes_and_what_helps_once():
    capped = Capped(budget_w=350.0)
    capped.pass_to(60.0)
    (short,) = [alarm for alarm in capped.alarms if "MOP" in alarm]
    assert short == (
        "the budget of 350 W is 50 W less than every node at its MOP needs (2 nodes at their MOPs need 400 W:"
        " n0 200 W, n1 200 W): set at least 400 W, or switch nodes off"
    )
    assert sum("MOP" in line for line in capped.begun + capped.said) == 1


def test_when_all_nodes_leave_no_alarm_speaks_of_nodes_at_their_mops():
    capped = Capped()
    capped.pass_to(20.0)
    capped.lower_to(350.0)
    leaving = [lease.report(21 * S, 450_000, is_leaving=True) for lease in capped.leases]
    capped.made.hear(21.0, leaving)
    capped.made.turn(35.0)
    capped.made.hear(36.0, [lease.report(36 * S, 450_000, is_leaving=True) for lease in capped.leases])
    assert capped.alarms and not any("MOP" in line for line in capped.alarms), capped.alarms


def test_a_preview_compares_with_what_the_present_budget_would_give_now():
    capped = Capped()
    of_before = capped.made.plan
    capped.made.plan = dataclasses.replace(of_before, caps=of_before.caps - 7)  # before a job ended, say
    assert capped.made.preview(capped.now_s, 800_000)[0].endswith(": 0 less, 0 more")
    assert capped.made.preview(capped.now_s, 900_000) == ["2 nodes within reach would get 900.0 W: 0 less, 2 more"]


def test_in_observe_mode_nothing_is_lowered_and_the_alarm_says_why():
    capped = Capped(is_observing=True)
    assert capped.begun == [
        "ALARM: nodes could exceed the budget by 200 W; nothing is capped while `mode` is observe in the settings"
    ]
    capped.lower_to(600.0)
    assert capped.made.budget_view(capped.now_s).lowering_s is None and capped.said == []


@pytest.mark.parametrize("claimed", [2**62 - 1, 40])
def test_a_node_that_lies_about_epochs_is_an_alarm_and_the_other_still_gets_its_caps(claimed):
    capped = Capped()
    epoch = capped.made.ledger.epoch
    for further in range(5):  # again and again; the first is believed if it can be true
        capped.leases[0]._seen_epoch = max(claimed, 0) + further
        capped.pass_to(capped.now_s + 2.0)
    assert capped.made.ledger.epoch == (epoch if claimed > 2**20 else claimed + 1)
    assert any("1 node reports grants of a cluster agent that is not there, and takes" in one for one in capped.alarms)
    capped.pass_to(capped.now_s + 30.0)
    capped.lower_to(700.0)
    capped.pass_to(capped.now_s + 30.0)
    before_mw = capped.leases[1].limit_mw
    capped.lower_to(750.0)
    capped.pass_to(capped.now_s + 30.0)
    assert capped.leases[1].limit_mw > before_mw, "a raise"
    assert sum(lease.limit_mw for lease in capped.leases) <= 750_000
    capped.leases[0] = NodeLease("n0", "boot-1", DECLARED, capped.leases[0].limit_mw, round(capped.now_s * S))
    capped.pass_to(capped.now_s + 5.0)
    assert not any("not there" in alarm for alarm in capped.alarms), "its agent has been restarted"


def test_a_node_whose_limits_a_program_raises_is_an_alarm_with_its_name_and_counts_what_they_allow():
    capped = Capped()
    granted_mw = capped.leases[0].cap_mw
    capped.leases[0].confirm = lambda effect: None
    capped.leases[0].overrule(760_000)
    capped.raised_by = {"n0": "dd (process 7, user 0)"}
    capped.pass_to(14.0)
    assert capped.made.ledger.accounts["n0"].count_mw == 760_000 > DECLARED.tdp_mw
    over, raised = sorted(capped.alarms, reverse=True)
    assert over == f"nodes could exceed the budget by {(760_000 - granted_mw) / 1000:g} W"
    assert raised == (
        "1 node was set above the cap by a program that runs there, and set back; until that is confirmed the limit"
        " that was set counts (n0: dd (process 7, user 0))"
    )
    del capped.leases[0].confirm
    capped.raised_by = {}
    capped.pass_to(17.0)
    assert capped.alarms == [] and capped.made.ledger.accounts["n0"].count_mw == granted_mw


def test_a_node_that_does_not_report_is_an_alarm_after_a_minute_though_the_budget_is_kept():
    capped = Capped(budget_w=2000.0)
    capped.made.expect(capped.now_s, {"n2": DECLARED})
    capped.deaf = {"n1"}
    away: set[str] = set()
    capped.made.alarms.may_be_silent = away.__contains__

    def alarms_at(time_s: float) -> list[str]:
        capped.pass_to(time_s)
        return [alarm for alarm in capped.alarms if "report" in alarm]

    silent_s = 12.0 + capped.made.ledger.settle_s
    assert alarms_at(70.0) == []
    assert alarms_at(silent_s + 66.0) == [
        "2 nodes do not report (n1 for 1 min, n2 never has): start their agents, or `clusterctl drain NODE`"
    ]
    assert capped.made.budget_view(capped.now_s).alarm_kinds == ["silent"]
    away.add("n2")
    assert alarms_at(185.0) == ["1 node does not report (n1 for 2 min): start its agent, or `clusterctl drain NODE`"]
    capped.deaf = set()
    assert alarms_at(200.0) == [] and capped.said[-1].startswith("the alarm is over: 1 node does not report (n1 for 2")
    away.clear()
    assert alarms_at(206.0) == [], "a minute again"
    capped.made.ledger.switched_off(capped.now_s, "n2")
    capped.made.ledger.switched_off(capped.now_s, "n1")
    capped.deaf = {"n1"}
    assert alarms_at(300.0) == [], "both are off"


def test_every_kind_of_alarm_is_one_that_metrics_know():
    sources = [path.read_text() for path in (Path(__file__).parents[2] / "cluster_agent").rglob("*.py")]
    found = {kind for text in sources for kind in re.findall(r"(?:alarms|self)\.set\(\s*\"(\w+)\"", text)}
    assert len(found) > 10 and sorted(found) == list(KINDS)


def test_a_nodes_row_says_what_bounds_it_and_what_it_waits_for():
    capped = Capped()
    made, lease = capped.made, capped.leases[0]

    def row(asked_mw: int, power_mw: int) -> tuple[str, str]:
        capped.now_s += 0.1
        report = lease.report(round(capped.now_s * S), power_mw)
        made.hear(capped.now_s, [msgspec.structs.replace(report, asked_mw=asked_mw)])
        found = made.nodes(capped.now_s)[0]
        return found.bound_by, found.waits_for

    assert row(400_000, 250_000) == ("", ""), "it draws less than its cap"
    assert row(400_000, 399_000) == ("fspc: static", "")
    assert row(DECLARED.safe_mw, DECLARED.safe_mw) == ("no lease: its safe cap", "")
    assert row(-1, 399_000) == ("", ""), "a node that is not capped is not bound"
    assert row(400_000, 399_000)[0]
    capped.lower_to(600.0)
    assert made.nodes(capped.now_s)[0].waits_for == "report", "a lower cap is sent in answer to a report"
    silent_s = capped.now_s + made.ledger.settle_s + 60.0
    assert made.nodes(silent_s)[0].bound_by == "", "what a silent node's last report said is not so any more"

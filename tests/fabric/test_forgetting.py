"""Nodes that are gone: a person states that one has no power, and its count is dropped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster_agent.errors import WrongUseError
from cluster_agent.fabric.allowed import Allowed, Entry
from cluster_agent.fabric.people import Caller
from cluster_agent.serve.config import BudgetSettings, HazardSettings, NodeSettings, Settings
from cluster_agent.serve.people_protocol import ForgetNode, ListBudgetChanges, ListNodes, SetBudget, ShowBudget
from cluster_agent.serve.server import EXPECT_S, Server
from foundation.wire.keys import write_pair
from foundation.wire.power_messages import Declaration
from lab.cluster_demo.emulated_partition import free_port
from nodectl.member.lease import NodeLease
from tests.fabric.links import pair

ALICE = Caller(1000, "alice", "admin")
DECLARED = Declaration(
    tdp_mw=500_000, mop_mw=200_000, safe_mw=250_000, boot_mw=300_000, lease_class="os", watchdog_ms=0
)
S = 1_000_000_000


class Site:
    """A cluster agent with nodes n0 and n1, and a clock that only moves by hand."""

    def __init__(self, at: Path, budget_w: float = 1000.0, hazard: HazardSettings | None = None) -> None:
        self.at, self.now_s, self.said = at, 100.0, list[str]()
        self.settings = Settings(
            listen=f"tcp://127.0.0.1:{free_port()}", keys=str(at), store=str(at / "a.db"), socket=str(at / "s"),
            mode="cap", budget=BudgetSettings(w=budget_w), nodes=NodeSettings(tdp_w=500.0, failing_together=0),
            hazard=hazard or HazardSettings(),
        )  # fmt: skip
        self.allowed = Allowed(at)
        self.leases = {name: NodeLease(name, "boot-1", DECLARED, 500_000, 0) for name in ("n0", "n1")}
        write_pair(at / "cluster.key", pair())
        for name in self.leases:
            self.allowed.allow(Entry("node", name, pair().public))
        self.server = Server(self.settings, self.said.append, lambda: self.now_s, lambda: 1e9 + self.now_s)
        self.server.step(0)

    def restart(self) -> None:
        self.server.close()
        self.server = Server(self.settings, self.said.append, lambda: self.now_s, lambda: 1e9 + self.now_s)
        self.server.step(0)

    def hear(self, *names: str) -> None:
        """A report of these nodes, and what they are granted for it, confirmed."""
        self.now_s += 1.0
        for _ in range(2):
            now_ns = round(self.now_s * S)
            for grant in self.server.partition.hear(self.now_s, [self.leases[n].report(now_ns, 0) for n in names]):
                assert self.leases[grant.node].take(now_ns, grant) == ""
                self.leases[grant.node].confirm("seen")
            self.now_s += 0.1

    def request(self, request: object) -> object:
        return self.server.handlers[type(request)](ALICE, request)

    def counts_w(self) -> float:
        return self.server.partition.budget_view(self.now_s).counts_w


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """n1 was granted a cap, then its key was revoked; n0 goes on."""
    made = Site(tmp_path)
    made.hear("n0", "n1")
    made.hear("n0", "n1")
    made.allowed.revoke("n1")
    for _ in range(30):
        made.hear("n0")
    yield made
    made.server.close()


def test_a_revoked_node_that_is_silent_counts_until_somebody_states_that_it_has_no_power(site: Site) -> None:
    before_w = site.counts_w()
    assert before_w > 750, "n0 and what n1 may draw"
    with pytest.raises(
        WrongUseError, match=r"n1 counts 300 W, which it may draw, .* see that it has no power, then say so"
    ):
        site.request(ForgetNode("n1"))
    assert site.counts_w() == before_w
    assert site.request(ForgetNode("n1", is_off=True)) == [
        "n1 is forgotten: 300 W are free; if it reports again, it counts like a new node"
    ]
    assert [row.name for row in site.request(ListNodes())] == ["n0"]
    site.hear("n0")
    assert site.counts_w() == 500, "n0 at its TDP: nobody else draws anything"
    assert site.request(ShowBudget()).nodes == 1


def test_who_forgot_a_node_when_and_why_is_in_the_log_of_the_budget(site: Site) -> None:
    site.request(ForgetNode("n1", is_off=True))
    (change,) = site.request(ListBudgetChanges())
    what = "forgot node n1, which counted 300 W: it has no power, says alice"
    assert (change.who, change.what) == ("alice", what)
    assert change.unix_s == 1e9 + site.now_s
    assert what in site.said


def test_a_node_that_was_forgotten_blocks_no_budget_and_stays_forgotten_after_a_restart(site: Site) -> None:
    with pytest.raises(WrongUseError, match=r"2 nodes need.*`clusterctl nodes forget NAME --is-off`"):
        site.request(SetBudget(300.0))
    site.request(ForgetNode("n1", is_off=True))
    assert site.request(SetBudget(300.0))[0].startswith("set 300 W")
    site.restart()
    assert [row.name for row in site.request(ListNodes())] == ["n0"]
    assert site.counts_w() <= 500
    site.now_s += 100
    site.server.partition.ledger.pass_time(site.now_s)
    assert site.counts_w() <= 500
    with pytest.raises(WrongUseError, match="no node is called 'n1'"):
        site.request(ForgetNode("n1", is_off=True))


def test_the_alarm_about_nodes_out_of_reach_names_the_way_out(site: Site) -> None:
    site.server.partition.ledger.budget.set(400_000)
    site.now_s += 60
    site.hear("n0")
    site.server.partition.replan(site.now_s)
    alarm = " ".join(site.request(ShowBudget()).alarms)
    assert "1 node that cannot be reached counts 300.0 W: start its agent; if the node is gone" in alarm
    assert "revoke its key, see that it has no power, and `clusterctl nodes forget NAME --is-off` (n1)" in alarm


def test_a_node_that_may_still_speak_is_not_forgotten(site: Site) -> None:
    with pytest.raises(WrongUseError, match=r"n0 reported 0 s ago and may have a lease"):
        site.request(ForgetNode("n0", is_off=True))
    site.now_s += 60
    with pytest.raises(WrongUseError, match=r"n0 may come back at any time: revoke its key first"):
        site.request(ForgetNode("n0", is_off=True))


@pytest.mark.parametrize("has_restarted", [False, True])
def test_a_forgotten_node_whose_key_is_allowed_again_counts_its_tdp(site: Site, has_restarted: bool) -> None:
    site.request(ForgetNode("n1", is_off=True))
    if has_restarted:
        site.restart()
    site.allowed.allow(Entry("node", "n1", pair().public))
    site.now_s += EXPECT_S
    site.server.step(0)
    rows = {row.name: row for row in site.request(ListNodes())}
    assert (rows["n1"].state, rows["n1"].counts_w, rows["n1"].granted_w) == ("never heard", 500.0, None)


def test_a_forgotten_node_that_was_not_off_counts_what_it_reports_and_a_rebooted_one_its_tdp(site: Site) -> None:
    site.request(ForgetNode("n1", is_off=True))
    ledger, now_ns = site.server.partition.ledger, round(site.now_s * S)
    site.leases["n1"].lapse(now_ns)
    ledger.hear(site.now_s, site.leases["n1"].report(now_ns, 0))
    assert ledger.accounts["n1"].count_mw == site.leases["n1"].report(now_ns, 0).limit_mw > 0
    ledger.hear(site.now_s, NodeLease("n1", "boot-2", DECLARED, 500_000, now_ns + 1).report(now_ns + 1, 0))
    assert ledger.accounts["n1"].count_mw == 500_000


def test_a_forgotten_node_is_not_switched_on_since_nothing_says_what_it_would_draw(site: Site) -> None:
    site.request(ForgetNode("n1", is_off=True))
    ledger = site.server.partition.ledger
    ledger.budget.set(10**9)
    assert not ledger.switch_on(site.now_s, "n1")
    assert ledger.switch_on(site.now_s, "n0"), "there are watts for any other"

"""A cap under a cluster's grant ends with its lease at the controller itself: virtual time, real firmware and chip."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks.ledger_store import FaultyStore
from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.ledger import Ledger, Terms
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.protocols.power_capping import CapSet
from firmware_bridge.scmi.protocols.telemetry import LeaseGet, LeaseLeft, LeaseSet
from foundation.wire.power_messages import Grant
from lab.node_demo.pulp_node import RUNTIME_CHANNEL, TICK_NS, PulpNode
from nodectl.config import build_config
from nodectl.controller.scmi_knobs import CLOCKS_DIFFER, Direct, DomainCap, scmi_knob
from nodectl.loop.agent import Agent
from nodectl.member.cluster_cap import ClusterCap
from nodectl.write.restore import restore_saved, save_path
from nodectl.write.saves import node_id
from tests.nodectl.test_cluster_cap import Wire
from twin.pulp.plant import CLASSES

URL = "scmi+inproc:"
CAP = f"{URL}#package/cap_mw"
LEASE_NS = 800_000_000
SLOT_NS = 500_000
CLUSTER = {
    "url": "tcp://127.0.0.1:1", "name": "n0", "tdp_w": 400.0, "mop_w": 80.0, "safe_w": 120.0, "boot_w": 100.0,
    "settle_s": 0.1, "lease_class": "hw",
}  # fmt: skip
SAFE_MW = 80_000
"""What the safe cap leaves to the packages next to 40 W of rest."""


class OlderFirmware(PulpNode):
    """Does not know messages 0x7 and 0x8 of the telemetry protocol."""

    def send(self, channel: int, message: bytes) -> None:
        header = struct.unpack_from("<I", message)[0]
        self.is_unknown = header >> 10 & 0xFF == 0x80 and header & 0xFF in (7, 8)
        self.header = message[:4]
        super().send(channel, struct.pack("<I", header | 0x40) + message[4:] if self.is_unknown else message)

    def poll(self, channel: int) -> bytes | None:
        answer = super().poll(channel)
        return self.header + answer[4:] if answer and self.is_unknown else answer


class Capped:
    """One run under a cluster agent that is the test."""

    def __init__(self, tmp_path: Any, node: PulpNode, **more: Any) -> None:
        none = {"name": "none"}
        given = {
            "mode": "optimize", "state_dir": str(tmp_path), "cpu_policy": none, "gpu_policy": none,
            "budget": {"core_share": 0.0}, "caps": {"rest_w": 40.0}, "cluster": CLUSTER | more,
            "scmi": {"url": URL, "knobs": {"node/cap_mw": "package"}}, "journal": {"max_bytes": 0},
        }  # fmt: skip
        self.node, self.wire, self.said = node, Wire(), []
        self.state, self.boot = str(tmp_path), node_id(node.ports.lock_path)
        self.config = build_config(given, lambda key: ".".join(key))
        clock = node.ports.clock
        self.wire.on_wait = lambda: clock.sleep_until_ns(clock.now_ns() + 50_000_000)
        self.cap = ClusterCap(self.config.cluster, self.wire, self.boot, self.said.append, clock.now_ns)  # type: ignore[arg-type]
        self.agent = Agent.open(node.ports, self.config, self.said.append, cluster=self.cap, connect=node.connect)
        self.sequence = 0

    def ticks(self, n: int) -> None:
        for _ in range(n):
            self.agent.tick()

    def grant(self, node_w: float, is_leave: bool = False) -> int:
        """In answer to a report of a moment ago; the time at which the lease ends."""
        while self.node.now_ns - self.wire.sent[-1].report_id > LEASE_NS // 2:
            self.ticks(1)
        last, self.sequence = self.wire.sent[-1], self.sequence + 1
        grant = Grant("n0", 1, self.boot, self.sequence, round(node_w * 1000), last.report_id, LEASE_NS, is_leave)
        self.wire.grants.append(grant)
        return last.report_id + LEASE_NS

    def die(self) -> None:
        """As SIGKILL does: nothing is put back, the kernel takes the lock."""
        actuation = self.agent._actuation
        assert actuation is not None
        actuation._lock.release()
        actuation._writer.close()

    def knob(self) -> DomainCap:
        assert self.agent._actuation is not None and self.agent._actuation._delegation is not None
        found = self.agent._actuation._delegation._cap
        assert found is not None
        return found

    def restore(self, **given: Any) -> Any:
        def find(name: str) -> Any:
            return scmi_knob(Direct(Controller(self.node.connect())), name)

        return restore_saved(save_path(self.state), self.boot, find, **given)


def lease_of(node: PulpNode) -> tuple[int, int]:
    """As the firmware has it: milliseconds left, and the cap from then on."""
    found = node.connect(RUNTIME_CHANNEL).request(LeaseLeft())
    return found.left_ms, found.cap_mw


def fell_at_ns(node: PulpNode, from_ns: int, below_mw: int) -> int:
    """When the cap in force at the firmware first was this low, to the 125 us."""
    first = next(n for n, mw in enumerate(node.caps_mw[from_ns // TICK_NS :]) if 0 < mw <= below_mw)
    return (from_ns // TICK_NS + first + 1) * TICK_NS


@contextmanager
def under(tmp_path: Any, node: PulpNode | None = None, **more: Any) -> Iterator[Capped]:
    capped = Capped(tmp_path, node or PulpNode(CLASSES[2]), **more)
    capped.ticks(2)
    yield capped


def test_the_firmware_lowers_the_cap_of_a_killed_agent_when_its_lease_ends_and_not_before(tmp_path):
    with under(tmp_path) as capped:
        node = capped.node
        assert lease_of(node) == (0, 0), "who has been granted nothing has no lease"
        assert capped.wire.sent[0].declaration.lease_class == "hw", "the firmware has said that it could"
        end_ns = capped.grant(240.0)
        capped.ticks(1)
        assert node.cap_in_force_mw() == 200_000
        capped.ticks(2)
        end_ns = capped.grant(240.0)  # a renewal
        capped.ticks(1)
        killed_ns = node.now_ns
        capped.die()
        left_ms, cap_mw = lease_of(node)
        assert cap_mw == SAFE_MW
        assert 0 <= end_ns - node.now_ns - left_ms * 1e6 <= CLOCKS_DIFFER * LEASE_NS + 3e6, "never after the node's own"
        node.advance_to(end_ns + SLOT_NS)
        fell_ns = fell_at_ns(node, killed_ns, SAFE_MW)
        assert end_ns - 5_000_000 <= fell_ns <= end_ns + SLOT_NS
        node.advance(0.02)
        assert float(node.plant.power_w[0]) <= 1.02 * SAFE_MW / 1000, "and so does the chip"
        for _ in range(2):
            (held,) = capped.restore().outcomes
            assert (held.status, node.cap_in_force_mw()) == ("held", SAFE_MW)
        assert capped.restore(leaves_cluster=True).is_complete
        assert (node.cap_in_force_mw(), lease_of(node)) == (0, (0, 0))


def test_the_ledger_counts_a_silent_node_of_class_hw_at_its_safe_cap_once_its_lease_is_over(tmp_path):
    ledger = Ledger(FaultyStore(), Terms(lease_s=LEASE_NS / 1e9), BudgetLine(10**6), 0.0)
    with under(tmp_path, watchdog_s=20.0) as capped:
        ledger.hear(0.0, capped.wire.sent[-1])
        ledger.want(ledger.accounts.at(["n0"]), ledger.accounts.tdp_mw * 0 + 240_000)
        (grant,) = ledger.grants(0.0)
        capped.wire.grants.append(grant)
        capped.ticks(8)
        confirmed = next(one for one in capped.wire.sent if one.sequence == grant.sequence)
        ledger.hear(0.1, confirmed)
        assert ledger.accounts["n0"].count_mw == 240_000
        capped.die()
        ledger.pass_time(0.1 + 1.003 * LEASE_NS / 1e9 + 0.1)
        assert ledger.accounts["n0"].count_mw == 120_000, "no watchdog is waited for"


def test_heartbeats_of_an_agent_whose_loop_hangs_move_no_lease(tmp_path):
    with under(tmp_path) as capped:
        end_ns = capped.grant(240.0)
        capped.ticks(1)
        began_ns = capped.node.now_ns
        link = capped.agent._actuation._delegation._runs.link
        while capped.node.now_ns < end_ns + SLOT_NS:
            link.beat()
            capped.node.advance(0.02)
        assert fell_at_ns(capped.node, began_ns, SAFE_MW) <= end_ns + SLOT_NS
        capped.node.connect().request(CapSet(0, 0, 200_000))  # what it had been about to ask for, late
        capped.node.advance(0.01)
        assert capped.node.cap_in_force_mw() == SAFE_MW
        capped.ticks(2)
        assert not any("another agent" in line for line in capped.said)
        capped.grant(240.0)
        capped.ticks(2)
        assert capped.node.cap_in_force_mw() == 200_000, "a new grant brings a new lease"
        capped.agent.stop()


def test_a_lease_that_ends_while_its_agent_lives_is_news_for_nobody(tmp_path):
    with under(tmp_path) as capped:
        capped.grant(240.0)
        capped.ticks(14)
        assert capped.node.cap_in_force_mw() == SAFE_MW
        assert capped.said == [
            "tcp://test: the cluster agent is there",
            "the lease is over: 120 W, the safe cap (the cluster agent grants nothing)",
        ]
        capped.grant(300.0)
        capped.ticks(2)
        assert capped.node.cap_in_force_mw() == 260_000
        capped.agent.stop()


def test_a_controller_that_was_started_again_gets_the_lease_before_the_cap(tmp_path):
    with under(tmp_path) as capped:
        node = capped.node
        end_ns = capped.grant(240.0)
        capped.ticks(2)
        node.kill_controller()
        node.start_controller()
        before_ns = node.now_ns
        capped.ticks(1)
        assert node.cap_in_force_mw() == 200_000
        left_ms, cap_mw = lease_of(node)
        assert cap_mw == SAFE_MW and left_ms * 1e6 <= end_ns - node.now_ns
        capped.die()
        node.advance_to(end_ns + SLOT_NS)
        assert fell_at_ns(node, before_ns, SAFE_MW) <= end_ns + SLOT_NS


def test_an_orderly_end_leaves_cap_and_leases_as_they_were(tmp_path):
    node = PulpNode(CLASSES[2])
    by_hand = node.connect(RUNTIME_CHANNEL)
    by_hand.request(CapSet(0, 0, 150_000))
    by_hand.request(LeaseSet(60_000, 90_000))
    with under(tmp_path, node) as capped:
        capped.grant(120.0 + 40.0)
        capped.ticks(3)
        assert node.cap_in_force_mw() == 120_000
        capped.grant(150.0 + 40.0)
        capped.ticks(3)
        assert node.cap_in_force_mw() == 150_000, "as captured, but under a lease"
        capped.wire.on_wait = lambda: capped.grant(400.0, is_leave=True)
        capped.agent.stop()
        left = by_hand.request(LeaseGet())
        assert (node.cap_in_force_mw(), lease_of(node)) == (150_000, (0, 0))
        assert (left.period_ms, left.cap_mw) == (60_000, 90_000)
        node.advance(1.0)
        assert node.cap_in_force_mw() == 150_000


@pytest.mark.parametrize("lease_class", ["hw", "os"])
def test_a_node_whose_firmware_cannot_end_caps_says_so_to_its_ledger(tmp_path, lease_class):
    with under(tmp_path, OlderFirmware(CLASSES[2]), lease_class=lease_class) as capped:
        capped.grant(240.0)
        capped.ticks(3)
        assert capped.node.cap_in_force_mw() == 200_000, "it is capped all the same"
        told = {one.declaration.lease_class for one in capped.wire.sent}
        assert told == {"sticky" if lease_class == "hw" else "os"}
        said = [line for line in capped.said if "lease_class" in line]
        why = "the controller's firmware is older than leases with a set end (vendor protocol 0x80, message 0x8)"
        assert said == ([f"lease_class sticky in place of hw: {why}"] if lease_class == "hw" else [])
        capped.agent.stop()


def test_while_the_controller_is_silent_the_node_is_sticky_and_hw_again_when_it_is_back(tmp_path):
    with under(tmp_path) as capped:
        capped.grant(240.0)
        capped.ticks(1)
        capped.node.kill_controller()
        capped.ticks(3)
        assert capped.wire.sent[-1].declaration.lease_class == "sticky"
        capped.node.start_controller()
        capped.ticks(2)
        capped.grant(240.0)
        capped.ticks(2)
        assert capped.wire.sent[-1].declaration.lease_class == "hw"
        capped.agent.stop()


def test_a_cap_that_outlived_its_machines_boot_is_nobodys_original(tmp_path):
    with under(tmp_path) as capped:
        node = capped.node
        capped.grant(240.0)
        capped.ticks(1)
        capped.die()
        node.advance(1.0)
    (tmp_path / "captured.jsonl").unlink()  # of another boot: it is set aside
    with under(tmp_path, node) as capped:
        assert node.cap_in_force_mw() == SAFE_MW, "nothing is raised before there is a grant"
        capped.grant(240.0)
        capped.ticks(2)
        assert node.cap_in_force_mw() == 200_000
        capped.wire.on_wait = lambda: capped.grant(400.0, is_leave=True)
        capped.agent.stop()
        assert (node.cap_in_force_mw(), lease_of(node)) == (0, (0, 0))


def test_a_cap_that_is_withdrawn_by_hand_goes_with_its_lease(tmp_path):
    with under(tmp_path) as capped:
        capped.grant(240.0)
        capped.ticks(1)
        capped.die()
        capped.node.advance(1.0)
        by_hand = Controller(capped.node.connect())
        assert by_hand.disable_cap(by_hand.cap_domains[0]) == 0
        assert lease_of(capped.node) == (0, 0)

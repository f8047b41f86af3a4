"""A partition that goes wrong in every way the ledger must bear, to try the ledger's own code and the nodes' own code.

Nodes with leases, knobs and clocks of their own; a network that loses, delays (to a minute), doubles and cuts; agents
that are killed or hang, kernels that hang until the watchdog, nodes that reboot; cluster agents that are killed, whose
machine goes down and loses what the disk had promised to keep, or that are replaced while they still run; budgets that
drop; nodes that are suspended and wake, that are switched off and on (``ledger_power``). After every event the world
knows what every node may *really* draw, and adds it up. Wall clocks may jump as they like: no code that is tried here
reads one, which the tests see to.

What the world keeps to, as the claim does: at most ``Terms.failing_together`` nodes are down at once (a node counts
as down from its failure until it has confirmed a cap again and the ledger's reserve is whole); clock rates are within
``CLOCK_RATE_ERROR``; nodes do what their class declares; a drop is in force from its time or, if it was announced later
than one settle time ahead, from one settle time after its announcement.

One kind of world breaks one of these on purpose (``Faults.oversleeps``): nodes of class os are suspended for longer
than their watchdog time, so that their caps act on when the ledger takes them for lowered. There a node is charged what
it declared, until it has been awake for two settle times: what all others do must still keep the budget then.
"""

from __future__ import annotations

import contextlib
import heapq
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import numpy as np

from benchmarks.ledger_groups import WorldGroups
from benchmarks.ledger_node import Node
from benchmarks.ledger_power import WorldPower, step_all
from benchmarks.ledger_store import FaultyStore
from cluster_agent.budget.accounts import Ints
from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.kept_counts import DeposedError
from cluster_agent.budget.ledger import Ledger, Terms
from cluster_agent.budget.plan import Share, plan
from foundation.wire.power_messages import Declaration, Grant, LeaseClass, Report
from nodectl.member.lease import NodeLease

PLAN_S = 4.0
LOOP_S = 0.4
LONGEST_DELAY_S = 60.0


@dataclass(frozen=True, slots=True)
class Faults:
    """How much goes wrong: probabilities per message, and mean seconds between events of all nodes together (0: never).

    ``failing_together`` is what the ledger assumes and the world keeps to.
    """

    loss: float = 0.05
    duplicate: float = 0.05
    late: float = 0.05
    cut_s: float = 90.0
    agent_kill_s: float = 90.0
    agent_hang_s: float = 90.0
    kernel_hang_s: float = 0.0
    reboot_s: float = 0.0
    cluster_kill_s: float = 0.0
    cluster_crash_s: float = 0.0
    takeover_s: float = 0.0
    change_s: float = 90.0
    failing_together: int = 0
    joining: int = 0  # nodes that the ledger hears of late
    all_sticky: bool = False
    sleep_s: float = 0.0
    oversleeps: bool = False  # longer than they declare
    switch_s: float = 0.0
    unasked_s: float = 0.0  # a node that is off comes up by itself
    leave_s: float = 0.0  # an agent ends in order and asks for leave
    deaf: float = 0.0  # grants that are lost on top, on a way that carries reports
    boot_s: tuple[float, float] = (20.0, 90.0)
    limit_s: float = 0.0  # groups have limits, which change
    noise: float = 0.0  # by which the measured draw may be above the true one


EVERYTHING: Final = Faults(
    loss=0.1, duplicate=0.1, late=0.05, cut_s=60.0, agent_kill_s=60.0, agent_hang_s=60.0, kernel_hang_s=200.0,
    reboot_s=100.0, cluster_kill_s=200.0, cluster_crash_s=400.0, takeover_s=300.0, change_s=60.0,
    failing_together=2, joining=2,
)  # fmt: skip

KINDS: Final = {
    "network and agents": Faults(),
    "a bad network": Faults(loss=0.2, duplicate=0.2, late=0.2, cut_s=30.0, agent_kill_s=0.0, agent_hang_s=0.0),
    "a slow network": Faults(loss=0.3, duplicate=0.3, late=0.5, cut_s=15.0, agent_kill_s=0.0, agent_hang_s=0.0),
    "agents": Faults(loss=0.02, late=0.02, cut_s=0.0, agent_kill_s=15.0, agent_hang_s=15.0),
    "kernels and reboots": Faults(kernel_hang_s=120.0, reboot_s=60.0, failing_together=2),
    "cluster agents": Faults(late=0.1, cluster_kill_s=150.0, cluster_crash_s=100.0, takeover_s=200.0, change_s=300.0),
    "sticky controllers": Faults(0.0, 0.0, 0.0, 0.0, 0.0, agent_hang_s=4.0, change_s=0.0, all_sticky=True),
    "joining nodes": Faults(joining=4),
    "cluster machines": Faults(0.3, 0.0, 0.0, 6.0, 0.0, 0.0, cluster_crash_s=30.0, change_s=0.0),
    "hung agents": Faults(0.3, 0.3, 0.3, 30.0, 0.0, 4.0, change_s=0.0),
    "suspended nodes": Faults(cut_s=0.0, agent_kill_s=0.0, sleep_s=10.0),
    "nodes that oversleep": Faults(cut_s=0.0, agent_kill_s=0.0, agent_hang_s=0.0, sleep_s=8.0, oversleeps=True),
    "nodes switched off": Faults(cut_s=0.0, agent_kill_s=200.0, switch_s=8.0, change_s=300.0),
    "nodes that leave": Faults(cut_s=0.0, agent_kill_s=200.0, leave_s=8.0, noise=0.02),
    "deaf nodes": Faults(0.0, 0.0, 0.0, cut_s=0.0, agent_kill_s=0.0, agent_hang_s=0.0, change_s=1.5, deaf=0.9),
    "nodes that boot fast": Faults(0.1, 0.1, 0.3, reboot_s=15.0, boot_s=(0.5, 6.0), failing_together=2),
    "nodes that come up": Faults(cut_s=0.0, agent_kill_s=200.0, switch_s=8.0, unasked_s=20.0, failing_together=1),
    "switching and all": replace(EVERYTHING, change_s=120.0, joining=1, sleep_s=60.0, switch_s=15.0, unasked_s=120.0),
    "all": EVERYTHING,
}
"""Worlds in which one thing goes wrong most. Where reboots are part of it, a reserve is kept, and then much else must
go wrong at once to pass the budget; where they are not, there is no slack at all."""


@dataclass(slots=True)
class Totals:
    """What was seen."""

    events: int = 0
    violations: int = 0
    worst_mw: int = 0
    seconds_over: float = 0.0
    seconds_excused: float = 0.0
    """As well, and those in which the budget was passed only by what nodes do that do not keep to what they declare."""
    used_mws: float = 0.0
    promised_mws: float = 0.0
    least_margin_mw: int = 1 << 62
    counted: dict[str, int] = field(default_factory=dict)


def proportional(ledger: Ledger, demand: Mapping[str, float]) -> Share:
    """A sharer for the world: the same part of its need above MOP for every node."""

    def share(at: Ints, available_mw: int) -> Ints:
        low, high = ledger.accounts.mop_mw[at], ledger.accounts.tdp_mw[at]
        part_wished = np.array([demand.get(ledger.accounts.names[place], 1.0) for place in at.tolist()])
        wanted = low + ((high - low) * part_wished).astype(np.int64)
        spread = int((wanted - low).sum())
        part = min((available_mw - int(low.sum())) / spread, 1.0) if spread else 1.0
        caps: Ints = low + np.floor((wanted - low) * part).astype(np.int64)
        return caps

    return share


class World:
    """``n`` nodes under one budget; ``run`` goes through so many events."""

    def __init__(
        self,
        seed: int,
        n: int = 16,
        faults: Faults = KINDS["all"],
        ledger_type: type[Ledger] = Ledger,
        lease_type: type[NodeLease] = NodeLease,
        declares: Callable[[Declaration], Declaration] = lambda declaration: declaration,
        expects_nodes: bool = True,
        node_type: type[Node] = Node,
        power_type: type[WorldPower] = WorldPower,
    ) -> None:
        """``declares``: what nodes say of themselves to the ledger, where that is to differ from what they do."""
        self.dice = random.Random(seed)
        self.faults = faults
        self.now_s = 0.0
        self.enforceable_mw = 0
        self.excused_mw = 0
        self._charged_mw: dict[str, tuple[int, int]] = {}
        self.totals = Totals()
        self.ledger_type, self.lease_type, self.declares = ledger_type, lease_type, declares
        self.terms = Terms(fixed_mw=300_000, failing_together=faults.failing_together, lease_s=10.0)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._cut_until_s: dict[str, float] = {}
        self._arrived: dict[int, list[Report]] = {}
        self.is_healed = False
        self.keeps_demand = False
        self.nodes = {f"n{i:02d}": node_type(self, f"n{i:02d}", self._declaration(i)) for i in range(n)}
        self.expects_nodes = expects_nodes
        tdp = sum(node.declaration.tdp_mw for node in self.nodes.values())
        self.least_mw = self.terms.fixed_mw + self._least_mw()
        self.most_mw = self.terms.fixed_mw + tdp
        # with nodes that are off a budget is tight only if it is a low one
        self.highest_mw = self.least_mw + (self.most_mw - self.least_mw) // 8 if faults.switch_s else self.most_mw
        self.promised_mw = self.most_mw
        self._promises: list[tuple[float, int, float]] = []  # from when, mW, the step's own time
        self.line = BudgetLine(self.most_mw)
        # a budget that never drops may be one that could not be dropped to
        first_mw = self.least_mw + (self.highest_mw - self.least_mw) // 3 if faults.change_s else self.most_mw * 6 // 10
        self.line.announce(60.0, first_mw)
        heapq.heappush(self._promises, (60.0, self.line.steps[0][1], 60.0))
        self.store = FaultyStore()
        self.demand: dict[str, float] = {}
        self.ledgers: list[Ledger | None] = []
        self.power_type = power_type
        self.sides: list[WorldPower | None] = []
        self.groups = WorldGroups(self) if faults.limit_s else None
        for node in self.nodes.values():
            node.act(node.declaration.boot_mw)
            node.state, node.boots, node.boot_id = "up", 1, f"{node.name}-1"
            wait_s = self.dice.uniform(100, 1500) if self._joins_late(node) else self.dice.uniform(0, 3)
            self.after(wait_s, node.start_agent)
        self._start_ledger()
        self._plan()
        self.after(60.0, self._arm)
        if faults.switch_s:
            step_all(self)

    # --- running

    def charge(self, node: str, mw: int, in_force_mw: int) -> None:
        """What a node may draw from now on, and what of it it is charged."""
        charged_mw, excused_mw = self._charged_mw.get(node, (0, 0))
        self.enforceable_mw += mw - charged_mw
        if self.groups:
            self.groups.charge(node, mw - charged_mw)
        self.excused_mw += in_force_mw - mw - excused_mw
        self._charged_mw[node] = mw, in_force_mw - mw

    def after(self, wait_s: float, what: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.now_s + wait_s, self._number, what))

    def run(self, events: int) -> Totals:
        for _ in range(events):
            at_s, _, what = heapq.heappop(self._queue)
            self._account(at_s)
            self.now_s = at_s
            what()
            self.totals.events += 1
        return self.totals

    def run_for(self, seconds: float) -> Totals:
        end_s = self.now_s + seconds
        while self._queue[0][0] < end_s:
            self.run(1)
        return self.totals

    def heal(self) -> None:
        """From now on nothing goes wrong any more; what is broken mends itself."""
        self.is_healed = True
        self.faults = Faults(0, 0, 0, joining=self.faults.joining)
        self._cut_until_s = {}
        for side in self.sides:
            if side is not None:
                with contextlib.suppress(DeposedError):
                    side.leave_as_is()
        for node in self.nodes.values():
            if node.agent == "none":
                node.start_agent()

    def unused_once_healed(self, gaps: float = 3.0) -> float:
        """Faults end, and what is broken mends itself; so many leases after all nodes want their TDP: how much of what
        could be granted to them is not, as a part of it."""
        self.heal()
        self.run_for(150)  # hung kernels, boots and late messages come to an end
        self.demand = dict.fromkeys(self.nodes, 1.0)
        self.keeps_demand = True
        self.run_for(gaps * self.terms.lease_s)
        ledger = self.active()
        assert ledger is not None
        accounts = ledger.accounts
        is_up = np.array([self.nodes[name].state == "up" for name in accounts.names])
        demand_mw = int(accounts.tdp_mw[is_up].sum())
        others_mw = int(accounts.count_mw[~is_up].sum())
        could_mw = min(ledger.spendable_mw(self.now_s) - ledger.reserve_mw - others_mw, demand_mw)
        return (could_mw - int(accounts.target_mw[is_up].sum())) / could_mw

    def _account(self, next_s: float) -> None:
        """Judge the time from now to the next event, at each promise that begins in it."""
        if self.groups:
            self.groups.account(self.now_s, next_s)
        while self._promises and self._promises[0][0] <= next_s:
            at_s, mw, _ = heapq.heappop(self._promises)
            self._judge(max(at_s - self.now_s, 0.0))
            self.now_s = max(at_s, self.now_s)
            self.promised_mw = mw
        self._judge(next_s - self.now_s)

    def _judge(self, seconds: float) -> None:
        over_mw = self.enforceable_mw + self.terms.fixed_mw - self.promised_mw
        self.totals.least_margin_mw = min(self.totals.least_margin_mw, -over_mw)
        self.totals.used_mws += (self.enforceable_mw + self.terms.fixed_mw) * seconds
        self.totals.promised_mws += self.promised_mw * seconds
        if over_mw + self.excused_mw > 0:
            self.totals.seconds_excused += seconds
        if over_mw > 0 and seconds > 0:
            self.totals.violations += 1
            self.totals.seconds_over += seconds
            self.totals.worst_mw = max(self.totals.worst_mw, over_mw)

    def count(self, what: str) -> None:
        self.totals.counted[what] = self.totals.counted.get(what, 0) + 1

    # --- the network

    def _carry(self, node: str, deliver: Callable[[], None]) -> None:
        if self.dice.random() < self.faults.loss or self._cut_until_s.get(node, 0.0) > self.now_s:
            self.count("lost")
            return
        for _ in range(2 if self.dice.random() < self.faults.duplicate else 1):
            is_late = self.dice.random() < self.faults.late
            self.after(self.dice.uniform(0.5, LONGEST_DELAY_S) if is_late else self.dice.uniform(0.001, 0.05), deliver)

    def send_report(self, report: Report) -> None:
        said = msgspec.structs.replace(report, declaration=self.declares(report.declaration))
        reached = [i for i, ledger in enumerate(self.ledgers) if ledger is not None]
        if reached:
            which = self.dice.choice(reached)
            self._carry(report.node, lambda: self._arrive(which, said))

    def _send(self, grants: list[Grant]) -> None:
        for grant in grants:
            node = self.nodes[grant.node]
            if self.faults.deaf and self.dice.random() < self.faults.deaf:
                self.count("grant lost")
                continue
            self._carry(grant.node, lambda node=node, grant=grant: node.receive(grant))  # type: ignore[misc]

    # --- the cluster agent

    def _start_ledger(self) -> None:
        levels = self.groups.levels() if self.groups else None
        ledger = self.ledger_type(self.store, self.terms, self.line, self.now_s, levels)
        if self.expects_nodes:
            for node in self.nodes.values():
                ledger.expect(self.now_s, {node.name: self.declares(node.declaration)})
        self.ledgers.append(ledger)
        self.sides.append(self.power_type(self, ledger) if self.faults.switch_s else None)
        plan(ledger, self.now_s, proportional(ledger, self.demand))

    def _arrive(self, which: int, report: Report) -> None:
        """Reports wait for the cluster agent's loop, which takes all that are there."""
        if which not in self._arrived:
            self._arrived[which] = []
            self.after(self.dice.uniform(0.0, LOOP_S), lambda: self._hear(which))
        self._arrived[which].append(report)

    def _hear(self, which: int) -> None:
        ledger, reports = self.ledgers[which], self._arrived.pop(which)
        if ledger is None:
            return
        try:
            heard = ledger.hear(self.now_s, *reports)
            if side := self.sides[which]:
                for report in reports:
                    side.heard(report.node, report.boot_id)
            if heard:
                self._send(ledger.grants(self.now_s, [report.node for report in heard]))
        except DeposedError:
            self.count("deposed")
            self.ledgers[which] = None

    def _plan(self) -> None:
        for name in [] if self.keeps_demand else self.dice.sample(sorted(self.nodes), min(8, len(self.nodes))):
            self.demand[name] = self.dice.choice((0.0, 1.0, 1.0))
            self.nodes[name].draw = self.dice.uniform(0.3, 1.0)
        for i, ledger in enumerate(self.ledgers):
            if ledger is not None:
                try:
                    plan(ledger, self.now_s, proportional(ledger, self.demand))
                    self._send(ledger.grants(self.now_s))
                except DeposedError:
                    self.ledgers[i] = None
                    continue
                for node in self.nodes.values():
                    account = ledger.accounts.get(node.name)
                    if account is None or node.state != "up" or account.boot_id != node.boot_id:
                        continue
                    if node.is_failing and account.has_confirmed and self._is_whole(ledger):
                        node.is_failing = False
        self.after(PLAN_S, self._plan)

    def active(self) -> Ledger | None:
        return next((ledger for ledger in reversed(self.ledgers) if ledger is not None), None)

    def _kill_cluster(self) -> None:
        self._end_ledgers()
        self.count("cluster agent killed")
        self.after(self.dice.uniform(0.5, 30), self._restart_cluster)

    def _crash_cluster(self) -> None:
        self._end_ledgers()
        self.store.crash(self.dice.randrange(8))
        self.count("cluster machine crashed")
        self.after(self.dice.uniform(0.5, 15), self._restart_cluster)

    def _end_ledgers(self) -> None:
        self.ledgers = [None] * len(self.ledgers)
        self.sides = [None] * len(self.sides)

    def _restart_cluster(self) -> None:
        if self.active() is None:
            self._start_ledger()

    def _take_over(self) -> None:
        if self.active() is not None:
            self.count("standby took over")
            self._start_ledger()

    # --- faults

    def _arm(self) -> None:
        faults = self.faults
        for mean_s, what in (
            (faults.cut_s, self._cut),
            (faults.agent_kill_s, lambda: self._one("agent killed").kill_agent()),
            (faults.agent_hang_s, lambda: self._one("agent hung").hang_agent()),
            (faults.kernel_hang_s, lambda: self._fail("kernel hung", Node.hang_kernel)),
            (faults.reboot_s, lambda: self._fail("node rebooted", Node.reboot)),
            (faults.sleep_s, lambda: self._one("node suspended").sleep()),
            (faults.leave_s, lambda: self._one("agent ended").leave()),
            (faults.unasked_s, self._come_up_unasked),
            (faults.switch_s, self._switch),
            (faults.cluster_kill_s, self._kill_cluster),
            (faults.cluster_crash_s, self._crash_cluster),
            (faults.takeover_s, self._take_over),
            (faults.change_s, self._change_budget),
            (faults.limit_s, self._change_limit),
        ):
            if mean_s:
                self._repeat(mean_s, what)

    def _repeat(self, mean_s: float, what: Callable[[], object]) -> None:
        def once() -> None:
            if not self.is_healed:
                what()
                self._repeat(mean_s, what)

        self.after(self.dice.expovariate(1 / mean_s), once)

    def _one(self, what: str) -> Node:
        self.count(what)
        return self.nodes[self.dice.choice(sorted(self.nodes))]

    def _fail(self, what: str, how: Callable[[Node], None]) -> None:
        down = sum(node.is_failing for node in self.nodes.values())
        ledger = self.active()
        if down < self.terms.failing_together and ledger is not None and self._is_whole(ledger):
            node = self._one(what)
            if node.state == "up":
                how(node)

    def _come_up_unasked(self) -> None:
        """A failure like a reboot: nobody has granted its boot's watts."""
        down, ledger = sum(node.is_failing for node in self.nodes.values()), self.active()
        off = [node for node in self.nodes.values() if node.state == "off"]
        if off and down < self.terms.failing_together and ledger is not None and self._is_whole(ledger):
            self.count("came up unasked")
            node = self.dice.choice(off)
            node.power_on(self.faults.boot_s[1])
            node.is_failing = True

    def _is_whole(self, ledger: Ledger) -> bool:
        """Whether the reserve is."""
        is_whole = ledger.free_mw(self.now_s) >= 0
        return is_whole and (self.groups is None or self.groups.is_whole(ledger))

    def _switch(self) -> None:
        side = next((side for side in reversed(self.sides) if side is not None), None)
        if side is not None and self.active() is not None:
            try:
                side.switch_some()
            except DeposedError:
                self.sides[self.sides.index(side)] = None

    def _cut(self) -> None:
        self.count("cut")
        for name in self.dice.sample(sorted(self.nodes), self.dice.randrange(1, len(self.nodes) // 2 + 1)):
            self._cut_until_s[name] = self.now_s + self.dice.uniform(2, 60)

    def _change_budget(self) -> None:
        """Announce a step. Upward it is in force from its time on; downward see the module."""
        ledger = self.active()
        if ledger is None:
            return
        self.count("budget changed")
        mw = self.dice.randrange(self.least_mw, self.highest_mw)
        at_s = self.now_s + self.dice.uniform(0, 60)
        self.line.announce(at_s, mw)
        before_mw = self.line.steps[-2][1] if len(self.line.steps) > 1 else self.line.budget_mw
        from_s = max(at_s, self.now_s + ledger.settle_s) if mw < before_mw else at_s
        self._promises = [one for one in self._promises if one[0] < from_s and one[2] < at_s]
        heapq.heapify(self._promises)
        heapq.heappush(self._promises, (from_s, mw, at_s))
        self._plan_again()

    def _change_limit(self) -> None:
        if self.groups:
            self.groups.change()
            self._plan_again()

    def _plan_again(self) -> None:
        for one in self.ledgers:
            if one is not None:
                plan(one, self.now_s, proportional(one, self.demand))
                self.after(0.0, lambda one=one: self._grant_from(one))  # type: ignore[misc]

    def _grant_from(self, ledger: Ledger) -> None:
        try:
            if ledger in self.ledgers:
                self._send(ledger.grants(self.now_s))
        except DeposedError:
            self.ledgers[self.ledgers.index(ledger)] = None

    def _declaration(self, i: int) -> Declaration:
        classes: tuple[LeaseClass, ...] = ("os", "os", "hw", "os", "os", "hw", "os", "sticky")
        lease_class = classes[i % 8] if not self.faults.all_sticky else "sticky"
        tdp = (500_000, 700_000)[i % 2]
        return Declaration(
            tdp_mw=tdp,
            mop_mw=tdp * 2 // 5,
            safe_mw=tdp * 2 // 5,
            boot_mw=tdp * (4 if self.faults.all_sticky or self.faults.oversleeps else 5 + i % 5) // 10,
            lease_class=lease_class,
            settle_ms=500,
            watchdog_ms=8000 if lease_class != "sticky" else 0,
        )

    def _joins_late(self, node: Node) -> bool:
        """Known to the administrator from the start, and to the ledger only when its agent is started."""
        return int(node.name[1:]) < self.faults.joining

    def needs_mw(self, node: Node) -> int:
        """What it may draw whatever is cut off."""
        one = node.declaration
        return one.tdp_mw if one.lease_class == "sticky" or self._joins_late(node) else one.mop_mw

    def _least_mw(self) -> int:
        """A budget that can be kept whatever is cut off: what is sticky or unheard may draw its TDP, and k boot."""
        least = sum(self.needs_mw(node) for node in self.nodes.values())
        boots = sorted(
            (node.declaration.boot_mw - node.declaration.mop_mw for node in self.nodes.values()), reverse=True
        )
        return least + sum(boots[: self.terms.failing_together])

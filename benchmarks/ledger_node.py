"""A node of the ledger's world (``ledger_world``): its lease is the real code; agent, kernel and power fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cluster_agent.budget.ledger import CLOCK_RATE_ERROR
from foundation.wire.power_messages import Declaration, Grant
from nodectl.member.cluster_cap import LEAVE_S, REPEAT_S
from nodectl.member.lease import NodeLease

if TYPE_CHECKING:
    from benchmarks.ledger_world import World

REPORT_S = 1.0
LONGEST_SLEEP_S = 120.0
SETTLES_AWAKE: Final = 2
"""For its own lapse, and for the first grant, whose write begins the settling again in this world."""
NO_END: Final = 1 << 62


class Node:
    """One node: the real agent code for leases, and a knob with delay."""

    def __init__(self, world: World, name: str, declaration: Declaration) -> None:
        self.world, self.name, self.declaration = world, name, declaration
        self.in_force_mw = 0
        self.rate = 1 + world.dice.uniform(-CLOCK_RATE_ERROR, CLOCK_RATE_ERROR)
        self.offset_ns = world.dice.randrange(10**15)
        self.boots = 0
        self.state = "booting"  # up, booting, kernel hung
        self.agent = "none"  # alive, hung, none
        self.lease: NodeLease | None = None
        self.inbox: list[Grant] = []
        self.write = 0
        self.agents = 0
        self.is_failing = False
        self.boot_id = ""
        self.is_uncapped = False  # as it is after a boot, until the first cap
        self.draw = world.dice.uniform(0.3, 1.0)
        self.charged_at_most_mw = NO_END  # less for a while after it has overslept

    def now_ns(self) -> int:
        return self.offset_ns + int(self.world.now_s * self.rate * 1e9)

    def act(self, cap_mw: int) -> None:
        """From now on the node may draw this."""
        self.in_force_mw = cap_mw
        self.world.charge(self.name, min(cap_mw, self.charged_at_most_mw), cap_mw)

    # --- the agent

    def start_agent(self) -> None:
        if self.state != "up":
            return
        self.agent, self.agents = "alive", self.agents + 1
        limit_mw = self.declaration.tdp_mw if self.is_uncapped else self.in_force_mw
        self.lease = self.world.lease_type(self.name, self.boot_id, self.declaration, limit_mw, self.now_ns())
        self.inbox = []
        self._check_lease(self.agents)
        self._report(self.agents)

    def _report(self, agent: int) -> None:
        if agent != self.agents or self.agent == "none" or self.state != "up":
            return
        if self.agent == "alive":
            self._send_report()
        self.world.after(REPORT_S * self.world.dice.uniform(0.9, 1.1), lambda: self._report(agent))

    def _send_report(self, is_leaving: bool = False) -> None:
        assert self.lease is not None
        power_mw = int(min(self.in_force_mw, self.draw * self.declaration.tdp_mw))
        if self.world.faults.noise:
            power_mw = int(power_mw * (1 + self.world.dice.uniform(0, self.world.faults.noise)))
        self.world.send_report(self.lease.report(self.now_ns(), power_mw, is_leaving))

    def _check_lease(self, agent: int) -> None:
        """The agent's lapse, and where it hangs the writer's, and on class hw the controller's."""
        if agent != self.agents or self.lease is None or self.state == "booting":
            return
        has_ended_it = self.agent != "hung" or self.declaration.lease_class != "sticky"
        if self.state in ("kernel hung", "asleep"):
            has_ended_it = self.declaration.lease_class == "hw"
        if has_ended_it and self.lease.lapse(self.now_ns()):
            self._write(self.lease.cap_mw)
        left_s = (self.lease.lease_end_ns - self.now_ns()) / 1e9
        self.world.after(max(left_s, 0.2) * (1 + 2e-3), lambda: self._check_lease(agent))

    def receive(self, grant: Grant) -> None:
        if self.state not in ("up", "asleep") or self.agent == "none":
            return
        if self.agent == "hung" or self.state == "asleep":
            self.inbox.append(grant)
            return
        assert self.lease is not None
        if self.lease.lapse(self.now_ns()):
            self._write(self.lease.cap_mw)
        if not self.lease.take(self.now_ns(), grant):
            if grant.is_leave and self.agent == "leaving":
                self._end(uncapped=True)
            else:
                self._write(self.lease.cap_mw)

    def _write(self, cap_mw: int) -> None:
        """A raise is in force at once, a decrease within the settle time; both are seen after it."""
        self.write += 1
        self.is_uncapped = False
        write, lease = self.write, self.lease
        if cap_mw > self.in_force_mw:
            self.act(cap_mw)

        def settled() -> None:
            if write == self.write and lease is self.lease and self.state != "booting":
                self.act(cap_mw)
                if lease is not None and self.agent != "none":
                    lease.confirm("seen" if self.draw * self.declaration.tdp_mw > cap_mw else "provisional")
                if self.agent == "alive" and self.state == "up":
                    self._send_report()

        self.world.after(self.world.dice.uniform(0.05, 0.95) * self.declaration.settle_ms / 1000, settled)

    def leave(self) -> None:
        """An agent that ends asks for leave to go uncapped, and waits for it as long as the real one does."""
        if self.agent != "alive" or self.state != "up":
            return
        self.agent, agent = "leaving", self.agents

        def ask(n: int) -> None:
            if agent == self.agents and self.agent == "leaving" and self.state == "up":
                if n * REPEAT_S < LEAVE_S:
                    self._send_report(is_leaving=True)
                    self.world.after(REPEAT_S, lambda: ask(n + 1))
                else:
                    self._end(uncapped=False)

        ask(0)

    def _end(self, uncapped: bool) -> None:
        """The agent is gone; with leave the knobs are as they were before it came."""
        self.agent, self.agents, self.lease = "none", self.agents + 1, None
        if uncapped:
            self.write += 1
            self.is_uncapped = True
            self.act(self.declaration.tdp_mw)
        else:
            self._write(min(self.in_force_mw, self.declaration.safe_mw))
        self.world.after(self.world.dice.uniform(2, 20), self.start_agent)

    # --- what goes wrong

    def kill_agent(self) -> None:
        """ExecStopPost lowers the cap to the safe one; a sticky controller is not relied on to hear it."""
        if self.state != "up" or self.agent == "none":
            return
        self.agent, self.agents, self.lease = "none", self.agents + 1, None
        if self.declaration.lease_class != "sticky":
            self._write(min(self.in_force_mw, self.declaration.safe_mw))
        self.world.after(self.world.dice.uniform(2, 20), self.start_agent)

    def hang_agent(self) -> None:
        if self.agent != "alive" or self.state != "up":
            return
        self.agent = "hung"

        def wake(agent: int = self.agents) -> None:
            if agent == self.agents and self.agent == "hung" and self.state == "up":
                self.agent = "alive"
                late, self.inbox = self.inbox, []
                for grant in late:
                    self.receive(grant)

        self.world.after(self.world.dice.uniform(1, 40), wake)

    def hang_kernel(self) -> None:
        """Nothing runs any more; the watchdog resets the machine."""
        if self.state != "up" or not self.declaration.watchdog_ms:
            return
        self.state, self.is_failing = "kernel hung", True
        self.world.after(self.declaration.watchdog_ms / 1000 * self.world.dice.uniform(0.5, 1.0), self.reboot)

    def sleep(self) -> None:
        """The whole node hangs under its caps, but for a controller that ends leases (class hw)."""
        if self.state != "up" or self.agent != "alive":
            return
        is_os, watchdog_s = self.declaration.lease_class == "os", self.declaration.watchdog_ms / 1000
        is_bound = is_os and not self.world.faults.oversleeps
        lasts_s = self.world.dice.uniform(1, watchdog_s if is_bound else LONGEST_SLEEP_S)
        self.state, agent = "asleep", self.agents

        def oversleep() -> None:
            if agent == self.agents and self.state == "asleep":
                self.charged_at_most_mw = max(self.declaration.safe_mw, self.declaration.boot_mw)
                self.act(self.in_force_mw)

        if is_os and lasts_s > watchdog_s:
            self.world.after(watchdog_s, oversleep)
        self.world.after(lasts_s, lambda: self._wake(agent))

    def _wake(self, agent: int) -> None:
        """The agent goes on where it stood: what has come meanwhile, its lease, its report."""
        if agent != self.agents or self.state != "asleep":
            return
        self.state, self.agents = "up", self.agents + 1
        late, self.inbox = self.inbox, []
        for grant in late:
            self.receive(grant)
        self._check_lease(self.agents)
        self._report(self.agents)
        self.world.after(SETTLES_AWAKE * self.declaration.settle_ms / 1000, self._is_charged_in_full)

    def _is_charged_in_full(self) -> None:
        self.charged_at_most_mw = NO_END
        self.act(self.in_force_mw)

    def reboot(self) -> None:
        """Its settings are gone, but for a sticky controller's."""
        self.is_failing = True
        self.state, self.agent, self.lease = "booting", "none", None
        self.agents += 1
        self.write += 1
        self.boots += 1
        self.boot_id = f"{self.name}-{self.boots}"
        if self.declaration.lease_class != "sticky":
            self.is_uncapped = True
            self.act(self.declaration.boot_mw)
        self._boot_within(*self.world.faults.boot_s)

    def power_off(self) -> None:
        """Nothing of it is left, a sticky controller's cap neither."""
        if self.state == "off":
            return
        self.state, self.agent, self.lease, self.is_failing = "off", "none", None, False
        self.agents += 1
        self.write += 1
        self.boots += 1
        self.act(0)

    def power_on(self, at_most_s: float) -> None:
        """It boots, as long as that takes; one that has power already stays as it is."""
        if self.state != "off":
            return
        self.state, self.is_uncapped = "booting", True
        self.boots += 1
        self.boot_id = f"{self.name}-{self.boots}"
        self.act(self.declaration.boot_mw)
        self._boot_within(self.world.faults.boot_s[0], at_most_s)

    def _boot_within(self, least_s: float, most_s: float) -> None:
        boots = self.boots
        self.world.after(self.world.dice.uniform(least_s, most_s), lambda: self._booted(boots))

    def _booted(self, boots: int) -> None:
        if boots == self.boots and self.state == "booting":
            self.state = "up"
            self.start_agent()

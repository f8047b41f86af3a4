"""A partition under its budget: reports in, grants out, and an account of why.

The ledger decides what may be sent, the plan asks a sharer for what is wished; this joins them to what happens. It
reads no clock and opens no socket; times are CLOCK_BOOTTIME in seconds. In observe mode it decides and shows, and
grants nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cluster_agent.budget.accounts import Account
from cluster_agent.budget.ledger import Ledger, Terms
from cluster_agent.budget.line import BudgetLine
from cluster_agent.budget.plan import Plan, plan
from cluster_agent.budget.sharers.gap import Event, Gap
from cluster_agent.budget.sharers.tags import NODE_AGENT, in_words
from cluster_agent.budget.store import NOTHING, DeposedError, LedgerStore
from cluster_agent.errors import ClusterError, no_such_node
from cluster_agent.serve.alarms import Alarms
from cluster_agent.serve.sharing import Sharing
from nodectl.wire import Declaration, Grant, Report

LEAST_S: Final = 0.05
"""Ours: at most twenty plans a second, however many events there are."""

NEED_S: Final = 5.0
"""Ours: so long after a plan what nodes draw counts as new, since it changes without an event; so often alarms are
looked at."""

STORE_RETRY_S: Final = 5.0


@dataclass(slots=True)
class NodeRow:
    """One line of ``clusterctl nodes``. Watts; None where there is none."""

    name: str
    state: str
    cap_w: float | None
    wanted_w: float | None
    limit_w: float
    count_w: float
    power_w: float | None
    tag: str
    """Its job's, as watts were shared last; else what its agent says of its load."""
    quality: str
    lease_class: str
    heard_s_ago: float | None
    jobs: str = ""
    """Idle, allocated, draining or down; empty: no jobs are run here."""
    job: str = ""
    jobs_why: str = ""
    tag_source: str = ""


@dataclass(slots=True)
class BudgetView:
    """The budget and what becomes of it, watts. ``over_w``: by how much nodes could exceed it now, 0 if they cannot."""

    budget_w: float
    fixed_w: float
    counts_w: float
    reserve_w: float
    free_w: float
    over_w: float
    mop_w: float
    short_w: float
    nodes: int
    silent: int
    is_young: bool
    mode: str
    sharer: str
    epoch: int
    steps: list[tuple[float, float]]
    """Announced: (seconds from now, watts)."""
    alarms: list[str]
    lowering_s: float | None = None
    """How long, at most, until ``over_w`` is confirmed to be gone; None: nothing is being lowered."""


@dataclass(slots=True)
class Why:
    """Why a node has its cap: one sentence a line."""

    node: str
    lines: list[str]


class Partition:
    """One partition's ledger and what drives it. ``say`` takes a line when an alarm begins or ends."""

    def __init__(
        self,
        store: LedgerStore,
        terms: Terms,
        budget: BudgetLine,
        sharing: Sharing,
        now_s: float,
        is_observing: bool = False,
        say: Callable[[str], None] = lambda line: None,
        gap_s: float = 5.0,
    ) -> None:
        self.ledger = Ledger(store, terms, budget, now_s)
        self.sharing = sharing
        self.is_observing = is_observing
        self.plan = Plan([], NOTHING, 0, 0, 0)
        self.reports: dict[str, Report] = {}
        self._heard_s: dict[str, float] = {}
        self.alarms = Alarms(self.ledger, say, is_observing)
        self.gap = Gap(gap_s, LEAST_S)
        self._need_s = -math.inf
        self._spendable_mw = -1
        self._store_back_s = -math.inf

    def hear(self, now_s: float, reports: Iterable[Report]) -> list[Grant]:
        """Take what has come and decide what to send. ``DeposedError``: this cluster agent has been replaced."""
        heard: list[str] = []
        news: set[Event] = set()
        lease_s = self.ledger.terms.lease_s
        for report in self.ledger.hear(now_s, *reports):
            name = report.node
            before, before_s = self.reports.get(name), self._heard_s.get(name, -math.inf)
            heard.append(name)
            self.reports[name], self._heard_s[name] = report, now_s
            news.update(_news(None if now_s - before_s > lease_s else before, report))
        self.happened(now_s, *news)
        if "node" in news and self.ledger.free_mw(now_s) < 0:
            self.happened(now_s, "over")
        return self.turn(now_s, heard)

    def turn(self, now_s: float, heard: Iterable[str] = ()) -> list[Grant]:
        """What to send now; plan first if it is time."""
        if self.ledger.spendable_mw(now_s) != self._spendable_mw:  # a step has begun, or its announcement counts
            self.happened(now_s, "budget")
        if now_s >= self._need_s:
            self._need_s = now_s + NEED_S
            self.happened(now_s, "need")
            self.alarms.mind(now_s, self.plan, self.reports)
        if self.gap.is_due(now_s):
            self.replan(now_s)
        if self.alarms.is_lowering:
            self.alarms.mind_lowering(now_s)
        if self.is_observing:
            self.ledger.pass_time(now_s)
            return []
        if now_s < self._store_back_s:
            return []
        try:
            grants = self.ledger.grants(now_s, heard)
        except DeposedError:
            raise
        except ClusterError as error:
            self._store_back_s = now_s + STORE_RETRY_S
            self.alarms.set("store", f"{error}; no cap is raised or renewed: nodes fall to their safe caps")
            return []
        self.alarms.set("store", "")
        return grants

    def replan(self, now_s: float) -> None:
        """Ask the sharer anew."""
        was_young = self.ledger.is_young
        self.plan = self._planned(now_s)
        self._spendable_mw = self.ledger.spendable_mw(now_s)
        self._need_s = now_s + NEED_S
        # a plan for nobody is no update: the first node that is heard does not wait
        self.gap = self.gap.updated(now_s if self.plan.names else self.gap.updated_s)
        if was_young != self.ledger.is_young:
            self.happened(now_s, "node")
        self.alarms.mind(now_s, self.plan, self.reports)

    def _planned(self, now_s: float) -> Plan:
        return plan(self.ledger, now_s, lambda at, mw: self.sharing.share(self.ledger, at, mw))

    def due_s(self, now_s: float) -> float:
        """How long until ``turn`` has something to do by itself."""
        settle_s = self.ledger.settle_s
        steps = [at_s - settle_s for at_s, _ in self.ledger.budget.steps if at_s - settle_s > now_s]
        return max(min([self.gap.due_s, self._need_s, *steps]) - now_s, 0.0)

    def expect(self, now_s: float, nodes: Mapping[str, Declaration]) -> None:
        """Nodes of the allow list."""
        self.ledger.expect(now_s, nodes)
        self.alarms.expect(now_s)
        self.happened(now_s, "node")

    def happened(self, now_s: float, *events: Event) -> None:
        """Watts are to be shared anew for it: at once, or when the gap since the last plan is over."""
        for event in events:
            self.gap = self.gap.after(now_s, event)

    # --- the budget

    def refusal(self, budget_mw: int) -> str:
        """Why an administrator cannot set this budget; empty if it can be."""
        fixed_mw, mop_mw = self.ledger.terms.fixed_mw, self.mop_mw
        if budget_mw <= fixed_mw:
            return f"{budget_mw / 1000:g} W is not above the fixed_w of {fixed_mw / 1000:g} W, which nobody can cap"
        if budget_mw < fixed_mw + mop_mw:
            least_mw = fixed_mw + mop_mw
            return (
                f"{budget_mw / 1000:g} W is {(least_mw - budget_mw) / 1000:g} W less than fixed_w and the minimal"
                f" operating power of {len(self.ledger.accounts)} nodes need ({least_mw / 1000:g} W):"
                " switch nodes off first, or set more"
            )
        return ""

    @property
    def mop_mw(self) -> int:
        """The least that all nodes that have told it can be capped to together."""
        accounts = self.ledger.accounts
        return int(accounts.mop_mw[(accounts.is_heard | accounts.is_leased) & ~accounts.is_off].sum())

    def preview(self, now_s: float, budget_mw: int) -> list[str]:
        """What this budget would change, in sentences; nothing is changed."""
        line = self.ledger.budget
        kept = (line.budget_mw, list(line.steps))
        before = self.plan.caps_mw
        try:
            line.set(budget_mw)
            after = self._planned(now_s)
        finally:
            line.budget_mw, line.steps = kept
            self.plan = self._planned(now_s)
        lower = sum(cap < before.get(name, cap) for name, cap in after.caps_mw.items())
        higher = sum(cap > before.get(name, cap) for name, cap in after.caps_mw.items())
        caps_w = int(after.caps.sum()) / 1000
        lines = [f"{len(after.caps_mw)} nodes within reach would get {caps_w:.1f} W: {lower} less, {higher} more"]
        if after.short_mw:
            lines.append(f"{after.short_mw / 1000:.1f} W would be missing even with every node at its MOP")
        return lines

    # --- what people ask

    def nodes(self, now_s: float) -> list[NodeRow]:
        """One row per node, by name."""
        is_silent = self.ledger.is_silent(now_s)
        accounts = [self.ledger.accounts[name] for name in sorted(self.ledger.accounts)]
        return [self._row(now_s, account, bool(is_silent[account.index])) for account in accounts]

    def budget_view(self, now_s: float) -> BudgetView:
        """The sums."""
        ledger, line = self.ledger, self.ledger.budget
        ledger.pass_time(now_s)
        return BudgetView(
            budget_w=line.budget_mw / 1000,
            fixed_w=ledger.terms.fixed_mw / 1000,
            counts_w=ledger.total_mw / 1000,
            reserve_w=ledger.reserve_mw / 1000,
            free_w=ledger.free_mw(now_s) / 1000,
            over_w=max(ledger.over_mw(now_s), 0) / 1000,
            mop_w=self.mop_mw / 1000,
            short_w=self.plan.short_mw / 1000,
            nodes=len(ledger.accounts),
            silent=int((ledger.is_silent(now_s) & ~ledger.accounts.is_off).sum()),
            is_young=ledger.is_young,
            mode="observe" if self.is_observing else "cap",
            sharer=self.sharing.name,
            epoch=ledger.epoch,
            steps=[(at_s - now_s, mw / 1000) for at_s, mw in line.steps],
            alarms=self.alarms.texts,
            lowering_s=self.alarms.lowering_s(now_s),
        )

    def why(self, now_s: float, name: str) -> Why:
        """Why the node has its cap, from the budget down to what a pending raise waits for."""
        account = self.ledger.accounts.get(name)
        if account is None:
            raise no_such_node(name, self.ledger.accounts)
        ledger, view = self.ledger, self.budget_view(now_s)
        declared = account.declaration
        lines = [
            f"state: {self._state(account, bool(ledger.is_silent(now_s)[account.index]))}",
            f"budget {view.budget_w:g} W, of it {view.fixed_w:g} W fixed and {view.reserve_w:g} W set aside for"
            f" {ledger.terms.failing_together} node(s) that may reboot at once;"
            f" {max(self.plan.available_mw, 0) / 1000:g} W were shared among {len(self.plan.caps_mw)} nodes",
        ]
        lines += self._tag_lines(name)
        wanted_mw = self.plan.caps_mw.get(name)
        if wanted_mw is None:
            lines.append("no cap was planned for it: it cannot be reached")
        elif self.plan.short_mw:
            lines.append(
                f"wished: {wanted_mw / 1000:g} W, its MOP: the budget is {self.plan.short_mw / 1000:g} W short"
            )
        else:
            lines.append(f"wished: {wanted_mw / 1000:g} W; {self.sharing.why(name)}")
        granted = "none in this boot" if account.target_mw < 0 else f"{account.target_mw / 1000:g} W"
        source = "by its last report" if name in self._heard_s else "as far as is known"
        lines.append(f"granted: {granted}; in force {source}: {account.limit_mw / 1000:g} W")
        lines.append(
            f"counts {account.count_mw / 1000:g} W (TDP {declared.tdp_mw / 1000:g},"
            f" MOP {declared.mop_mw / 1000:g}, safe {declared.safe_mw / 1000:g}, boot {declared.boot_mw / 1000:g} W,"
            f" class {declared.lease_class})"
        )
        lines += self._absent(now_s, account) or self._waiting(account, wanted_mw, view)
        if self.gap.due_s < math.inf:
            lines.append(
                f"the next plan is due in {max(self.gap.due_s - now_s, 0):.1f} s: starts and changes of the budget are"
                f" planned for at once, all else {self.gap.gap_s:g} s after the last plan"
            )
        return Why(name, lines + [f"alarm: {alarm}" for alarm in view.alarms])

    def _absent(self, now_s: float, account: Account) -> list[str]:
        """Why the node has what it counts, and nothing else, while it says nothing."""
        if account.is_off or not self.ledger.is_silent(now_s)[account.index]:
            return []
        heard_s = self._heard_s.get(account.name)
        since = "since this cluster agent started" if heard_s is None else f"for {now_s - heard_s:.0f} s"
        return [
            f"not heard {since}: it counts what it may draw at most, and gets no other cap, until it is heard, known to"
            " be off, or its key is revoked"
        ]

    def _waiting(self, account: Account, wanted_mw: int | None, view: BudgetView) -> list[str]:
        """What keeps the node from the cap that is wished for it."""
        if wanted_mw is None or wanted_mw == account.target_mw:
            return (
                []
                if account.target_mw == account.limit_mw or account.target_mw < 0
                else ["its confirmation is awaited"]
            )
        if self.is_observing:
            return ["nothing is granted: observe mode"]
        what = f"waiting for {wanted_mw / 1000:g} W:"
        if "store" in self.alarms:
            return [f"{what} the store cannot be written"]
        if wanted_mw < account.target_mw:
            return [f"{what} its next report"]
        if self.ledger.is_young:
            return [f"{what} leases of the cluster agent before this one may still run; none is raised until they end"]
        accounts = self.ledger.accounts
        freed_mw = np.where(accounts.target_mw >= 0, accounts.count_mw - accounts.target_mw, 0)
        first = np.flatnonzero(freed_mw > 0)[:5].tolist()
        falling = [f"{accounts.names[at]} ({int(freed_mw[at]) / 1000:g} W)" for at in first]
        freed = f"; to be freed by {', '.join(falling)}" if falling else ""
        return [f"{what} {view.free_w:g} W are free now{freed}"]

    def _row(self, now_s: float, account: Account, is_silent: bool) -> NodeRow:
        report = self.reports.get(account.name)
        wanted_mw = self.plan.caps_mw.get(account.name)
        tag, source = self._tag(account.name)
        return NodeRow(
            name=account.name,
            state=self._state(account, is_silent),
            cap_w=account.target_mw / 1000 if account.target_mw >= 0 else None,
            wanted_w=wanted_mw / 1000 if wanted_mw is not None else None,
            limit_w=account.limit_mw / 1000,
            count_w=account.count_mw / 1000,
            power_w=report.power_mw / 1000 if report and report.power_mw >= 0 else None,
            tag=tag,
            tag_source=source,
            quality=report.quality if report else "missing",
            lease_class=account.declaration.lease_class,
            heard_s_ago=now_s - self._heard_s[account.name] if account.name in self._heard_s else None,
        )

    def _tag(self, name: str) -> tuple[str, str]:
        tag, source = self.sharing.tag(name)
        own = self.reports[name].tag.upper() if name in self.reports else ""
        return (tag, source) if tag or not own else (own, NODE_AGENT)

    def _tag_lines(self, name: str) -> list[str]:
        tag, source = self._tag(name)
        report = self.reports.get(name)
        own = f"; its agent says {report.tag.upper()}" if report and report.tag else ""
        how = f", {report.tag_source}" if own and report and report.tag_source else ""
        return [f"tag: {in_words(tag, source)}{own}{how}"] if tag else []

    def _state(self, account: Account, is_silent: bool) -> str:
        if account.is_off:
            return "off"
        if account.has_left:
            return "left"
        if not account.is_heard:
            return "inherited" if account.is_leased else "never heard"
        if is_silent:
            return "silent"
        if account.is_leaving:
            return "leaving"
        if not account.has_confirmed:
            return "joining"
        return "young" if self.ledger.is_young else "capped"


def _news(before: Report | None, now: Report) -> Sequence[Event]:
    """What the plan must be made anew for, rather than when its time comes."""
    if before is None:
        return ("node", "leave") if now.is_leaving else ("node",)
    news: list[Event] = []
    if before.boot_id != now.boot_id or before.declaration != now.declaration or before.is_leaving > now.is_leaving:
        news.append("node")
    if now.is_leaving > before.is_leaving:
        news.append("leave")
    if before.tag != now.tag:
        news.append("tag")
    return news

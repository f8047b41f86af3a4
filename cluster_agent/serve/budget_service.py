"""A partition under its budget: reports in, grants out, and the reasons for every cap.

The ledger decides what may be sent, and the plan gets the wanted caps from a sharer; this module connects them to what
happens. It reads no clock and opens no socket; times are CLOCK_BOOTTIME in seconds. In observe mode it decides and
shows, and grants nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import numpy as np

from cluster_agent.budget.accounts import NONE, Bools, Ints
from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.declared_bounds import DeclaredBounds
from cluster_agent.budget.group_views import BudgetGroups
from cluster_agent.budget.kept_counts import NOTHING, Change, DeposedError, LedgerStore
from cluster_agent.budget.ledger import Ledger, Terms
from cluster_agent.budget.levels import Levels
from cluster_agent.budget.plan import Plan, plan
from cluster_agent.budget.sharers.gap import Event, Gap
from cluster_agent.budget.sharers.needs import is_cap_bound
from cluster_agent.budget.tag_sources import NODE_AGENT
from cluster_agent.errors import ClusterError, WrongUseError, no_such_node
from cluster_agent.serve.alarms import Alarms
from cluster_agent.serve.live_sharing import Sharing
from cluster_agent.serve.node_meter import MOST_MW, NodeEnergy
from cluster_agent.serve.people_protocol import BudgetView, NodeRow
from cluster_agent.serve.why import WaitsFor, Why
from foundation.wire.power_messages import Declaration, Grant, Report

LEAST_S: Final = 0.05
"""Ours: at most twenty plans a second, however many events there are."""

NEED_S: Final = 5.0
"""Ours: how long after a plan the power of nodes counts as new, since it changes without an event; also how often
alarms are checked."""

STORE_RETRY_S: Final = 5.0

KELVIN: Final = 273.15

NO_LEASE: Final = "no lease: its safe cap"
"""What bounds a node that has heard no cluster agent for a lease."""

NOTHING_NEW: Final = (
    "no cap is raised, no job accepted or started; caps that stand are renewed and can be lowered,"
    " and running jobs go on"
)
"""While nothing can be stored."""

Planned: TypeAlias = tuple[int | None, str, str, str]
"""Of a node in a plan: its cap in mW (None: it was out of reach), its job's tag and its source, and what decided
the cap."""

Delays: TypeAlias = tuple[WaitsFor, WaitsFor]


class Partition:
    """One partition's ledger and what drives it. ``say`` logs a line when an alarm begins or ends."""

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
        bounds: DeclaredBounds | None = None,
        levels: Levels | None = None,
    ) -> None:
        """``bounds``: of what nodes may declare; None: any watts that a message can have. ``levels``: limits of groups
        of nodes."""
        self.ledger = Ledger(store, terms, budget, now_s, levels)
        self.sharing = sharing
        self.is_observing = is_observing
        self.plan = Plan([], NOTHING, 0, 0, 0)
        self.bounds = bounds or DeclaredBounds(MOST_MW, MOST_MW)
        self.energy = NodeEnergy()
        self.reports: dict[str, Report] = {}
        self._heard_s: dict[str, float] = {}
        self._shared_of: Plan | None = None
        self._shared: dict[str, Planned] = {}
        self.groups = BudgetGroups(self.ledger)
        self.alarms = Alarms(self.ledger, say, is_observing)
        self.alarms.begin(now_s)
        self.gap = Gap(gap_s, LEAST_S)
        self._need_s = -math.inf
        self._spendable_mw: tuple[int, ...] = ()
        self._store_back_s = -math.inf

    def hear(self, now_s: float, reports: Iterable[Report]) -> list[Grant]:
        """Take reports and decide what to send. ``DeposedError``: another cluster agent has taken over."""
        heard: list[str] = []
        news: set[Event] = set()
        is_raised = False
        lease_s = self.ledger.terms.lease_s
        reports = self.bounds.bounded(reports)
        self.alarms.set("declared", self.bounds.alarm)
        for report in self.ledger.hear(now_s, *reports):
            name = report.node
            self.energy.hear(now_s, report)
            before, before_s = self.reports.get(name), self._heard_s.get(name, -math.inf)
            heard.append(name)
            is_raised |= report.raised_by != (before.raised_by if before else "")
            self.reports[name], self._heard_s[name] = report, now_s
            news.update(_news(None if now_s - before_s > lease_s else before, report))
        self.happened(now_s, *news)
        if "node" in news and self._is_full(now_s):
            self.happened(now_s, "over")
        if is_raised:  # an alarm that does not wait for the next plan
            self.alarms.mind(now_s, self.plan, self.reports)
        return self.turn(now_s, heard)

    def turn(self, now_s: float, heard: Iterable[str] = ()) -> list[Grant]:
        """What to send now; plan first if it is time."""
        if self._spendable(now_s) != self._spendable_mw:  # a step is in force, or counts already
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
        self.mind_store(now_s)
        heard = list(heard)
        if "store" not in self.alarms:
            try:
                return self.ledger.grants(now_s, heard)
            except DeposedError:
                raise
            except ClusterError as error:
                self._store_back_s = now_s + STORE_RETRY_S
                self.alarms.set("store", f"{error}; {NOTHING_NEW}")
        return self._stored_grants(now_s, heard)

    def mind_store(self, now_s: float) -> None:
        """Whether the store can be written is one alarm, whoever has found out; it is over when it has been tried."""
        if "store" in self.alarms and now_s < self._store_back_s:
            return
        trouble = self.ledger.trouble(is_trial="store" in self.alarms)
        if trouble:
            self._store_back_s = now_s + STORE_RETRY_S
        self.alarms.set("store", f"{trouble}; {NOTHING_NEW}" if trouble else "")

    def _stored_grants(self, now_s: float, heard: list[str]) -> list[Grant]:
        """Caps that stand are renewed, and lowered, also while nothing can be stored: the stored counts cover that."""
        try:
            return self.ledger.grants(now_s, heard, only_stored=True)
        except DeposedError:
            raise
        except ClusterError as error:  # it cannot even be read: who owns the partition is not known
            self.alarms.set("store", f"{error}; no cap is raised or renewed: nodes fall to their safe caps")
            return []

    def replan(self, now_s: float) -> None:
        """Plan the caps again."""
        was_young = self.ledger.is_young
        self.sharing.trouble = ""
        self.plan = self._planned(now_s)
        self.alarms.set("sharer", self.sharing.trouble)
        self._spendable_mw = self._spendable(now_s)
        self._need_s = now_s + NEED_S
        # a plan for no node is no update, so that the first node that reports does not wait
        self.gap = self.gap.updated(now_s if self.plan.names else self.gap.updated_s)
        if was_young != self.ledger.is_young:
            self.happened(now_s, "node")
        self.alarms.mind(now_s, self.plan, self.reports)

    def _spendable(self, now_s: float) -> tuple[int, ...]:
        """What the budget and each group have for nodes, by what is announced."""
        ledger = self.ledger
        of_groups = ledger.levels.spendable_mw(now_s, ledger.settle_s) if ledger.levels.names else NOTHING
        return (ledger.spendable_mw(now_s), *of_groups.tolist())

    def _is_full(self, now_s: float) -> bool:
        """Whether nodes count more than the budget, or a group, has for them."""
        return self.ledger.free_mw(now_s) < 0 or bool((self.groups.free_mw(now_s) < 0).any())

    def _planned(self, now_s: float) -> Plan:
        self.sharing.begin()
        return plan(self.ledger, now_s, lambda at, mw: self.sharing.share(self.ledger, at, mw))

    def due_s(self, now_s: float) -> float:
        """How long until ``turn`` has something to do by itself."""
        settle_s = self.ledger.settle_s
        lines = (self.ledger.budget, *self.ledger.levels.lines)
        steps = [at_s - settle_s for line in lines for at_s, _ in line.steps if at_s - settle_s > now_s]
        return max(min([self.gap.due_s, self._need_s, *steps]) - now_s, 0.0)

    def expect(self, now_s: float, nodes: Mapping[str, Declaration]) -> None:
        """Add nodes of the allow list."""
        ledger = self.ledger
        before_mw, of_groups_mw = ledger.total_mw, ledger.levels.sums_mw(ledger.accounts.count_mw)
        ledger.expect(now_s, nodes)
        self.alarms.expect(now_s, before_mw, of_groups_mw)
        self.happened(now_s, "node")

    def happened(self, now_s: float, *events: Event) -> None:
        """Plan again because of these events: at once, or when the gap since the last plan is over."""
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
                f" operating power of {self.n_nodes} nodes need ({least_mw / 1000:g} W):"
                " switch nodes off first, or set more; a node that is gone: `clusterctl nodes forget NAME --is-off`"
            )
        return ""

    @property
    def mop_mw(self) -> int:
        """The sum of MOPs of all nodes that have declared theirs."""
        accounts = self.ledger.accounts
        return int(accounts.mop_mw[(accounts.is_heard | accounts.is_leased) & ~accounts.is_off].sum())

    @property
    def n_nodes(self) -> int:
        """How many nodes there are, without those that were forgotten."""
        return int((~self.ledger.accounts.is_forgotten).sum())

    def refuse_forgetting(self, now_s: float, name: str) -> None:
        """``WrongUseError`` if this node cannot be forgotten: it is not known, or it speaks."""
        at = self.ledger.accounts.places.get(name)
        if at is None or self.ledger.accounts.is_forgotten[at]:
            raise no_such_node(name, self._names)
        if not self.ledger.is_silent(now_s)[at]:
            raise WrongUseError(
                f"{name} reported {now_s - self._heard_s.get(name, now_s):.0f} s ago and may have a lease:"
                f" wait until it is silent for {self.ledger.settle_s:.0f} s"
            )

    def forget(self, now_s: float, name: str, change: Change) -> None:
        """The node counts nothing any more: it has no power, as a person states."""
        self.ledger.forget(now_s, name, change)
        self.bounds.forget(name)
        self.energy.forget(name)
        self.reports.pop(name, None)
        self._heard_s.pop(name, None)
        self.replan(now_s)

    def preview(self, now_s: float, budget_mw: int) -> list[str]:
        """What this budget would change, in sentences. Nothing is changed. It is compared with what the present budget
        would give now: a job that has just ended or begun changes caps under any budget."""
        line = self.ledger.budget
        kept = (line.budget_mw, list(line.steps))
        before = self._planned(now_s).caps_mw
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

    # --- for people

    def nodes(self, now_s: float, after: str = "", most: int | None = None) -> list[NodeRow]:
        """One row per node, by name; ``most`` of those after this name."""
        names = self._names
        first = bisect_right(names, after) if after else 0
        return self._rows_at(now_s, self.ledger.accounts.at(names[first:][:most]).tolist())

    def _rows_at(self, now_s: float, places: Sequence[int]) -> list[NodeRow]:
        marks = zip(*self.marks_at(now_s, places), strict=True)
        return [row for one in marks if (row := self.row(now_s, *one))]

    def marks_at(self, now_s: float, places: Sequence[int]) -> list[list[Any]]:
        """All that rows of these places of the ledger are made of, as lists with an entry for each place: what ``row``
        is called with. A row changes only when an entry does, or with time, which makes its report older."""
        accounts, at = self.ledger.accounts, np.asarray(places, np.int64)
        names = [accounts.names[place] for place in places]
        is_silent = self.ledger.is_silent(now_s)[at]
        return [
            names,
            self._states(at, is_silent),
            is_silent.tolist(),
            *(column[at].tolist() for column in (accounts.limit_mw, accounts.count_mw, accounts.target_mw)),
            [accounts.declarations[place] for place in places],
            list(map(self.reports.get, names)),
            list(map(self._heard_s.get, names)),
            self._planned_for(names),
            [self._delays()] * len(names),
        ]

    def row(
        self, now_s: float, name: str, state: str, is_silent: bool, limit_mw: int, count_mw: int, target_mw: int,
        declaration: Declaration, report: Report | None, heard_s: float | None, planned: Planned, delays: Delays,
    ) -> NodeRow | None:  # fmt: skip
        """The row of a node, of its entries in ``marks_at``; None: it was forgotten."""
        if not state:
            return None
        wanted_mw, tag, source, decided_by = planned
        bound_by = ""
        if report and not tag and report.tag:
            tag, source = report.tag.upper(), NODE_AGENT
        if report and not is_silent and is_cap_bound(report):
            bound_by = NO_LEASE if _is_at_safe_cap(target_mw, report) else decided_by
        return NodeRow(
            name=name,
            state=state,
            wanted_w=_watts(wanted_mw),
            granted_w=_watts(target_mw),
            in_force_w=limit_mw / 1000,
            counts_w=count_mw / 1000,
            draws_w=_watts(report.power_mw) if report else None,
            tag=tag,
            tag_source=source,
            quality=report.quality if report else "missing",
            lease_class=declaration.lease_class,
            heard_s_ago=None if heard_s is None else now_s - heard_s,
            energy_j=self.energy.joules(name),
            bound_by=bound_by,
            waits_for=_waits_for(wanted_mw, target_mw, limit_mw, delays),
            inlet_c=None if report is None or report.inlet_mk < 0 else round(report.inlet_mk / 1000 - KELVIN, 3),
        )

    def _states(self, at: Ints, is_silent: Bools) -> list[str]:
        """What is to be said of these places in a word; "": of a node that was forgotten."""
        accounts, is_heard = self.ledger.accounts, self.ledger.accounts.is_heard[at]
        first_of = {
            "": accounts.is_forgotten[at],
            "off": accounts.is_off[at],
            "left": accounts.has_left[at],
            "inherited": ~is_heard & accounts.is_leased[at],
            "never heard": ~is_heard,
            "silent": is_silent,
            "leaving": accounts.is_leaving[at],
            "joining": ~accounts.has_confirmed[at],
            "young" if self.ledger.is_young else "capped": np.ones(len(at), np.bool_),
        }
        words = list(first_of)
        return [words[which] for which in np.argmax(list(first_of.values()), axis=0).tolist()]

    def _planned_for(self, names: Sequence[str]) -> list[Planned]:
        """What the last plan has for these nodes; looked up once in each plan."""
        if self._shared_of is not self.plan:
            self._shared_of, self._shared = self.plan, {}
        known, caps_mw, sharing = self._shared, self.plan.caps_mw, self.sharing
        group_of, groups = self.plan.group_of, self.ledger.levels.names
        for name in names:
            if name not in known:
                within = f" in {groups[group_of[name]]}" if name in group_of else ""
                known[name] = (caps_mw.get(name), *sharing.tag(name), sharing.decided_by(name) + within)
        return [known[name] for name in names]

    @property
    def _names(self) -> list[str]:
        """All nodes but those that were forgotten."""
        accounts = self.ledger.accounts
        return sorted(accounts.names[at] for at in np.flatnonzero(~accounts.is_forgotten).tolist())

    def budget_view(self, now_s: float) -> BudgetView:
        """The budget, and the sums over all nodes."""
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
            nodes=self.n_nodes,
            silent=int((ledger.is_silent(now_s) & ~ledger.accounts.is_off & ~ledger.accounts.is_forgotten).sum()),
            is_young=ledger.is_young,
            mode="observe" if self.is_observing else "cap",
            sharer=self.sharing.name,
            epoch=ledger.epoch,
            steps=[(at_s - now_s, mw / 1000) for at_s, mw in line.steps],
            alarms=self.alarms.texts,
            lowering_s=self.alarms.lowering_s(now_s),
            energy_j=self.energy.total_j,
            alarm_kinds=self.alarms.kinds,
            groups=self.groups.views(now_s, self.plan, self.reports),
        )

    def why(self, now_s: float, name: str) -> Why:
        """Why the node has its cap, from the budget down to what a pending raise waits for."""
        account = self.ledger.accounts.get(name)
        if account is None or not account.declaration.tdp_mw:
            raise no_such_node(name, self._names)
        ledger, view, shared = self.ledger, self.budget_view(now_s), self.sharing.why(name)
        bound_within, shared_mw, among = self.groups.shared(self.plan, name)
        declared, report = account.declaration, self.reports.get(name)
        is_silent = bool(ledger.is_silent(now_s)[account.place])
        (row,) = self._rows_at(now_s, [account.place])
        return Why(
            node=name,
            state=row.state,
            budget_w=view.budget_w,
            fixed_w=view.fixed_w,
            reserve_w=view.reserve_w,
            failing_together=ledger.terms.failing_together,
            shared_w=shared_mw / 1000,
            shared_among=among,
            short_w=view.short_w,
            levels=self.groups.levels_of(now_s, self.plan, self.reports, account.place),
            bound_within=bound_within,
            job=shared.job,
            tag=row.tag,
            tag_source=row.tag_source,
            agent_tag=report.tag.upper() if report else "",
            agent_tag_source=report.tag_source if report and report.tag else "",
            wanted_w=row.wanted_w,
            sharer=shared.sharer,
            reason=shared.reason,
            slowdown=shared.slowdown,
            words=shared.words,
            granted_w=row.granted_w,
            in_force_w=row.in_force_w,
            counts_w=row.counts_w,
            tdp_w=declared.tdp_mw / 1000,
            mop_w=declared.mop_mw / 1000,
            safe_w=declared.safe_mw / 1000,
            boot_w=declared.boot_mw / 1000,
            lease_class=row.lease_class,
            heard_s_ago=row.heard_s_ago,
            is_silent=is_silent and not account.is_off,
            waits_for=cast("WaitsFor", row.waits_for),
            free_w=self.groups.free_w(now_s, account.place, view.free_w),
            freeing_w=self._freeing_w() if row.waits_for == "watts" else {},
            next_plan_s=max(self.gap.due_s - now_s, 0.0) if self.gap.due_s < math.inf else None,
            gap_s=self.gap.gap_s,
            alarms=view.alarms,
        )

    def _delays(self) -> Delays:
        """What keeps nodes now from a lower cap, and from a higher one."""
        if self.is_observing:
            return "mode cap", "mode cap"
        if "store" in self.alarms:
            return "store", "store"
        return "report", "older leases" if self.ledger.is_young else "watts"

    def _freeing_w(self) -> dict[str, float]:
        """What the first few nodes that are being lowered will free."""
        accounts = self.ledger.accounts
        freed_mw = np.where(accounts.target_mw >= 0, accounts.count_mw - accounts.target_mw, 0)
        first = np.flatnonzero(freed_mw > 0)[:5].tolist()
        return {accounts.names[at]: int(freed_mw[at]) / 1000 for at in first}

    def bound(self, report: Report) -> tuple[str, float | None]:
        """For the report of a cap-bound node: what bound it, and the slowdown predicted for its job."""
        account = self.ledger.accounts.get(report.node)
        if account is not None and _is_at_safe_cap(account.target_mw, report):
            return NO_LEASE, None
        return self.sharing.in_short(report.node)

    def heard_s_ago(self, now_s: float, name: str) -> float | None:
        """How old a node's last report is; None: there is none."""
        return now_s - self._heard_s[name] if name in self._heard_s else None


def _waits_for(wanted_mw: int | None, target_mw: int, limit_mw: int, delays: Delays) -> WaitsFor:
    """What keeps the node from the wanted cap."""
    if wanted_mw is None or wanted_mw == target_mw:
        return "" if target_mw in (limit_mw, NONE) else "confirmation"
    return delays[0] if wanted_mw < target_mw else delays[1]


def _is_at_safe_cap(target_mw: int, report: Report) -> bool:
    """Whether the node, of which this cap was granted, has ended its lease by itself, and draws at most its safe
    cap."""
    return report.asked_mw == report.declaration.safe_mw < target_mw


def _watts(mw: int | None) -> float | None:
    """None for a value below 0, which means "none" in the ledger and in reports."""
    return None if mw is None or mw < 0 else mw / 1000


def _news(before: Report | None, now: Report) -> Sequence[Event]:
    """The events for which caps must be planned again before the next plan is due."""
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

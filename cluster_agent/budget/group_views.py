"""What people see of the budget's groups: how much of each limit counts, what is free, and where a limit binds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from cluster_agent.budget.accounts import Bools, Ints
from cluster_agent.budget.group_settings import MOST_NAMED
from cluster_agent.budget.ledger import Ledger
from cluster_agent.budget.levels import NO_GROUP
from cluster_agent.budget.plan import Plan
from cluster_agent.errors import WrongUseError
from foundation.shell.errors import nearest
from foundation.shell.names import first_of
from foundation.wire.power_messages import Report


class GroupView(msgspec.Struct, frozen=True):
    """A group of nodes with a limit, in watts. ``counts_w``: of its nodes; ``free_w``: what it could still grant by its
    own limit; ``short_w``: what it lacks for the MOPs of its nodes; ``binds``: the caps of how many nodes its limit
    decided at the last plan; ``steps``: announced, (seconds from now, watts). ``in_force_w``: the caps of its nodes;
    ``draws_w``: what those draw that report now, None: none of them says it. Both None of an older cluster agent."""

    name: str
    parent: str
    limit_w: float
    fixed_w: float
    counts_w: float
    reserve_w: float
    free_w: float
    over_w: float
    short_w: float
    nodes: int
    binds: int
    steps: list[tuple[float, float]] = []
    in_force_w: float | None = None
    draws_w: float | None = None


@dataclass(frozen=True, slots=True)
class BudgetGroups:
    """Questions about the groups of a ledger."""

    ledger: Ledger

    def free_mw(self, now_s: float) -> Ints:
        """Of each group, what could be granted on top by its own limit."""
        ledger = self.ledger
        if not ledger.levels.names:
            return ledger.levels.fixed_mw
        return ledger.levels.free_mw(now_s, ledger.settle_s, ledger.accounts, ledger.terms.failing_together)

    def free_w(self, now_s: float, place: int, site_w: float) -> float:
        """What could be granted on top to the node at this place; ``site_w``: by the whole budget."""
        path = self.ledger.levels.path(place)
        return min([site_w, *(self.free_mw(now_s)[path] / 1000).tolist()]) if path else site_w

    def views(self, now_s: float, plan: Plan, reports: Mapping[str, Report]) -> list[GroupView]:
        """Every group after its parent. ``reports``: each node's last one."""
        ledger, levels = self.ledger, self.ledger.levels
        if not levels.names:
            return []
        accounts = ledger.accounts
        count_mw = levels.sums_mw(accounts.count_mw)
        beyond_mw = accounts.boot_need_mw - accounts.count_mw
        reserve_mw = levels.reserve_mw(beyond_mw, ledger.terms.failing_together)
        free_mw, nodes = self.free_mw(now_s), levels.sums_mw((~accounts.is_forgotten).astype(np.int64))
        binds = np.bincount(plan.bound + 1, minlength=len(levels) + 1)[1:]
        short_mw = plan.group_short_mw if len(plan.group_short_mw) else np.zeros(len(levels), np.int64)
        in_force_mw, (draws_mw, drawing) = levels.sums_mw(accounts.limit_mw), self._drawn(now_s, reports)
        found = []
        for at, line in enumerate(levels.lines):
            line.advance(now_s)
            used_mw = int(count_mw[at] + levels.fixed_mw[at])
            found.append(
                GroupView(
                    name=levels.names[at],
                    parent=levels.parents[at],
                    limit_w=line.budget_mw / 1000,
                    fixed_w=int(levels.fixed_mw[at]) / 1000,
                    counts_w=int(count_mw[at]) / 1000,
                    reserve_w=int(reserve_mw[at]) / 1000,
                    free_w=int(free_mw[at]) / 1000,
                    over_w=max(used_mw - line.budget_mw, 0) / 1000,
                    short_w=int(short_mw[at]) / 1000,
                    nodes=int(nodes[at]),
                    binds=int(binds[at]),
                    steps=[(at_s - now_s, mw / 1000) for at_s, mw in line.steps],
                    in_force_w=int(in_force_mw[at]) / 1000,
                    draws_w=int(draws_mw[at]) / 1000 if drawing[at] else None,
                )
            )
        return found

    def _drawn(self, now_s: float, reports: Mapping[str, Report]) -> tuple[Ints, Ints]:
        """Of each group what its nodes draw that report now, and how many of them say it."""
        ledger, accounts = self.ledger, self.ledger.accounts
        is_there: Bools = ~(ledger.is_silent(now_s) | accounts.is_off | accounts.has_left | accounts.is_forgotten)
        power_mw = np.full(len(is_there), -1, np.int64)
        for at in np.flatnonzero(is_there).tolist():
            if (report := reports.get(accounts.names[at])) is not None:
                power_mw[at] = report.power_mw
        is_known = power_mw >= 0
        return ledger.levels.sums_mw(np.where(is_known, power_mw, 0)), ledger.levels.sums_mw(is_known.astype(np.int64))

    def levels_of(self, now_s: float, plan: Plan, reports: Mapping[str, Report], place: int) -> list[GroupView]:
        """The groups of a node, the widest first."""
        views = self.views(now_s, plan, reports)
        return [views[at] for at in self.ledger.levels.path(place)]

    def shared(self, plan: Plan, name: str) -> tuple[str, int, int]:
        """The group whose limit decided the node's cap ("": the whole budget), what was shared in it, mW, and among how
        many nodes."""
        group = plan.group_of.get(name, NO_GROUP)
        if group == NO_GROUP:
            return "", max(plan.available_mw, 0), len(plan.caps_mw)
        of_group = self.ledger.levels.sums_mw(np.ones(len(plan.at), np.int64), plan.at)
        return self.ledger.levels.names[group], max(int(plan.group_left_mw[group]), 0), int(of_group[group])

    def unknown_nodes(self, known: Collection[str]) -> str:
        """Which nodes of groups are none of these, in words; "": all are."""
        unknown = [f"{name} of {group}" for name, group in self.ledger.levels.nodes.items() if name not in known]
        if not unknown:
            return ""
        what = "is no node of this partition" if len(unknown) == 1 else "are no nodes of this partition"
        return f"{first_of(unknown, MOST_NAMED)} {what}: is the name right? A node in no group has only the budget"

    def place(self, name: str) -> int:
        """``WrongUseError`` for a group that there is not."""
        places = self.ledger.levels.places
        if name not in places:
            known = "" if places else "; the settings have no [[budget.group]]"
            raise WrongUseError(f"no group of the budget is called {name!r}{nearest(name, places)}{known}")
        return places[name]

    def least_mw(self, group: int) -> int:
        """What its gear and its nodes that have declared a MOP need."""
        accounts, levels = self.ledger.accounts, self.ledger.levels
        is_counted = (accounts.is_heard | accounts.is_leased) & ~accounts.is_off
        mop_mw: Ints = np.where(is_counted, accounts.mop_mw, 0)
        return int((levels.sums_mw(mop_mw) + levels.fixed_mw)[group])

    def refusal(self, group: int, limit_mw: int) -> str:
        """Why an administrator cannot set this limit now; empty if it can be."""
        levels, least_mw = self.ledger.levels, self.least_mw(group)
        name, parent = levels.names[group], levels.parents[group]
        if limit_mw < least_mw or limit_mw <= levels.fixed_mw[group]:
            return (
                f"{limit_mw / 1000:g} W is {(least_mw - limit_mw) / 1000:g} W less than the gear of {name} and the"
                f" minimal operating power of its nodes need ({least_mw / 1000:g} W): switch nodes off first, or set"
                " more"
            )
        if parent and limit_mw > (most_mw := levels.lines[levels.places[parent]].budget_mw):
            return f"{limit_mw / 1000:g} W are more than its parent {parent} may draw ({most_mw / 1000:g} W)"
        return ""

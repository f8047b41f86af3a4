"""From the budget to the caps: what the sharer may hand out, and what must be in reserve for reboots.

The limits of groups of nodes are budgets of their own, with their own reserves (``level_shares``).

The reserve depends on the caps (the lower a cap, the more its node draws above it while it boots), and the caps depend
on the reserve. So the plan iterates: it starts without a reserve, and each round sets aside what the caps of the round
before need. One watt less for n nodes moves the reserve by about k/n of a watt, so a few rounds suffice; it ends when
the reserve no longer changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np

from cluster_agent.budget.accounts import Ints
from cluster_agent.budget.kept_counts import NOTHING
from cluster_agent.budget.ledger import Ledger
from cluster_agent.budget.level_shares import LevelShares
from cluster_agent.budget.levels import NO_GROUP, Levels

Share: TypeAlias = Callable[[Ints, int], Ints]
"""A sharer as the plan calls it: (places of the nodes in the ledger, mW for all of them together) -> a cap in mW for
each, within its MOP and TDP. The places of all nodes are the same array in every round; where a group has too much, it
is called again for the nodes of that group, and for the others."""

ROUNDS: Final = 20
"""Ours: more rounds than any case needs; if it had not settled by then, the ledger would still keep the budget."""


@dataclass(frozen=True)
class Plan:
    """The nodes and their places, the wanted caps, the reserve, and by how many mW the budget is too small even with
    every node at its MOP (0: it is large enough).

    Of groups: ``group_short_mw``, the same of each; ``group_left_mw``, what its nodes within reach may share, after its
    reserve; ``bound``: of each node, the group among whose nodes its watts were divided, ``NO_GROUP`` for all nodes."""

    names: list[str]
    caps: Ints
    available_mw: int
    reserve_mw: int
    short_mw: int
    group_short_mw: Ints = field(default_factory=lambda: NOTHING)
    group_left_mw: Ints = field(default_factory=lambda: NOTHING)
    bound: Ints = field(default_factory=lambda: NOTHING)
    at: Ints = field(default_factory=lambda: NOTHING)

    @cached_property
    def group_of(self) -> dict[str, int]:
        """The entries of ``bound`` by node name, without those of nodes that no group has bound."""
        return {name: at for name, at in zip(self.names, self.bound.tolist(), strict=False) if at != NO_GROUP}

    @cached_property
    def caps_mw(self) -> dict[str, int]:
        """Caps by node name."""
        return dict(zip(self.names, self.caps.tolist(), strict=True))


def plan(ledger: Ledger, now_s: float, share: Share) -> Plan:
    """Share out the budget and pass the wanted caps to the ledger. First set aside what is needed by nodes out of
    reach, nodes that want to leave, and nodes that are to be switched on."""
    ledger.pass_time(now_s)
    accounts = ledger.accounts
    is_reachable = ledger.is_within_reach(now_s)
    at = np.flatnonzero(is_reachable & ~accounts.is_leaving)
    leaving = np.flatnonzero(is_reachable & accounts.is_leaving)
    mop_mw = accounts.mop_mw[at]
    least_mw = int(mop_mw.sum())
    out_of_reach_mw = ledger.total_mw - int(accounts.count_mw[at].sum())
    left_mw = ledger.spendable_mw(now_s) - out_of_reach_mw
    levels, k = ledger.levels, ledger.terms.failing_together
    of_reach_mw = levels.sums_mw(accounts.count_mw) - levels.sums_mw(accounts.count_mw[at], at)
    group_left_mw = levels.spendable_mw(now_s, ledger.settle_s) - of_reach_mw
    group_least_mw = levels.sums_mw(mop_mw, at)
    to_leave_mw = np.maximum(accounts.tdp_mw[leaving] - accounts.count_mw[leaving], 0)
    of_groups_mw = levels.sums_mw(to_leave_mw, leaving)
    if left_mw - int(to_leave_mw.sum()) >= least_mw:  # else they stay capped, and their agents stop waiting for leave
        left_mw -= int(to_leave_mw.sum())
        group_left_mw -= np.where(group_left_mw - of_groups_mw >= group_least_mw, of_groups_mw, 0)
    lowest_mw = accounts.boot_need_mw - accounts.count_mw
    lowest_mw[at] = accounts.boot_need_mw[at] - mop_mw
    group_reserve_mw = levels.reserve_mw(lowest_mw, k)
    spare_mw = left_mw - least_mw - ledger.reserve_with_mw(at, mop_mw)
    awaited = np.flatnonzero(accounts.is_awaited)
    costs_mw = ledger.boot_costs_mw(awaited)
    spare_of_groups_mw = group_left_mw - group_least_mw - group_reserve_mw
    awaited, costs_mw = _that_fit(levels, awaited, costs_mw, spare_of_groups_mw)
    to_boot_mw = np.cumsum(costs_mw)
    is_due = to_boot_mw <= spare_mw  # the others wait
    left_mw -= int(to_boot_mw[is_due].max(initial=0))
    group_left_mw -= levels.sums_mw(costs_mw[is_due], awaited[is_due])
    of_levels = LevelShares(levels, accounts, at, group_left_mw, share)
    caps_mw, reserve_mw, reserves_mw = mop_mw, 0, np.zeros(len(levels), np.int64)
    for _ in range(ROUNDS):
        if left_mw - reserve_mw < least_mw:
            caps_mw = mop_mw
            break
        caps_mw = of_levels.caps_mw(left_mw - reserve_mw, reserves_mw)
        needed_mw = ledger.reserve_with_mw(at, caps_mw)
        lowest_mw[at] = accounts.boot_need_mw[at] - caps_mw
        needs_mw = levels.reserve_mw(lowest_mw, k)
        if needed_mw <= reserve_mw and (needs_mw <= reserves_mw).all():
            break
        reserve_mw, reserves_mw = max(needed_mw, reserve_mw), np.maximum(needs_mw, reserves_mw)
    ledger.want(at, caps_mw)
    short_mw = max(least_mw + ledger.reserve_with_mw(at, mop_mw) - left_mw, 0)
    group_short_mw = np.maximum(group_least_mw + group_reserve_mw - group_left_mw, 0)
    return Plan(
        [accounts.names[place] for place in at.tolist()], caps_mw, left_mw - reserve_mw, reserve_mw, short_mw,
        group_short_mw, group_left_mw - reserves_mw, of_levels.bound, at,
    )  # fmt: skip


def _that_fit(levels: Levels, at: Ints, costs_mw: Ints, spare_mw: Ints) -> tuple[Ints, Ints]:
    """The nodes, of those that are to be switched on, for whose boot every group has room, in turn."""
    kept: list[int] = []
    left_mw = spare_mw.copy()
    for n, (place, cost_mw) in enumerate(zip(at.tolist(), costs_mw.tolist(), strict=True)):
        path = levels.path(place)
        if all(left_mw[group] >= cost_mw for group in path):
            left_mw[path] -= cost_mw
            kept.append(n)
    return at[kept], costs_mw[kept]

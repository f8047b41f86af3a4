"""From the budget to the caps: what the sharer may hand out, and what must be in reserve for reboots.

The reserve depends on the caps (the lower a cap, the more its node draws above it while it boots), and the caps depend
on the reserve. So the plan iterates: it starts without a reserve, and each round sets aside what the caps of the round
before need. One watt less for n nodes moves the reserve by about k/n of a watt, so a few rounds suffice; it ends when
the reserve no longer changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np

from cluster_agent.budget.accounts import Ints
from cluster_agent.budget.ledger import Ledger

Share: TypeAlias = Callable[[Ints, int], Ints]
"""A sharer as the plan calls it: (places of the nodes in the ledger, mW for all of them together) -> a cap in mW for
each, within its MOP and TDP. The places are the same array in every round."""

ROUNDS: Final = 20
"""Ours: more rounds than any case needs; if it had not settled by then, the ledger would still keep the budget."""


@dataclass(frozen=True)
class Plan:
    """The wanted caps, the reserve, and by how many mW the budget is too small even with every node at its MOP (0: it
    is large enough)."""

    names: list[str]
    caps: Ints
    available_mw: int
    reserve_mw: int
    short_mw: int

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
    to_leave_mw = int(np.maximum(accounts.tdp_mw[leaving] - accounts.count_mw[leaving], 0).sum())
    if left_mw - to_leave_mw >= least_mw:  # else they stay capped, and their agents stop waiting for leave
        left_mw -= to_leave_mw
    spare_mw = left_mw - least_mw - ledger.reserve_with_mw(at, mop_mw)
    to_boot_mw = np.cumsum(ledger.boot_costs_mw(np.flatnonzero(accounts.is_awaited)))
    left_mw -= int(to_boot_mw[to_boot_mw <= spare_mw].max(initial=0))  # the others wait
    caps_mw, reserve_mw = mop_mw, 0
    for _ in range(ROUNDS):
        if left_mw - reserve_mw < least_mw:
            caps_mw = mop_mw
            break
        caps_mw = share(at, left_mw - reserve_mw)
        needed_mw = ledger.reserve_with_mw(at, caps_mw)
        if needed_mw <= reserve_mw:
            break
        reserve_mw = needed_mw
    ledger.want(at, caps_mw)
    short_mw = max(least_mw + ledger.reserve_with_mw(at, mop_mw) - left_mw, 0)
    return Plan([accounts.names[place] for place in at.tolist()], caps_mw, left_mw - reserve_mw, reserve_mw, short_mw)

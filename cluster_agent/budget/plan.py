"""From the budget to the caps: what the sharer may hand out, and what must be set aside for reboots.

The reserve depends on the caps (the lower a cap, the more its node draws beyond it when it boots), and the caps on the
reserve. Starting from no reserve, each round sets aside what the caps of the round before would need. One watt less
for n nodes moves the reserve by about k/n of a watt, so this settles in a few rounds; it ends at once when it has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from cluster_agent.budget.ledger import Ledger, type_mw

Share: TypeAlias = Callable[[list[str], int], type_mw]
"""A sharer: the nodes by name and the mW for all of them together -> a cap in mW for each, within its MOP and TDP."""

ROUNDS: Final = 20
"""Ours: more than any case needs; whatever is left then is kept by the ledger."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The caps wished for, what was set aside, and by how much the budget is too small even with every node at its
    MOP (0: it is not)."""

    caps_mw: dict[str, int]
    available_mw: int
    reserve_mw: int
    short_mw: int


def plan(ledger: Ledger, now_s: float, share: Share) -> Plan:
    """Share what the nodes that cannot be reached leave over, and those that ask to leave, and tell the ledger."""
    ledger.pass_time(now_s)
    reachable = [name for name in ledger.accounts if ledger.is_within_reach(now_s, name)]
    names = [name for name in reachable if not ledger.accounts[name].is_leaving]
    index = np.array([ledger.accounts[name].index for name in names], np.int64)
    mop_mw = np.array([ledger.accounts[name].declaration.mop_mw for name in names], np.int64)
    out_of_reach_mw = ledger.total_mw - int(ledger.count_mw[index].sum())
    left_mw = ledger.spendable_mw(now_s) - out_of_reach_mw
    leaving = [ledger.accounts[name] for name in reachable if ledger.accounts[name].is_leaving]
    to_leave_mw = sum(max(one.declaration.tdp_mw - int(ledger.count_mw[one.index]), 0) for one in leaving)
    if left_mw - to_leave_mw >= int(mop_mw.sum()):  # else they must stay, and their agents give up waiting
        left_mw -= to_leave_mw
    caps_mw, reserve_mw = mop_mw, 0
    for _ in range(ROUNDS):
        if left_mw - reserve_mw < int(mop_mw.sum()):
            caps_mw = mop_mw
            break
        caps_mw = share(names, left_mw - reserve_mw)
        needed_mw = ledger.reserve_with_mw(index, caps_mw)
        if needed_mw <= reserve_mw:
            break
        reserve_mw = needed_mw
    wanted = dict(zip(names, caps_mw.tolist(), strict=True))
    ledger.want(wanted)
    short_mw = max(int(mop_mw.sum()) + ledger.reserve_with_mw(index, mop_mw) - left_mw, 0)
    return Plan(wanted, left_mw - reserve_mw, reserve_mw, short_mw)

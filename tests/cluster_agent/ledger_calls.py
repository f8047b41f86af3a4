"""What the tests of the ledger say to it: reports of its nodes, and the caps that are wanted."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from benchmarks.ledger_store import FaultyStore
from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.ledger import Ledger, Terms
from foundation.wire.power_messages import Declaration, Grant, Report

OS = Declaration(tdp_mw=500_000, mop_mw=200_000, safe_mw=200_000, boot_mw=450_000, lease_class="os", watchdog_ms=8000)
STICKY = msgspec.structs.replace(OS, lease_class="sticky", watchdog_ms=0)

HERE_S = 10 * 1.001 / 0.999
"""A lease of 10 s, run by a node's slow clock, on our fast one."""

AFTER_S = 8.5
"""``OS`` settles in 0.5 s, and its watchdog takes 8 s."""


def report(
    node: str, at: int, limit_w: int, *, sequence: int = 0, epoch: int = 0, boot: str = "b1", **more: object
) -> Report:
    made = Report(node, boot, at, epoch, epoch, sequence, limit_w * 1000, "seen", -1, OS)
    return msgspec.structs.replace(made, **more)


def ledger(budget_w: int, *, k: int = 0, store: FaultyStore | None = None, fixed_w: int = 0) -> Ledger:
    return Ledger(store or FaultyStore(), Terms(fixed_w * 1000, k), BudgetLine(budget_w * 1000), 0.0)


def confirmed(one: Ledger, now_s: float, caps_w: Mapping[str, int], boot: str = "b1") -> None:
    """Each node has this cap, granted and confirmed."""
    at, budget_mw = int(now_s * 1000), one.budget.budget_mw
    one.budget.set(10**9)  # nodes that join count their TDP
    for node, cap_w in caps_w.items():
        one.hear(now_s, report(node, at, 500, boot=boot))
        want(one, {node: cap_w * 1000})
    for grant in one.grants(now_s):
        heard = report(grant.node, at + 1, caps_w[grant.node], sequence=grant.sequence, epoch=one.epoch, boot=boot)
        one.hear(now_s, heard)
    one.budget.set(budget_mw)
    assert one.total_mw == sum(caps_w.values()) * 1000


def want(one: Ledger, caps_mw: Mapping[str, int]) -> None:
    one.want(one.accounts.at(list(caps_mw)), np.array(list(caps_mw.values())))


def count_w(one: Ledger, node: str) -> float:
    return one.accounts[node].count_mw / 1000


def caps_w(grants: list[Grant]) -> dict[str, float]:
    return {grant.node: grant.cap_mw / 1000 for grant in grants}


def places(one: Ledger, *names: str) -> np.ndarray:
    return one.accounts.at(list(names))


def two(budget_w: int = 2000, k: int = 0, store: FaultyStore | None = None, fixed_w: int = 0) -> Ledger:
    """Nodes a and b, with confirmed caps of 300 and 200 W since 0 s."""
    made = ledger(budget_w, k=k, store=store, fixed_w=fixed_w)
    confirmed(made, 0.0, {"a": 300, "b": 200})
    return made

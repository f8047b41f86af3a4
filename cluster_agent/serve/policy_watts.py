"""Where the scheduling policy owns the watts (``sharer = "none"``): the budget as its engine counts it, and the caps
that follow from its decisions.

    the budget ──► node_budget ──► the policy: which job starts, at which level ──► caps_sharer ──► plan ──► ledger

The policy plans with a cap for each node. What nodes may draw beyond that is set aside: the reserve for reboots, a node
whose minimal operating power is above its planned cap, one that is silent, is leaving, or was never heard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from cluster_agent.budget.ledger import Ledger
from cluster_agent.budget.sharers.api import Sharer, check_budget
from cluster_agent.budget.sharers.view import UNTAGGED, Ints, Reason, Shares, View
from cluster_agent.jobs.owned_watts.live_owner import NodeBudget
from cluster_agent.serve.job_service import JobService


def node_budget(
    ledger: Ledger, now_s: float, planned_mw: Mapping[str, int], idle_mw: int, later_s: float
) -> NodeBudget:
    """``planned_mw``: the caps of nodes, with a job or not; those that it lacks have ``idle_mw``. ``later_s``: how far
    the clock of the result is ahead of the ledger's."""
    ledger.pass_time(now_s)
    accounts, settle_s = ledger.accounts, ledger.settle_s
    plan_mw = np.array([planned_mw.get(name, idle_mw) for name in accounts.names], np.int64)
    is_kept = ledger.is_within_reach(now_s) & ~accounts.is_leaving
    may_mw = np.where(is_kept, np.maximum(accounts.mop_mw, plan_mw), accounts.count_mw)
    may_mw = np.where(accounts.is_leaving, np.maximum(may_mw, accounts.tdp_mw), may_mw)
    at = np.flatnonzero(is_kept)
    aside_mw = int((may_mw - plan_mw).sum()) + ledger.reserve_with_mw(at, accounts.mop_mw[at])
    line = ledger.budget
    times_s = sorted({now_s, *(at_s for at_s, _ in line.steps), *(at_s - settle_s for at_s, _ in line.steps)})
    steps: list[tuple[float, float]] = []
    for time_s in times_s:
        if time_s < now_s:
            continue
        in_force_mw = ([line.budget_mw] + [mw for at_s, mw in line.steps if at_s <= time_s])[-1]
        least_mw = min([in_force_mw, *(mw for at_s, mw in line.steps if time_s < at_s <= time_s + settle_s)])
        watts = (least_mw - ledger.terms.fixed_mw) / 1000
        if not steps or watts != steps[-1][1]:
            steps.append((0.0 if not steps else round(time_s + later_s, 1), watts))
    return NodeBudget(tuple(steps), aside_mw / 1000)


def pass_budget(ledger: Ledger, now_s: float, jobs: JobService) -> None:
    """Say what the nodes may draw to a policy that owns watts; to no other."""
    if jobs.idle_mw is not None:
        jobs.set_budget(node_budget(ledger, now_s, jobs.planned_mw(), jobs.idle_mw, jobs.now() - now_s))


def caps_sharer(jobs: Callable[[], JobService | None]) -> Sharer:
    """The caps of the policy's decisions, within each node's MOP and TDP. If there are fewer watts than the policy has
    given out (nodes that it counted on draw more), all caps are lowered alike, down to MOP."""

    def share(view: View, available_mw: int) -> Shares:
        """A cap for each node."""
        check_budget(view, available_mw)
        service = jobs()
        given = service.caps_mw() if service is not None else {}
        planned = service.planned_mw() if service is not None else {}
        idle = (service.idle_mw if service is not None else None) or 0
        wanted = np.array([planned.get(name, idle) for name in view.nodes], np.int64)
        caps: Ints = np.maximum(np.minimum(wanted, view.tdp_mw), view.mop_mw)
        over_mw = int(caps.sum()) - available_mw
        if over_mw > 0:
            above = caps - view.mop_mw
            caps = caps - -(-above * over_mw // int(above.sum()))
        tag = np.full(len(view.jobs), UNTAGGED, np.int64)
        reason = np.where([name in given for name in view.nodes], int(Reason.POLICY), int(Reason.IDLE)).astype(np.int64)
        speed = np.full(len(view.jobs), np.nan)
        return Shares("scheduler", caps, reason, view.owners(tag), np.zeros(len(tag), np.int64), speed)

    return share

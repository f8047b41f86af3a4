"""Where the scheduling policy owns the watts (``sharer = "none"``): the budget as its engine counts it, and the caps
that follow from its decisions.

    the budget ──► node_budget ──► the policy: which job starts, at which level ──► caps_sharer ──► plan ──► ledger

The policy plans with a cap for each node, and counts one without a job as much as its minimal operating power (MOP), if
the machine file has less. What nodes may draw beyond the plan is set aside: the reserve for reboots, and what a node
adds whose MOP is still above its planned cap, that is silent, is leaving, or was never heard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from cluster_agent.budget.ledger import Ledger
from cluster_agent.budget.sharers.api import Sharer, check_budget
from cluster_agent.budget.sharers.view import UNTAGGED, Ints, Reason, Shares, View
from cluster_agent.cluster import Kept, Machine
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


def declared_mops(ledger: Ledger) -> dict[str, int]:
    """The MOP of each node, mW, as far as it has declared one."""
    accounts = ledger.accounts
    at = np.flatnonzero((accounts.is_heard | accounts.is_leased) & ~accounts.is_forgotten)
    return dict(zip([accounts.names[place] for place in at.tolist()], accounts.mop_mw[at].tolist(), strict=True))


def kept_of(ledger: Ledger, now_s: float, machine: Machine) -> Kept:
    """How the budget is kept while all nodes are within reach, for a replay on the machine as it is planned. Tenths of
    seconds, as ``node_budget`` has them."""
    accounts = ledger.accounts
    at = np.flatnonzero(ledger.is_within_reach(now_s) & ~accounts.is_leaving)
    idle_mw = round(max(group.idle_w for group in machine.groups) * 1000)
    beyond_mw = int(np.maximum(accounts.mop_mw[at] - idle_mw, 0).sum())
    reserve_mw = ledger.reserve_with_mw(at, accounts.mop_mw[at]) + beyond_mw
    return Kept(round(ledger.settle_s, 1), ledger.terms.fixed_mw / 1000, reserve_mw / 1000, counts_idle=True)


def pass_budget(ledger: Ledger, now_s: float, jobs: JobService) -> None:
    """Say what the nodes may draw to a policy that owns watts; to no other."""
    if jobs.idle_mw is not None:
        jobs.set_mops(declared_mops(ledger))
        jobs.set_budget(node_budget(ledger, now_s, jobs.planned_mw(), jobs.idle_mw, jobs.now() - now_s))


def caps_sharer(jobs: Callable[[], JobService | None]) -> Sharer:
    """The caps that the policy wants, within each node's MOP and TDP. If there are fewer watts, all caps are lowered
    alike: first down to those that the policy has planned with, which may be less, and if nodes that it counted on draw
    more, down to MOP."""

    def share(view: View, available_mw: int) -> Shares:
        """A cap for each node."""
        check_budget(view, available_mw)
        service = jobs()
        given = service.caps_mw() if service is not None else {}
        planned = service.planned_mw() if service is not None else {}
        wanted = service.wanted_mw() if service is not None else {}
        idle = (service.idle_mw if service is not None else None) or 0
        least, caps = (_within(view, [each.get(name, idle) for name in view.nodes]) for each in (planned, wanted))
        for down_to in (least, view.mop_mw):
            caps = _lowered(caps, down_to, int(caps.sum()) - available_mw)
        tag = np.full(len(view.jobs), UNTAGGED, np.int64)
        reason = np.where([name in given for name in view.nodes], int(Reason.POLICY), int(Reason.IDLE)).astype(np.int64)
        speed = np.full(len(view.jobs), np.nan)
        return Shares("scheduler", caps, reason, view.owners(tag), np.zeros(len(tag), np.int64), speed)

    return share


def _within(view: View, caps_mw: list[int]) -> Ints:
    """Between MOP and TDP of each node."""
    within: Ints = np.maximum(np.minimum(np.array(caps_mw, np.int64), view.tdp_mw), view.mop_mw)
    return within


def _lowered(caps_mw: Ints, down_to_mw: Ints, by_mw: int) -> Ints:
    """By so much together, as far as that goes: each loses the same part of what it has above its least."""
    above = np.maximum(caps_mw - down_to_mw, 0)
    most_mw = int(above.sum())
    return caps_mw if by_mw <= 0 or not most_mw else caps_mw - -(-above * min(by_mw, most_mw) // most_mw)

"""Application-aware power capping: jobs that lose little are capped first (REGALE D2.3 §4.2, BEO).

Idle nodes get their MOP, all others their TDP. If that is more than the budget, jobs are capped one after the other
until it fits: in the first pass to the cap of their tag, in the second to their MOP. The last job that is capped gets
back what is then left over.

Decisions where the source leaves them open (docs/policies.md): jobs are capped in the order of the source's text,
memory-bound first (D1), then fewest nodes, then the oldest (D3). If no job need be capped, what is left over stays
unspent: active nodes have their TDP, and with free watts the next job can start without lowering others.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
import numpy as np

from cluster_agent.budget.sharers.api import Method, Sharer, check_budget
from cluster_agent.budget.sharers.fill import fill
from cluster_agent.budget.sharers.view import UNTAGGED, Floats, Ints, Reason, Shares, View, tag_of

Untagged: TypeAlias = Literal["compute", "mixed", "memory"]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``memory``, ``mixed``, ``compute``: caps of the tags in % of TDP. ``fairness``: how nodes of one job share what
    is left over, in equal watts or to equal parts of their TDP. ``untagged``: the tag that a job without one is
    given."""

    memory: float = 80.0
    mixed: float = 90.0
    compute: float = 100.0
    fairness: Literal["watts", "tdp"] = "watts"
    untagged: Untagged = "compute"


def compose(params: Params) -> Sharer:
    """``ValueError`` for a percentage that is out of range."""
    percent = (params.memory, params.mixed, params.compute)
    for name, value in zip(("memory", "mixed", "compute"), percent, strict=True):
        if not 0 < value <= 100:
            raise ValueError(f"{name}={value:g} must be above 0 and at most 100 (% of TDP)")

    def share(view: View, available_mw: int) -> Shares:
        return _share(params, np.array(percent), view, available_mw)

    return share


def _share(params: Params, percent: Floats, view: View, mw: int) -> Shares:
    check_budget(view, mw)
    tag = np.where(view.tag == UNTAGGED, int(tag_of(params.untagged)), view.tag)
    owner = view.owners(tag)
    is_idle = owner < 0
    caps_mw = np.where(is_idle, view.mop_mw, view.tdp_mw)
    reason: Ints = np.where(is_idle, Reason.IDLE, Reason.UNCAPPED).astype(np.int64)
    balance_mw = mw - int(caps_mw.sum())
    steps = 0
    if balance_mw < 0:
        by_tag_mw = np.floor(view.tdp_mw * percent[tag[owner]] / 100).astype(np.int64)
        turn, node, first = _in_turn(view, tag, owner)
        passes = ((by_tag_mw, Reason.TAG, Reason.TAG_AND_SHARE), (view.mop_mw, Reason.MOP, Reason.MOP_AND_SHARE))
        for target_mw, alone, shared in passes:
            lowered_mw = np.maximum(target_mw, view.mop_mw)
            saved_mw = np.add.reduceat(caps_mw[node] - lowered_mw[node], first[:-1])
            balances_mw = balance_mw + np.cumsum(saved_mw)
            last = int(np.searchsorted(balances_mw, 0))  # the first job after which it fits
            is_enough = last < len(turn)
            capped = node[: first[last + 1]] if is_enough else node
            before_mw = caps_mw.copy()
            caps_mw[capped] = lowered_mw[capped]
            reason[capped] = alone
            steps += last + 1 if is_enough else len(turn)
            if is_enough:
                ours = node[first[last] : first[last + 1]]
                _give(params, view, caps_mw, before_mw, ours, int(balances_mw[last]))
                reason[ours[caps_mw[ours] > lowered_mw[ours]]] = shared
                break
            balance_mw = int(balances_mw[-1])
        reason[~is_idle & (caps_mw == view.tdp_mw)] = Reason.UNCAPPED
    return Shares("aapc", caps_mw, reason, owner, tag, np.full(len(view.jobs), np.nan), steps)


def _in_turn(view: View, tag: Ints, owner: Ints) -> tuple[Ints, Ints, Ints]:
    """The jobs that own nodes in the order of capping, their nodes job by job, and where each job's nodes begin."""
    n_nodes = np.bincount(owner[owner >= 0], minlength=len(view.jobs))
    order = np.lexsort((np.arange(len(view.jobs)), n_nodes, tag))
    order = order[n_nodes[order] > 0]
    place = np.full(len(view.jobs) + 1, len(order), np.int64)  # the last one: idle nodes, owner -1
    place[order] = np.arange(len(order))
    node = np.argsort(place[owner], kind="stable")[: int((owner >= 0).sum())]
    return order, node, np.concatenate(([0], np.cumsum(n_nodes[order])))


def _give(params: Params, view: View, caps_mw: Ints, before_mw: Ints, nodes: Ints, left_mw: int) -> None:
    """Share what is left over among a job's nodes, none above the cap that it had before (D4)."""
    low_mw, high_mw, tdp_mw = caps_mw[nodes], before_mw[nodes], view.tdp_mw[nodes]
    total_mw = int(low_mw.sum()) + left_mw
    if params.fairness == "watts":
        caps_mw[nodes] = fill(total_mw, low_mw, high_mw, np.ones_like(low_mw), low_mw)
    else:
        caps_mw[nodes] = fill(total_mw, low_mw, high_mw, tdp_mw, np.zeros_like(low_mw))


METHOD = Method(
    name="aapc",
    summary="Idle nodes at MOP; jobs capped in the order of their tags until it fits, to the tag's cap, then to MOP.",
    source="application-aware power capping, REGALE D2.3, section 4.2",
    params=Params,
    compose=compose,
)

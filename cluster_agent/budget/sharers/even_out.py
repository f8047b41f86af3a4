"""Between the nodes of one job, watts are moved to those that need more for the same work.

A parallel job is as slow as its slowest node, and nodes of one model draw differently at one clock; calibration
measures by how much. Whatever a sharer gives to a job stays with it; each of its nodes gets the sharer's cap times its
factor, times a number that keeps the sum.

A measured need says more of a node than its factor does, and already includes it. So caps that a sharer made from
measured needs stay as they are, and no node gives away what it was measured to draw; where the job's watts are less
than its nodes need together, no more than the others lack too.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cluster_agent.budget.sharers.fill import fill
from cluster_agent.budget.sharers.view import Ints, Reason, Shares, View

BY_NEED: Final = (Reason.NEED, Reason.SLOWED)


def even_out(view: View, shares: Shares) -> Ints:
    """The caps, with those of each job moved between its nodes; each stays within MOP and TDP."""
    caps_mw = shares.caps_mw
    if (view.factor == 1.0).all():
        return caps_mw
    caps_mw = caps_mw.copy()
    owner = np.where(np.isin(shares.reason, BY_NEED), -1, shares.owner)
    for job in np.unique(owner[owner >= 0]).tolist():
        at = np.flatnonzero(owner == job)
        own = caps_mw[at]
        weight = np.maximum((own * view.factor[at]).astype(np.int64), 1)
        low_mw = np.maximum(view.mop_mw[at], _kept(own, view.need_mw[at]))
        caps_mw[at] = fill(int(own.sum()), low_mw, view.tdp_mw[at], weight, np.zeros_like(own))
    return caps_mw


def _kept(own_mw: Ints, need_mw: Ints) -> Ints:
    """What each node keeps of its cap, in mW."""
    is_known = need_mw >= 0
    if not is_known.any():
        return np.zeros_like(own_mw)
    covered = min(1.0, float(own_mw[is_known].sum()) / max(float(need_mw[is_known].sum()), 1.0))
    kept: Ints = np.where(is_known, np.minimum(own_mw, np.floor(need_mw * covered).astype(np.int64)), 0)
    return kept

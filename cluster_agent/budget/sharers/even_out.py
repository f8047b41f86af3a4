"""Between the nodes of one job, watts are moved to those that need more for the same work.

A parallel job is as slow as its slowest node, and nodes of one model draw differently at one clock; calibration
measures by how much. Whatever a sharer gives to a job stays with it; each of its nodes gets the sharer's cap times its
factor, times a number that keeps the sum.
"""

from __future__ import annotations

import numpy as np

from cluster_agent.budget.sharers.fill import fill
from cluster_agent.budget.sharers.view import Ints, Shares, View


def even_out(view: View, shares: Shares) -> Ints:
    """The caps, with those of each job moved between its nodes; each stays within MOP and TDP."""
    caps_mw = shares.caps_mw
    if (view.factor == 1.0).all():
        return caps_mw
    caps_mw = caps_mw.copy()
    for job in np.unique(shares.owner[shares.owner >= 0]).tolist():
        at = np.flatnonzero(shares.owner == job)
        own = caps_mw[at]
        weight = np.maximum((own * view.factor[at]).astype(np.int64), 1)
        caps_mw[at] = fill(int(own.sum()), view.mop_mw[at], view.tdp_mw[at], weight, np.zeros_like(own))
    return caps_mw

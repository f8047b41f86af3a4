"""Fair static power capping: every node gets the same part of its TDP, whether it works or idles.

The baseline that AAPC is compared with (REGALE D2.3 §4.2): cap = r × TDP, r = budget / sum of TDPs. A node for which
that is below its MOP gets its MOP, and the others' part is a little less.
"""

from __future__ import annotations

import msgspec
import numpy as np

from cluster_agent.budget.sharers.api import Method, Sharer, check_budget
from cluster_agent.budget.sharers.fill import fill
from cluster_agent.budget.sharers.view import UNTAGGED, Reason, Shares, Tag, View


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None."""


def compose(params: Params) -> Sharer:
    """There are no parameters."""
    return share


def share(view: View, available_mw: int) -> Shares:
    """Jobs and their power do not change the caps; jobs are only named in the reasons."""
    check_budget(view, available_mw)
    caps_mw = fill(available_mw, view.mop_mw, view.tdp_mw, view.tdp_mw, np.zeros_like(view.tdp_mw))
    reason = np.where(caps_mw > view.mop_mw, Reason.STATIC, Reason.STATIC_MOP)
    tag = np.where(view.tag == UNTAGGED, Tag.COMPUTE, view.tag)
    return Shares("fspc", caps_mw, reason, view.owners(tag), tag, np.full(len(view.jobs), np.nan))


METHOD = Method(
    name="fspc",
    summary="The same part of its TDP for every node, idle or not.",
    source="the baseline of REGALE D2.3, section 4.2",
    params=Params,
    compose=compose,
)

"""The same watts for every node that has a job, each within its MOP and TDP; idle nodes get their MOP."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from cluster_agent.budget.sharers.api import Method, Sharer, check_budget
from cluster_agent.budget.sharers.fill import fill
from cluster_agent.budget.sharers.view import UNTAGGED, Reason, Shares, Tag, View


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an idle node gets: its MOP, or as much as the others."""

    idle: Literal["mop", "share"] = "mop"


def compose(params: Params) -> Sharer:
    """The sharer for these parameters."""

    def share(view: View, available_mw: int) -> Shares:
        check_budget(view, available_mw)
        tag = np.where(view.tag == UNTAGGED, Tag.COMPUTE, view.tag)
        owner = view.owners(tag)
        is_low = (owner < 0) & (params.idle == "mop")
        most_mw = np.where(is_low, view.mop_mw, view.tdp_mw)
        caps_mw = fill(available_mw, view.mop_mw, most_mw, np.ones_like(most_mw), np.zeros_like(most_mw))
        reason = np.where(is_low, Reason.IDLE, Reason.OWN)
        speed = np.full(len(view.jobs), np.nan)  # not predicted
        return Shares("equal-watts", caps_mw, reason, owner, tag, speed, note="all that work get the same watts")

    return share


METHOD = Method(
    name="equal-watts",
    summary="The same watts for every node that has a job.",
    source="an example",
    params=Params,
    compose=compose,
)

"""What a sharer's file exports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np

from cluster_agent.budget.sharers.speed import SpeedModel
from cluster_agent.budget.sharers.view import Reason, Shares, Tag, View
from cluster_agent.errors import ClusterError

Sharer: TypeAlias = Callable[[View, int], Shares]
"""(view, mW for all its nodes together) -> caps within MOP and TDP whose sum is at most that. Pure: the same view gives
the same caps. ``BudgetTooSmallError`` if the mW are less than the sum of MOPs."""


Models: TypeAlias = Mapping[Tag | None, SpeedModel]
"""The table of each tag, None for jobs without a tag; a tag without a table is missing."""


@dataclass(frozen=True, slots=True)
class Method:
    """A way to share a budget: what it is, its source, its parameters, the sharer that they make, and the tables for
    jobs that bring none of their own.

    ``compose`` may raise ``ValueError`` for parameters that do not fit together; the user is shown its message.
    """

    name: str
    summary: str
    source: str
    params: type[msgspec.Struct]
    compose: Callable[[Any], Sharer]
    models: Callable[[Any], Models] = lambda params: {}


class BudgetTooSmallError(ClusterError):
    """The budget is less than the minimal operating power of all nodes."""


def flaw(shares: object, view: View, available_mw: int) -> str:
    """What is wrong with a sharer's answer; empty: nothing."""
    if not isinstance(shares, Shares):
        return "the sharer did not return Shares"
    return _misshapen(shares, view) or _out_of_bounds(shares, view, available_mw)


def _misshapen(shares: Shares, view: View) -> str:
    n, m = len(view.nodes), len(view.jobs)
    columns = {"caps_mw": n, "reason": n, "owner": n, "tag": m, "speed": m}
    for name, size in columns.items():
        column = getattr(shares, name)
        kinds = "f" if name == "speed" else "iu"
        if not isinstance(column, np.ndarray) or column.shape != (size,) or column.dtype.kind not in kinds:
            return f"{name} is no array of {size} {'numbers' if name == 'speed' else 'whole numbers'}"
    known = (("reason", 0, len(Reason), "Reason"), ("owner", -1, m, "job"), ("tag", 0, len(Tag), "Tag"))
    for name, low, high, what in known:
        column = getattr(shares, name)
        if len(column) and not low <= column.min() <= column.max() < high:
            return f"{name} has a number that is no {what}"
    return ""


def _out_of_bounds(shares: Shares, view: View, available_mw: int) -> str:
    low_mw, high_mw = np.minimum(view.mop_mw, view.tdp_mw), np.maximum(view.mop_mw, view.tdp_mw)
    outside = np.flatnonzero((shares.caps_mw < low_mw) | (shares.caps_mw > high_mw))
    if len(outside):
        at = int(outside[0])
        return (
            f"the cap of {view.nodes[at]}, {shares.caps_mw[at] / 1000:g} W, is not within its MOP and TDP,"
            f" {low_mw[at] / 1000:g} to {high_mw[at] / 1000:g} W"
        )
    over_mw = int(shares.caps_mw.sum()) - available_mw
    return f"the caps add up to {over_mw / 1000:g} W more than there is" if over_mw > 0 else ""


def check_budget(view: View, available_mw: int) -> None:
    """Raises ``BudgetTooSmallError``, whose message says what is missing and what helps."""
    short_mw = int(view.mop_mw.sum()) - available_mw
    if short_mw > 0:
        raise BudgetTooSmallError(
            f"budget: {available_mw / 1000:.1f} W are {short_mw / 1000:.1f} W less than the minimal operating power of "
            f"{len(view.nodes)} nodes; raise the budget, or switch nodes off"
        )

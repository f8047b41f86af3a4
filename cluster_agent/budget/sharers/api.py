"""What a sharer's file exports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from cluster_agent.budget.sharers.speed import SpeedModel
from cluster_agent.budget.sharers.view import Shares, Tag, View
from cluster_agent.errors import ClusterError

Sharer: TypeAlias = Callable[[View, int], Shares]
"""The view and the mW for all its nodes together -> caps within MOP and TDP whose sum is at most that. Pure: the same
view gives the same caps. ``BudgetTooSmallError`` if it is less than the MOPs."""


Models: TypeAlias = Mapping[Tag | None, SpeedModel]
"""The table of each tag, None for jobs without one, as far as there are tables."""


@dataclass(frozen=True, slots=True)
class Method:
    """A way to share a budget: what it is, where it comes from, its parameters, the sharer that they make, and by which
    tables it takes jobs that bring none of their own.

    ``compose`` may raise ``ValueError`` for parameters that do not fit together; the message ends in front of the user.
    """

    name: str
    summary: str
    source: str
    params: type[msgspec.Struct]
    compose: Callable[[Any], Sharer]
    models: Callable[[Any], Models] = lambda params: {}


class BudgetTooSmallError(ClusterError):
    """Not even the minimal operating power of every node fits."""


def check_budget(view: View, available_mw: int) -> None:
    """``BudgetTooSmallError``, with what is missing and what helps."""
    short_mw = int(view.mop_mw.sum()) - available_mw
    if short_mw > 0:
        raise BudgetTooSmallError(
            f"budget: {available_mw / 1000:.1f} W are {short_mw / 1000:.1f} W less than the minimal operating power of "
            f"{len(view.nodes)} nodes; raise the budget, or switch nodes off"
        )

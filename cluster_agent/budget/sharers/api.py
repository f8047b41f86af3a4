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


def check_budget(view: View, available_mw: int) -> None:
    """Raises ``BudgetTooSmallError``, whose message says what is missing and what helps."""
    short_mw = int(view.mop_mw.sum()) - available_mw
    if short_mw > 0:
        raise BudgetTooSmallError(
            f"budget: {available_mw / 1000:.1f} W are {short_mw / 1000:.1f} W less than the minimal operating power of "
            f"{len(view.nodes)} nodes; raise the budget, or switch nodes off"
        )

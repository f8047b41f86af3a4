"""The power of the partition over the last day, in memory: bounded, whatever happens."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from cluster_agent.page.snapshot import PowerPoint
from cluster_agent.serve.people_protocol import BudgetView, NodeRow

FINE_S: Final = 10.0
FINE: Final = 720
"""Ours: points every ten seconds for two hours."""

COARSE_S: Final = 60.0
COARSE: Final = 22 * 60
"""Ours: before that a point a minute, up to a day: the one with the most watts, so that no peak is lost."""

UNHEARD: Final = ("silent", "off", "left")
"""Of nodes in these states the last report says nothing about now."""


def draws_now_w(row: NodeRow) -> float | None:
    """What a node draws; None: not known now."""
    return None if row.state in UNHEARD else row.draws_w


class PowerRing:
    """Points in the order of time, which ``add`` is given."""

    def __init__(self) -> None:
        self._fine: deque[PowerPoint] = deque()
        self._coarse: deque[PowerPoint] = deque(maxlen=COARSE)

    def is_due(self, at_s: float) -> bool:
        """Whether the next point may be added; also when somebody has set the clock back."""
        return not self._fine or not 0 <= at_s - self._fine[-1].at_s < FINE_S

    def add(self, point: PowerPoint) -> None:
        """The newest. Points of a time that is still to come, by a clock that was set back, are dropped."""
        while self._fine and self._fine[-1].at_s >= point.at_s:
            self._fine.pop()
        while self._coarse and self._coarse[-1].at_s >= point.at_s:
            self._coarse.pop()
        self._fine.append(point)
        if len(self._fine) > FINE:
            self._keep_the_highest(self._fine.popleft())

    def points(self) -> tuple[PowerPoint, ...]:
        """All, the oldest first."""
        return (*self._coarse, *self._fine)

    def _keep_the_highest(self, point: PowerPoint) -> None:
        if not self._coarse or self._coarse[-1].at_s // COARSE_S != point.at_s // COARSE_S:
            self._coarse.append(point)
        elif (point.draws_w or 0.0) > (self._coarse[-1].draws_w or 0.0):
            self._coarse[-1] = point


def point_of(at_s: float, budget: BudgetView, nodes: Sequence[NodeRow]) -> PowerPoint:
    """The partition at a moment. Without any node that reports its watts are not known."""
    known = [value for row in nodes if (value := draws_now_w(row)) is not None]
    bound = Counter(row.bound_by for row in nodes if row.bound_by)
    return PowerPoint(
        at_s=at_s,
        draws_w=sum(known) + budget.fixed_w if known or not nodes else None,
        budget_w=budget.budget_w,
        counted_w=budget.counts_w + budget.fixed_w,
        bound_by=max(bound, key=lambda by: (bound[by], by), default=""),
        bound=bound.total(),
    )

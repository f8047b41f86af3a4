"""Placeholders of nodes that are away, so that the scheduler does not count on them.

A placeholder is a job in the engine's table without a user and without an end that occupies the node. While a node
boots, its placeholder ends when the node should be back, so that the engine plans with it. Otherwise it would give the
nodes that wait for the booting one to other jobs, and a wide job might never start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.power_switching import PowerTimes, is_coming, is_off_for_cap
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler

ENDLESS_S: Final = 1 << 40


class Placeholders:
    """``by_plan``: nodes that the scheduler's plan has off, so that they need none; ``is_short_of_room``: not all nodes
    that are away have one."""

    def __init__(self, times: PowerTimes) -> None:
        self.by_plan = 0
        self.is_short_of_room = False
        self._times = times

    def update(
        self,
        scheduler: NativeScheduler,
        nodes: Collection[Node],
        occupy: Callable[[Sequence[str], int, int], int],
        now_s: int,
        room: float,
    ) -> bool:
        """Occupy nodes that may not start a job, and free the others; whether any was freed. ``occupy`` gives nodes to
        a new row, from now for so many seconds; ``room``: how many nodes may have rows that are not of jobs."""
        _, by_plan = scheduler.nodes_off(now_s)
        self.by_plan, self.is_short_of_room, is_freed = by_plan, False, False
        room -= sum(node.away_row is not None for node in nodes)
        for node in nodes:
            is_away = node.run is None and not node.may_start
            if is_away and by_plan and is_off_for_cap(node):
                by_plan, is_away = by_plan - 1, False
            if node.away_row is not None and not (is_away and _is_right(node, now_s)):
                scheduler.withdraw(node.away_row)
                node.away_row, node.away_until_s = None, None
                is_freed, room = True, room + 1
            if is_away and node.away_row is None:
                room -= 1
                if room < 0:
                    self.is_short_of_room = True
                    continue
                away_s = max(round(self._times.boot_within_s), 2) if is_coming(node) else ENDLESS_S
                node.away_row = occupy([node.name], now_s, away_s)
                node.away_until_s = now_s + away_s if is_coming(node) else None
        return is_freed


def _is_right(node: Node, now_s: int) -> bool:
    """Whether its placeholder ends when the node should be back, or never, and not now."""
    return (node.away_until_s is not None) == is_coming(node) and (node.away_until_s or ENDLESS_S) > now_s + 1

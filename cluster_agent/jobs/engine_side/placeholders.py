"""Placeholders of nodes that are away, so that the scheduler does not count on them.

A placeholder is a job in the engine's table without a user and without an end that occupies the node. While a node
boots, its placeholder ends when the node should be back, so that the engine plans with it. Otherwise it would give the
nodes that wait for the booting one to other jobs, and a wide job might never start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.power_switching import PowerTimes, is_coming, is_off_for_cap
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler

ENDLESS_S: Final = 1 << 40
KEPT: Final = 10_000
"""Ours: how many outages that are over are remembered."""


@dataclass(slots=True)
class Outage:
    """A node was away from ``at_s`` on, the engine's clock; ``back_s`` None: it is still. ``mattered``: that ended a
    job, or others had to wait meanwhile, as a replay counts its failures."""

    node: str
    at_s: int
    back_s: int | None = None
    mattered: bool = False


class Placeholders:
    """``by_plan``: nodes that the scheduler's plan has off, so that they need none; ``is_short_of_room``: not all nodes
    that are away have one."""

    def __init__(self, times: PowerTimes) -> None:
        self.by_plan = 0
        self.is_short_of_room = False
        self._times = times
        self._away: dict[str, Outage] = {}
        self._over: deque[Outage] = deque(maxlen=KEPT)
        self._mattered = 0  # those that are over

    @property
    def outages(self) -> list[Outage]:
        """Those since this agent began, the last ones; nodes that are switched off are none."""
        return sorted([*self._over, *self._away.values()], key=lambda one: (one.at_s, one.node))

    @property
    def mattered(self) -> int:
        """How many ended a job, or had others wait."""
        return self._mattered + sum(one.mattered for one in self._away.values())

    def lost(self, name: str, now_s: int, has_ended_job: bool) -> None:
        """What the node ran was lost now, whether it is back already or not."""
        self._away.setdefault(name, Outage(name, now_s)).mattered |= has_ended_job

    def had_wait(self) -> None:
        """After a pass jobs wait."""
        for one in self._away.values():
            one.mattered = True

    def _note(self, node: Node, is_away: bool, now_s: int) -> bool:
        """Whether the node has gone away just now, other than by a switch."""
        if is_away and node.switched is None and node.name not in self._away:
            self._away[node.name] = Outage(node.name, now_s)
            return True
        if not is_away and node.name in self._away:
            one = self._away.pop(node.name)
            one.back_s = now_s
            self._mattered += one.mattered
            self._over.append(one)
        return False

    def update(
        self,
        scheduler: NativeScheduler,
        nodes: Collection[Node],
        occupy: Callable[[Sequence[str], int, int, Sequence[int]], int],
        now_s: int,
        room: float,
    ) -> bool:
        """Occupy nodes that may not start a job, and free the others; whether that calls for a pass. ``occupy`` gives
        so many shares of nodes to a new row, from now for so many seconds; ``room``: how many may have rows that are
        not of jobs."""
        _, by_plan = scheduler.nodes_off(now_s)
        self.by_plan, self.is_short_of_room, is_pass_due = by_plan, False, False
        room -= sum(node.away_row is not None for node in nodes)
        for node in nodes:
            is_away = node.is_away
            is_pass_due |= self._note(node, is_away, now_s)
            if is_away and by_plan and is_off_for_cap(node):
                by_plan, is_away = by_plan - 1, False
            if node.away_row is not None and not (is_away and _is_right(node, now_s)):
                scheduler.withdraw(node.away_row)
                node.away_row, node.away_until_s = None, None
                is_pass_due, room = True, room + 1
            if is_away and node.away_row is None:
                room -= 1
                if room < 0:
                    self.is_short_of_room = True
                    continue
                away_s = max(round(self._times.boot_within_s), 2) if is_coming(node) else ENDLESS_S
                # of a node that is half taken the free half: nobody comes next to a placeholder when the job has ended
                node.away_row = occupy([node.name], now_s, away_s, [node.free_shares])
                node.away_until_s = now_s + away_s if is_coming(node) else None
        return is_pass_due


def _is_right(node: Node, now_s: int) -> bool:
    """Whether its placeholder ends when the node should be back, or never, and not now."""
    return (node.away_until_s is not None) == is_coming(node) and (node.away_until_s or ENDLESS_S) > now_s + 1

"""Nodes that go off when they are idle, node by node: what ``csrc/idle_nodes.c`` is tested against (``idle_off``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from cluster_agent.scheduler.idle_off import IdleOff

State: TypeAlias = Literal["on", "going", "off", "booting"]


@dataclass(slots=True)
class Node:
    """``at_s``: idle since (None: it is not), off at, on at."""

    state: State = "on"
    at_s: int | None = None
    used: set[int] = field(default_factory=set)  # processors with a job
    is_new: bool = False  # idle since the pass to come


class Nodes:
    """All nodes of a machine, on and idle at first."""

    def __init__(self, model: IdleOff, processors: int) -> None:
        self.model = model
        self.nodes = [Node() for _ in range(processors // model.cores)]
        self.kept = 0
        self.last_off_s = 0
        self.boots = 0

    def changes_s(self) -> list[int]:
        """When nodes go off, or are off or on."""
        switching = [node.at_s for node in self.nodes if node.state != "on" and node.at_s is not None]
        idle = [node.at_s for node in self._kept() if node.state == "on" and node.at_s is not None]
        return switching + [since_s + self.model.idle_off_s for since_s in idle]

    def settle(self, now_s: int) -> None:
        """Nodes that are off or on by now."""
        for node in self.nodes:
            if node.state == "going" and node.at_s is not None and node.at_s <= now_s:
                if node.used:
                    self._boot(node, node.at_s)
                else:
                    node.state, node.at_s = "off", None
            if node.state == "booting" and node.at_s is not None and node.at_s <= now_s:
                node.state, node.at_s = "on", None

    def follow(self, now_s: int, kept: int) -> None:
        """So many processors are on in the plan from now on; the others are the plan's."""
        self.date(now_s)
        for i, node in enumerate(self.nodes):
            was_kept, is_kept = (i + 1) * self.model.cores <= self.kept, (i + 1) * self.model.cores <= kept
            if was_kept != is_kept and not node.used:
                node.state, node.at_s = "on", now_s if is_kept else None
        self.kept = kept

    def date(self, now_s: int) -> None:
        """Nodes that jobs have left are idle from now on."""
        for node in self.nodes:
            if node.is_new:
                node.is_new, node.at_s = False, now_s

    def is_warm(self, processor: int) -> bool:
        """Whether its node is on."""
        return self.nodes[processor // self.model.cores].state == "on"

    def ready_s(self, now_s: int) -> int:
        """At the latest when a job begins that takes processors now which are not warm."""
        return max(self.last_off_s, now_s) + self.model.boot_s

    def take(self, now_s: int, processors: Iterable[int]) -> tuple[int, int]:
        """A job gets processors: when their nodes are on, and the processors of nodes that boot for it."""
        begins_s, woken = now_s, 0
        for processor in processors:
            node = self.nodes[processor // self.model.cores]
            if not node.used and node.state in ("off", "going"):
                woken += self.model.cores
            node.used.add(processor)
            if node.state == "off":
                self._boot(node, now_s)
            if node.state == "on":
                node.at_s, node.is_new = None, False
            else:
                assert node.at_s is not None
                begins_s = max(begins_s, node.at_s + (self.model.boot_s if node.state == "going" else 0))
        return begins_s, woken

    def give_back(self, processors: Iterable[int]) -> None:
        """A job gives processors back."""
        for processor in processors:
            i = processor // self.model.cores
            node = self.nodes[i]
            node.used.remove(processor)
            if node.used:
                continue
            if (i + 1) * self.model.cores > self.kept:
                node.state, node.at_s = "on", None
            elif node.state == "booting":
                node.state, node.at_s = "off", None
            elif node.state == "on":
                node.is_new = True

    def due(self, now_s: int) -> list[Node]:
        """Those that have been idle for long enough."""
        return [
            node
            for node in self._kept()
            if node.state == "on" and node.at_s is not None and node.at_s + self.model.idle_off_s <= now_s
        ]

    def go(self, now_s: int, is_allowed: bool) -> None:
        """These go off; or wait for the same time again."""
        for node in self.due(now_s):
            if is_allowed:
                node.state, node.at_s = "going", now_s + self.model.switch_off_s
                self.last_off_s = now_s + self.model.switch_off_s
            else:
                node.at_s = now_s

    def processors(self, state: State) -> int:
        """How many are of nodes in a state."""
        return self.model.cores * sum(node.state == state for node in self.nodes)

    @property
    def waking(self) -> int:
        """Processors of nodes that boot, or will when they are off."""
        return self.model.cores * sum(bool(node.used) and node.state in ("going", "booting") for node in self.nodes)

    def _kept(self) -> list[Node]:
        return self.nodes[: self.kept // self.model.cores]

    def _boot(self, node: Node, from_s: int) -> None:
        node.state, node.at_s = "booting", from_s + self.model.boot_s
        self.boots += 1

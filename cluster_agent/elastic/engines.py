"""What ``drained_nodes`` needs of an elastic engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from cluster_agent.errors import ClusterError


class EngineError(ClusterError):
    """An engine does not answer, or refuses; the message names it."""


class Deadline:
    """A time from now on, by the monotonic clock."""

    def __init__(self, seconds: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s, self._begun_s, self._end_s = now_s, now_s(), now_s() + seconds

    @property
    def left_s(self) -> float:
        """At least 0."""
        return max(self._end_s - self._now_s(), 0.0)

    @property
    def took_s(self) -> float:
        """Since the beginning."""
        return self._now_s() - self._begun_s


class Cleared:
    """What became of the work on a node: pieces that ended in their grace, that were cut off, that are still there.
    ``wrong``: what failed, ""."""

    def __init__(self, ended: int = 0, cut: int = 0, left: int = 0, wrong: str = "") -> None:
        self.ended, self.cut, self.left, self.wrong = ended, cut, left, wrong


class Engine(Protocol):
    """Every method raises ``EngineError`` after ``deadline`` at the latest."""

    name: str
    piece: str
    """What it runs, in words: "pod"."""

    def is_open(self, node: str, deadline: Deadline) -> bool | None:
        """Whether the node gets work; None: it is none of the engine's."""

    def close(self, node: str, deadline: Deadline) -> None:
        """The node gets no more work. Closing it again does no harm."""

    def clear(self, nodes: Sequence[str], grace_s: float, deadline: Deadline) -> dict[str, Cleared]:
        """End what runs there; what came late, too. Nodes that are none of the engine's are left out."""

    def open(self, nodes: Sequence[str], deadline: Deadline) -> dict[str, str]:
        """The nodes get work again; returns those that could not be opened, and why. Once it returns, ``is_open`` is
        true of the others."""

"""What each node draws in its present job when no cap holds it back, learned from its reports.

A draw below the cap is the node's own. A draw at the cap only says that it wants at least that: what was known before
stays if it is more, else the node may want its TDP. The need is the highest own draw of the last one to two windows,
so that a job that goes to and fro between phases keeps the watts of its hungry one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SLACK: Final = 0.02
"""Ours: a draw within this part of the cap is held back by it. The guard of a sharer has to be wider."""


@dataclass(slots=True)
class _Node:
    job: str
    since_s: float
    need_mw: int = -1  # while it is held back, and of the window before
    window_mw: int = -1
    window_from_s: float = 0.0


class Needs:
    """``hear`` reports; ``need_mw`` is what is known. Times are seconds of any clock that does not go back.

    ``settle_s``: after its start a job is not measured yet; ``window_s``: see above.
    """

    def __init__(self, settle_s: float = 10.0, window_s: float = 60.0) -> None:
        self._settle_s, self._window_s = settle_s, window_s
        self._nodes: dict[str, _Node] = {}

    def hear(self, now_s: float, node: str, job: str, power_mw: int, cap_mw: int, tdp_mw: int) -> None:
        """A node drew ``power_mw`` under ``cap_mw`` (-1: not measured) while it ran ``job`` (empty: none)."""
        if not job:
            self._nodes.pop(node, None)
            return
        known = self._nodes.get(node)
        if known is None or known.job != job:
            known = self._nodes[node] = _Node(job, now_s, window_from_s=now_s)
        if power_mw < 0 or now_s - known.since_s < self._settle_s:
            return
        if power_mw >= (1 - SLACK) * cap_mw and cap_mw < tdp_mw:
            if 0 <= known.need_mw <= cap_mw:
                known.need_mw = known.window_mw = tdp_mw
                known.window_from_s = now_s
            return
        known.window_mw = max(known.window_mw, power_mw)
        if known.need_mw < 0:
            known.need_mw = known.window_mw
        elif now_s - known.window_from_s >= self._window_s:
            known.need_mw, known.window_mw, known.window_from_s = known.window_mw, power_mw, now_s
        else:
            known.need_mw = max(known.need_mw, known.window_mw)

    @property
    def need_mw(self) -> dict[str, int]:
        """Per node whose need is known, in mW."""
        return {name: node.need_mw for name, node in self._nodes.items() if node.need_mw >= 0}

"""What each node draws in its present job when it is not cap-bound, learned from its reports.

A node reports whether it is cap-bound. Only the node knows whether its clocks would be higher without the cap, since
controllers keep some distance from caps. If an older node agent does not report it, power at the cap is taken as
cap-bound. The power of a node that is not cap-bound is its need at that moment. A cap-bound node wants at least its
cap: what was known before stays if it is more than the cap, else the node may want its TDP. The need is the highest
such power of the last one to two windows, so that a job that alternates between phases keeps the watts of its most
demanding one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nodectl.wire.power_messages import CapBound

SLACK: Final = 0.02
"""Ours: power within this part of the cap is cap-bound, where the node does not report it. The need of such a node is
taken as that much more than its power, so that under a cap equal to its need it is not taken as cap-bound."""


def is_at_cap(power_mw: int, cap_mw: int, cap_bound: CapBound) -> bool:
    """Whether a node is cap-bound: as it reports, else by its power."""
    return cap_bound == "yes" if cap_bound else power_mw >= (1 - SLACK) * cap_mw


@dataclass(slots=True)
class _Node:
    job: str
    since_s: float
    need_mw: int = -1  # also while it is cap-bound; of the window before
    window_mw: int = -1
    window_from_s: float = 0.0


class Needs:
    """``hear`` takes reports; ``need_mw`` is what is known. Times are seconds of any clock that does not go back.

    ``settle_s``: how long after its start a job is not measured; ``window_s``: see above.
    """

    def __init__(self, settle_s: float = 10.0, window_s: float = 60.0) -> None:
        self._settle_s, self._window_s = settle_s, window_s
        self._nodes: dict[str, _Node] = {}

    def hear(
        self, now_s: float, node: str, job: str, power_mw: int, cap_mw: int, tdp_mw: int, cap_bound: CapBound = ""
    ) -> None:
        """A node drew ``power_mw`` (-1: not measured) under ``cap_mw`` while it ran ``job`` (empty: none). If it is
        unsure whether it is cap-bound, nothing is learned."""
        if not job:
            self._nodes.pop(node, None)
            return
        known = self._nodes.get(node)
        if known is None or known.job != job:
            known = self._nodes[node] = _Node(job, now_s, window_from_s=now_s)
        if power_mw < 0 or now_s - known.since_s < self._settle_s:
            return
        if cap_bound == "unsure":
            return
        if is_at_cap(power_mw, cap_mw, cap_bound) and cap_mw < tdp_mw:
            if 0 <= known.need_mw <= cap_mw:
                known.need_mw = known.window_mw = tdp_mw
                known.window_from_s = now_s
            return
        if not cap_bound:
            power_mw = min(round(power_mw / (1 - SLACK)), tdp_mw)
        known.window_mw = max(known.window_mw, power_mw)
        if known.need_mw < 0:
            known.need_mw = known.window_mw
        elif now_s - known.window_from_s >= self._window_s:
            known.need_mw, known.window_mw, known.window_from_s = known.window_mw, power_mw, now_s
        else:
            known.need_mw = max(known.need_mw, known.window_mw)

    def of(self, node: str) -> int:
        """A node's need in mW; -1: not known."""
        known = self._nodes.get(node)
        return known.need_mw if known else -1

    @property
    def need_mw(self) -> dict[str, int]:
        """Per node whose need is known, in mW."""
        return {name: node.need_mw for name, node in self._nodes.items() if node.need_mw >= 0}

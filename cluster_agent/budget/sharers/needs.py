"""What each node draws in its present job when it is not cap-bound, learned from its reports.

A node reports whether it is cap-bound. Only the node knows whether its clocks would be higher without the cap, since
controllers keep some distance from caps. If an older node agent does not report it, power at the cap is taken as
cap-bound. The power of a node that is not cap-bound is its need at that moment. A cap-bound node wants at least its
cap: what was known before stays if it is more than the cap, else the node may want its TDP. The need is the highest
such power of the last one to two windows, so that a job that alternates between phases keeps the watts of its most
demanding one.

The nodes of one job are judged together, since the job is as slow as its slowest node. When one of them proves that it
needs more than was known, the job does other work than before. Then what was known of its cap-bound mates is out of
date, too, and they may want their TDP as well: under the caps of their old needs they could never show it. A mate that
is not cap-bound has just been measured and keeps its need. A cap-bound node that was never measured is taken to need
what its most demanding mate does, as a part of TDP, until it is cap-bound there as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from foundation.wire.power_messages import CapBound, Report

SLACK: Final = 0.02
"""Ours: power within this part of the cap is cap-bound, where the node does not report it. The need of such a node is
taken as that much more than its power, so that under a cap equal to its need it is not taken as cap-bound."""


def is_at_cap(power_mw: int, cap_mw: int, cap_bound: CapBound) -> bool:
    """Whether a node is cap-bound: as it reports, else by its power."""
    return cap_bound == "yes" if cap_bound else power_mw >= (1 - SLACK) * cap_mw


def is_cap_bound(report: Report) -> bool:
    """Whether the cap that should be in force bound the node when it sent this report."""
    return report.asked_mw >= 0 and is_at_cap(report.power_mw, report.asked_mw, report.held)


@dataclass(slots=True)
class _Node:
    job: str
    since_s: float
    tdp_mw: int
    need_mw: int = -1  # also while it is cap-bound; of the window before
    window_mw: int = -1
    window_from_s: float = 0.0
    measured_s: float = -math.inf
    is_bound: bool = False


@dataclass(slots=True)
class _Job:
    nodes: dict[str, _Node] = field(default_factory=dict)
    outgrown_s: float = -math.inf  # when one of its nodes last proved that it needs more than was known


class Needs:
    """``hear`` takes reports; ``need_mw`` is what is known. Times are seconds of any clock that does not go back.

    ``settle_s``: how long after its start a job is not measured; ``window_s``: see above.
    """

    def __init__(self, settle_s: float = 10.0, window_s: float = 60.0) -> None:
        self._settle_s, self._window_s = settle_s, window_s
        self._nodes: dict[str, _Node] = {}
        self._jobs: dict[str, _Job] = {}

    def hear(
        self,
        now_s: float,
        node: str,
        job: str,
        power_mw: int,
        cap_mw: int,
        tdp_mw: int,
        cap_bound: CapBound = "",
        expected_mw: int = -1,
    ) -> None:
        """A node drew ``power_mw`` (-1: not measured) under ``cap_mw`` while it ran ``job`` (empty: none). If it is
        unsure whether it is cap-bound, nothing is learned. ``expected_mw``: what the job's table expects it to draw at
        full speed (-1: no table)."""
        known = self._on(now_s, node, job, tdp_mw)
        if known is None or power_mw < 0 or now_s - known.since_s < self._settle_s:
            return
        if cap_bound == "unsure":
            return
        known.is_bound = is_at_cap(power_mw, cap_mw, cap_bound) and cap_mw < tdp_mw
        if known.is_bound:
            self._learn_of_bound(now_s, known, cap_mw, expected_mw)
        else:
            self._measure(now_s, known, power_mw if cap_bound else min(round(power_mw / (1 - SLACK)), tdp_mw))

    def _on(self, now_s: float, name: str, job: str, tdp_mw: int) -> _Node | None:
        """What is known of a node in this job."""
        known = self._nodes.get(name)
        if known is not None and known.job != job:
            left = self._jobs[known.job].nodes
            del self._nodes[name], left[name]
            if not left:
                del self._jobs[known.job]
            known = None
        if known is None and job:
            known = self._nodes[name] = _Node(job, now_s, tdp_mw, window_from_s=now_s)
            self._jobs.setdefault(job, _Job()).nodes[name] = known
        if known is not None:
            known.tdp_mw = tdp_mw
        return known

    def _learn_of_bound(self, now_s: float, known: _Node, cap_mw: int, expected_mw: int) -> None:
        job = self._jobs[known.job]
        if known.need_mw < 0:
            most = max((mate.need_mw / mate.tdp_mw for mate in job.nodes.values() if mate.tdp_mw), default=-1.0)
            enough_mw = min(round(most * known.tdp_mw), known.tdp_mw) if most >= 0 else expected_mw
            if cap_mw >= enough_mw >= 0:
                _open(known, now_s)
            elif most >= 0:
                known.need_mw = known.window_mw = enough_mw
        elif known.need_mw <= cap_mw:
            job.outgrown_s = now_s
            for mate in job.nodes.values():
                if mate.is_bound and mate.need_mw >= 0:
                    _open(mate, now_s)
        elif known.measured_s < job.outgrown_s:
            _open(known, job.outgrown_s)

    def _measure(self, now_s: float, known: _Node, power_mw: int) -> None:
        known.measured_s = now_s
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


def _open(known: _Node, since_s: float) -> None:
    """It may want all; its mates that were opened with it are measured again over the same windows."""
    if known.need_mw < known.tdp_mw:
        known.need_mw = known.window_mw = known.tdp_mw
        known.window_from_s = since_s

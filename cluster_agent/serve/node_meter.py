"""What the nodes have drawn together, for a policy with a budget of joules: from their reports, silent nodes included.

A node's energy counter counts where two reports of one boot have it, else its mean power. Since its last report a node
is taken to draw what it drew then, or its TDP where it measures nothing; the next report puts that right. A node's
first report counts for ``FIRST_S`` before it, at most since the meter began: after a start of the agent all are new.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from foundation.wire.power_messages import Report

UJ_PER_MJ: Final = 1000

LONGEST_S: Final = 15.0
"""Ours: the mean power of a report counts for at most so long: it says nothing of a longer silence."""

MOST_MW: Final = 1_000_000_000
"""A megawatt, which no node draws (``power_messages.Milliwatts``): a counter that grows faster is not believed."""

FIRST_S: Final = 15.0
"""Ours: after that a silent node counts as down (``jobs.times``)."""


@dataclass(slots=True)
class _Heard:
    report: Report
    at_s: float

    @property
    def power_mw(self) -> int:
        """What it draws, as far as that is known."""
        return self.report.power_mw if self.report.power_mw >= 0 else self.report.declaration.tdp_mw


class NodeMeter:
    """``hear`` every report; ``read`` gives the microjoules since the last reading."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._began_s = now, now()
        self._last: dict[str, _Heard] = {}
        self._drawn_mj = 0.0
        self._read_mj = 0.0

    def hear(self, report: Report) -> None:
        """A node's report."""
        now_s, before = self._now(), self._last.get(report.node)
        self._last[report.node] = now = _Heard(report, now_s)
        if before is None:
            self._drawn_mj += now.power_mw * min(now_s - self._began_s, FIRST_S)
            return
        old = before.report
        if old.boot_id == report.boot_id and 0 <= old.energy_mj <= report.energy_mj:
            self._drawn_mj += report.energy_mj - old.energy_mj
        else:
            self._drawn_mj += now.power_mw * (now_s - before.at_s)

    def read(self) -> int:
        """Microjoules since the last call."""
        now_s = self._now()
        total_mj = self._drawn_mj + sum(one.power_mw * (now_s - one.at_s) for one in self._last.values())
        since_mj, self._read_mj = total_mj - self._read_mj, total_mj
        return round(since_mj * UJ_PER_MJ)


@dataclass(slots=True)
class _Drawn:
    boot_id: str
    counter_mj: int  # -1: it has none
    at_s: float
    drawn_mj: float | None = None  # None: it has reported no power


class NodeEnergy:
    """What each node has drawn since this began, by its own reports alone: nothing is added for a node that is silent
    or measures nothing. Joules never fall, as counters of metrics must not."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Drawn] = {}
        self._total_mj = 0.0

    def hear(self, now_s: float, report: Report) -> None:
        """A node's report, at a clock that does not go back."""
        before = self._nodes.get(report.node)
        if before is None:
            begun = 0.0 if report.energy_mj >= 0 or report.power_mw >= 0 else None
            self._nodes[report.node] = _Drawn(report.boot_id, report.energy_mj, now_s, begun)
            return
        elapsed_s = now_s - before.at_s
        more_mj = self._more_mj(before, report, elapsed_s)
        before.boot_id, before.counter_mj, before.at_s = report.boot_id, report.energy_mj, now_s
        if more_mj is not None:
            before.drawn_mj = (before.drawn_mj or 0.0) + more_mj
            self._total_mj += more_mj

    @staticmethod
    def _more_mj(before: _Drawn, report: Report, elapsed_s: float) -> float | None:
        """Since the report before. A counter of another boot, or one that fell, began again at 0."""
        counted_mj = report.energy_mj
        if counted_mj >= 0 and before.counter_mj >= 0:
            is_same = report.boot_id == before.boot_id and counted_mj >= before.counter_mj
            counted_mj -= before.counter_mj if is_same else 0
            if counted_mj <= MOST_MW * max(elapsed_s, 1.0):
                return float(counted_mj)
        return report.power_mw * min(elapsed_s, LONGEST_S) if report.power_mw >= 0 else None

    def forget(self, node: str) -> None:
        """The node is gone; what it has drawn stays in the total."""
        self._nodes.pop(node, None)

    def joules(self, node: str) -> float | None:
        """Of one node; None: it has reported no power."""
        one = self._nodes.get(node)
        return None if one is None or one.drawn_mj is None else one.drawn_mj / 1000

    @property
    def total_j(self) -> float:
        """Of all nodes, also of those that are gone."""
        return self._total_mj / 1000

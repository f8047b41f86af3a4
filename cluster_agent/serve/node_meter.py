"""What the nodes have drawn together, for a policy with a budget of joules: from their reports, silent nodes included.

A node's energy counter counts where two reports of one boot have it, else its mean power. Since its last report a node
is taken to draw what it drew then, or its TDP where it measures nothing; the next report puts that right. A node's
first report counts for ``FIRST_S`` before it, at most since the meter began: after a start of the agent all are new.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nodectl.wire.power_messages import Report

UJ_PER_MJ: Final = 1000

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

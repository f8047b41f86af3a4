"""What a job did on its nodes, from the counts that these report.

A node reports counts from its agent's start (``Report``): units of progress, instructions, cycles, joules. A job's are
the sums of their differences between reports while it has the node, so a lost report loses nothing; a count that fell
has begun again, and one that is unknown (-1) is left out with its time. Ratios are of counts over the same time.

Watts of an interval are the node's mean over it. Their distribution is kept in bins of 2 %, by seconds: so the 95th
percentile is right to 1 %, whatever the length of a job, and a job of a month takes no more room than one of a minute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from foundation.wire.power_messages import WORK, Report

EVERY_NS: Final = 10_000_000_000
"""Ours: closer together, reports say nothing more about a job, and ten thousand nodes send as many a second."""

LONGEST_S: Final = 60.0
"""Ours: two reports further apart say what was counted, but not how watts were distributed."""

MOST_MW: Final = 1_000_000_000
BIN: Final = math.log(1.02)
COUNTS: Final = ("energy_mj", *WORK)
PARTS: Final = {"gpu": "gpu_mj", "cpu": "cpu_mj", "memory": "memory_mj"}
"""Parts of a node with meters of their own, and their counts."""

CACHE_LINE: Final = 64
"""Bytes that a miss of the last-level cache reads from memory at least."""


class NodeUse(msgspec.Struct):
    """On one node. ``counts``: by name, what was counted, and in how many seconds."""

    boot_id: str
    report_id: int
    last: dict[str, int]
    counts: dict[str, tuple[int, float]] = {}


class Spread(msgspec.Struct):
    """How the power of a node, or of a part of it, was distributed. ``bins``: seconds by power."""

    bins: dict[int, float] = {}
    highest_mw: int = 0

    def add(self, mw: int, elapsed_s: float) -> None:
        """The mean of an interval."""
        if 0 < mw <= MOST_MW and elapsed_s <= LONGEST_S:
            at = round(math.log(mw) / BIN)
            self.bins[at] = self.bins.get(at, 0.0) + elapsed_s
            self.highest_mw = max(self.highest_mw, mw)

    def share_w(self, share: float) -> float | None:
        """Watts that it stays below for so much of its time; None: not measured."""
        whole_s, sum_s = sum(self.bins.values()), 0.0
        for at in sorted(self.bins):
            sum_s += self.bins[at]
            if sum_s >= share * whole_s:
                return math.exp(at * BIN) / 1000
        return None

    @property
    def highest_w(self) -> float | None:
        """The highest mean of an interval; None: not measured."""
        return self.highest_mw / 1000 if self.highest_mw else None


class Use(Spread):
    """Of a job; its own spread is that of a node. ``parts``: those of ``PARTS``."""

    nodes: dict[str, NodeUse] = {}
    parts: dict[str, Spread] = {}

    def hear(self, report: Report, is_last: bool = False) -> None:
        """A report of a node that the job has, and no other job. ``is_last``: the job has ended."""
        before = self.nodes.get(report.node)
        is_same = before is not None and before.boot_id == report.boot_id
        if before is not None and is_same and not is_last and report.report_id - before.report_id < EVERY_NS:
            return
        now = {name: getattr(report, name) for name in COUNTS}
        if before is None or not is_same or report.report_id <= before.report_id:
            counts = before.counts if before is not None else {}
            self.nodes[report.node] = NodeUse(report.boot_id, report.report_id, now, counts)
            return
        elapsed_s = (report.report_id - before.report_id) / 1e9
        for name in COUNTS:
            if (counted := _difference(before.last, now, name)) is not None:
                count, counted_s = before.counts.get(name, (0, 0.0))
                before.counts[name] = count + counted, counted_s + elapsed_s
        self._distribute(before.last, now, report.power_mw, elapsed_s)
        before.report_id, before.last = report.report_id, now

    def _distribute(self, last: Mapping[str, int], now: Mapping[str, int], power_mw: int, elapsed_s: float) -> None:
        drawn_mj = _difference(last, now, "energy_mj")
        self.add(power_mw if drawn_mj is None else round(drawn_mj / elapsed_s), elapsed_s)
        for part, name in PARTS.items():
            if (drawn_mj := _difference(last, now, name)) is not None:
                self.parts.setdefault(part, Spread()).add(round(drawn_mj / elapsed_s), elapsed_s)

    def total(self, name: str) -> tuple[int, float]:
        """Of all nodes: what was counted, and in how many node-seconds."""
        found = [one.counts[name] for one in self.nodes.values() if name in one.counts]
        return sum(count for count, _ in found), sum(counted_s for _, counted_s in found)


def _difference(last: Mapping[str, int], now: Mapping[str, int], name: str) -> int | None:
    """What was counted meanwhile; None: not known, or the count has begun again. An older cluster agent, before an
    upgrade, kept fewer counts."""
    before = last.get(name, -1)
    return now[name] - before if 0 <= before <= now[name] else None


class Measured(msgspec.Struct, frozen=True, omit_defaults=True):
    """Watts are those of a node. None: no node reports it, or not all of the time."""

    mean_w: float | None = None
    p95_w: float | None = None
    highest_w: float | None = None
    gpu_w: float | None = None
    cpu_w: float | None = None
    memory_w: float | None = None
    """Of processors without it, where it has meters of its own."""
    ipc: float | None = None
    stalled: float | None = None
    """Share of cycles in which a core waited for data."""
    bytes_per_s: float | None = None
    """From memory, of a node: misses of the last-level cache, at least."""
    gpu_busy: float | None = None
    """Busy GPUs, on average over the time."""
    units_per_s: float | None = None
    """Progress that the job reports, of all its nodes."""
    covered_s: float = 0.0
    """Node-seconds in which joules were counted."""
    gpu_p95_w: float | None = None
    gpu_highest_w: float | None = None
    cpu_p95_w: float | None = None
    cpu_highest_w: float | None = None
    memory_p95_w: float | None = None
    memory_highest_w: float | None = None


def measured(use: Use) -> Measured:
    """What the counts come to."""
    totals: Mapping[str, tuple[int, float]] = {name: use.total(name) for name in COUNTS}

    def rate(name: str, unit: float) -> float | None:
        count, counted_s = totals[name]
        return count * unit / counted_s if counted_s > 0 else None

    def ratio(name: str, of: str) -> float | None:
        (count, counted_s), (whole, whole_s) = totals[name], totals[of]
        return count / whole if whole > 0 and math.isclose(counted_s, whole_s, rel_tol=0.01) else None

    units = rate("units", 1.0)
    spreads = {part: use.parts.get(part, Spread()) for part in PARTS}
    of_parts = {f"{part}_p95_w": one.share_w(0.95) for part, one in spreads.items()}
    of_parts |= {f"{part}_highest_w": one.highest_w for part, one in spreads.items()}
    return Measured(
        mean_w=rate("energy_mj", 1e-3), p95_w=use.share_w(0.95),
        highest_w=use.highest_w, gpu_w=rate("gpu_mj", 1e-3),
        cpu_w=rate("cpu_mj", 1e-3), memory_w=rate("memory_mj", 1e-3),
        ipc=ratio("instructions", "cycles"), stalled=ratio("stalled_cycles", "cycles"),
        bytes_per_s=rate("llc_misses", CACHE_LINE), gpu_busy=rate("gpu_busy_ms", 1e-3),
        units_per_s=None if not units else units * len(use.nodes), covered_s=totals["energy_mj"][1],
        **of_parts,
    )  # fmt: skip

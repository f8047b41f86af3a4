"""A job's tag by a model of the site's own, from what its nodes have counted while it runs (``clusterctl.models``).

The model's ``score`` of a stretch of measurements is the share of its time that a lower clock makes longer, so how
likely a moment of it is one that a cap slows down. Marks of this share are tags, the same marks as the nodes' own rule
has for their counters (``nodectl.decide.load_tag``). What a model is to learn from is the slowdown under a cap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from cluster_agent.budget.sharers.view import Tag
from cluster_agent.prediction.job_power import PowerPredictor
from cluster_agent.prediction.models import Model, SafePredictor
from foundation.shell.extension import Extension
from foundation.wire.power_messages import Report

MARKS: Final = (0.3, 0.65)
"""At or below the first a job is memory-bound, at or above the second compute-bound."""

EVERY_NS: Final = 5_000_000_000
"""Ours: of so long one row of a window is made."""

LAST: Final = 24
"""Ours: rows of each node that count: two minutes."""

FEWEST: Final = 3
"""Ours: rows without which nothing is said."""

MOST_NODES: Final = 16
"""Ours: a window has rows of a job's first nodes, so that a score takes as long for a job of a thousand."""

MOST_SHARE: Final = 0.05
"""Ours: of the cluster agent's time, scores may take so much; other jobs keep their tags until it is their turn."""

CACHE_LINE: Final = 64


class _Heard(msgspec.Struct):
    """Of a node, in the job that it has."""

    job: str
    last: Report
    rows: deque[Mapping[str, float]]
    count: int = 0


class ScoredTags:
    """``hear`` the reports of nodes, ``tag`` of a job. ``trouble``: why the model does not say."""

    def __init__(self, model: Extension[Model], say: Callable[[str], None], clock_s: Callable[[], float]) -> None:
        nobody = PowerPredictor(lambda job: 1.0)  # scores alone count
        self._model = SafePredictor(model, nobody, say, clock_s, "its nodes' own rule gives the tag instead")
        self._clock_s, self._again_s = clock_s, float("-inf")
        self._nodes: dict[str, _Heard] = {}
        self._said: dict[str, tuple[int, Tag | None]] = {}

    @property
    def trouble(self) -> str:
        """Empty: there is none."""
        return self._model.trouble

    def hear(self, report: Report, job: str) -> None:
        """``job``: the one that has the node alone; "": none."""
        heard = self._nodes.get(report.node)
        if heard is None or heard.job != job or heard.last.boot_id != report.boot_id:
            self._nodes[report.node] = _Heard(job, report, deque(maxlen=LAST))
        elif job and report.report_id - heard.last.report_id >= EVERY_NS:
            if row := row_of(heard.last, report):
                heard.rows.append(row)
                heard.count += 1
            heard.last = report

    def ended(self, job: str) -> None:
        """It needs no tag any more."""
        self._said.pop(job, None)

    def tag(self, job: str, nodes: Iterable[str]) -> Tag | None:
        """By the model; None: it does not say, or too little was counted."""
        heard = [one for name in nodes if (one := self._nodes.get(name)) is not None and one.job == job]
        count = sum(one.count for one in heard)
        said_at, found = self._said.get(job, (0, None))
        began_s = self._clock_s()
        if began_s >= self._again_s and (count < said_at or count - said_at >= max(len(heard), FEWEST)):
            window = [row for one in heard[:MOST_NODES] for row in one.rows]
            found = _tag_of(self._model.score(window)) if len(window) >= FEWEST else None
            self._said[job] = count, found
            ended_s = self._clock_s()
            self._again_s = ended_s + (ended_s - began_s) / MOST_SHARE
        return found


def row_of(before: Report, now: Report) -> dict[str, float]:
    """What a node did between two reports of one boot, as far as it counts that: ``ipc`` (instructions a cycle),
    ``stalled`` (share of cycles), ``bytes_per_s`` from memory, ``cycles_per_s`` of all its CPUs, ``watts``."""
    elapsed_s = (now.report_id - before.report_id) / 1e9
    counted = {
        name: float(getattr(now, name) - getattr(before, name))
        for name in ("instructions", "cycles", "stalled_cycles", "llc_misses", "energy_mj")
        if 0 <= getattr(before, name) <= getattr(now, name)
    }
    cycles = counted.get("cycles", 0.0)
    if elapsed_s <= 0 or cycles <= 0 or "instructions" not in counted:
        return {}
    found = {"ipc": counted["instructions"] / cycles, "cycles_per_s": cycles / elapsed_s}
    if "stalled_cycles" in counted:
        found["stalled"] = counted["stalled_cycles"] / cycles
    if "llc_misses" in counted:
        found["bytes_per_s"] = counted["llc_misses"] * CACHE_LINE / elapsed_s
    if "energy_mj" in counted:
        found["watts"] = counted["energy_mj"] / 1000 / elapsed_s
    return found


def _tag_of(share: float | None) -> Tag | None:
    if share is None:
        return None
    return Tag.MEMORY if share <= MARKS[0] else Tag.COMPUTE if share >= MARKS[1] else Tag.MIXED

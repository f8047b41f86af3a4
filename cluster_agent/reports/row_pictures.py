"""Pictures with a row for each policy: an effect or a rank with its interval, or how slowdowns spread.

A picture is described once (``RowPicture``); the page draws it with text that stays as large as it is (``page.py``),
and ``paper_figures.py`` as SVG and PDF.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from cluster_agent.reports.conditions import Comparison
from cluster_agent.reports.effects import Effect
from cluster_agent.reports.tables import change, interval, number

MOST_ROWS: Final = 24
DIGITS: Final = ((1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 8.0, 9.0), (1.0, 1.25, 2.0, 5.0, 8.0), (1.0, 2.0, 5.0), (1.0,))
MOST_TIMES: Final = 4.0
"""Ours. Of the policies beyond these rows the tables tell; where ticks of a logarithmic axis may be; how far the axis
of an effect goes, unless all are further out: one hopeless policy would leave the others no room."""


class Row(msgspec.Struct, frozen=True):
    """A policy. ``verdict``: lower, higher, or nothing where the interval does not tell."""

    name: str
    value: float
    low: float | None
    high: float | None
    text: str
    verdict: str = ""
    marks: tuple[float, ...] = ()  # small ones: single conditions
    published: float | None = None


class RowPicture(msgspec.Struct, frozen=True):
    """Rows over one axis."""

    key: str  # of its files
    title: str
    says: str  # how to read it
    axis: str
    rows: tuple[Row, ...]
    is_log: bool
    reference: float | None = None
    most: float = math.inf  # the axis goes no further; beyond it there is a triangle

    @property
    def ends(self) -> tuple[float, float]:
        """Of the axis, with room for marks at the edges."""
        shown = [value for row in self.rows for value in (row.value, row.low, row.high, row.published, *row.marks)]
        known = [self._scaled(min(value, self.most)) for value in [*shown, self.reference] if value is not None]
        low, high = min(known), max(known)
        room = 0.04 * (high - low) or 0.1
        return low - room, high + room

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.is_log else value

    def place(self, value: float) -> float:
        """From 0 at the left end of the axis to 1; what is beyond the axis is at its end."""
        low, high = self.ends
        return (self._scaled(min(value, self.most)) - low) / (high - low)

    @property
    def ticks(self) -> list[float]:
        """Round values within the axis, five at most where round ones are so few."""
        low, high = self.ends
        if not self.is_log:
            return round_values(low, high)
        decades = range(math.floor(low / math.log(10)), math.ceil(high / math.log(10)) + 1)
        found: list[float] = []
        for digits in (
            (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 8.0, 9.0),
            (1.0, 1.25, 2.0, 5.0, 8.0),
            (1.0, 2.0, 5.0),
            (1.0,),
        ):
            found = [digit * 10.0**n for n in decades for digit in digits if low <= math.log(digit * 10.0**n) <= high]
            if len(found) <= 6:
                break
        return found[:: max(1, len(found) // 5)]

    def csv(self) -> str:
        """The numbers that are drawn."""
        lines = ["policy,value,low,high,published,conditions"]
        for row in self.rows:
            cells = [*(("" if one is None else repr(one)) for one in (row.value, row.low, row.high, row.published))]
            name = '"' + row.name.replace('"', '""') + '"'
            lines.append(",".join([name, *cells, " ".join(map(repr, row.marks))]))
        return "\n".join(lines) + "\n"


def round_values(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, three to seven of them."""
    step = 10.0 ** math.floor(math.log10((high - low) / 3))
    step *= max(one for one in (1.0, 2.0, 5.0) if (high - low) / (step * one) >= 3)
    return [round(n * step, 12) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def pictures(found: Comparison) -> list[RowPicture]:
    """The effect first; then ranks, energy and how slowdowns spread, where there is something to show."""
    made = [_effects(found), _energy(found), _ranks(found), _spread(found)]
    return [one for one in made if one is not None]


def _within(rows: Sequence[Row]) -> float:
    return MOST_TIMES if any(row.value <= MOST_TIMES for row in rows) else math.inf


def _verdict(one: Effect, same: float = 1.0) -> str:
    if one.high is not None and one.high < same:
        return "lower"
    return "higher" if one.low is not None and one.low > same else ""


def _sorted(rows: Sequence[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda row: row.value)[:MOST_ROWS])


def _effect_row(policy: str, one: Effect, marks: Sequence[float], published: float | None = None) -> Row:
    within = interval(one, change)
    text = change(one.value) + (f" ({within})" if within else "")
    return Row(policy, one.value, one.low, one.high, text, _verdict(one), tuple(marks), published)


def _effects(found: Comparison) -> RowPicture | None:
    rows = []
    for policy, one in found.against.items():
        marks = [each.value for each in one.conditions.values()] if len(one.conditions) > 1 else []
        rows.append(_effect_row(policy, one.slowdown, marks, published_ratio(found, policy)))
    if not rows:
        return None
    return RowPicture(
        "effect", f"Mean bounded slowdown against {found.baseline}",
        "Dot: the ratio of the means; bar: its 95 % interval; small lines: single conditions; diamond: as published. "
        "Left of 1 jobs wait less. Filled: the interval does not contain 1. Triangle: beyond the axis.",
        f"mean bounded slowdown / that of {found.baseline}", _sorted(rows), True, 1.0, _within(rows),
    )  # fmt: skip


def published_ratio(found: Comparison, policy: str) -> float | None:
    """The published mean by the baseline's published one, over the conditions that have both."""
    ratios = [
        math.log(value / base)
        for (name, of), value in found.published.items()
        if of == policy and (base := found.published.get((name, found.baseline))) and value > 0
    ]
    return math.exp(float(np.mean(ratios))) if ratios else None


def _energy(found: Comparison) -> RowPicture | None:
    rows = [_effect_row(policy, one.energy, ()) for policy, one in found.against.items() if one.energy]
    if not rows:
        return None
    return RowPicture(
        "energy", f"Energy against {found.baseline}",
        "Dot: the ratio of the joules of whole replays; bar: its 95 % interval, over seeds or logs alone.",
        f"joules / those of {found.baseline}", _sorted(rows), True, 1.0, _within(rows),
    )  # fmt: skip


def _ranks(found: Comparison) -> RowPicture | None:
    ranks = found.ranks
    if ranks is None:
        return None
    half = ranks.critical / 2
    rows = [Row(name, rank, rank - half, rank + half, f"{rank:.2f}") for name, rank in ranks.mean.items()]
    return RowPicture(
        "ranks", f"Mean rank over {ranks.draws} {ranks.over}",
        f"1 is the lowest mean bounded slowdown. Two policies differ at 5 % if their bars do not overlap: the critical "
        f"difference is {ranks.critical:.2f} (Nemenyi). Ranks do not say by how much.",
        "mean rank", _sorted(rows), False,
    )  # fmt: skip


def _spread(found: Comparison) -> RowPicture | None:
    rows = []
    for policy in found.policies:
        values = [run.slowdown for one in found.conditions for run in one.runs.get(policy, {}).values() if run.job]
        if values:
            every = np.concatenate(values)
            median, p95 = np.percentile(every, [50, 95])
            rows.append(
                Row(policy, float(every.mean()), float(median), float(p95),
                    f"{number(float(median))} · {number(float(every.mean()))} · {number(float(p95))}",
                    marks=(float(every.max()),))
            )  # fmt: skip
    if not rows:
        return None
    return RowPicture(
        "spread", "How bounded slowdowns spread",
        "Bar: from the median to the 95th percentile of all jobs; dot: the mean; small line: the highest. The numbers "
        "are median, mean and 95th percentile.",
        "bounded slowdown", _sorted(rows), True,
    )  # fmt: skip

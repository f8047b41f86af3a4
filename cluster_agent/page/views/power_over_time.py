"""Power against the budget over time, and what bound it meanwhile, as lanes like those of a replay's report."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import numpy as np

from cluster_agent.page.snapshot import PowerPoint
from cluster_agent.page.views.causes import cause
from cluster_agent.page.views.context import for_all_viewers
from cluster_agent.page.views.markup import Html, text
from cluster_agent.page.views.quantities import long, watts
from cluster_agent.reports.html_parts import lane_of, tick
from cluster_agent.reports.lanes import HEIGHT, WIDTH, Lane, Steps, area, highest, line

LONGEST_GAP_S: Final = 150.0
SHORTEST_S: Final = 600.0
"""Ours: a point every minute at least, and after a longer gap nothing is known of the time between; soon after the
start of the page's process the chart is so long."""
COLOURS: Final = 4
STEPS_S: Final = (120, 300, 600, 900, 1800, 3600, 7200, 10_800, 14_400, 21_600)


def chart(points: Sequence[PowerPoint], hours: int) -> Html:
    """The last hours."""
    return (_two_hours if hours == 2 else _a_day)(points)


@for_all_viewers
def _two_hours(points: Sequence[PowerPoint]) -> Html:
    return _chart(points, 2)


@for_all_viewers
def _a_day(points: Sequence[PowerPoint]) -> Html:
    return _chart(points, 24)


def _chart(points: Sequence[PowerPoint], hours: int) -> Html:
    if not points:
        return Html("<p class=note>No power is known yet: this page has just started, and keeps it from now on.</p>")
    end_s = points[-1].at_s
    from_s = max(end_s - 3600.0 * hours, min(points[0].at_s, end_s - SHORTEST_S))
    shown = [point for point in points if point.at_s >= from_s]
    drawn, budget = (_steps(shown, from_s, end_s, of) for of in ("draws_w", "budget_w"))
    top = 1.05 * highest(drawn, budget) or 1.0
    name = f"the last {long(end_s - from_s)}"
    lane = Lane("power", "", top, area(drawn, end_s - from_s, top), line(budget, end_s - from_s, top))
    causes = _causes(shown, end_s)
    strip = _strip(causes, from_s, end_s) if causes else Html("")
    return Html(
        f"<figure>{lane_of(name, lane, top, watts(top))}{strip}{_axis(from_s, end_s)}"
        f"<figcaption>Filled: what all nodes and the fixed power draw. Dashed: the budget."
        f" {_in_words(shown, causes)}</figcaption></figure>"
    )


def _steps(points: Sequence[PowerPoint], from_s: float, end_s: float, of: str) -> Steps:
    """With NaN where nothing is known: in a value of None, and in a gap of time."""
    times_s, values = [0.0], [math.nan]
    for at, point in enumerate(points):
        value = getattr(point, of)
        times_s.append(point.at_s - from_s)
        values.append(math.nan if value is None else float(value))
        next_s = points[at + 1].at_s if at + 1 < len(points) else end_s
        if next_s - point.at_s > LONGEST_GAP_S:
            times_s.append(point.at_s - from_s + LONGEST_GAP_S)
            values.append(math.nan)
    return Steps(np.array(times_s), np.array(values), max(end_s - from_s, times_s[-1] + 1e-3))


def _causes(points: Sequence[PowerPoint], end_s: float) -> dict[str, list[tuple[float, float]]]:
    """By what bound, when: what bound longest first."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for at, point in enumerate(points):
        until_s = points[at + 1].at_s if at + 1 < len(points) else end_s
        until_s = min(until_s, point.at_s + LONGEST_GAP_S)
        if not point.bound_by or until_s <= point.at_s:
            continue
        spans = found[point.bound_by]
        if spans and spans[-1][1] == point.at_s:
            spans[-1] = spans[-1][0], until_s
        else:
            spans.append((point.at_s, until_s))
    return dict(sorted(found.items(), key=lambda one: -_length(one[1])))


def _length(spans: Sequence[tuple[float, float]]) -> float:
    return sum(last - first for first, last in spans)


def _strip(causes: dict[str, list[tuple[float, float]]], from_s: float, end_s: float) -> Html:
    """One box for each time, each cause in its own row, so that nothing rests on colours."""
    scale, named = WIDTH / (end_s - from_s), list(causes.items())[:COLOURS]
    rows = []
    for at, (bound_by, spans) in enumerate(named):
        boxes = "".join(
            f"M{(first - from_s) * scale:.0f} 0h{max((last - first) * scale, 1):.0f}v{HEIGHT}"
            f"h-{max((last - first) * scale, 1):.0f}z"
            for first, last in spans
        )
        label = text(f"bound by: {cause(bound_by)}")
        rows.append(
            f"<div class=lane>{label}<svg class=strip preserveAspectRatio=none viewBox='0 0 {WIDTH} {HEIGHT}'"
            f' role=img aria-label="{label}"><path class="job job{at}" d="{boxes}"/></svg></div>'
        )
    return Html("".join(rows))


def _axis(from_s: float, end_s: float) -> Html:
    """Ticks at round times of the day."""
    step_s = next((one for one in STEPS_S if (end_s - from_s) / one <= 6), STEPS_S[-1])
    local = datetime.fromtimestamp(end_s).astimezone().utcoffset()
    shift_s = local.total_seconds() if local else 0.0
    first = math.ceil((from_s + shift_s) / step_s)
    last = math.floor((end_s + shift_s) / step_s)
    places = [number * step_s - shift_s for number in range(first, last + 1)]
    ticks = "".join(
        tick((at_s - from_s) / (end_s - from_s), datetime.fromtimestamp(at_s).strftime("%H:%M")) for at_s in places
    )
    return Html(f"<svg class=time aria-hidden=true>{ticks}</svg>")


def _in_words(points: Sequence[PowerPoint], causes: dict[str, list[tuple[float, float]]]) -> Html:
    known = [(point.draws_w, point.budget_w) for point in points if point.draws_w is not None]
    if not known:
        return text("No power was known in this time.")
    most_w = max(draws_w for draws_w, _ in known)
    over = sum(budget_w is not None and draws_w > budget_w for draws_w, budget_w in known)
    words = [f"The most was {watts(most_w)}."]
    words.append("It was never above the budget." if not over else f"{over} of {len(known)} readings were above it.")
    bound_s = sum(map(_length, causes.values()))
    if causes:
        words.append(f"Caps bound nodes for {long(bound_s)} of it.")
    elif not points[-1].bound_by:
        words.append("No cap bound a node.")
    return text(" ".join(words))

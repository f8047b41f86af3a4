"""A replay over time: processors or nodes in use, waiting jobs, watts, and which job was where (Gantt).

The page gets each as the path of an SVG (``lanes``): its script chooses and magnifies, and draws nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from cluster_agent.replay.compare import Run
from cluster_agent.reports.lanes import HEIGHT, WIDTH, Lane, Steps, area, highest, line
from cluster_agent.scheduler.job_columns import Float64s, Int64s

GANTT_JOBS: Final = 2000
GANTT_BOXES: Final = 6000
COLOURS: Final = 4
"""Ours. A job is a box for each interval of its places; jobs have four colours in turn."""


def span_s(runs: Sequence[Run]) -> float:
    """From the first submission to the last end of any of these."""
    return float(max([int(run.end_s.max() - run.submit_s.min()) for run in runs if run.job], default=1) or 1)


def _counted(run: Run, from_s: Int64s, to_s: Int64s, much: Int64s) -> Steps:
    times_s, steps = np.concatenate([from_s, to_s]), np.concatenate([much, -much])
    order = np.argsort(times_s, kind="stable")
    is_last = np.append(np.diff(times_s[order]) > 0, True)  # of its instant
    at_s = (times_s[order][is_last] - run.submit_s.min()).astype(np.float64)
    return Steps(at_s, np.cumsum(steps[order])[is_last].astype(np.float64), float(run.end_s.max() - run.submit_s.min()))


def in_use(run: Run) -> Steps:
    """Processors or nodes."""
    return _counted(run, run.start_s, run.end_s, run.width)


def waiting(run: Run) -> Steps:
    """Jobs."""
    return _counted(run, run.submit_s, run.start_s, np.ones(len(run.job), np.int64))


def watts(run: Run) -> Steps | None:
    """Of the cluster, from the first submission on."""
    return None if run.power is None else _from_first(run, run.power[0], run.power[1])


def cap(run: Run) -> Steps | None:
    """In watts; infinite where there is none."""
    if run.power is None or not np.isfinite(run.power[2]).any():
        return None
    return _from_first(run, run.power[0], run.power[2])


def _from_first(run: Run, times_s: Float64s, values: Float64s) -> Steps:
    at_s = times_s - run.submit_s.min()
    return Steps(at_s, values, max(float(run.end_s.max() - run.submit_s.min()), float(at_s[-1]) + 1))


def lanes(run: Run, whole_s: float, has_gantt: bool) -> list[Lane]:
    """The pictures of a run with jobs, ``whole_s`` from edge to edge; each as high as its highest value."""
    made = []
    lines = [
        ("waiting jobs", "", waiting(run), None),
        ("processors or nodes in use", "", in_use(run), None),
        ("power", " W", watts(run), cap(run)),
    ]
    for name, unit, steps, second in lines:
        if steps is None:
            continue
        top = highest(steps, second) or 1.0
        made.append(Lane(name, unit, top, area(steps, whole_s, top), line(second, whole_s, top) if second else ""))
    if has_gantt and len(run.job) <= GANTT_JOBS and sum(len(one.split()) for one in run.places) <= GANTT_BOXES:
        places = max(high for places in run.places for _, high in _intervals(places)) + 1
        made.append(Lane("which job is where", "", places, "", boxes=_boxes(run, whole_s, places)))
    return made


def _intervals(places: str) -> list[tuple[int, int]]:
    found = []
    for one in places.split():
        low, _, high = one.partition("-")
        found.append((int(low), int(high or low)))
    return found


def _boxes(run: Run, whole_s: float, top_place: int) -> tuple[str, ...]:
    """From left to right, each from where the one before began: so the path is shorter when it is deflated."""
    boxes: list[list[tuple[int, int, int, int]]] = [[] for _ in range(COLOURS)]
    from_x = np.rint((run.start_s - run.submit_s.min()) * (WIDTH / whole_s)).astype(int).tolist()
    to_x = np.rint((run.end_s - run.submit_s.min()) * (WIDTH / whole_s)).astype(int).tolist()
    for at, places in enumerate(run.places):
        for low, high in _intervals(places):
            y, below = (round(HEIGHT * edge / top_place) for edge in (low, high + 1))
            boxes[at % COLOURS].append((from_x[at], y, max(to_x[at] - from_x[at], 1), max(below - y, 1)))
    paths = []
    for of_colour in boxes:
        parts, last = [], (0, 0)
        for x, y, wide, high in sorted(of_colour):
            parts.append(f"m{x - last[0]} {y - last[1]}h{wide}v{high}h-{wide}z")
            last = x, y
        paths.append("".join(parts))
    return tuple(paths)

"""Values over time as paths of an SVG, in a box of ``WIDTH`` by ``HEIGHT`` that the page stretches to its width.

A line is steps; many steps become means over equal spans of time, so that a line stays a line. A replay's report and
the page of a live partition draw the same lanes.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from cluster_agent.scheduler.job_columns import Float64s, Int64s

WIDTH: Final = 10_000
HEIGHT: Final = 250
POINTS: Final = 600


class Steps(msgspec.Struct, frozen=True):
    """Values, each from its second (0 at the left edge) until the next. NaN, infinite: nothing is drawn."""

    times_s: Float64s
    values: Float64s
    end_s: float


class Lane(msgspec.Struct, frozen=True):
    """One picture over time, as paths; ``top`` is the value at its upper edge."""

    name: str
    unit: str
    top: float
    line: str
    second: str = ""  # the cap
    boxes: tuple[str, ...] = ()


def thinned(steps: Steps) -> Steps:
    """At most ``POINTS`` steps, means of equal spans; NaN where a span has one."""
    if len(steps.times_s) <= POINTS:
        return steps
    edges_s = np.linspace(steps.times_s[0], steps.end_s, POINTS + 1)
    at_s = np.array([*steps.times_s, steps.end_s])
    is_known = np.isfinite(steps.values)
    area = np.concatenate([[0.0], np.cumsum(np.where(is_known, steps.values, 0.0) * np.diff(at_s))])
    means = np.diff(np.interp(edges_s, at_s, area)) / np.diff(edges_s)
    if not is_known.all():
        unknown_s = np.concatenate([[0.0], np.cumsum(~is_known * np.diff(at_s))])
        means[np.diff(np.interp(edges_s, at_s, unknown_s)) > 0] = np.nan
    return Steps(edges_s[:-1], means, steps.end_s)


def highest(*found: Steps | None) -> float:
    """The highest finite value of these, 0 if there is none."""
    return max((float(one.values[np.isfinite(one.values)].max(initial=0.0)) for one in found if one), default=0.0)


def area(steps: Steps, whole_s: float, top: float) -> str:
    """Down to the lower edge, so that it can be filled; in parts where values are missing."""
    steps = thinned(steps)
    is_known = np.isfinite(steps.values)
    x, y = _pixels(Steps(steps.times_s, np.where(is_known, steps.values, 0.0), steps.end_s), whole_s, top)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_known, [False]])))
    return "".join(_part(x[first : last + 1], y[first:last]) for first, last in edges.reshape(-1, 2).tolist())


def _part(x: Int64s, y: Int64s) -> str:
    parts = [f"M{x[0]} {HEIGHT}V{y[0]}"]
    parts += [f"h{right}v{down}" for right, down in zip(np.diff(x[:-1]), np.diff(y), strict=True) if right or down]
    return "".join([*parts, f"H{x[-1]}V{HEIGHT}"])


def line(steps: Steps, whole_s: float, top: float) -> str:
    """With gaps where there is no value. Of more than ``POINTS`` changes, so many are shown."""
    at = np.flatnonzero(np.append(True, steps.values[1:] != steps.values[:-1]))
    at = at[np.linspace(0, len(at) - 1, min(len(at), POINTS)).astype(np.int64)]
    values, is_finite = steps.values[at], np.isfinite(steps.values[at])
    x, y = _pixels(Steps(steps.times_s[at], np.where(is_finite, values, 0.0), steps.end_s), whole_s, top)
    return "".join(f"M{x[one]} {y[one]}H{x[one + 1]}" for one in np.flatnonzero(is_finite))


def _pixels(steps: Steps, whole_s: float, top: float) -> tuple[Int64s, Int64s]:
    x = np.rint(np.append(steps.times_s, steps.end_s) * (WIDTH / whole_s)).astype(np.int64)
    return x, np.rint(HEIGHT * (1 - steps.values / top)).astype(np.int64)

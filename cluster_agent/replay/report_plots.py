"""The plots of a report, as PNG in base64. Needs matplotlib."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, Final

import matplotlib
import numpy as np

from cluster_agent.replay.compare import Run
from cluster_agent.scheduler.job_columns import Float64s, Int64s

matplotlib.use("Agg")
import matplotlib.pyplot as plt

GANTT_JOBS: Final = 300
POINTS: Final = 2000
"""Ours: a longer trace is plotted as means over so many spans."""


def of_group(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """(title, image) for replays of one trace and machine."""
    found = [("Bounded slowdown: share of jobs at or below", _slowdowns(runs)), ("Waiting jobs", _queues(runs))]
    found.append(("Processors or nodes in use", _used(runs)))
    if any(run.power for run in runs):
        found.append(("Power and cap", _power(runs)))
    found += [(f"Schedule: {run.policy}", _gantt(run)) for run in runs if 0 < len(run.job) <= GANTT_JOBS]
    return found


def _image(figure: Any) -> str:
    figure.tight_layout()
    out = BytesIO()
    figure.savefig(out, format="png", dpi=110)
    plt.close(figure)
    return base64.b64encode(out.getvalue()).decode()


def _legend(axes: Any) -> None:
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False, fontsize=8)


def _colour(at: int) -> Any:
    return plt.get_cmap("tab10" if at < 10 else "Dark2")(at % 10)


def _slowdowns(runs: Sequence[Run]) -> str:
    figure, axes = plt.subplots(figsize=(9, 4 + 0.2 * len(runs)))
    for at, run in enumerate(runs):
        slowdown = np.sort(run.slowdown)
        axes.step(slowdown, np.arange(1, len(slowdown) + 1) / len(slowdown), color=_colour(at), label=run.policy)
    axes.set(xscale="log", xlabel="bounded slowdown", ylabel="share of jobs")
    axes.grid(alpha=0.3)
    _legend(axes)
    return _image(figure)


def _queues(runs: Sequence[Run]) -> str:
    return _counts(runs, "waiting jobs", lambda run: (run.submit_s, run.start_s, np.ones(len(run.job), np.int64)))


def _used(runs: Sequence[Run]) -> str:
    return _counts(runs, "in use", lambda run: (run.start_s, run.end_s, run.width))


def _counts(runs: Sequence[Run], what: str, of: Callable[[Run], tuple[Int64s, Int64s, Int64s]]) -> str:
    """How many there are over time; ``of`` a run: from when, until when, how many."""
    figure, axes = plt.subplots(figsize=(9, 4 + 0.2 * len(runs)))
    for at, run in enumerate(runs):
        from_s, to_s, much = of(run)
        times_s, steps = np.concatenate([from_s, to_s]), np.concatenate([much, -much])
        order = np.argsort(times_s, kind="stable")
        is_last = np.append(np.diff(times_s[order]) > 0, True)  # of its instant
        days, there = _line(times_s[order][is_last], np.cumsum(steps[order])[is_last].astype(np.float64), run)
        axes.step(days, there, where="post", color=_colour(at), label=run.policy, linewidth=1)
    axes.set(xlabel="days", ylabel=what, ylim=(0, None))
    axes.grid(alpha=0.3)
    _legend(axes)
    return _image(figure)


def _power(runs: Sequence[Run]) -> str:
    figure, axes = plt.subplots(figsize=(9, 4 + 0.2 * len(runs)))
    cap = None
    for at, run in enumerate(runs):
        if run.power is None:
            continue
        times_s, watts, caps = run.power
        days, kilowatts = _line(times_s.astype(np.int64), watts / 1000, run)
        axes.step(days, kilowatts, where="post", color=_colour(at), label=run.policy, linewidth=1)
        if cap is None and np.isfinite(caps).any():
            cap = (times_s - run.submit_s.min()) / 86_400, np.where(np.isfinite(caps), caps, np.nan) / 1000
    if cap is not None:
        axes.step(*cap, where="post", color="black", linestyle="--", label="cap")
    axes.set(xlabel="days", ylabel="kW", ylim=(0, None))
    axes.grid(alpha=0.3)
    _legend(axes)
    return _image(figure)


def _line(times_s: Int64s, values: Float64s, run: Run) -> tuple[Float64s, Float64s]:
    """Steps as days and values; many steps as means over equal spans of time, so that a line stays a line."""
    first_s = run.submit_s.min()
    last_s = max(int(run.end_s.max()), int(times_s[-1]) + 1)
    if len(times_s) <= POINTS:
        return np.append((times_s - first_s) / 86_400, (last_s - first_s) / 86_400), np.append(values, values[-1])
    area = np.concatenate([[0.0], np.cumsum(values * np.diff([*times_s, last_s]))])
    edges_s = np.linspace(times_s[0], last_s, POINTS // 4 + 1)
    spans = np.diff(np.interp(edges_s, [*times_s, last_s], area)) / np.diff(edges_s)
    return (edges_s - first_s) / 86_400, np.append(spans, spans[-1])


def _gantt(run: Run) -> str:
    figure, axes = plt.subplots(figsize=(9, 4.5))
    first_s, colours = run.submit_s.min(), plt.get_cmap("tab20")
    for at, places in enumerate(run.places):
        hours = (run.start_s[at] - first_s) / 3600, (run.end_s[at] - run.start_s[at]) / 3600
        for interval in places.split():
            low, _, high = interval.partition("-")
            lowest, highest = int(low), int(high or low)
            axes.broken_barh([hours], (lowest, highest - lowest + 1), color=colours(at % 20), edgecolor="white", lw=0.3)
    axes.set(xlabel="hours", ylabel="processors or nodes")
    return _image(figure)

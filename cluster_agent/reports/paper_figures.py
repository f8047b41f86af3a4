"""The pictures of a report as SVG and PDF, each with its numbers as CSV. Needs matplotlib.

They are made for the width of a page of text, their letters stay letters, and equal input gives equal bytes.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any, Final

import matplotlib
import numpy as np

from cluster_agent.replay.compare import Run
from cluster_agent.reports import lanes, over_time
from cluster_agent.reports.conditions import Comparison
from cluster_agent.reports.lanes import Steps
from cluster_agent.reports.row_pictures import RowPicture, pictures
from cluster_agent.reports.tables import number

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, NullLocator

COLOURS: Final = {"lower": "#0072b2", "higher": "#c24e00", "": "#6b6b6b"}
LINES: Final = ("#0072b2", "#c24e00", "#008a63", "#a8568a")
"""As on the page."""
WIDE_IN: Final = 6.5
SETTINGS: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "nodectl",
    "pdf.fonttype": 42,
    "font.size": 9,
    "text.parse_math": False,  # a name with dollars is no formula
}


def write(found: Comparison, folder: Path) -> None:
    """Into an empty folder."""
    with plt.rc_context(SETTINGS):
        for one in pictures(found):
            (folder / f"{one.key}.csv").write_text(one.csv())
            _save(_rows(one), folder / one.key)
        for first in found.conditions[:1]:
            shown = [next(iter(of_policy.values())) for of_policy in first.runs.values()][: len(LINES)]
            runs = [run for run in shown if run.job]
            for key, label, of in (
                ("used", "in use", over_time.in_use),
                ("waiting", "waiting jobs", over_time.waiting),
            ):
                _over_time(folder / key, label, [(run, of(run)) for run in runs])
            watts = [(run, steps) for run in runs if (steps := over_time.watts(run)) is not None]
            if watts:
                _over_time(folder / "watts", "W", watts)


def _save(figure: Any, path: Path) -> None:
    for kind in ("svg", "pdf"):
        dates = {"Date": None} if kind == "svg" else {"CreationDate": None}
        figure.savefig(path.with_suffix(f".{kind}"), metadata=dates, bbox_inches="tight")
    plt.close(figure)


def _rows(one: RowPicture) -> Any:
    figure, axes = plt.subplots(figsize=(WIDE_IN, 0.8 + 0.26 * len(one.rows)))
    if one.reference is not None:
        axes.axvline(one.reference, color="#767676", linestyle="--", linewidth=0.8)
    for at, row in enumerate(one.rows):
        colour = COLOURS[row.verdict]
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [at, at], color=colour, linewidth=1.8)
        axes.plot(row.marks, [at + 0.3] * len(row.marks), "|", color="#767676", markersize=4)
        shape = "o" if row.value <= one.most else ">"
        axes.plot(
            min(row.value, one.most),
            at,
            shape,
            color=colour,
            markerfacecolor=colour if row.verdict else "white",
            markersize=5,
        )
        if row.published is not None:
            axes.plot(row.published, at, "D", color="black", markerfacecolor="none", markersize=6)
    if one.is_log:
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(one.ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([number(tick) for tick in one.ticks])
    axes.set_yticks(range(len(one.rows)), [row.name for row in one.rows])
    low, high = one.ends
    axes.set(xlim=(math.exp(low), math.exp(high)) if one.is_log else (low, high))
    axes.set(xlabel=one.axis, ylim=(len(one.rows) - 0.4, -0.6))
    axes.grid(axis="x", alpha=0.3)
    return figure


def _over_time(path: Path, label: str, found: list[tuple[Run, Steps]]) -> None:
    """One panel for each replay: of lines on top of each other one sees the last."""
    if not found:
        return
    figure, panels = plt.subplots(
        len(found), figsize=(WIDE_IN, 1.3 * len(found)), sharex=True, sharey=True, squeeze=False
    )
    rows: list[tuple[str, float, float]] = []
    for (run, steps), axes, colour in zip(found, panels[:, 0], LINES, strict=False):
        thin = lanes.thinned(steps)
        times_s, values = np.append(thin.times_s, thin.end_s), np.append(thin.values, thin.values[-1])
        axes.step(times_s / 86_400, values, where="post", color=colour, linewidth=0.9)
        axes.set_title(run.policy, fontsize=9, loc="left", pad=2)
        axes.set(ylabel=label, ylim=(0, None))
        rows += [(run.policy, float(at), float(value)) for at, value in zip(times_s, values, strict=True)]
    panels[-1, 0].set_xlabel("days")
    _save(figure, path)
    with path.with_suffix(".csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("policy", "time_s", label))
        table.writerows(rows)

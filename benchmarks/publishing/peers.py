"""What is published of pipelines and power limits next to Perseus and Zeus: rows, tables, rows computed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks import cap_curves, pipeline_frontier
from benchmarks.publishing.cells import left, percent, typed
from benchmarks.publishing.rows import Cells, Measurement, Row

# --- pipeline_frontier


def _frontier_table(rows: Sequence[Row]) -> Cells:
    """A line for each planner of a card, a column for each straggler."""
    made = [typed(row, pipeline_frontier.Row) for row in rows]
    stragglers = list(dict.fromkeys(row.straggler for row in made))
    cells = [["card", "clocks by", "measured", "intrinsic (slower)", *(f"{one:.2f} ×" for one in stragglers[1:])]]
    for card, planner, clocks in dict.fromkeys((row.card, row.planner, row.clocks) for row in made):
        own = {row.straggler: row for row in made if (row.card, row.planner, row.clocks) == (card, planner, clocks)}
        first, *others = (own[straggler] for straggler in stragglers)
        title = "**Perseus (`lowtime`)**" if planner == pipeline_frontier.THEIRS else planner
        slower = f"{percent(first.saved, 1)} ({percent(first.slower, 1)})"
        cells.append([card, title, str(clocks), slower, *(percent(row.saved, 1) for row in others)])
    return cells


def _frontier_again(row: Row) -> Mapping[str, float]:
    """Rows of their planner are computed again only by a run of the benchmark, with the extra that it needs."""
    one = typed(row, pipeline_frontier.Row)
    if one.planner == pipeline_frontier.THEIRS:
        return {}
    found = pipeline_frontier.row_of_ours(one.card, one.straggler, one.planner, one.clocks)
    return {"saved": found.saved, "slower": found.slower}


FRONTIER: Final = Measurement(
    "pipeline_frontier",
    collect=lambda: left("pipeline_frontier")["rows"],
    tables={"": _frontier_table},
    again=_frontier_again,
    sample=lambda row: (row["card"], row["straggler"], row["planner"]) == ("A40", "1", "per kind"),
    precision={"saved": 1e-3, "slower": 1e-3},
    data=["gpu-stage-clocks/stage-clocks.csv"],
)


# --- cap_curves

_CURVES: Final = ("time_median", "time_p95", "watts_median", "watts_p95", "lost_half", "lost_joules")


def _curves_table(rows: Sequence[Row]) -> Cells:
    cells = [
        ["card", "limits measured", "runs", "seconds: median, p95, worst", "watts", "cost lost (worst)", "joules lost",
         "at the highest limit: cost, joules"]
    ]  # fmt: skip
    for row in (typed(row, cap_curves.Row) for row in rows):
        cells.append(
            [
                row.card.upper(),
                f"{row.points} of {row.of}",
                str(row.runs),
                f"{row.time_median:.1f}, {row.time_p95:.1f}, {row.time_worst:.1f}",
                f"{row.watts_median:.1f}, {row.watts_p95:.1f}, {row.watts_worst:.1f}",
                f"{row.lost_half:.2f} ({row.worst_half:.1f})",
                f"{row.lost_joules:.2f} ({row.worst_joules:.1f})",
                f"{row.top_half:.1f}, {row.top_joules:.1f}",
            ]
        )
    return cells


def _curves_again(row: Row) -> Mapping[str, float]:
    one = typed(row, cap_curves.Row)
    found = cap_curves.row_of(one.card, one.points)
    return {name: getattr(found, name) for name in _CURVES}


CURVES: Final = Measurement(
    "cap_curves",
    collect=lambda: left("cap_curves")["rows"],
    tables={"": _curves_table},
    again=_curves_again,
    sample=lambda row: (row["card"], row["points"]) == ("v100", "2"),
    precision=dict.fromkeys(_CURVES, 0.1),
    data=["gpu-dvfs/power-limit-training.csv.gz"],
)


MEASUREMENTS: Final = (FRONTIER, CURVES)

"""Why rows fall short of their papers: what the experiments publish on ``docs/notes/scheduler-measurements.md``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks import rmap, shortfalls
from benchmarks.publishing.cells import left, percent
from benchmarks.publishing.rows import Cells, Measurement, Row
from benchmarks.publishing.scheduler import curie_intervals
from cluster_agent.scheduler.configurations.cab_table import cab_table

OF: Final = {
    "rmap": ("gap_s", "bound_by", "traditional", "naive"),
    "powercap": ("interval", "share", "policy", "work", "kills"),
}
"""Columns by experiment. That of energy fair-share is prose on its page."""
BOUND: Final = {1.0: "as generated", 2.0: "twice as much", 4.0: "four times as much"}
INTERVALS: Final = {
    "5 h small jobs": "5 h, small jobs", "5 h median jobs": "5 h, median", "5 h big jobs": "5 h, big",
}  # fmt: skip


def _rows() -> list[dict[str, Any]]:
    names = dict.fromkeys(name for columns in OF.values() for name in columns)
    found = left("shortfalls")
    return [{"of": of, **{name: one.get(name) for name in names}} for of in OF for one in found[of]]


def _rmap(rows: Sequence[Row]) -> Cells:
    made = {
        (float(row["gap_s"]), float(row["bound_by"])): f"{float(row['traditional']):.1f} / {float(row['naive']):.1f}"
        for row in rows if row["of"] == "rmap"
    }  # fmt: skip
    ours_s = rmap.MEAN_GAP_S
    gaps = [[f"{gap:.0f} s{' (ours)' * (gap == ours_s)}", made[gap, 1.0]] for gap in shortfalls.GAPS_S]
    bound = [[words, made[ours_s, factor]] for factor, words in BOUND.items()]
    bound += [["", ""]] * (len(gaps) - len(bound))
    heading = ["mean gap", "gain", "", "bound by memory and communication", "gain"]
    return [heading, *([*one, "", *other] for one, other in zip(gaps, bound, strict=True))]


def _powercap(rows: Sequence[Row]) -> Cells:
    cells = [["", "cap", "`mix`", "`shut`", "slowed"]]
    by = {(row["interval"], float(row["share"] or 0), row["policy"]): row for row in rows if row["of"] == "powercap"}
    for interval, words in INTERVALS.items():
        for share in shortfalls.SHARES:
            own = [by[interval, share, policy] for policy in shortfalls.POWERCAP]
            shown = [
                f"{row['kills']} killed" if int(row["kills"]) else f"{100 * float(row['work']):.1f}" for row in own
            ]
            cells.append([words if share == shortfalls.SHARES[0] else "", percent(share), *shown])
    return cells


def _again(row: Row) -> Mapping[str, float]:
    if row["of"] == "rmap":
        factor = float(row["bound_by"])
        return shortfalls.gains(cab_table() if factor == 1 else shortfalls.bound_by(factor), float(row["gap_s"]))
    machine, named = curie_intervals()
    base = shortfalls.in_window(named[row["interval"]], "powercap:mode=idle", machine, None)[0]
    work, kills, _ = shortfalls.in_window(named[row["interval"]], row["policy"], machine, float(row["share"]))
    return {"work": work / base, "kills": kills}


SHORTFALLS: Final = Measurement(
    "shortfalls",
    collect=_rows,
    tables={"rmap": _rmap, "powercap": _powercap},
    again=_again,
    runs=(("--only", *OF),),
    sample=lambda row: row["interval"] == "5 h small jobs" and row["share"] == "0.6",
    precision={"traditional": 0.1, "naive": 0.1, "work": 1e-3, "kills": 1.0},
    data=["sc15-backfilling/CEA-Curie.swf.gz"],
)

MEASUREMENTS: Final = (SHORTFALLS,)

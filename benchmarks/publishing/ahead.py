"""What profiles made a day ahead publish on ``docs/nodes-ahead.md``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from benchmarks import hybrid, hybrid_timers
from benchmarks.publishing.cells import left, typed
from benchmarks.publishing.rows import Cells, Measurement, Row

CURIE: Final = "sc15-backfilling/CEA-Curie.swf.gz"


def _gain(value: float, digits: int) -> str:
    """With its sign, and 0 without one."""
    return f"{value:+.{digits}f}" if round(value, digits) else f"{0:.{digits}f}"


# --- hybrid

WAYS: Final = ("timer", "spares", "extracted 70", "extracted 50")


def _table(rows: Sequence[Row]) -> Cells:
    cells = [["load", "cooling", "timer alone", "spares", "offset 70", "offset 50", "most", "published, 70"]]
    made = {(one.load, one.plant, one.season, one.name): one for one in (typed(row, hybrid.Row) for row in rows)}
    last = ""
    for load, plant, season in dict.fromkeys(key[:3] for key in made):
        gain = partial(_gain, digits=2 if load == "high" else 1)
        ways = [made[load, plant, season, name] for name in WAYS]
        gains = [f"{gain(one.gain_with_pct)} ({gain(one.gain_without_pct)})" for one in ways]
        most = made[load, plant, season, "most"].gain_with_pct
        published = hybrid.PUBLISHED[load][plant, season]
        cells.append([load if load != last else "", f"{plant}, {season}", *gains, gain(most), gain(published)])
        last = load
    return cells


def _again(row: Row) -> dict[str, float]:
    one = typed(row, hybrid.Row)
    found = next(
        other for other in hybrid.scenarios(one.load)
        if (other.plant, other.season, other.name) == (one.plant, one.season, one.name)
    )  # fmt: skip
    return {"gain_without_pct": found.gain_without_pct, "gain_with_pct": found.gain_with_pct, "boots": found.boots}


HYBRID: Final = Measurement(
    "hybrid",
    collect=lambda: left("hybrid")["rows"],
    tables={"": _table},
    again=_again,
    sample=lambda row: [row[key] for key in ("load", "plant", "season", "name")] == ["low", "air", "summer", "timer"],
    precision={"gain_without_pct": 0.01, "gain_with_pct": 0.01, "boots": 1.0},
    data=[CURIE],
)


# --- hybrid_timers

BETTER: Final = {
    120: (0.7, 1), 300: (0.8, 1), 600: (0.8, 300), 900: (0.85, 300), 1800: (0.9, 300), 3600: (0.95, 300),
}  # fmt: skip
"""Next to which timer the page shows which quantile of spares, with which timer: fewer joules, no longer wait."""


def _timers(rows: Sequence[Row]) -> Cells:
    cells = [["timer alone", "TJ", "mean wait", "spares", "TJ", "mean wait"]]
    made = {(one.off_s, one.quantile, one.constant): one for one in (typed(row, hybrid_timers.Row) for row in rows)}

    def figures(*key: Any) -> list[str]:
        return [f"{made[key].joules / 1e12:.3f}", f"{made[key].wait_s:.0f} s"]

    for off_s in (None, 1, *BETTER):
        line = ["never off" if off_s is None else f"{off_s} s", *figures(off_s, None, None)]
        quantile, with_s = BETTER.get(off_s or 0, (None, None))
        shown = ["", "", ""]
        if quantile is not None:
            shown = [f"quantile {quantile:g}, {with_s} s", *figures(with_s, quantile, None)]
        cells.append(line + shown)
    return cells


def _timers_again(row: Row) -> dict[str, float]:
    one = typed(row, hybrid_timers.Row)
    found = hybrid_timers.measured(one.off_s, one.quantile, one.constant)
    return {"joules": found.joules, "wait_s": found.wait_s, "boots": found.boots}


TIMERS: Final = Measurement(
    "hybrid_timers",
    collect=lambda: left("hybrid_timers")["rows"],
    tables={"": _timers},
    again=_timers_again,
    sample=lambda row: [row[key] for key in ("off_s", "quantile", "constant")] == ["300", "", ""],
    precision={"joules": 1e9, "wait_s": 1.0, "boots": 1.0},
    data=["sc15-backfilling/SDSC-BLUE.swf.gz"],
)

MEASUREMENTS: Final = (HYBRID, TIMERS)

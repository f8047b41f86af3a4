"""What the hybrid of a forecast and a rule publishes on ``docs/nodes-ahead.md``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchmarks import hybrid
from benchmarks.publishing.cells import left, typed
from benchmarks.publishing.rows import Cells, Measurement, Row

WAYS: Final = ("timer", "spares", "extracted 70", "extracted 50")


def _table(rows: Sequence[Row]) -> Cells:
    cells = [["load", "cooling", "timer alone", "spares", "offset 70", "offset 50", "most", "published, 70"]]
    made = {(one.load, one.plant, one.season, one.name): one for one in (typed(row, hybrid.Row) for row in rows)}
    last = ""
    for load, plant, season in dict.fromkeys(key[:3] for key in made):
        digits = 2 if load == "high" else 1

        def gain(value: float, digits: int = digits) -> str:
            return f"{value:+.{digits}f}" if round(value, digits) else f"{0:.{digits}f}"

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
    data=["sc15-backfilling/CEA-Curie.swf.gz"],
)

MEASUREMENTS: Final = (HYBRID,)

"""What is published of the emulated room on ``docs/hazard.md``: rows, tables, and how a row is computed again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from benchmarks import hazard_action
from benchmarks.publishing.cells import left, signed
from benchmarks.publishing.rows import FOLDER, Cells, Measurement, Published, Row
from benchmarks.thermal_hazard import Year, years
from twin.room.room_year import YEAR_S

# --- hazard_action

YEARS: Final = {
    "decay-1": "fans decay, first", "decay-2": "fans decay, second", "drift-1": "chiller drifts, first",
    "drift-2": "chiller drifts, second", "fouling-1": "coils foul", "heat-1": "heat outdoors", "trip-1": "units trip",
}  # fmt: skip
CHOSEN_ON: Final = "choose-1"
COLUMNS: Final = (
    "year", "action", "against", "share", "lower_to", "hours", *hazard_action.FIGURES,
    *(f"half_{name}" for name in hazard_action.FIGURES),
)  # fmt: skip
"""A row is a run of a year, or a mean difference over years, which has an action ``against`` which it is."""


def _rows() -> Iterator[dict[str, Any]]:
    content = left("hazard_action")
    chosen_on = {"year": CHOSEN_ON, "action": "model"}
    found = [{"year": CHOSEN_ON, "action": "without", "above_27_h": content["without_27_h"], "lost": 0.0}]
    found += [{**chosen_on, **row} for row in content["tried"]]
    found += content["judged"]
    found += [{"year": f"{row['years']} years", **content["chosen"], **row} for row in content["compared"]]
    for row in found:
        yield {name: row.get(name) for name in COLUMNS}


def _runs(rows: Sequence[Row]) -> list[Row]:
    """Of the judged years."""
    return [row for row in rows if row["year"] in YEARS]


def _choice(rows: Sequence[Row]) -> Cells:
    without, *tried = (row for row in rows if row["year"] == CHOSEN_ON)
    way = [_runs(rows)[0][name] for name in ("share", "lower_to", "hours")]
    most = f"{float(without['above_27_h']):.0f}"
    cells = [["hazard: share of readings", "lowered to", "hours of 24, at most", f"hours above 27 degrees, of {most}",
              "work lost %"]]  # fmt: skip
    for row in tried:
        share, lower_to, hours = (float(row[name]) for name in ("share", "lower_to", "hours"))
        figures = [f"{float(row['above_27_h']):.0f}", f"{100 * float(row['lost']):.2f}"]
        if [row[name] for name in ("share", "lower_to", "hours")] == way:
            figures = [f"**{figure}**" for figure in figures]
        cells.append([f"{100 * share:g} %", f"{100 * lower_to:g} %", f"{hours:g}", *figures])
    return cells


def _judged(rows: Sequence[Row]) -> Cells:
    actions = ("without", "last value", "model", "oracle")
    run_of = {(row["year"], row["action"]): row for row in _runs(rows)}

    def above(names: Sequence[str], action: str) -> str:
        sums = (sum(float(run_of[name, action][limit]) for name in names) for limit in hazard_action.FIGURES[:2])
        return ", ".join(f"{one:.0f}" for one in sums)

    def lost(name: str, action: str) -> str:
        return f"{100 * float(run_of[name, action]['lost']):.2f}"

    cells = [["judged year", *actions, "work lost %: last value", *actions[2:]]]
    announced = [name for name in YEARS if hazard_action.is_announced(name)]
    for name in YEARS:
        if name == list(YEARS)[len(announced)]:
            cells.append(["all of these", *(above(announced, one) for one in actions), "", "", ""])
        cells.append([YEARS[name], *(above([name], one) for one in actions), *(lost(name, one) for one in actions[1:])])
    return cells


def _intervals(rows: Sequence[Row]) -> Cells:
    cells = [["compared", "hours above 27 degrees, a year", "above 32", "work lost, points of %"]]
    for row in rows:
        if row["against"]:
            given = [(float(row[name]), float(row[f"half_{name}"])) for name in hazard_action.FIGURES]
            hours = [f"{signed(value, 1)} ± {half:.1f}" for value, half in given[:2]]
            value, half = (100 * one for one in given[2])
            cells.append([f"{row['action']}, against {row['against']}", *hours, f"{signed(value, 2)} ± {half:.2f}"])
    return cells


@cache
def _found() -> tuple[dict[str, Year], Mapping[float, hazard_action.Predictor]]:
    """All years, and what predicts: half a minute of a processor."""
    found = years(YEAR_S)
    return {one.name: one for one in found}, hazard_action.predictors_of(found)


def _again(row: Row) -> Mapping[str, float]:
    """A comparison from the runs that are published, a run by itself."""
    if row["against"]:
        pair = row["action"], row["against"]
        runs = _runs(Published.read(FOLDER / "hazard_action.csv").rows)
        line = next(one for one in hazard_action.compared(runs) if (one["action"], one["against"]) == pair)
        return {name: line[name] for name in COLUMNS if name in line and name in PRECISION}
    found, predictors = _found()
    one = found[row["year"]]
    if row["action"] == "without":
        made = hazard_action.run(one, hazard_action.never, 1.0, 0.0)
    else:
        way = hazard_action.Way(float(row["share"]), float(row["lower_to"]), float(row["hours"]))
        made = hazard_action.judged(one, predictors[way.share], way)[row["action"]]
    above = dict(zip(hazard_action.FIGURES, made.above_h, strict=False))
    return {name: value for name, value in {**above, "lost": made.lost}.items() if row[name]}


PRECISION: Final = {
    **dict.fromkeys(("above_27_h", "above_32_h", "half_above_27_h", "half_above_32_h"), 0.1),
    **dict.fromkeys(("lost", "half_lost"), 1e-4),
}  # fmt: skip

ACTION: Final = Measurement(
    "hazard_action",
    collect=_rows,
    tables={"choice": _choice, "judged": _judged, "intervals": _intervals},
    again=_again,
    sample=lambda row: row["against"] != "",
    precision=PRECISION,
)

MEASUREMENTS: Final = (ACTION,)

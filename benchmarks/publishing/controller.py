"""What is published of the controller: rows, tables, and how a row is computed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchmarks import firmware_faults_together as together
from benchmarks.publishing.cells import left
from benchmarks.publishing.rows import Cells, Measurement, Row

SHOWN: Final = ("x 0.5", "x 0.7", "x 0.8", "x 0.9", "frozen", "8 ms late")


def _table(rows: Sequence[Row]) -> Cells:
    cells = [["sensors that lie together", "alarm, of cases", *(name.replace("x", "×") for name in SHOWN),
              "hottest die, C"]]  # fmt: skip
    for name in dict.fromkeys(row["together"] for row in rows):
        own = [row for row in rows if row["together"] == name]
        hidden = {row["lie"]: float(row["hidden"]) for row in own}
        cells.append([
            name,
            f"{sum(int(row['alarms']) for row in own)} of {sum(int(row['cases']) for row in own)}",
            *(_hidden(max(hidden.values()) if "" in hidden else hidden[lie]) for lie in SHOWN),
            f"{max(float(row['die_c']) for row in own):.1f}",
        ])  # fmt: skip
    return cells


def _hidden(share: float) -> str:
    """Of the cap, where more than 1.05 of it stays hidden."""
    return f"{share:.2f}" if share > together.HIDDEN else "–"


def _again(row: Row) -> dict[str, float]:
    chosen = [case for case in together.cases() if (case.group, case.variant) == (row["together"], row["lie"])]
    (found,) = together.rows_of([together.outcome(case) for case in chosen])
    return {"alarms": found.alarms, "hidden": found.hidden, "die_c": found.die_c}


TOGETHER: Final = Measurement(
    "firmware_faults_together",
    collect=lambda: left("firmware_faults_together")["rows"],
    tables={"": _table},
    again=_again,
    sample=lambda row: (row["together"], row["lie"]) in {("power and activity", "x 0.7"), (together.SWAPPED, "")},
    precision={"alarms": 1.0, "hidden": 0.01, "die_c": 0.1},
)

MEASUREMENTS: Final = (TOGETHER,)

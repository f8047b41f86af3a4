"""What is published of orders that were searched and trained on stepped worlds: rows, the table, a row again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks import stepping
from benchmarks.publishing.cells import left, typed
from benchmarks.publishing.rows import Cells, Measurement, Row

FIGURES: Final = {"ave_bsld": 0.01, "ratio": 0.001, "lower_in": 1.0, "longest_wait_h": 1.0}


def _table(rows: Sequence[Row]) -> Cells:
    """A line for each order, a cell for each log that judges."""
    made = [typed(row, stepping.Judged) for row in rows]
    cells = [["order", *dict.fromkeys(row.log for row in made)]]
    for order in dict.fromkeys(row.policy for row in made):
        kind = stepping.TRAINED if order.startswith(stepping.TRAINED) else ""
        line = [order if order == stepping.SEARCHED else f"{kind}`{order.removeprefix(kind)}`"]
        for row in (one for one in made if one.policy == order):
            figures = f"{row.ave_bsld:.2f}; {row.ratio:.3f}"
            line.append(f"{figures}, lower in {row.lower_in} of {row.windows}; {row.longest_wait_h:.0f} h")
        cells.append(line)
    return cells


def _again(row: Row) -> Mapping[str, float]:
    one = typed(row, stepping.Judged)
    rules = {name: stepping.rule_of(name) for name in (stepping.SAF, one.policy)}
    found = stepping.judged(one.log, one.windows, rules)[-1]
    return {name: float(getattr(found, name)) for name in FIGURES}


STEPPING: Final = Measurement(
    "stepping",
    collect=lambda: left("stepping")["baselines"],
    tables={"": _table},
    again=_again,
    sample=lambda row: (row["log"], row["policy"]) == ("KTH-SP2", "wfp3"),
    precision=FIGURES,
    data=["sc15-backfilling/KTH-SP2.swf.gz", "sc15-backfilling/SDSC-BLUE.swf.gz"],
)

MEASUREMENTS: Final = (STEPPING,)

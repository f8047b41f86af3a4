"""What measurements publish on ``docs/benchmarks-cluster.md``: rows, tables, and how a row is computed again."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Final

from benchmarks import (
    ledger,
    sharers,
    true_power,
)
from benchmarks.ledger_world import KINDS, World
from benchmarks.publishing.cells import left, percent
from benchmarks.publishing.rows import Cells, Measurement, Row
from cluster_agent.budget.sharers.view import Tag
from foundation.student import mean_interval

# --- ledger

LEDGER_NAMES: Final = {
    "without 6, known to be off": "6 off only when known to be",
    "without 8, boots granted": "8 watts for boots",
    "without 8, unbacked watts": "8 nothing granted on what only a report brings",
}
LEDGER_FIGURES: Final = {
    "events": 1.0, "violations": 1.0, "worst_w": 1.0, "seconds_over": 0.1, "used_percent": 1.0, "unused_percent": 0.01,
}  # fmt: skip


def _ledger_rows() -> Iterator[dict[str, Any]]:
    for row in left("ledger"):
        yield {key: row.get(key) for key in ("rules", "kind", *LEDGER_FIGURES)}


def _ledger_table(rows: Sequence[Row]) -> Cells:
    cells = [["without rule", "world", "s over in some ten minutes", "worst W over"]]
    for row in rows:
        if row["rules"] != "all rules":
            rule = row["rules"].removeprefix("without ").replace(",", "")
            over = float(row["seconds_over"])
            cells.append(
                [LEDGER_NAMES.get(row["rules"], rule), row["kind"], f"{over:.{1 if over < 10 else 0}f}",
                 f"{float(row['worst_w']):.0f}"]
            )  # fmt: skip
    return cells


def _ledger_again(row: Row) -> dict[str, float]:
    """With all rules a tenth of the events, in which nothing may break either."""
    if row["rules"] == "all rules":
        totals = World(0, faults=KINDS[row["kind"]]).run(ledger.EVENTS // 10)
        return {"violations": totals.violations}
    found = ledger._first_broken(row["rules"])
    assert found is not None
    return {name: found[name] for name in ("events", "violations", "worst_w", "seconds_over")}


LEDGER: Final = Measurement(
    "ledger",
    collect=_ledger_rows,
    tables={"": _ledger_table},
    again=_ledger_again,
    sample=lambda row: row["rules"] in ("without 1, counts", "without 3, lease time"),
    precision=LEDGER_FIGURES,
)


# --- true_power

TRUE_FIGURES: Final = {"over_ws": 1.0, "least_margin_w": 1.0, "used": 0.01, "jobs": 1.0}


def _true_rows() -> Iterator[dict[str, Any]]:
    for name, row in left("true_power")["rows"].items():
        yield {"run": name, **{key: row[key] for key in TRUE_FIGURES}, "mean_w": row["mean_w"]}


def _true_table(rows: Sequence[Row]) -> Cells:
    cells = [["run", "W × s over", "least margin", "of the budget used"]]
    n, seconds = true_power.SMALL
    labels = {
        f"{true_power.NODES} nodes, {true_power.HOUR_S:g} s": f"{true_power.NODES} nodes, one hour",
        f"{n} nodes, {seconds:g} s": f"{n} nodes, 3 minutes, tighter budgets",
        true_power.IGNORED: "the same, limits that lose their effect unseen",
    }
    for name, label in labels.items():
        row = next(row for row in rows if row["run"] == name)
        over, margin = (float(row[key]) for key in ("over_ws", "least_margin_w"))
        cells.append([label, f"{over:.0f}", f"{margin:.0f} W".replace("-", "−"), percent(float(row["used"]))])
    return cells


def _true_again(row: Row) -> dict[str, float]:
    if row["run"] not in (true_power.IGNORED, f"{true_power.SMALL[0]} nodes, {true_power.SMALL[1]:g} s"):
        found = true_power.run(1, true_power.NODES, true_power.HOUR_S)
    else:
        found = true_power.short(1, row["run"] == true_power.IGNORED)
    return {name: found[name] for name in TRUE_FIGURES}


TRUE: Final = Measurement(
    "true_power",
    collect=_true_rows,
    tables={"": _true_table},
    again=_true_again,
    sample=lambda row: row["run"] == true_power.IGNORED,
    precision=TRUE_FIGURES,
)


# --- sharers

SHARERS_LINES: Final = (
    ("progress (the table above)", sharers.MAIN.name),
    ("instructions alone, off by ±20 %", "nodes report instructions, not progress"),
    ("no rate", "nodes report no rate"),
    ("jobs with phases of 3 min (draws 85 to 100 %, lost time ±20 %, units 10 % s.d.): progress", "jobs have phases"),
    ("the same, no rate", "jobs have phases, nodes report no rate"),
    ("jobs come back, 20 programs a tag: progress", "jobs come back"),
    ("the same, no rate", "jobs come back, nodes report no rate"),
)
SHARERS_KEY: Final = ("setting", "budget", "sharer")


def _sharers_rows() -> Iterator[dict[str, Any]]:
    for row in left("sharers")["rows"]:
        for seed, figures in enumerate(row["runs"]):
            yield {**{key: row[key] for key in SHARERS_KEY}, "seed": seed, **figures}


def _by_seed(rows: Sequence[Row], setting: str, budget: int, sharer: str, figure: str) -> list[float]:
    key = (setting, str(budget), sharer)
    return [float(row[figure]) for row in rows if tuple(row[name] for name in SHARERS_KEY) == key]


def _gain(rows: Sequence[Row], setting: str, budget: int, sharer: str, digits: int) -> str:
    """Over the sharer before it, paired by seed."""
    before = sharers.SHARERS[sharers.SHARERS.index(sharer) - 1]
    new, old = (_by_seed(rows, setting, budget, name, "throughput") for name in (sharer, before))
    mean, half = mean_interval([100 * (one / other - 1) for one, other in zip(new, old, strict=True)])
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def _sharers_table(rows: Sequence[Row]) -> Cells:
    cells = [["budget", "sharer", "throughput", "gain %", *(tag.name for tag in reversed(Tag))]]
    for budget in sorted({int(row["budget"]) for row in rows}):
        for name in sharers.SHARERS:
            figures = functools.partial(_by_seed, rows, sharers.MAIN.name, budget, name)
            line = [f"{budget} %" if name == sharers.SHARERS[0] else "", f"`{name}`"]
            mean, half = mean_interval(figures("throughput"))
            line.append(f"{mean:.1f} ± {half:.1f}")
            digits = 1 if name == "aapc" else 2
            line.append("" if name == "fspc" else _gain(rows, sharers.MAIN.name, budget, name, digits))
            for tag in reversed(Tag):
                mean, half = mean_interval(figures(f"{tag.name} slowdown"))
                line.append(f"{mean:.1f} ± {half:.1f} ({statistics.fmean(figures(f'{tag.name} impacted')):.0f})")
            cells.append(line)
    return cells


def _rates_table(rows: Sequence[Row]) -> Cells:
    name = sharers.SHARERS[-1]
    return [["what nodes report", "60 %", "75 %"]] + [
        [label, *(_gain(rows, setting, budget, name, 2) for budget in (60, 75))] for label, setting in SHARERS_LINES
    ]


def _sharers_again(row: Row) -> dict[str, float]:
    setting = next(one for one in (sharers.MAIN, *sharers.OTHERS) if one.name == row["setting"])
    return sharers.measure(setting, int(row["budget"]), row["sharer"], sharers.HOURS, int(row["seed"]))


SHARERS: Final = Measurement(
    "sharers",
    collect=_sharers_rows,
    tables={"": _sharers_table, "rates": _rates_table},
    again=_sharers_again,
    sample=lambda row: (row["budget"], row["seed"]) == ("60", "0"),
    precision={"throughput": 0.01}
    | {f"{tag.name} {figure}": unit for tag in Tag for figure, unit in (("slowdown", 0.1), ("impacted", 1.0))},
)


MEASUREMENTS: Final = (LEDGER, TRUE, SHARERS)

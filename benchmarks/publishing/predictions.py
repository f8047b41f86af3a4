"""What measurements of predictions publish on ``docs/benchmarks-scheduler.md``: watts and run times of jobs."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Final

from benchmarks import (
    eurora_capped,
    own_estimates,
    power_prediction,
)
from benchmarks.publishing.cells import left
from benchmarks.publishing.rows import Cells, Measurement, Row
from benchmarks.replay_exact import LOGS
from benchmarks.sc15_learned import workload_of
from cluster_agent.scheduler.power_cap import constant
from cluster_agent.workloads.eurora import instances, read_cap_profile, read_jobs
from cluster_agent.workloads.job_log import Workload

SC15: Final = "sc15-backfilling/{}.swf.gz"

# --- eurora_capped

EURORA_KINDS: Final = ("rndm_200_3600_0", "rndm_400_7200_0")


def _eurora_rows() -> Iterator[dict[str, Any]]:
    found = left("eurora_capped")
    nothing = {"above_cap_pct": None, "time_above_cap_pct": None}
    for row in found["rows"]:
        yield {
            **{key: row[key] for key in ("instance", "jobs", "cap", "policy", "bsld", "above_cap_ws", "highest_w")},
            **nothing,
        }
    for row in found["predicted"]:
        cap = f"{eurora_capped.PREDICTED_CAP_W} W"
        yield {"instance": KNOWN, "jobs": row["jobs"], "cap": cap, "policy": row["policy"], "bsld": row["bsld"],
               "above_cap_ws": None, "highest_w": row["highest_w"], "above_cap_pct": row["above_cap_pct"],
               "time_above_cap_pct": row["time_above_cap_pct"]}  # fmt: skip


KNOWN: Final = "all of known watts"


def _eurora_table(rows: Sequence[Row]) -> Cells:
    cells = [["cap", *(f"{cap_w // 1000} kW" for cap_w in eurora_capped.CAPS_W)]]
    ours, rules, easy = eurora_capped.OURS, eurora_capped.RULES, eurora_capped.EASY

    def mean(names: Sequence[str], policy: str) -> list[str]:
        found = []
        for cap_w in eurora_capped.CAPS_W:
            own = [row for row in rows if (row["cap"], row["policy"]) == (f"{cap_w} W", policy)]
            found.append(f"{statistics.fmean(float(row['bsld']) for row in own if row['instance'] in names):.2f}")
        return found

    def published(kind: str, of: str) -> list[str]:
        values = eurora_capped.REQUIRED[kind, of]
        return [f"{value:.{1 if max(values) >= 10 else 2}f}" for value in values]

    for kind in EURORA_KINDS:
        cells.append([f"`{kind}`: `{ours}`", *mean([kind], ours)])
        cells.append([f"`{rules}`", *mean([kind], rules)])
        cells.append(["published priority rules", *published(kind, "rules")])
        cells.append([f"`{easy}`", *mean([kind], easy)])
        cells.append(["published capped EASY", *published(kind, "EASY")])
    past = list(dict.fromkeys(row["instance"] for row in rows if row["instance"] not in (*EURORA_KINDS, KNOWN)))
    cells.append([f"{len(past)} of the 206 historical instances: `{ours}`", *mean(past, ours)])
    cells.append([f"`{rules}`", *mean(past, rules)])
    return cells


def _predicted_table(rows: Sequence[Row]) -> Cells:
    cells = [["", "slowdown", "above the cap: of the joules", "of the time", "highest"]]
    for row in rows:
        if row["instance"] == KNOWN and row["policy"] in eurora_capped.BY_PREDICTION:
            joules, time = float(row["above_cap_pct"]), float(row["time_above_cap_pct"])
            cells.append(
                [f"`{row['policy']}`", f"{float(row['bsld']):.1f}", f"{joules:.2f} %", f"{time:.1f} %",
                 f"{float(row['highest_w']):.0f} W"]
            )  # fmt: skip
    return cells


def _eurora_again(row: Row) -> dict[str, float]:
    if row["instance"] == KNOWN:
        found = next(one for one in eurora_capped.predicted() if one.policy == row["policy"])
        return {"bsld": found.bsld, "above_cap_pct": found.above_cap_pct, "highest_w": found.highest_w}
    data = eurora_capped.DATA
    is_past = row["instance"] in instances(str(data / "jobs.csv.gz"))
    trace = read_jobs(str(data / ("jobs.csv.gz" if is_past else "synthetic.parquet")), row["instance"])
    watts = row["cap"].removesuffix(" W")
    cap = constant(int(watts)) if watts.isdigit() else read_cap_profile(str(data / "power_caps.csv"), row["cap"])
    one = eurora_capped.measured(trace, row["instance"], cap, row["cap"], row["policy"], None)
    return {"bsld": one.bsld, "above_cap_ws": one.above_cap_ws, "highest_w": one.highest_w}


EURORA: Final = Measurement(
    "eurora_capped",
    collect=_eurora_rows,
    tables={"": _eurora_table, "predicted": _predicted_table},
    again=_eurora_again,
    sample=lambda row: row["instance"] == "rndm_200_3600_0" and row["cap"] in ("3000 W", "power_caps_100"),
    precision={"bsld": 0.01, "above_cap_ws": 1.0, "highest_w": 1.0, "above_cap_pct": 0.01},
    data=["eurora/*"],
)


# --- power_prediction


def _prediction_rows() -> Iterator[dict[str, Any]]:
    for row in left("power_prediction")["rows"]:
        plain = {key: value for key, value in row.items() if key not in ("origins", "intervals")}
        yield plain | {f"{name}_{end}_pct": value for name, both in row["intervals"].items()
                       for end, value in zip(("low", "high"), both, strict=True)}  # fmt: skip


def _prediction_table(rows: Sequence[Row]) -> Cells:
    cells = [["", "median", "weighted", "MAPE", "sum: mean", "maximum", "error", "band"]]
    for row in rows:
        way = "nearest past jobs" if (row["data"], row["way"]) == ("eurora", "nearest") else row["way"]
        figures = (
            ("second_half_median_pct", "median"), ("second_half_weighted_pct", ""), ("second_half_mape_pct", ""),
            ("sum_mean_pct", ""), ("sum_maximum_pct", ""), ("sum_absolute_pct", "sum"), ("band_pct", "band"),
        )  # fmt: skip
        cells.append([f"{row['data']}: {way}", *(_with_interval(row, *one) for one in figures)])
    return cells


def _with_interval(row: Row, figure: str, interval: str) -> str:
    """A figure, and 95 % of it where the rows have that."""
    if not row[figure]:
        return ""
    low, high = (row.get(f"{interval}_{end}_pct", "") for end in ("low", "high"))
    return f"{float(row[figure]):.1f}" + (f" ({float(low):.1f} to {float(high):.1f})" if low and high else "")


def _prediction_again(row: Row) -> dict[str, float]:
    new = power_prediction.SameRequest if row["way"] == "same request" else power_prediction.nearest
    jobs = power_prediction.eurora() if row["data"] == "eurora" else power_prediction.generated()
    found = power_prediction.judged(row["data"], row["way"], new, jobs, row["way"].endswith("running jobs"))
    figures = {name: getattr(found, name) for name in PREDICTION_FIGURES}
    return {name: math.nan if value is None else value for name, value in figures.items()}


PREDICTION_FIGURES: Final = (
    "median_pct", "weighted_pct", "second_half_median_pct", "second_half_weighted_pct", "second_half_mape_pct",
    "sum_mean_pct", "sum_maximum_pct", "sum_absolute_pct", "band_pct",
)  # fmt: skip

PREDICTION: Final = Measurement(
    "power_prediction",
    collect=_prediction_rows,
    tables={"": _prediction_table},
    again=_prediction_again,
    sample=lambda row: row["way"] in ("same request", "nearest"),
    precision=dict.fromkeys(PREDICTION_FIGURES, 0.1),
    data=["eurora/*"],
)


# --- own_estimates

DEFAULTS: Final = ("history=user", "fixed=submission", "shadow=1")
GRID_LINES: Final = (
    "guard=5",
    "shadow=2,guard=5",
    "shadow=inf,guard=5",
    "history=similar,shadow=inf,guard=5",
    "history=similar,fixed=start,shadow=inf,guard=5",
    "history=similar,fixed=start,shadow=inf,guard=3",
)


def _own_rows() -> Iterator[dict[str, Any]]:
    found = left("own_estimates")
    for log, policies in found["grid"].items():
        for policy, draws in policies.items():
            for draw, cell in draws.items():
                yield {"log": log, "policy": policy, "draw": draw, **cell}
    for fold in found["folds"]:
        for policy, cells in ((fold["policy"], fold["chosen_draws"]), (own_estimates.PLAIN, fold["plain_draws"])):
            for draw, cell in zip(found["seeds"]["judging"], cells, strict=True):
                yield {"log": fold["log"], "policy": policy, "draw": draw, **cell}


def _short(policy: str) -> str:
    """Without what is the default."""
    return ",".join(one for one in own_estimates.shown(policy).split(",") if one not in DEFAULTS)


def _folds(rows: Sequence[Row]) -> Iterator[own_estimates.Fold]:
    for log in LOGS:
        cells = {
            (row["policy"], int(row["draw"])): own_estimates.Cell(
                float(row["ave_bsld"]), float(row["max_bsld"]), int(row["max_wait_s"])
            )
            for row in rows if row["log"] == log
        }  # fmt: skip
        policy = next(name for name, draw in cells if draw >= own_estimates.JUDGING[0] and name != own_estimates.PLAIN)
        chosen, plain = (
            [cells[name, draw] for draw in own_estimates.JUDGING] for name in (policy, own_estimates.PLAIN)
        )
        recorded, bar = (cells[name, own_estimates.RECORDED] for name in (policy, own_estimates.PLAIN))
        yield own_estimates.Fold(log, policy, recorded, bar, own_estimates.BARS[log], chosen, plain)


def _judged_table(rows: Sequence[Row]) -> Cells:
    cells = [["judged on", "the others choose", "AVEbsld", "bar", "max bsld, bar", "max wait, bar"]]
    for fold in _folds(rows):
        both = fold.chosen, fold.plain
        cells.append(
            [fold.log, f"`{_short(fold.policy)}`", f"{fold.chosen.ave_bsld:.2f}", f"{fold.bar:.1f}",
             ", ".join(f"{one.max_bsld:,.0f}" for one in both),
             ", ".join(f"{one.max_wait_s / 86400:.1f} d" for one in both)]
        )  # fmt: skip
    return cells


def _draws_table(rows: Sequence[Row]) -> Cells:
    heading = ["20 draws of", "AVEbsld (range)", "bar's policy (range)", "ratio (95 %)", "max bsld, bar's"]
    cells = [[*heading, "draws that are better"]]
    for fold in _folds(rows):
        line = [fold.log]
        for draws in (fold.chosen_draws, fold.plain_draws):
            values = [one.ave_bsld for one in draws]
            line.append(f"{statistics.geometric_mean(values):.1f} ({min(values):.1f}-{max(values):.1f})")
        ratio, low, high = fold.ratio
        line.append(f"{ratio:.2f} ({low:.2f}-{high:.2f})")
        line.append(", ".join(f"{own_estimates.most(draws):,.0f}" for draws in (fold.chosen_draws, fold.plain_draws)))
        cells.append([*line, str(fold.better)])
    return cells


def _grid_table(rows: Sequence[Row]) -> Cells:
    cells = [["", *LOGS]]
    by = {(row["log"], _short(row["policy"]), int(row["draw"])): float(row["ave_bsld"]) for row in rows}
    plain = _short(own_estimates.PLAIN)
    for policy in GRID_LINES:
        line = [f"`{policy}`"]
        for log in LOGS:
            ratios = [by[log, policy, draw] / by[log, plain, draw] for draw in own_estimates.CHOOSING]
            line.append(f"{statistics.geometric_mean(ratios):.2f}")
        cells.append(line)
    return cells


@functools.cache
def _log(name: str) -> Workload:
    return workload_of(name)


def _own_again(row: Row) -> dict[str, float]:
    found = own_estimates.cell(own_estimates.drawn(_log(row["log"]), int(row["draw"])), row["policy"])
    return {"ave_bsld": found.ave_bsld, "max_bsld": found.max_bsld, "max_wait_s": found.max_wait_s}


OWN: Final = Measurement(
    "own_estimates",
    collect=_own_rows,
    tables={"": _judged_table, "draws": _draws_table, "grid": _grid_table},
    again=_own_again,
    sample=lambda row: row["log"] == "KTH-SP2" and int(row["draw"]) in (own_estimates.RECORDED, 101)
    and _short(row["policy"]) in (own_estimates.PLAIN, "shadow=2,guard=5"),
    precision={"ave_bsld": 0.01, "max_bsld": 1.0, "max_wait_s": 60.0},
    data=[SC15.format(log) for log in LOGS],
)  # fmt: skip

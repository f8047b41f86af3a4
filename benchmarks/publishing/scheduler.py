"""What measurements publish on ``docs/benchmarks-scheduler.md``: rows, tables, how a row is computed again."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from benchmarks import (
    eco_killer,
    energy_budget,
    energy_fair_share,
    powercap_curie,
    rmap,
    scores,
)
from benchmarks.publishing.cells import grouped, left, percent, signed, three, typed
from benchmarks.publishing.predictions import EURORA, OWN, PREDICTION
from benchmarks.publishing.rows import Cells, Measurement, Row
from benchmarks.sc15_learned import workload_of
from cluster_agent.cluster import Machine, load_machine
from cluster_agent.scheduler.configurations.cab_table import cab_table
from cluster_agent.workloads.job_log import Workload, prepare
from cluster_agent.workloads.swf import read_swf

SC15: Final = "sc15-backfilling/{}.swf.gz"

# --- eco_killer


def _eco_table(rows: Sequence[Row]) -> Cells:
    cells = [["cap", "", "kills", "node-hours lost", "kWh wasted", "jobs ended", "node-hours done", "EcoJob slowdown"]]
    made = [typed(row, eco_killer.Row) for row in rows]
    for cap in eco_killer.CAP_SHARES:
        for policy, shares in (("fcfs-killer", (0.0,)), ("eco", eco_killer.ECO_SHARES[1:])):
            own = [
                row for share in shares for row in made
                if (row.policy, row.cap_share, row.eco_share) == (policy, cap, share)
            ]  # fmt: skip
            figures = ("kills", "lost_node_h", "wasted_kwh", "ended", "done_node_h")
            cells.append(
                [
                    percent(cap) if policy == "fcfs-killer" else "",
                    f"`{policy}`",
                    *(" / ".join(f"{getattr(row, figure):.0f}" for row in own) for figure in figures),
                    " / ".join(f"{row.eco_slowdown:.2f}" for row in own if row.eco_slowdown is not None),
                ]
            )
    return cells


def _eco_again(row: Row) -> dict[str, float]:
    one = typed(row, eco_killer.Row)
    machine = load_machine(f"curie:nodes={eco_killer.NODES}")
    found = eco_killer.measured(one.policy, one.cap_share, one.eco_share, machine, 1)
    return {name: math.nan if getattr(found, name) is None else getattr(found, name) for name in ECO_FIGURES}


ECO_FIGURES: Final = {
    "kills": 1.0, "lost_node_h": 1.0, "wasted_kwh": 1.0, "ended": 1.0, "done_node_h": 1.0, "eco_slowdown": 0.01,
    "over_cap_ws": 1.0,
}  # fmt: skip

ECO: Final = Measurement(
    "eco_killer",
    collect=lambda: left("eco_killer"),
    tables={"": _eco_table},
    again=_eco_again,
    sample=lambda row: row["policy"] in ("fcfs-killer", "eco"),
    precision=ECO_FIGURES,
)


# --- rmap


def _rmap_table(rows: Sequence[Row]) -> Cells:
    cells = [["trace", "against `traditional`", "published", "against `naive`", "published"]]
    by = {(row["trace"], row["seed"], row["bound_w"], row["policy"]): float(row["turnaround_s"]) for row in rows}
    for kind in rmap.TRACES:
        line = [kind]
        for base in ("traditional", "naive"):
            gains = [
                100 * (1 - seconds / by[kind, seed, bound_w, base])
                for (trace, seed, bound_w, policy), seconds in by.items()
                if (trace, policy) == (kind, "adaptive")
            ]
            line.append(f"{signed(statistics.mean(gains), 1)} ({signed(min(gains))} to {signed(max(gains))})")
            published = rmap.PUBLISHED.get((kind, base))
            line.append(f"{signed(published[0], 1)}, best {signed(published[1], 1)}" if published else "")
        cells.append(line)
    return cells


def _rmap_again(row: Row) -> dict[str, float]:
    one = typed(row, rmap.Row)
    world = rmap.trace(one.trace, one.seed, cab_table())
    found = rmap.replayed(rmap.POLICIES[one.policy], world, one.bound_w)
    return {"turnaround_s": rmap.turnaround_s(found), "peak_w": rmap.peak_w(found)}


RMAP: Final = Measurement(
    "rmap",
    collect=lambda: left("rmap"),
    tables={"": _rmap_table},
    again=_rmap_again,
    sample=lambda row: (row["seed"], row["bound_w"]) == ("0", "6500") and row["policy"] in ("traditional", "adaptive"),
    precision={"turnaround_s": 1.0, "peak_w": 1.0},
)


# --- scores


def _scores_table(rows: Sequence[Row]) -> Cells:
    """Mean bounded slowdown and longest wait in hours, without and with the guard."""
    cells = [["policy", *scores.LOGS]]
    by = {(row["log"], row["policy"], row["guard"]): row for row in rows}
    for policy in scores.POLICIES:
        line = [f"`{policy}`"]
        for log in scores.LOGS:
            own = [by[log, policy, str(guard)] for guard in (0, scores.GUARD)]
            line.append(
                "; ".join(f"{float(row['ave_bsld']):.1f}, {float(row['max_wait_s']) / 3600:.0f} h" for row in own)
            )
        cells.append(line)
    return cells


def _scores_again(row: Row) -> dict[str, float]:
    found = scores.measured(workload_of(row["log"]), row["log"], row["policy"], int(row["guard"]))
    return {name: getattr(found, name) for name in SCORE_FIGURES}


SCORE_FIGURES: Final = {"ave_bsld": 0.01, "mean_wait_s": 1.0, "max_wait_s": 1.0}

SCORES: Final = Measurement(
    "scores",
    collect=lambda: left("scores"),
    tables={"": _scores_table},
    again=_scores_again,
    sample=lambda row: row["log"] == "KTH-SP2" and row["policy"] in ("score:lowest=saf", "score:lowest=unicep", "wfp3"),
    precision=SCORE_FIGURES,
    data=[SC15.format(log) for log in scores.LOGS],
)


# --- powercap_curie

CURIE_LINES: Final = (
    ("24 h", "24 h", (0.8, 0.6, 0.4)),
    ("5 h, small jobs", "5 h small jobs", (0.8, 0.6, 0.4)),
    ("5 h, median", "5 h median jobs", (0.6,)),
    ("5 h, big", "5 h big jobs", (0.6,)),
)
"""The page shows some of the intervals and caps."""


def _curie_table(rows: Sequence[Row]) -> Cells:
    cells = [["", "", *(f"`{policy}`" for policy in powercap_curie.POLICIES)]]
    by = {(row["interval"], float(row["share"]), row["policy"]): row for row in rows}
    for label, interval_, shares in CURIE_LINES:
        for share in shares:
            own = [by[interval_, share, policy] for policy in powercap_curie.POLICIES]
            shown = [f"{100 * float(row['work']):.1f}, {100 * float(row['energy']):.1f}" for row in own]
            cells.append([label if share == shares[0] else "", percent(share), *shown])
    return cells


@functools.cache
def curie_intervals() -> tuple[Machine, dict[str, powercap_curie.Interval]]:
    machine = load_machine("curie")
    workload = prepare(read_swf(str(powercap_curie.TRACE)), machine.processors)
    return machine, {one.name: one for one in powercap_curie.intervals(workload)}


def _curie_again(row: Row) -> dict[str, float]:
    machine, named = curie_intervals()
    base = powercap_curie.measured(named[row["interval"]], "idle", None, machine)
    found = powercap_curie.measured(named[row["interval"]], row["policy"], float(row["share"]), machine)
    return {name: found[name] / base[name] for name in ("work", "energy")} | {"over_cap_ws": found["over_cap_ws"]}


CURIE: Final = Measurement(
    "powercap_curie",
    collect=lambda: left("powercap_curie"),
    tables={"": _curie_table},
    again=_curie_again,
    sample=lambda row: row["interval"] == "5 h small jobs",
    precision={"work": 1e-3, "energy": 1e-3, "over_cap_ws": 1.0},
    data=[SC15.format("CEA-Curie")],
)


# --- energy_budget

SETUPS: Final = tuple(energy_budget.SETUPS)
BUDGET_KEY: Final = ("log", "setup", "week_from_s", "level", "rule", "idle_off_s")


def _budget_rows() -> Iterator[dict[str, Any]]:
    for setup in SETUPS:
        for row in left(f"energy_budget-{setup}"):
            yield {key: row[key] for key in (*BUDGET_KEY, *energy_budget.MEASURES, "of_budget")}


def _budget_means(rows: Sequence[Row], setup: str) -> dict[tuple[int, str, bool], dict[str, float]]:
    """Of each budget, rule, and whether idle nodes go off: means in % of EASY, and the highest share of the budget."""
    found: dict[tuple[int, str, bool], list[Row]] = {}
    for row in rows:
        if row["setup"] == setup:
            found.setdefault((int(row["level"]), row["rule"], bool(row["idle_off_s"])), []).append(row)
    return {
        key: {name: 100 * statistics.fmean(float(row[name]) for row in own) for name in energy_budget.MEASURES}
        | {"of_budget": max(float(row["of_budget"]) for row in own)}
        for key, own in found.items()
    }


def _rules(shown: Callable[[str], str]) -> str:
    """One figure per rule, or one for all where they are alike."""
    figures = [shown(rule) for rule in energy_budget.RULES]
    return figures[0] if len(set(figures)) == 1 else " / ".join(figures)


def _budget_table(rows: Sequence[Row]) -> Cells:
    cells = [
        ["budget", "AVEbsld, nodes stay on", "AVEbsld, idle off", "utilization, on", "utilization, off (line)",
         "energy, on", "energy, off", "window's joules / budget, highest: on; off"]
    ]  # fmt: skip
    means = _budget_means(rows, "cold")
    for level in energy_budget.LEVELS:
        line = 100 * (3 / 7 * level / 100 + 4 / 7)

        def of(name: str, is_off: bool, digits: int, level: int = level) -> str:
            scale = 1 if digits else 0
            return _rules(
                lambda rule: f"{means[level, rule, is_off][name]:.{digits}f}" if scale
                else grouped(means[level, rule, is_off][name])
            )  # fmt: skip

        cells.append(
            [
                f"{level} %",
                of("AVEbsld", False, 0),
                of("AVEbsld", True, 0),
                of("utilization", False, 1),
                f"{of('utilization', True, 1)} ({line:.1f})",
                of("energy", False, 1),
                of("energy", True, 1),
                f"{of('of_budget', False, 3)}; {of('of_budget', True, 3)}",
            ]
        )
    return cells


def _switching_table(rows: Sequence[Row]) -> Cells:
    cells = [["", *(f"`{rule}`" for rule in energy_budget.RULES)]]
    means = _budget_means(rows, "cold")
    labels = ("AVEbsld", "utilization", "jobs started", "energy")
    for at, (label, name) in enumerate(zip(labels, energy_budget.MEASURES, strict=True)):
        line = [label]
        for rule in energy_budget.RULES:
            change = [
                100 * (means[level, rule, True][name] / means[level, rule, False][name] - 1)
                for level in energy_budget.LEVELS
            ]
            published = energy_budget.PUBLISHED[rule][at]
            line.append(f"{signed(statistics.fmean(change), 1)} ({signed(published, 2)})")
        cells.append(line)
    return cells


def _setup_table(rows: Sequence[Row]) -> Cells:
    cells = [
        ["budget", "`cold`: the week on an empty machine", "`warm`: after the week before",
         "`first`: the window begins with the week, nothing runs"]
    ]  # fmt: skip
    means = {setup: _budget_means(rows, setup) for setup in SETUPS}
    for level in (90, 80, 70, 60):
        shown = [
            " / ".join(grouped(means[setup][level, rule, False]["AVEbsld"]) for rule in energy_budget.RULES)
            for setup in SETUPS
        ]
        cells.append([f"{level} %", *shown])
    return cells


def _budget_again(row: Row) -> dict[str, float]:
    idle_off_s = int(row["idle_off_s"]) if row["idle_off_s"] else None
    weeks = energy_budget.runs([row["log"]], 5, (int(row["level"]),), row["setup"], (idle_off_s,))
    found = next(one for one in weeks if (str(one["week_from_s"]), one["rule"]) == (row["week_from_s"], row["rule"]))
    return {name: found[name] for name in (*energy_budget.MEASURES, "of_budget")}


BUDGET: Final = Measurement(
    "energy_budget",
    collect=_budget_rows,
    tables={"": _budget_table, "switch-off": _switching_table, "setups": _setup_table},
    again=_budget_again,
    sample=lambda row: (
        (row["log"], row["level"], row["rule"], row["setup"]) == ("MetaCentrum", "90", "energybud", "cold")
    ),
    precision={"AVEbsld": 0.01, "utilization": 1e-3, "started": 1e-3, "energy": 1e-3, "of_budget": 1e-3},
    runs=[["--full", "--setup", setup] for setup in SETUPS],
    leaves=[f"energy_budget-{setup}.json" for setup in SETUPS],
    data=[SC15.format("CEA-Curie"), SC15.format("SDSC-BLUE"), "swf/MetaCentrum-wagap-2013.swf.gz"],
)


# --- energy_fair_share


def _fair_rows() -> Iterator[dict[str, Any]]:
    for row in left("energy_fair_share")["rows"]:
        for rank, (per_job, per_user) in enumerate(zip(row["per_job"], row["per_user"], strict=True)):
            yield {key: row[key] for key in ("log", "weights", "efficiency")} | {
                "rank": rank, "per_job": per_job, "per_user": per_user
            }  # fmt: skip


def _fair_table(rows: Sequence[Row]) -> Cells:
    cells = [["log, order, user", "ours, per user", "published", "ours, per job"]]
    for log, weights, efficiency in dict.fromkeys((row["log"], row["weights"], row["efficiency"]) for row in rows):
        if weights == "FS":
            continue
        own = [row for row in rows if (row["log"], row["weights"], row["efficiency"]) == (log, weights, efficiency)]

        def ours(reading: str, own: Sequence[Row] = own) -> str:
            low, *middle, high = energy_fair_share.figures([float(row[reading]) for row in own])
            return f"{', '.join(three(one) for one in middle)}, {three(low)}-{three(high)}"

        low, mean, median, spread, high = energy_fair_share.PUBLISHED[log, weights, efficiency]
        published = f"{mean:.2f}, {median:g}, {three(spread)}, {three(low)}-{three(high)}"
        label = f"{log}{' (PIK)' if log == 'SDSC-BLUE' else ''} {weights} {efficiency}"
        cells.append([label, ours("per_user"), published, ours("per_job")])
    return cells


@functools.cache
def _fair_before(log: str, weights: str) -> tuple[Workload, Any]:
    workload = workload_of(log)
    return workload, energy_fair_share.stretch(workload, energy_fair_share.composition(weights))


def _fair_again(row: Row) -> dict[str, float]:
    workload, baseline = _fair_before(row["log"], row["weights"])
    user = energy_fair_share.busiest(workload, energy_fair_share.USERS)[int(row["rank"])]
    factor = energy_fair_share.EFFICIENCIES[row["efficiency"]]
    is_own = [workload.users[at] == user for at in workload.jobs.user]
    before = baseline[is_own]
    after = energy_fair_share.stretch(workload, energy_fair_share.composition(row["weights"], user, factor))[is_own]
    return {"per_job": float((after / before).mean()), "per_user": float(after.mean() / before.mean())}


FAIR: Final = Measurement(
    "energy_fair_share",
    collect=_fair_rows,
    tables={"": _fair_table},
    again=_fair_again,
    sample=lambda row: row["log"] == "SDSC-SP2" and row["weights"] == "EFS" and int(row["rank"]) < 3,
    precision={"per_job": 0.01, "per_user": 0.01},
    data=[SC15.format(log) for log in energy_fair_share.LOGS],
)


MEASUREMENTS: Final = (ECO, RMAP, CURIE, BUDGET, EURORA, PREDICTION, FAIR, OWN, SCORES)

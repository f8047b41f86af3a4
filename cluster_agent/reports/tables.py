"""The tables of a report as rows of text, the first of them the titles, and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cluster_agent.replay.compare import Run
from cluster_agent.reports.conditions import Comparison, Condition
from cluster_agent.reports.effects import Effect
from cluster_agent.scheduler.job_columns import Float64s, Int64s

Table = list[list[str]]


def number(value: float | None) -> str:
    """Four digits, or all of those before the point."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def change(ratio: float) -> str:
    """A ratio in words: −25 %, or ×73 from twice as much on."""
    return f"×{ratio:.3g}" if ratio >= 2 else f"{100 * (ratio - 1):+.1f} %".replace("-", "−")


def interval(one: Effect | None, text: Callable[[float], str]) -> str:
    """``low to high``, or nothing."""
    return "" if one is None or one.low is None or one.high is None else f"{text(one.low)} to {text(one.high)}"


def _signed(value: float) -> str:
    return ("-" if value < 0 else "+") + number(abs(value))


def overall(found: Comparison) -> Table:
    """A row for each policy, over all conditions."""
    base, has_energy = found.baseline, any(one.energy for one in found.against.values())
    title = ["policy", f"slowdown against {base}", "95 %", "lower in", "jobs"]
    title += ["energy", "95 %"] if has_energy else []
    rows = [title]
    for policy, one in found.against.items():
        lower = sum(each.value < 1 for each in one.conditions.values())
        cells = [policy, change(one.slowdown.value), interval(one.slowdown, change)]
        cells += [f"{lower} of {len(one.conditions)}", f"{sum(one.jobs.values()):,}"]
        if has_energy:
            cells += ["" if one.energy is None else change(one.energy.value), interval(one.energy, change)]
        rows.append(cells)
    return rows


def _columns(one: Condition) -> list[tuple[str, Callable[[Run], float | None]]]:
    """Means over seeds of these; the highest of ``max``."""

    def of_jobs(values: Callable[[Run], Any], statistic: Callable[[Any], Any]) -> Callable[[Run], float | None]:
        return lambda run: float(statistic(values(run))) if run.job else None

    def slowdown(run: Run) -> Float64s:
        return run.slowdown

    def wait_s(run: Run) -> Int64s:
        return run.wait_s

    def p95(values: Any) -> Any:
        return np.percentile(values, 95)

    columns: list[tuple[str, Callable[[Run], float | None]]] = [
        ("bounded slowdown", of_jobs(slowdown, np.mean)),
        ("median", of_jobs(slowdown, np.median)),
        ("p95", of_jobs(slowdown, p95)),
        ("max", of_jobs(slowdown, np.max)),
        ("mean wait s", of_jobs(wait_s, np.mean)),
        ("p95 wait s", of_jobs(wait_s, p95)),
        ("utilisation %", lambda run: 100 * _used(run)),
    ]
    if any(run.metrics.get("energy_j") is not None for run in one.all_runs):
        columns.append(("energy kWh", lambda run: _divided(run.metrics.get("energy_j"), 3.6e6)))
        columns.append(("over cap W s", lambda run: run.metrics.get("over_cap_ws")))
    if any(run.metrics.get("kills") is not None for run in one.all_runs):
        columns.append(("kills", lambda run: run.metrics.get("kills")))
    if any(run.metrics.get("wasted_j") for run in one.all_runs):
        columns.append(("lost kWh", lambda run: _divided(run.metrics["wasted_j"], 3.6e6)))
    return columns


def _used(run: Run) -> float:
    used = run.metrics["utilisation"]
    return float(used["cores"] if isinstance(used, dict) else used)


def _divided(value: float | None, by: float) -> float | None:
    return None if value is None else value / by


def results(found: Comparison, one: Condition) -> Table:
    """A row for each policy of a condition, with the published figure where there is one."""
    columns = _columns(one)
    has_published = any((one.name, policy) in found.published for policy in one.runs)
    has_seeds = any(len(of_policy) > 1 for of_policy in one.runs.values())
    title = ["policy", *(["seeds"] if has_seeds else []), *(name for name, _ in columns)]
    at = 2 + has_seeds
    rows = [[*title[:at], "published", *title[at:]] if has_published else title]
    for policy, of_policy in one.runs.items():
        cells = [policy, *([str(len(of_policy))] if has_seeds else [])]
        for name, of in columns:
            known = [value for run in of_policy.values() if (value := of(run)) is not None]
            cells.append(number(max(known, default=None) if name == "max" else one.mean(policy, of)))
        if has_published:
            cells.insert(at, number(found.published.get((one.name, policy))))
        rows.append(cells)
    return rows


def differences(found: Comparison, one: Condition) -> Table:
    """How the policies of a condition differ from the baseline, job by job."""
    rows = [[f"against {found.baseline}", "bounded slowdown", "95 %", "wait s", "95 %", "jobs"]]
    for policy in one.runs:
        of_policy = found.against.get(policy)
        if of_policy is None or one.name not in of_policy.slowdown_differs:
            continue
        cells = [policy]
        for effect in (of_policy.slowdown_differs[one.name], of_policy.wait_differs.get(one.name)):
            cells += ["" if effect is None else _signed(effect.value), interval(effect, _signed)]
        rows.append([*cells, f"{of_policy.jobs[one.name]:,}"])
    return rows


def left_out(one: Condition) -> list[str]:
    """A line about what jobs of the log state and the replays do not look at, or none."""
    found = {what: jobs for run in one.all_runs for what, jobs in run.not_modelled.items()}
    if not found:
        return []
    return ["Not modelled: jobs that " + ", ".join(f"{what} ({jobs:,})" for what, jobs in found.items()) + "."]


def markdown(tables: Sequence[Table]) -> str:
    """Those that have a row below their titles. A bar in a name is escaped, an end of line a blank."""
    return "\n\n".join(
        "\n".join(
            [
                _line(rows[0]),
                "|---" + "|---:" * (len(rows[0]) - 1) + "|",
                *(_line(row) for row in rows[1:]),
            ]
        )
        for rows in tables
        if len(rows) > 1
    )


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

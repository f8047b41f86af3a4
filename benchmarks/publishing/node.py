"""What measurements publish on ``docs/benchmarks.md``: rows, tables, and how a row is computed again."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Final

from benchmarks import (
    cpu_savings,
    gpu_savings,
    interval_coverage,
    published_facts,
)
from benchmarks.publishing.cells import left, percent, signed, typed
from benchmarks.publishing.rows import Cells, Measurement, Row

# --- cpu_savings


def _cpu_table(rows: Sequence[Row]) -> Cells:
    """Machines of the first line, then every line as a whole."""
    cells = [
        ["policy, bias", "machine", "runs (worth it)", "oracle saves", "saved", "slower", "median share", "worst",
         "slowdown ≤ 3.5 %", "worst slowdown", "elsewhere: slowdown", "saved"]
    ]  # fmt: skip
    made = [typed(row, cpu_savings.Row) for row in rows]
    for line in dict.fromkeys(row.line for row in made):
        own = [row for row in made if row.line == line]
        machines = list(dict.fromkeys(row.machine for row in own))
        title = "`" + line.policy + "`" + line.title.removeprefix(line.policy)
        if line == cpu_savings.MAIN:
            for machine in machines:
                of_machine = [row for row in own if row.machine == machine]
                cells.append(["", f"`{machine}`", *_cpu_cells(cpu_savings.figures(of_machine))])
        where = "all" if len(machines) > 1 else f"`{machines[0]}`"
        cells.append([title, where, *_cpu_cells(cpu_savings.figures(own))])
    return cells


def _cpu_cells(f: cpu_savings.Figures) -> list[str]:
    shares = ["-", "-"]
    if f.median_share is not None and f.worst_share is not None:
        shares = [f.median_share.ends(" %"), percent(f.worst_share)]
    has_other = f.worth < f.runs
    return [
        f"{f.runs} ({f.worth})",
        percent(f.oracle_saving, 1),
        f.saving.plus_minus(" %"),
        f.slowdown.plus_minus(" %"),
        *shares,
        percent(f.kept),
        percent(f.worst_slowdown, 1),
        percent(f.elsewhere_slowdown, 1) if has_other else "-",
        percent(f.elsewhere_saving, 1) if has_other else "-",
    ]


def _cpu_again(row: Row) -> dict[str, float]:
    one = typed(row, cpu_savings.Row)
    found = cpu_savings.judge(cpu_savings.Task(one.machine, one.workload, one.node, one.line))
    return {name: getattr(found, name) for name in CPU_FIGURES}


CPU_FIGURES: Final = (
    "oracle_saving", "oracle_slowdown", "two_clocks_saving", "two_clocks_slowdown", "saving", "slowdown"
)  # fmt: skip

CPU: Final = Measurement(
    "cpu_savings",
    collect=lambda: left("cpu_savings")["rows"],
    tables={"": _cpu_table},
    again=_cpu_again,
    sample=lambda row: row["machine"] == "rome" and row["workload"] in ("nas", "triad") and row["node"] == "1",
    precision=dict.fromkeys(CPU_FIGURES, 1e-3),
    data=["cpu-dvfs/taurus-nas-ep-c.csv"],
)


# --- gpu_savings

GPU_FIGURES: Final = ("oracle_saving", "two_clocks_saving", "saving", "slowdown")
GPU_GROUPS: Final = (("V100 curves", "v100:"), ("mixed phases", "mixed-gpu:"))
GPU_KEYS: Final = ("machine", "workload", "seed", "bias", "counter_error", "progress_s", "duration_s", *GPU_FIGURES)


def _gpu_rows() -> Iterator[dict[str, Any]]:
    for row in left("gpu_savings")["rows"]:
        yield {key: row[key] for key in GPU_KEYS}


def _gpu_table(rows: Sequence[Row]) -> Cells:
    cells = [["", "runs", "saved", "median share", "worst share (next)", "slowdown ≤ 3.5 %", "worst slowdown"]]
    made = [typed(row, gpu_savings.Row) for row in rows]
    for line in dict.fromkeys(row.line for row in made):
        for label, of in GPU_GROUPS:
            own = [row for row in made if row.workload.startswith(of) and row.line == line]
            if not own:
                continue
            f = gpu_savings.figures(own)
            shares = sorted(row.share for row in own if row.oracle_saving >= gpu_savings.WORTH)
            cells.append(
                [
                    f"{label}, {line.title.replace('%', ' %')}",
                    f"{f['runs']:.0f}",
                    gpu_savings.over_workloads(own).plus_minus(" %"),
                    gpu_savings.median_share(own).ends(" %"),
                    " ".join([percent(shares[0]), *(f"({percent(share)})" for share in shares[1:2])]),
                    percent(f["within_3.5_percent"]),
                    percent(f["worst_slowdown"], 1),
                ]
            )
    return cells


def _named_table(rows: Sequence[Row]) -> Cells:
    first = gpu_savings.LINES[0]
    cells = [["bias 20 %", "oracle saves", "with two clocks", "saved", "least share", "most slower"]]
    made = [typed(row, gpu_savings.Row) for row in rows]
    for machine, workload in gpu_savings.NAMED:
        own = [row for row in made if (row.machine, row.workload, row.line) == (machine, workload, first)]
        is_worth = own[0].oracle_saving >= gpu_savings.WORTH
        cells.append(
            [
                FACT_NAMES[workload],
                percent(own[0].oracle_saving, 1),
                percent(own[0].two_clocks_saving, 1),
                percent(statistics.fmean(row.saving for row in own), 1),
                percent(min(row.share for row in own)) if is_worth else "-",
                percent(max(row.slowdown for row in own), 1),
            ]
        )
    return cells


def _gpu_again(row: Row) -> dict[str, float]:
    one = typed(row, gpu_savings.Row)
    task = gpu_savings.Task(one.machine, one.workload, one.seed, *one.line, one.duration_s)
    found = gpu_savings.judge(task)
    return {name: getattr(found, name) for name in GPU_FIGURES}


GPU: Final = Measurement(
    "gpu_savings",
    collect=_gpu_rows,
    tables={"": _gpu_table, "named": _named_table},
    again=_gpu_again,
    sample=lambda row: (row["workload"], row["counter_error"], row["seed"]) == ("easywave", "uniform", "1"),
    precision=dict.fromkeys(GPU_FIGURES, 1e-3),
    data=["gpu-dvfs/v100-frequency.csv"],
)


# --- published_facts

FACT_NAMES: Final = {"easywave": "EasyWave", "hpcg": "HPCG", "qe-pw": "QE-PW"}


def _facts() -> Iterator[dict[str, Any]]:
    for row in left("published_facts")["rows"]:
        fact = row["fact"]
        yield {
            "workload": fact["workload"], "case": fact["case"], "kind": fact["kind"], "energy": row["energy"],
            "energy_published": fact["energy"], "time": row["time"], "time_published": fact["time"],
        }  # fmt: skip


def _facts_table(rows: Sequence[Row]) -> Cells:
    cells = [["", "", "energy", "published", "time", "published"]]
    for workload, case in dict.fromkeys((row["workload"], row["case"]) for row in rows):
        own = [row for row in rows if (row["workload"], row["case"]) == (workload, case)]
        energy = next((row for row in own if row["energy_published"]), own[0])
        time = next((row for row in own if row["time_published"]), own[0])
        kind = (
            energy["kind"] if energy["kind"] == time["kind"] else f"time {time['kind']}, energy {energy['kind']}"
        )  # fmt: skip
        moved = float(time["time"])
        cells.append(
            [
                FACT_NAMES[workload] + f" {case}{' MHz' if case.isdigit() else ''}",
                kind,
                signed(float(energy["energy"]), 1),
                signed(float(energy["energy_published"])),
                "0.0" if abs(moved) < 0.05 else signed(moved, 1),
                signed(float(time["time_published"])),
            ]
        )
    return cells


@functools.cache
def _fact(workload: str, case: str) -> Any:
    return published_facts.measure(workload, case, published_facts.with_occupancy(), published_facts.DURATION_S)


def _facts_again(row: Row) -> dict[str, float]:
    found, reference = _fact(row["workload"], row["case"]), _fact(row["workload"], str(published_facts.HIGH))
    return {
        "energy": 100 * (found.joules("gpu") / reference.joules("gpu") - 1),
        "time": 100 * (found.time_s / reference.time_s - 1),
    }


FACTS: Final = Measurement(
    "published_facts",
    collect=_facts,
    tables={"": _facts_table},
    again=_facts_again,
    sample=lambda row: (row["workload"], row["case"]) == ("easywave", "1095"),
    precision={"energy": 0.1, "time": 0.1},
)


# --- interval_coverage


def _coverage_table(rows: Sequence[Row]) -> Cells:
    cells = [["interval", "drawn", "draws", "counted", ""]]
    for row in rows:
        counted, half = float(row["counted"]), float(row["half"])
        note = row["note"] if row["is_kept"] == "True" else f"not kept. {row['note']}".strip()
        cells.append([row["name"], row["over"], row["draws"], f"{100 * counted:.1f} ± {percent(half, 1)}", note])
    return cells


def _coverage_again(row: Row) -> dict[str, float]:
    case = next(case for case in interval_coverage.CASES if case.name == row["name"])
    return {"counted": interval_coverage.counted(case, int(row["draws"])).counted}


COVERAGE: Final = Measurement(
    "interval_coverage",
    collect=lambda: left("interval_coverage")["rows"],
    tables={"": _coverage_table},
    again=_coverage_again,
    sample=lambda row: row["name"] in ("mean of 3 or 5 seeds", "watts at clocks that were not measured"),
    precision={"counted": 1e-3},
)


MEASUREMENTS: Final = (CPU, GPU, FACTS, COVERAGE)

"""What GPU policies save and cost by how far DRAM activity errs: measured errors of one application each, by quantile.

Each row of the table takes the error curve of one application (``twin.physics.error_curves``) in all phases of all
workloads: that at the quantile of the mean distance between implied and true speed, over the measured applications.
``drawn``: each phase draws its own. ``uniform``: the shipped default, one constant per phase. The other errors of
counters have the default bias in all rows. Policies that do not read DRAM activity have one row each. Savings are of
the GPU boards and, like slowdowns, the model's truth against the fixed highest clock. All results are emulated.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from benchmarks.experiment import Experiment, Result, run_all, save
from benchmarks.gpu_savings import KEPT, MIXED, NAMED
from benchmarks.oracle_gpu import at_highest_clock
from twin.physics.error_curves import MEASURED, UNIFORM, at_quantile, shipped_curves
from twin.programs.workload import v100_names

QUANTILES = (0.25, 0.5, 0.75, 0.95)
UNAWARE = ("firmware", "bdpo-gpu")
"""Policies that do not read DRAM activity."""

HOPPER = ("genoa-h100", "mixed-gpu:4")
"""On a card with SM occupancy, the first of the mixed sequences in which ``bdpo-gpu`` lowers clocks."""

DURATION_S = 120.0


class Setting(msgspec.Struct, frozen=True):
    """A row: a policy under one error of DRAM activity."""

    policy: str
    label: str
    counter_error: str


class Figures(msgspec.Struct, frozen=True):
    """Savings and slowdowns of a setting over the workloads, as shares; ``kept``: share of runs within ``KEPT``."""

    policy: str
    label: str
    runs: int
    mean_saving: float
    least_saving: float
    median_slowdown: float
    worst_slowdown: float
    kept: float


def settings() -> list[Setting]:
    """All rows, the policies that do not read DRAM activity first."""
    curves = shipped_curves()
    errors = [(UNIFORM, UNIFORM), ("drawn", MEASURED)]
    for share in QUANTILES:
        curve = at_quantile(share, curves)
        mean = float(np.mean(curve.ratio[:-1])) - 1.0
        errors.append((f"{share:.0%} ({curve.name}, {mean:+.1%})", f"{MEASURED}:{curve.name}"))
    rows = [Setting(policy, "any", UNIFORM) for policy in UNAWARE]
    return rows + [Setting("gpu-ladder", label, error) for label, error in errors]


def workloads(is_quick: bool) -> list[tuple[str, str]]:
    """Machine and workload: a third of the V100 curves, named codes, mixed phases."""
    names = [("v100", f"v100:{name}") for name in v100_names()[:: 8 if is_quick else 3]]
    return [*names, *NAMED[:: 2 if is_quick else 1], *MIXED[:: 6 if is_quick else 3], HOPPER]


def figures(setting: Setting, results: Sequence[Result]) -> Figures:
    """Of one setting's runs."""
    savings, slowdowns = [], []
    for result in results:
        of = result.experiment
        seconds, joules = at_highest_clock(of.machine, of.workload, of.seed, of.bias, of.duration_s)
        savings.append(1.0 - result.joules("gpu") / joules)
        slowdowns.append(result.time_s / seconds - 1.0)
    return Figures(
        setting.policy,
        setting.label,
        len(results),
        float(np.mean(savings)),
        min(savings),
        float(np.median(slowdowns)),
        max(slowdowns),
        float(np.mean(np.array(slowdowns) <= KEPT)),
    )


def measure(pairs: Sequence[tuple[str, str]], duration_s: float, processes: int) -> list[Figures]:
    """The figures of each setting over these workloads; prints each row when its runs have ended."""
    rows = settings()
    experiments = [
        Experiment(machine, workload, duration_s=duration_s, gpu_policy=row.policy, counter_error=row.counter_error)
        for row in rows
        for machine, workload in pairs
    ]
    results = run_all(experiments, processes)
    head = ("saved", "least", "slower", "worst", "<= 3.5 %")
    print(f"{'policy':12}{'error of DRAM activity':26}", "".join(f"{word:>10}" for word in head), flush=True)
    found = []
    for row in rows:
        f = figures(row, [next(results) for _ in pairs])
        shares = (f.mean_saving, f.least_saving, f.median_slowdown, f.worst_slowdown)
        print(f"{f.policy:12}{f.label:26}", "".join(f"{x:10.1%}" for x in shares) + f"{f.kept:10.0%}", flush=True)
        found.append(f)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_counter_error", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer workloads")
    parser.add_argument("--duration", type=float, default=DURATION_S, help="seconds per run at the highest clock")
    parser.add_argument("--processes", type=int, default=2, help="how many runs at a time")
    options = parser.parse_args(argv)
    pairs = workloads(options.quick)
    print(f"GPU policies on {len(pairs)} emulated workloads of {options.duration:.0f} s, against the highest clock")
    rows = measure(pairs, options.duration, options.processes)
    if not options.quick:
        content: dict[str, Any] = {"duration_s": options.duration, "workloads": pairs, "rows": rows}
        print("JSON:", save("gpu_counter_error", content))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

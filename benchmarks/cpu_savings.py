"""What the CPU policies save and cost on emulated nodes, beside the oracle.

Parameters of `bdpo-cpu-bounded` were chosen on `mixed-cpu:1` to `mixed-cpu:10`; everything else here is judged only.
*Share* = saving of the policy / saving of the oracle (best clock per phase, same bound), whole node. Slowdowns are the
model's truth against the highest clock. All results are emulated.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Sequence

import msgspec
import numpy as np

from benchmarks.experiment import Experiment, Result, run, save
from benchmarks.oracle_cpu import at_fixed_clock, oracle

BOUND = 0.03
WORTH = 0.02
"""Where the oracle saves at least this, the share counts; elsewhere only the slowdown."""

POLICIES = ("bdpo-cpu-bounded", "bdpo-cpu")
CHOSEN_ON = tuple(f"mixed-cpu:{number}" for number in range(1, 11))
JUDGED_MIXED = tuple(f"mixed-cpu:{number}" for number in range(11, 21))
CODES = ("hpl", "stream", "imb", "gromacs", "nas")


class Row(msgspec.Struct, frozen=True):
    """One workload on one node under one policy."""

    machine: str
    workload: str
    seed: int
    bias: float
    policy: str
    oracle_saving: float
    oracle_slowdown: float
    saving: float
    slowdown: float

    @property
    def share(self) -> float:
        return self.saving / self.oracle_saving if self.oracle_saving > 0 else float("nan")


def cases(chosen: bool, quick: bool) -> list[tuple[str, str]]:
    """(machine, workload) pairs: those that parameters were chosen on, or those that judge them."""
    machines = ("curie", "skylake-6146")
    names = CHOSEN_ON if chosen else CODES + (JUDGED_MIXED[:3] if quick else JUDGED_MIXED)
    pairs = [(machine, name) for machine in machines for name in names]
    return pairs if chosen else [*pairs, ("taurus", "taurus")]


def judge(task: tuple[str, str, int, float, str, str]) -> Row:
    machine, workload, seed, bias, policy, params = task
    duration_s = None if workload == "taurus" else 120.0
    best = oracle(machine, workload, seed, bias, duration_s, BOUND)
    reference = at_fixed_clock(machine, workload, seed, bias, duration_s, 0)
    result: Result = run(
        Experiment(machine, workload, seed, bias, duration_s, cpu_policy=policy, cpu_params=json.loads(params))
    )
    return Row(
        machine,
        workload,
        seed,
        bias,
        policy,
        best.saving,
        best.slowdown,
        1.0 - result.energy_j["node"] / reference.energy_j["node"],
        result.time_s / reference.time_s - 1.0,
    )


def summarise(rows: Sequence[Row]) -> dict[str, float]:
    """The issue's figures for one policy at one bias."""
    worth = [row for row in rows if row.oracle_saving >= WORTH]
    other = [row for row in rows if row.oracle_saving < WORTH]
    slowdowns = np.array([row.slowdown for row in rows])
    shares = np.array([row.share for row in worth])
    return {
        "runs": len(rows),
        "worth": len(worth),
        "median_share": float(np.median(shares)),
        "worst_share": float(shares.min()),
        "within_3.5": float((slowdowns <= 0.035).mean()),
        "worst_slowdown": float(slowdowns.max()),
        "elsewhere_slowdown": max((row.slowdown for row in other), default=0.0),
        "elsewhere_saving": min((row.saving for row in other), default=0.0),
    }


def show(title: str, rows: Sequence[Row], every: bool) -> None:
    if every:
        print(f"{'machine':14}{'workload':14}{'seed':>4}  {'oracle':>7}{'at':>7}  {'saving':>7}{'slow':>7}{'share':>7}")
        for row in rows:
            share = f"{row.share:7.0%}" if row.oracle_saving >= WORTH else "      -"
            print(
                f"{row.machine:14}{row.workload:14}{row.seed:4}  {row.oracle_saving:7.1%}{row.oracle_slowdown:7.1%}  "
                f"{row.saving:7.1%}{row.slowdown:7.1%}{share}"
            )
    s = summarise(rows)
    print(
        f"{title}: {s['runs']:.0f} runs; over {s['worth']:.0f} where the oracle saves >= 2 %: median share "
        f"{s['median_share']:.0%}, worst {s['worst_share']:.0%}; slowdown <= 3.5 % on {s['within_3.5']:.0%}, worst "
        f"{s['worst_slowdown']:.1%}; elsewhere slowdown <= {s['elsewhere_slowdown']:.1%}, saving >= "
        f"{s['elsewhere_saving']:.1%}",
        flush=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_savings", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer workloads, one seed, bias 20 %% only")
    parser.add_argument("--chosen", action="store_true", help="the workloads that parameters were chosen on")
    parser.add_argument("--machine", help="only this machine")
    parser.add_argument("--bias", type=float, help="only this half-width of the counters' error")
    parser.add_argument("--params", default="{}", help="JSON parameters of bdpo-cpu-bounded, to try others")
    options = parser.parse_args(argv)
    seeds = (1,) if options.quick else (1, 2, 3)
    biases = (options.bias,) if options.bias is not None else (0.2,) if options.quick else (0.2, 0.0, 0.4)
    pairs = [pair for pair in cases(options.chosen, options.quick) if options.machine in (None, pair[0])]
    everything: dict[str, dict[str, float]] = {}
    table: list[Row] = []
    print(f"CPU policies on emulated nodes, bound {BOUND:.0%}, whole node, against the highest clock")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for policy in POLICIES[:1] if options.chosen else POLICIES:
            for bias in biases if policy == POLICIES[0] else biases[:1]:
                params = options.params if policy == POLICIES[0] else "{}"
                tasks = [(*pair, seed, bias, policy, params) for pair in pairs for seed in seeds]
                rows = pool.map(judge, tasks, chunksize=1)
                show(f"{policy}, bias {bias:.0%}", rows, every=policy == POLICIES[0] and bias == biases[0])
                everything[f"{policy}, bias {bias}"] = summarise(rows)
                table += rows
    print("targets for bdpo-cpu-bounded at bias 20 %: median share >= 75 %, worst >= 50 %, elsewhere slowdown <= 1 %")
    if not options.chosen:
        print("JSON:", save("cpu_savings", {"summary": everything, "rows": table}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

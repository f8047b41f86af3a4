"""What the CPU policies save and cost on emulated nodes, next to the oracle.

Parameters of `bdpo-cpu-bounded` were chosen on `mixed-cpu:1` to `mixed-cpu:10`; everything else here is judged only.
*Share* = saving of the policy / saving of the oracle (best clock per phase, same bound), whole node. A second oracle
may share a phase's work between two clocks, as the policy can; the shares of its saving are printed, too. Slowdowns
are the model's truth against the highest clock. Where the programs tell their progress, a unit is about so much work,
unlike in each phase (`twin.physics.emulated_progress`). All results are emulated.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from benchmarks.experiment import Experiment, Result, run, save
from benchmarks.oracle_cpu import at_fixed_clock, oracle, oracle_of_two_clocks
from lab.node_demo.oracle import Best, Shares
from twin.physics.model import Report

BOUND = 0.03
WORTH = 0.02
"""Where the oracle saves at least this, the share counts; elsewhere only the slowdown."""

POLICIES = ("bdpo-cpu-bounded", "bdpo-cpu")
UNITS_S = (0.01, 0.05)
"""Of the progress that programs tell: time steps, and iterations that are longer."""

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
    progress_s: float | None
    two_clocks_saving: float
    two_clocks_slowdown: float

    @property
    def share(self) -> float:
        return self.saving / self.oracle_saving if self.oracle_saving > 0 else float("nan")

    @property
    def two_clocks_share(self) -> float:
        return self.saving / self.two_clocks_saving if self.two_clocks_saving > 0 else float("nan")


def cases(chosen: bool, quick: bool) -> list[tuple[str, str]]:
    """(machine, workload) pairs: those that parameters were chosen on, or those that judge them."""
    machines = ("curie", "skylake-6146")
    names = CHOSEN_ON if chosen else CODES + (JUDGED_MIXED[:3] if quick else JUDGED_MIXED)
    pairs = [(machine, name) for machine in machines for name in names]
    return pairs if chosen else [*pairs, ("taurus", "taurus")]


@functools.lru_cache(maxsize=256)
def truth(machine: str, workload: str, duration_s: float | None) -> tuple[Best, Shares, Report]:
    """What the oracles do, and a run at the highest clock. Bias stands before counters alone, and the seed draws but
    which thread has one or two percent less work: savings of other seeds are the same to 0.01 points."""
    best = oracle(machine, workload, 1, 0.2, duration_s, BOUND)
    shared = oracle_of_two_clocks(machine, workload, 1, 0.2, duration_s, BOUND)
    return best, shared, at_fixed_clock(machine, workload, 1, 0.2, duration_s, 0)


def judge(task: tuple[str, str, int, float, str, str, float | None]) -> Row:
    machine, workload, seed, bias, policy, params, progress_s = task
    duration_s = None if workload == "taurus" else 120.0
    best, shared, reference = truth(machine, workload, duration_s)
    given = json.loads(params)
    result: Result = run(
        Experiment(
            machine, workload, seed, bias, duration_s, cpu_policy=policy, cpu_params=given, progress_s=progress_s
        )
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
        progress_s,
        shared.saving,
        shared.slowdown,
    )


def summarise(rows: Sequence[Row]) -> dict[str, float]:
    """The issue's figures for one policy at one bias, by the oracle with one clock per phase and by that with two."""
    worth = [row for row in rows if row.oracle_saving >= WORTH]
    other = [row for row in rows if row.oracle_saving < WORTH]
    worth_two = [row for row in rows if row.two_clocks_saving >= WORTH]
    other_two = [row for row in rows if row.two_clocks_saving < WORTH]
    slowdowns = np.array([row.slowdown for row in rows])
    shares = np.array([row.share for row in worth])
    shares_two = np.array([row.two_clocks_share for row in worth_two])
    return {
        "runs": len(rows),
        "worth": len(worth),
        "median_share": float(np.median(shares)),
        "worst_share": float(shares.min()),
        "within_3.5": float((slowdowns <= 0.035).mean()),
        "worst_slowdown": float(slowdowns.max()),
        "elsewhere_slowdown": max((row.slowdown for row in other), default=0.0),
        "elsewhere_saving": min((row.saving for row in other), default=0.0),
        "two_clocks_worth": len(worth_two),
        "two_clocks_median_share": float(np.median(shares_two)),
        "two_clocks_worst_share": float(shares_two.min()),
        "two_clocks_elsewhere_slowdown": max((row.slowdown for row in other_two), default=0.0),
    }


def show(title: str, rows: Sequence[Row], every: bool) -> None:
    if every:
        print(
            f"{'machine':14}{'workload':14}{'seed':>4}  {'oracle':>7}{'at':>7}  {'two':>7}{'at':>7}"
            f"  {'saving':>7}{'slow':>7}{'share':>7}{'of two':>7}"
        )
        for row in rows:
            share = f"{row.share:7.0%}" if row.oracle_saving >= WORTH else "      -"
            of_two = f"{row.two_clocks_share:7.0%}" if row.two_clocks_saving >= WORTH else "      -"
            print(
                f"{row.machine:14}{row.workload:14}{row.seed:4}  {row.oracle_saving:7.1%}{row.oracle_slowdown:7.1%}  "
                f"{row.two_clocks_saving:7.1%}{row.two_clocks_slowdown:7.1%}  "
                f"{row.saving:7.1%}{row.slowdown:7.1%}{share}{of_two}"
            )
    s = summarise(rows)
    print(
        f"{title}: {s['runs']:.0f} runs; over {s['worth']:.0f} where the oracle saves >= 2 %: median share "
        f"{s['median_share']:.0%}, worst {s['worst_share']:.0%}; slowdown <= 3.5 % on {s['within_3.5']:.0%}, worst "
        f"{s['worst_slowdown']:.1%}; elsewhere slowdown <= {s['elsewhere_slowdown']:.1%}, saving >= "
        f"{s['elsewhere_saving']:.1%}\n  by the oracle with two clocks per phase: {s['two_clocks_worth']:.0f} runs, "
        f"median share {s['two_clocks_median_share']:.0%}, worst {s['two_clocks_worst_share']:.0%}, elsewhere slowdown "
        f"<= {s['two_clocks_elsewhere_slowdown']:.1%}",
        flush=True,
    )


def lines(
    biases: Sequence[float], only_s: float | None, quick: bool, chosen: bool
) -> Iterator[tuple[str, float, float | None]]:
    """Policy, bias, and units of progress, of each line of the table."""
    all_s = (None,) if quick else (None, *UNITS_S)
    for unit_s in all_s if only_s is None else (only_s or None,):
        for bias in biases[:1] if unit_s == UNITS_S[1] else biases:
            yield POLICIES[0], bias, unit_s
    if not chosen and not only_s:
        yield POLICIES[1], biases[0], None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_savings", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer workloads, one seed, bias 20 %% only")
    parser.add_argument("--chosen", action="store_true", help="the workloads that parameters were chosen on")
    parser.add_argument("--machine", help="only this machine")
    parser.add_argument("--bias", type=float, help="only this half-width of the counters' error")
    parser.add_argument(
        "--progress",
        type=float,
        metavar="SECONDS",
        help="only with progress reported in units of so much work; 0: without",
    )
    parser.add_argument("--params", default="{}", help="JSON parameters of bdpo-cpu-bounded, to try others")
    options = parser.parse_args(argv)
    seeds = (1,) if options.quick else (1, 2, 3)
    biases = (options.bias,) if options.bias is not None else (0.2,) if options.quick else (0.2, 0.0, 0.4)
    pairs = [pair for pair in cases(options.chosen, options.quick) if options.machine in (None, pair[0])]
    everything: dict[str, dict[str, float]] = {}
    table: list[Row] = []
    print(f"CPU policies on emulated nodes, bound {BOUND:.0%}, whole node, against the highest clock")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for policy, bias, unit_s in lines(biases, options.progress, options.quick, options.chosen):
            params = options.params if policy == POLICIES[0] else "{}"
            tasks = [(*pair, seed, bias, policy, params, unit_s) for pair in pairs for seed in seeds]
            rows = pool.map(judge, tasks, chunksize=1)
            reported = f", progress in units of {1e3 * unit_s:g} ms" if unit_s else ""
            show(f"{policy}, bias {bias:.0%}{reported}", rows, every=policy == POLICIES[0] and bias == biases[0])
            everything[f"{policy}, bias {bias}{reported}"] = summarise(rows)
            table += rows
    print("targets for bdpo-cpu-bounded at bias 20 %: median share >= 75 %, worst >= 50 %, elsewhere slowdown <= 1 %")
    if not options.chosen:
        print("JSON:", save("cpu_savings", {"summary": everything, "rows": table}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""What `gpu-ladder` saves in the first, second and third run of a program whose phases it keeps, next to the oracle.

A case is a mix of phases on a card, with counters that err in one way (its seed). Its runs differ in noise, and in the
order and the lengths of the phases (up to some 30 % each, as with another input); the program stays the same. Each run
is one of the real agent, and all runs of a case share a state directory, so the files of phases are written, read and
matched as on a node. The oracle knows the phases of each run, and the reference is the fixed highest clock in it.

``CHOSEN`` are the mixes and the seed on which constants of the memory were chosen (``--chosen``), those of
`gpu_savings`. ``JUDGED`` were drawn after that, and no figure of theirs chose anything. ``--changed``: the third run is
of another program under the same name. ``--unnamed``: nobody says which program runs. All results are emulated.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.experiment import Experiment, run_again, save, workload_of
from benchmarks.gpu_savings import BOUND, CHOOSING_SEED, CHOSEN_MIXED, KEPT, WORTH, mixed
from benchmarks.oracle_gpu import work_at_highest_clock
from lab.node_demo.costs import gpu_costs
from lab.node_demo.oracle import best_clocks
from twin.programs.workload import Workload, group_truth

BIAS = 0.2
DURATION_S = 300.0
RUNS = 3
SEEDS = (1, 2, 3, 4)
JUDGED = mixed(51, 52, 53, 54, 55, 56)
SPREAD = 0.3
"""Ours: standard deviation of the logarithm of a phase's length between runs."""


class Case(msgspec.Struct, frozen=True):
    """One program on one card, run several times."""

    machine: str
    workload: str
    seed: int
    runs: int = RUNS
    duration_s: float = DURATION_S
    then: str = ""  # the last run is of this workload instead
    program: str | None = "/opt/program"


class Row(msgspec.Struct, frozen=True):
    """What its runs came to, in order."""

    case: Case
    oracle_saving: list[float]
    saving: list[float]
    slowdown: list[float]

    @property
    def shares(self) -> list[float]:
        """Of the oracle's saving; NaN where that is too small to count."""
        pairs = zip(self.saving, self.oracle_saving, strict=True)
        return [saving / best if best >= WORTH else float("nan") for saving, best in pairs]


def judge(case: Case) -> Row:
    """All runs of one case."""
    best: list[float] = []
    saved: list[float] = []
    slower: list[float] = []
    with tempfile.TemporaryDirectory(prefix="nodectl-remembered-") as state_dir:
        for number in range(case.runs):
            is_last = number == case.runs - 1
            experiment = Experiment(
                case.machine, case.then if case.then and is_last else case.workload, case.seed, BIAS, case.duration_s,
                gpu_policy="gpu-ladder", gpu_params={"bound": BOUND},
            )  # fmt: skip
            work, noise = with_other_input(workload_of(experiment), case.seed, number), case.seed + 1000 * number
            reference_s, reference_j = work_at_highest_clock(case.machine, work, noise)
            result = run_again(experiment, work, noise, state_dir, case.program)
            best.append(best_clocks(gpu_costs(work.truth), BOUND).saving)
            saved.append(1.0 - result.joules("gpu") / reference_j)
            slower.append(result.slowdown_against(reference_s))
    return Row(case, best, saved, slower)


def with_other_input(workload: Workload, seed: int, number: int) -> Workload:
    """The same phases in another order, each of another length; the first run has the order and lengths of the mix.
    All together take as long."""
    if number == 0:
        return workload
    random = np.random.default_rng([seed, number])
    groups = []
    for group in workload.groups:
        if group.on_gpu and group.repeat:
            parts = [group.program[place] for place in random.permutation(len(group.program))]
            scale = np.exp(random.normal(0.0, SPREAD, len(parts)))
            scale *= sum(work_s for _, _, work_s in parts) / sum(
                work_s * factor for (_, _, work_s), factor in zip(parts, scale, strict=True)
            )
            program = tuple(
                (phase, max(1, round(iterations * factor)), work_s * factor)
                for (phase, iterations, work_s), factor in zip(parts, scale.tolist(), strict=True)
            )
            group = msgspec.structs.replace(group, program=program)
        groups.append(group)
    truth = msgspec.structs.replace(workload.truth, groups=tuple(group_truth(group) for group in groups))
    return msgspec.structs.replace(workload, groups=tuple(groups), truth=truth)


def judged(cases: Sequence[Case], processes: int, kept: Path | None) -> list[Row]:
    """The row of each case, in order; those in the file ``kept`` are taken from it, new ones are added to it."""
    lines = kept.read_bytes().splitlines() if kept and kept.exists() else []
    rows = {row.case: row for row in (msgspec.json.decode(line, type=Row) for line in lines)}
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for row in pool.imap(judge, [case for case in cases if case not in rows]):
            rows[row.case] = row
            if kept:
                with kept.open("ab") as file:
                    file.write(msgspec.json.encode(row) + b"\n")
            show(row)
    return [rows[case] for case in cases]


def show(row: Row) -> None:
    """One line of a case."""
    runs = "   ".join(f"{share:5.0%} {slower:5.1%}" for share, slower in zip(row.shares, row.slowdown, strict=True))
    case = row.case
    print(f"  {case.machine:8}{case.workload:14}{case.seed:4}  share, slower: {runs}", flush=True)


def summary(rows: Sequence[Row]) -> list[str]:
    """A line for each run."""
    lines = []
    for number in range(max(len(row.saving) for row in rows)):
        shares = np.array([row.shares[number] for row in rows])
        shares = shares[np.isfinite(shares)]
        slower = np.array([row.slowdown[number] for row in rows])
        lines.append(
            f"run {number + 1}: {len(rows)} cases; median share {np.median(shares):.1%}, worst {shares.min():.1%};"
            f" slowdown <= 3.5 % on {(slower <= KEPT).mean():.0%}, worst {slower.max():.1%}"
        )
    return lines


def cases_of(options: argparse.Namespace) -> list[Case]:
    """Those that the options ask for."""
    pairs = CHOSEN_MIXED if options.chosen else JUDGED
    seeds = options.seeds or ((CHOOSING_SEED,) if options.chosen else SEEDS)
    cases = []
    for place, (machine, workload) in enumerate(pairs):
        then = pairs[(place + 2) % len(pairs)][1] if options.changed else ""
        program = None if options.unnamed else "/opt/program"
        cases += [Case(machine, workload, seed, options.runs, options.duration, then, program) for seed in seeds]
    return cases[:: 5 if options.quick else 1]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_phases_remembered", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="every fifth case")
    parser.add_argument("--chosen", action="store_true", help="what the memory's constants were chosen on")
    parser.add_argument("--changed", action="store_true", help="the last run is of another program of the same name")
    parser.add_argument("--unnamed", action="store_true", help="nobody says which program runs")
    parser.add_argument("--seeds", type=int, nargs="+", help=f"default: {SEEDS}, with --chosen {CHOOSING_SEED}")
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of each case")
    parser.add_argument("--duration", type=float, default=DURATION_S, help="seconds per run at the highest clock")
    parser.add_argument("--processes", type=int, default=2, help="how many cases at a time")
    parser.add_argument("--rows", type=Path, help="keep each case in this file, and go on from those that it has")
    options = parser.parse_args(argv)
    cases = cases_of(options)
    set_name = "chosen on" if options.chosen else "judged on"
    print(f"gpu-ladder with phases kept from run to run, bound {BOUND:.0%}, GPU boards, {options.duration:.0f} s each")
    print(f"{set_name}: {', '.join(sorted({case.workload for case in cases}))}; seeds of counters and noise "
          f"{', '.join(str(seed) for seed in sorted({case.seed for case in cases}))}")  # fmt: skip
    rows = judged(cases, options.processes, options.rows)
    for line in summary(rows):
        print(line)
    print("targets, from the third run: median share >= 78 %, worst >= 52 %; slowdown <= 3.5 % on >= 97 %")
    if not (options.quick or options.chosen or options.changed or options.unnamed):
        print("JSON:", save("gpu_phases_remembered", {"duration_s": options.duration, "rows": rows}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

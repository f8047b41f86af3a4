"""What `gpu-ladder` saves and costs on emulated nodes, next to the oracle.

Its defaults were chosen on `CHOSEN` (`--chosen`); all else here judges them: 16 measured V100 curves, codes and mixed
phases. In some lines memory traffic errs as measured counters do, each phase like another application
(`twin.physics.error_curves`), and programs report progress or do not.

*Share* = saving of the policy / saving of the oracle (best clock per phase, same bound), GPU boards. A second oracle
may share a phase's work between two clocks. Slowdown and saving are the model's truth against the fixed highest clock.
The policy runs in the real agent. All results are emulated. With ``--rows FILE`` each run is kept as it ends, and not
run again.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from benchmarks.clustered import Within, mean_over, median_over, together
from benchmarks.experiment import Experiment, run, save
from benchmarks.oracle_gpu import at_highest_clock, oracle, oracle_of_two_clocks
from twin.physics.error_curves import MEASURED, UNIFORM
from twin.programs.workload import v100_names

BOUND = 0.03
KEPT = 0.035
"""Slowdown up to which the bound counts as kept."""

WORTH = 0.05
"""Where the oracle saves at least this, the share counts; elsewhere only that nothing is wasted."""

UNIT_S = 0.05
"""Of the progress that programs report: steps of a solver on GPUs (ours)."""

DURATION_S = 300.0
CHOOSING_SEED = 101
SEEDS = (1,)
CHOSEN_CURVES = ("3MM", "BScholes", "RNN", "ResN152", "Schmidt", "ViT_t")
NAMED = (("xh2415", "easywave"), ("xh2415", "hpcg"), ("xh2415", "qe-pw"))


def mixed(*numbers: int) -> tuple[tuple[str, str], ...]:
    """Mixed phases on two cards."""
    return tuple((machine, f"mixed-gpu:{number}") for number in numbers for machine in ("v100", "xh2415"))


MIXED = mixed(1, 2, 3, 4, 5, 6)
CHOSEN_MIXED, JUDGED_MIXED = mixed(21, 22, 23, 24), mixed(31, 32, 33, 34, 35, 36)


class Line(NamedTuple):
    """One line of the table: how memory traffic errs, and the work of a unit of reported progress."""

    bias: float
    counter_error: str = UNIFORM
    progress_s: float | None = None

    @property
    def title(self) -> str:
        error = f"bias {self.bias:.0%}" if self.counter_error == UNIFORM else "measured errors"
        return error + (", progress reported" if self.progress_s else "")


LINES = (Line(0.2), Line(0.2, MEASURED), Line(0.2, MEASURED, UNIT_S))
"""All but the first have every fourth workload."""


class Task(msgspec.Struct, frozen=True):
    machine: str
    workload: str
    seed: int
    bias: float
    counter_error: str
    progress_s: float | None
    duration_s: float
    params: dict[str, float] = {}

    @property
    def line(self) -> Line:
        return Line(self.bias, self.counter_error, self.progress_s)


class Row(Task, frozen=True, kw_only=True):
    """One run and its oracle."""

    oracle_saving: float
    two_clocks_saving: float
    saving: float
    slowdown: float

    @property
    def share(self) -> float:
        return self.saving / self.oracle_saving if self.oracle_saving > 0 else float("nan")

    @property
    def two_clocks_share(self) -> float:
        return self.saving / self.two_clocks_saving if self.two_clocks_saving > 0 else float("nan")


def judge(task: Task) -> Row:
    experiment = Experiment(
        task.machine, task.workload, task.seed, task.bias, task.duration_s, progress_s=task.progress_s,
        gpu_policy="gpu-ladder", gpu_params={"bound": BOUND, **task.params}, counter_error=task.counter_error,
    )  # fmt: skip
    reference_s, reference_j = at_highest_clock(task.machine, task.workload, task.seed, task.bias, task.duration_s)
    result = run(experiment)
    return Row(
        **msgspec.structs.asdict(task),
        oracle_saving=oracle(experiment, BOUND).saving,
        two_clocks_saving=oracle_of_two_clocks(experiment, BOUND).saving,
        saving=1.0 - result.joules("gpu") / reference_j,
        slowdown=result.slowdown_against(reference_s),
    )


class Runs:
    """Judges tasks in processes of its own.

    Where ``kept`` names a file of JSON lines, rows that it has are taken from it, and new ones are added as they
    come. It says nothing of the code that they come from: after a change of a policy begin another.
    """

    def __init__(self, processes: int, kept: Path | None) -> None:
        self._pool = multiprocessing.get_context("fork").Pool(processes)
        self._kept = kept
        lines = kept.read_bytes().splitlines() if kept and kept.exists() else []
        self._rows = {_key(row): row for row in (msgspec.json.decode(line, type=Row) for line in lines)}

    def judge(self, tasks: Sequence[Task]) -> list[Row]:
        """The row of each task, in their order."""
        for row in self._pool.imap(judge, [task for task in tasks if _key(task) not in self._rows]):
            self._rows[_key(row)] = row
            if self._kept:
                with self._kept.open("ab") as file:
                    file.write(msgspec.json.encode(row) + b"\n")
        return [self._rows[_key(task)] for task in tasks]

    def close(self) -> None:
        self._pool.terminate()


def over_workloads(rows: Sequence[Row]) -> Within:
    """The mean saving, with its interval over workloads: a workload on two cards is one."""
    return mean_over(together((row.workload, row.saving) for row in rows))


def median_share(rows: Sequence[Row]) -> Within:
    """Where the oracle saves enough; with its interval over workloads."""
    return median_over(together((row.workload, row.share) for row in rows if row.oracle_saving >= WORTH))


def figures(rows: Sequence[Row]) -> dict[str, float]:
    """The figures of some runs; shares are NaN where the oracle nowhere saves enough."""
    shares = np.array([row.share for row in rows if row.oracle_saving >= WORTH])
    shares_two = np.array([row.two_clocks_share for row in rows if row.two_clocks_saving >= WORTH])
    slowdowns = np.array([row.slowdown for row in rows])
    return {
        "runs": len(rows),
        "worth": len(shares),
        "median_share": float(np.median(shares)) if len(shares) else float("nan"),
        "worst_share": float(shares.min()) if len(shares) else float("nan"),
        "two_clocks_median_share": float(np.median(shares_two)) if len(shares_two) else float("nan"),
        "two_clocks_worst_share": float(shares_two.min()) if len(shares_two) else float("nan"),
        "within_3.5_percent": float((slowdowns <= KEPT).mean()),
        "worst_slowdown": float(slowdowns.max()),
    }


def groups(chosen: bool) -> dict[str, list[tuple[str, str]]]:
    """Machine and workload: those that defaults were chosen on, or those that judge them."""
    names = [name for name in v100_names() if (name in CHOSEN_CURVES) == chosen]
    return {
        "mixed phases": list(CHOSEN_MIXED if chosen else JUDGED_MIXED),
        "V100 curves": [("v100", f"v100:{name}") for name in names],
        "named codes": list(NAMED),
    }


def show(title: str, rows: Sequence[Row], every: bool) -> None:
    for row in rows if every else ():
        share = f"{row.share:7.0%}" if row.oracle_saving >= WORTH else f"{'-':>7}"
        print(
            f"  {row.machine:8}{row.workload.removeprefix('v100:'):16}{row.seed:4}  oracle {row.oracle_saving:6.1%}"
            f"{row.two_clocks_saving:7.1%}  saved {row.saving:6.1%}{share}  slower {row.slowdown:5.1%}"
        )
    f, of_oracle = figures(rows), median_share(rows)
    print(
        f"{title}: {f['runs']:.0f} runs; where the oracle saves >= 5 % ({f['worth']:.0f}): median share "
        f"{of_oracle.ends('%')}, worst {f['worst_share']:.0%} (two clocks per phase: "
        f"{f['two_clocks_median_share']:.0%}, {f['two_clocks_worst_share']:.0%}); slowdown <= 3.5 % on "
        f"{f['within_3.5_percent']:.0%}, worst {f['worst_slowdown']:.1%}",
        flush=True,
    )


def tasks(
    of: dict[str, list[tuple[str, str]]], lines: Sequence[Line], seeds: Sequence[int], duration_s: float
) -> Iterator[tuple[Line, str, list[Task]]]:
    """For each line and group its tasks."""
    for line in lines:
        for title, pairs in of.items():
            some = pairs if line == LINES[0] else pairs[::4]
            yield line, title, [
                Task(machine, workload, seed, line.bias, line.counter_error, line.progress_s, duration_s)
                for machine, workload in some for seed in seeds
            ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_savings", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="every fourth workload, first line")
    parser.add_argument("--chosen", action="store_true", help="what the defaults were chosen on, first line")
    parser.add_argument("--seeds", type=int, nargs="+", help=f"default: {SEEDS}, with --chosen {CHOOSING_SEED}")
    parser.add_argument("--duration", type=float, default=DURATION_S, help="seconds per run at the highest clock")
    parser.add_argument("--processes", type=int, default=2, help="how many runs at a time")
    parser.add_argument("--rows", type=Path, help="keep each run in this file, and go on from those that it has")
    options = parser.parse_args(argv)
    seeds = options.seeds or ((CHOOSING_SEED,) if options.chosen else SEEDS)
    is_short = options.quick or options.chosen
    wanted = {title: pairs[:: 4 if options.quick else 1] for title, pairs in groups(options.chosen).items()}
    print(f"gpu-ladder on emulated nodes, bound {BOUND:.0%}, GPU boards, against the fixed highest clock, "
          f"{options.duration:.0f} s each")  # fmt: skip
    table: list[Row] = []
    runs = Runs(options.processes, options.rows)
    for line, title, own in tasks(wanted, LINES[: 1 if is_short else None], seeds, options.duration):
        rows = runs.judge(own)
        show(f"{title}, {line.title}", rows, every=True)
        table += rows
    runs.close()
    print("targets: median share >= 80 %, worst >= 50 %; slowdown <= 3.5 % on >= 95 % of runs")
    if not is_short:
        content: dict[str, Any] = {"duration_s": options.duration, "rows": table}
        print("JSON:", save("gpu_savings", content))
    return 0


def _key(run: Task) -> tuple[Any, ...]:
    """What distinguishes one run from another."""
    return (run.machine, run.workload, run.seed, run.line, run.duration_s, tuple(sorted(run.params.items())))


if __name__ == "__main__":
    raise SystemExit(main())

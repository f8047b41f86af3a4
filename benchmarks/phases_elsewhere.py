"""What phases of a program from another node bring `gpu-ladder`, and what they cost where that node lies.

A program runs once on one node, and then, with other noise, other lengths and another order of its phases, on a second
one: without any phases (*first*), with its own of the first run (*own*), and with those of the first node as a node
takes them at second hand: true ones, and false ones of each kind in ``LIES``. A liar knows the program and how tables
are used, and stays where a table is accepted (``foundation.wire.phase_messages.problem_of``). The agent is the real
one; a table waits among the node's files without the program's name, so that it is recalled only once a phase looks
like one of its own, as one that comes by the cluster agent is.

``CHOSEN`` are the programs on which the way in which tables are taken was chosen (``--chosen``), ``JUDGED`` judge it.
Slower: than at the fixed highest clock. All results are emulated.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from benchmarks.experiment import Experiment, run_again, save, workload_of
from benchmarks.gpu_phases_remembered import BIAS, with_other_input
from benchmarks.gpu_savings import BOUND, CHOSEN_MIXED, KEPT, mixed
from benchmarks.oracle_gpu import work_at_highest_clock
from foundation.phase_files import PhaseFiles, Remembered
from foundation.shell.text_table import render
from foundation.wire.phase_messages import KeptPhase, Table, problem_of
from nodectl.policies.parts.gpu_memory import at_second_hand
from twin.machine import load_machine
from twin.physics.model import Twin

DURATION_S: Final = 120.0
MEASURED_S: Final = 300.0
CHOSEN: Final = CHOSEN_MIXED
JUDGED: Final = mixed(61, 62, 63, 64)
SEEDS: Final = (1,)
FIRST, OWN, TRUE = "first", "own", "true"


def _top(phase: KeptPhase, share: float) -> KeptPhase:
    """Traffic at the highest clock is off by a share: less of it hides what lower clocks lose."""
    traffic = (phase.traffic[0] * (1.0 + share), *phase.traffic[1:])
    return replace(phase, traffic=traffic, blocks=(120.0, *phase.blocks[1:]))


def _low(phase: KeptPhase, half_mhz: int) -> KeptPhase:
    """Half of the clock loses nothing, and draws a third."""
    return replace(
        phase, clocks_mhz=(phase.clocks_mhz[0], half_mhz), blocks=(120.0, 120.0), traffic=(phase.traffic[0],) * 2,
        watts=(phase.watts[0], phase.watts[0] / 3.0),
    )  # fmt: skip


def _both(phase: KeptPhase, half_mhz: int) -> KeptPhase:
    low = _low(phase, half_mhz)
    return replace(low, traffic=(low.traffic[0] * 0.94,) * 2)


def _idle(phase: KeptPhase) -> KeptPhase:
    """As much utilisation less as is still taken for the phase, so that a lower clock may stretch less time."""
    return replace(_top(phase, -0.06), utilization=max(phase.utilization - 0.15, 0.0))


def _frantic(phase: KeptPhase) -> KeptPhase:
    """So much scatter that everything looks like this phase."""
    return replace(_top(phase, -0.06), jump2=1.0, jumps=1e4, scatter2=1.0, scatters=1e4, tick_watts2=1.0)


def _phantoms(phases: Sequence[KeptPhase], half_mhz: int) -> list[KeptPhase]:
    """All the time goes to a phase that never comes and loses nothing, so that those that do come may lose more."""
    made = replace(_low(phases[0], half_mhz), traffic=(0.001, 0.001), watts=(20.0, 5.0), share=1.5, after=())
    return [made, *(replace(_top(phase, -0.04), share=1e-3) for phase in phases[:7])]


LIES: Final[dict[str, Callable[[Sequence[KeptPhase], int], list[KeptPhase]]]] = {
    "highest clock -3 %": lambda phases, _: [_top(phase, -0.03) for phase in phases],
    "highest clock -6 %": lambda phases, _: [_top(phase, -0.06) for phase in phases],
    "highest clock -12 %": lambda phases, _: [_top(phase, -0.12) for phase in phases],
    "highest clock +6 %": lambda phases, _: [_top(phase, 0.06) for phase in phases],
    "no loss at half": lambda phases, half_mhz: [_low(phase, half_mhz) for phase in phases],
    "no loss at half, -6 %": lambda phases, half_mhz: [_both(phase, half_mhz) for phase in phases],
    "less utilisation, -6 %": lambda phases, _: [_idle(phase) for phase in phases],
    "scatter of all, -6 %": lambda phases, _: [_frantic(phase) for phase in phases],
    "phases that never come, -4 %": _phantoms,
}


class Case(msgspec.Struct, frozen=True):
    """A program on a card, and the seed of counters, noise and input."""

    machine: str
    workload: str
    seed: int
    duration_s: float = DURATION_S


class Row(msgspec.Struct, frozen=True):
    """Of each way to begin: the share of the boards' joules that was saved, and the extra time."""

    case: Case
    saved: dict[str, float]
    slower: dict[str, float]


def judge(case: Case) -> Row:
    """All ways of one case."""
    experiment = Experiment(
        case.machine, case.workload, case.seed, BIAS, case.duration_s, gpu_policy="gpu-ladder",
        gpu_params={"bound": BOUND},
    )  # fmt: skip
    work, noise = with_other_input(workload_of(experiment), case.seed, 1), case.seed + 1000
    reference_s, reference_j = work_at_highest_clock(case.machine, work, noise)
    measured = measured_by_the_first(replace(experiment, duration_s=MEASURED_S))
    ways: dict[str, Sequence[KeptPhase]] = {FIRST: (), OWN: measured.tables[0].phases, TRUE: measured.tables[0].phases}
    ways |= {name: lie(measured.tables[0].phases, half_of(experiment)) for name, lie in LIES.items()}
    row = Row(case, {}, {})
    for way, phases in ways.items():
        with tempfile.TemporaryDirectory(prefix="nodectl-elsewhere-") as state_dir:
            program = "/opt/program" if way in (FIRST, OWN) else None
            if phases:
                table = replace(measured.tables[0], phases=tuple(phases))
                accepted(measured, table)
                if way != OWN:
                    table = replace(table, phases=tuple(at_second_hand(table.phases)))
                PhaseFiles.below(state_dir).write(replace(measured, tables=(table,)))
            result = run_again(experiment, work, noise, state_dir, program)
        row.saved[way] = 1.0 - result.joules("gpu") / reference_j
        row.slower[way] = result.slowdown_against(reference_s)
    return row


def measured_by_the_first(experiment: Experiment) -> Remembered:
    """The file of phases that the first node keeps."""
    with tempfile.TemporaryDirectory(prefix="nodectl-elsewhere-") as state_dir:
        run_again(experiment, workload_of(experiment), experiment.seed, state_dir, "/opt/program")
        (found,) = PhaseFiles.below(state_dir).all()[0]
    used_at = datetime.datetime.now(datetime.UTC).isoformat()
    return replace(found, tables=(replace(found.tables[0], used_at=used_at),))


def half_of(experiment: Experiment) -> int:
    """The lowest clock of the card that is at least half of the highest, MHz."""
    clocks_mhz = Twin(load_machine(experiment.machine), workload_of(experiment)).gpus.gpu[0].clocks_mhz
    return int(min(mhz for mhz in clocks_mhz if 2 * mhz >= clocks_mhz[0]))


def accepted(measured: Remembered, table: Table) -> None:
    """Raise ``ValueError`` where the cluster agent would refuse it: that lie judges nothing."""
    if problem := problem_of(measured.key.hardware, table):
        raise ValueError(problem)


def summary(rows: Sequence[Row]) -> str:
    """A table with a line for each way."""
    cells = []
    for way in rows[0].saved:
        saved, slower = np.array([row.saved[way] for row in rows]), np.array([row.slower[way] for row in rows])
        kept = f"{(slower <= KEPT).sum()} of {len(rows)}"
        cells.append([way, f"{saved.mean():.1%}", f"{slower.mean():.1%}", f"{slower.max():.1%}", kept])
    return render(("begins with", "saved, mean", "slower, mean", "worst", f"within {KEPT:.1%}"), cells)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.phases_elsewhere", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="four cases")
    parser.add_argument("--chosen", action="store_true", help="the programs on which the way was chosen")
    parser.add_argument("--processes", type=int, default=2, help="how many cases at a time")
    options = parser.parse_args(argv)
    programs = CHOSEN if options.chosen else JUDGED
    cases = [Case(machine, workload, seed) for machine, workload in programs for seed in SEEDS]
    cases = cases[: 4 if options.quick else None]
    print(f"EMULATED, {len(cases)} cases of {DURATION_S:.0f} s, bound {BOUND:.0%}; load {os.getloadavg()[0]:.0f}")
    rows = []
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        for row in pool.imap(judge, cases):
            rows.append(row)
            worst = max(LIES, key=lambda way: row.slower[way])
            begun = ", ".join(f"{way} {row.saved[way]:.1%} ({row.slower[way]:.1%})" for way in (FIRST, OWN, TRUE))
            print(f"  {row.case.machine} {row.case.workload} {row.case.seed}: saved (slower) {begun};"
                  f" worst {row.slower[worst]:.1%} slower ({worst})", flush=True)  # fmt: skip
    print(summary(rows))
    print("JSON:", save("phases_elsewhere", {"rows": rows}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

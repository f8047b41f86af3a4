"""Workloads times policies in virtual time: what each saves and what it costs, with the oracle for comparison.

Each case runs several times, each time on another node of its type, with other counter errors and other jitter
(``twin.physics.variation``), with every policy on the same node in the same run. Figures are means over the runs, with
95 % intervals of Student's t. They say how far the model's figures scatter by what differs from run to run, not how far
the model is from a machine.

Two references: the highest clock throughout (from which savings are counted) and, for GPUs, the card's own firmware
without a policy. The oracle is the best clock per phase under the same slowdown bound; its *front* is the same search
under other bounds.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterator, Sequence

import msgspec

from foundation.student import mean_interval
from lab.node_demo.costs import cpu_costs, gpu_costs
from lab.node_demo.experiment import Experiment, Result, run_all, workload_of
from lab.node_demo.oracle import Best, PhaseCosts, best_clocks
from nodectl.policies.registry import NONE
from twin.physics.variation import NONE as ALIKE
from twin.physics.variation import Variation

BOUND = 0.03
FRONT = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12)
"""Slowdown bounds of the points on the oracle's front."""

RUNS = 5
"""Ours: the interval is 1.2 deviations of a run wide, and the demonstration takes some minutes."""

GPU_POLICIES = ("fixed", "firmware", "bdpo-gpu", "gpu-ladder")
CPU_POLICIES = ("fixed", "bdpo-cpu", "bdpo-cpu-bounded")


class Case(msgspec.Struct, frozen=True):
    """A workload on a node; ``side`` says whose clocks are moved and whose joules make the headline."""

    machine: str
    workload: str
    side: str  # "gpu": boards; "cpu": the whole node
    duration_s: float
    seed: int = 1
    bias: float = 0.2

    @property
    def headline(self) -> str:
        """Whose energy counts first: GPU boards for GPU jobs, the whole node for CPU jobs."""
        return "gpu" if self.side == "gpu" else "node"


CASES = (
    Case("xh2415", "easywave", "gpu", 120.0),
    Case("xh2415", "hpcg", "gpu", 120.0),
    Case("xh2415", "qe-pw", "gpu", 120.0),
    Case("xh2415", "mixed-gpu:1", "gpu", 120.0),
    Case("v100", "v100:BScholes", "gpu", 120.0),
    Case("genoa-h100", "mixed-gpu:4", "gpu", 60.0),  # the first seed with a phase in which bdpo-gpu lowers clocks
    Case("curie", "hpl", "cpu", 120.0),
    Case("curie", "stream", "cpu", 120.0),
    Case("curie", "gromacs", "cpu", 120.0),
    Case("curie", "mixed-cpu:11", "cpu", 120.0),
    Case("skylake-6146", "mixed-cpu:12", "cpu", 120.0),
    Case("rome", "triad", "cpu", 24.0),  # bound by shared bandwidth: takes some 130 s
)


class Cell(msgspec.Struct, frozen=True):
    """One policy on one case: means over the runs. Savings and slowdown are shares of the run at the highest clock;
    ``against_firmware`` counts the headline energy against the card's own firmware instead (None for CPUs).
    ``half_interval``: by figure, half of its 95 % interval."""

    policy: str
    time_s: float
    energy_j: float
    saving: float
    node_saving: float
    slowdown: float
    against_firmware: float | None
    share: float | None  # of the oracle's saving; None for the references
    half_interval: dict[str, float] = {}


FIGURES = ("time_s", "energy_j", "saving", "node_saving", "slowdown", "against_firmware", "share")


class Comparison(msgspec.Struct, frozen=True):
    """One case with all its policies, the oracle under ``BOUND`` (mean over the runs) and its front in the first run as
    (slowdown, saving) points."""

    case: Case
    draws: list[dict[str, list[float]]]  # of each run per phase: its counter error
    cells: list[Cell]
    oracle_saving: float
    oracle_slowdown: float
    front: list[tuple[float, float]]


def experiments(case: Case, run: int = 0) -> list[Experiment]:
    """One of the runs: one experiment per policy of the case's side; the other side is left alone."""
    policies = GPU_POLICIES if case.side == "gpu" else CPU_POLICIES
    return [
        Experiment(
            machine=case.machine,
            workload=case.workload,
            seed=case.seed + run,
            bias=case.bias,
            duration_s=case.duration_s,
            gpu_policy=policy if case.side == "gpu" else NONE,
            cpu_policy=policy if case.side == "cpu" else NONE,
            variation=Variation(node=case.seed + run),
        )
        for policy in policies
    ]


def compare(cases: Sequence[Case], runs: int = RUNS, processes: int = 2) -> Iterator[Comparison]:
    """Run everything, case by case; yields each as soon as its runs are done. ``runs``: 1, without intervals, to 10."""
    results = run_all([each for case in cases for run in range(runs) for each in experiments(case, run)], processes)
    for case in cases:
        yield _comparison(case, [[next(results) for _ in experiments(case)] for _ in range(runs)])


@functools.cache
def phase_costs(case: Case, run: int = 0) -> tuple[PhaseCosts, ...]:
    """The costs of a case's phases, which the oracle needs: for CPUs those of the run's own node."""
    experiment = experiments(case, run)[0]
    if case.side == "gpu":
        return tuple(gpu_costs(workload_of(experiments(case)[0]).truth))
    even = msgspec.structs.replace(experiment.variation or ALIKE, iteration=0.0)  # chance is no saving
    return tuple(cpu_costs(case.machine, case.workload, experiment.seed, case.bias, case.duration_s, even))


def _comparison(case: Case, runs: Sequence[Sequence[Result]]) -> Comparison:
    bests = [best_clocks(phase_costs(case, run), BOUND) for run in range(len(runs))]
    cells = [
        [_cell(case, result, results, best) for result in results] for results, best in zip(runs, bests, strict=True)
    ]
    return Comparison(
        case=case,
        draws=[_draws(case, results[0].experiment) for results in runs],
        cells=[_mean(of_policy) for of_policy in zip(*cells, strict=True)],
        oracle_saving=statistics.fmean(best.saving for best in bests),
        oracle_slowdown=statistics.fmean(best.slowdown for best in bests),
        front=[(found.slowdown, found.saving) for found in (best_clocks(phase_costs(case), b) for b in FRONT)],
    )


def _draws(case: Case, experiment: Experiment) -> dict[str, list[float]]:
    return {
        phase.name: [round(value, 3) for value in msgspec.structs.astuple(phase.counter_error)]
        for group in workload_of(experiment).truth.groups
        if group.on_gpu == (case.side == "gpu")
        for phase in group.phases
    }


def _mean(cells: Sequence[Cell]) -> Cell:
    """Of one policy: its figures over the runs."""
    mean: dict[str, float] = {}
    half: dict[str, float] = {}
    for name in FIGURES:
        values = [value for cell in cells if (value := getattr(cell, name)) is not None]
        if len(values) > 1:
            mean[name], half[name] = mean_interval(values)
    return msgspec.structs.replace(cells[0], **mean, half_interval=half)


def _cell(case: Case, result: Result, results: Sequence[Result], best: Best) -> Cell:
    reference = results[0]
    firmware = next((each for each in results if each.experiment.gpu_policy == "firmware"), None)
    joules, node = result.joules(case.headline), result.joules("node")
    saving = 1.0 - joules / reference.joules(case.headline)
    policy = result.experiment.gpu_policy if case.side == "gpu" else result.experiment.cpu_policy
    judged = policy not in ("fixed", "firmware") and best.saving > 0
    return Cell(
        policy=policy,
        time_s=result.time_s,
        energy_j=joules,
        saving=saving,
        node_saving=1.0 - node / reference.joules("node"),
        slowdown=result.slowdown_against(reference.time_s),
        against_firmware=1.0 - joules / firmware.joules(case.headline) if firmware else None,
        share=saving / best.saving if judged else None,
    )


def table(comparisons: Sequence[Comparison]) -> list[str]:
    """The comparison as aligned lines."""
    head = f"{'machine':13}{'workload':15}{'policy':18}{'saved':>12}{'vs fw':>12}{'node':>7}{'slower':>12}{'share':>7}"
    lines = [head, "-" * len(head)]
    for each in comparisons:
        for number, cell in enumerate(each.cells):
            case = (each.case.machine, each.case.workload) if number == 0 else ("", "")
            figures = _with_interval(cell, "saving") + _with_interval(cell, "against_firmware")
            figures += _percent(cell.node_saving, 7) + _with_interval(cell, "slowdown")
            is_over = cell.share is not None and cell.slowdown > BOUND + 0.0005
            shows_share = cell.share is not None and each.oracle_saving >= 0.02
            share = f"{cell.share:7.0%}" if shows_share else f"{'-':>7}"
            mark = "  over the bound" if is_over else ""
            lines.append(f"{case[0]:13}{case[1]:15}{cell.policy:18}{figures}{share}{mark}")
        oracle = f"oracle, {BOUND:.0%} bound"
        saved, slower = _percent(each.oracle_saving, 7), _percent(each.oracle_slowdown, 7)
        lines.append(f"{'':28}{oracle:18}{saved}{'':24}{slower}{'':5}{1:7.0%}")
    return lines


def _percent(value: float | None, width: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value * 100 + 0.0:{width}.1f}"


def _with_interval(cell: Cell, figure: str) -> str:
    half = cell.half_interval.get(figure)
    return _percent(getattr(cell, figure), 7) + (" \u00b1" + _percent(half, 3) if half else f"{'':5}")

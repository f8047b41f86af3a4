"""Workloads times policies in virtual time: what each saves and what it costs, with the oracle for comparison.

Two references: the highest clock throughout (from which savings are counted) and, for GPUs, the card's own firmware
without a policy. The oracle is the best clock per phase under the same slowdown bound; its *front* is the same search
under other bounds.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import msgspec

from lab.node_demo.costs import cpu_costs, gpu_costs
from lab.node_demo.experiment import Experiment, Result, run_all, workload_of
from lab.node_demo.oracle import Best, PhaseCosts, best_clocks
from nodectl.policies.registry import NONE

BOUND = 0.03
FRONT = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12)
"""Slowdown bounds of the points on the oracle's front."""

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
)


class Cell(msgspec.Struct, frozen=True):
    """One policy on one case. Savings and slowdown are shares of the run at the highest clock; ``against_firmware``
    counts the headline energy against the card's own firmware instead (None for CPUs)."""

    policy: str
    time_s: float
    energy_j: float
    saving: float
    node_saving: float
    slowdown: float
    against_firmware: float | None
    share: float | None  # of the oracle's saving; None for the references


class Comparison(msgspec.Struct, frozen=True):
    """One case with all its policies, the oracle under ``BOUND`` and its front as (slowdown, saving) points."""

    case: Case
    draws: dict[str, list[float]]  # per phase, its counter error
    cells: list[Cell]
    oracle_saving: float
    oracle_slowdown: float
    front: list[tuple[float, float]]


def experiments(case: Case) -> list[Experiment]:
    """One run per policy of the case's side; the other side is left alone."""
    policies = GPU_POLICIES if case.side == "gpu" else CPU_POLICIES
    return [
        Experiment(
            machine=case.machine,
            workload=case.workload,
            seed=case.seed,
            bias=case.bias,
            duration_s=case.duration_s,
            gpu_policy=policy if case.side == "gpu" else NONE,
            cpu_policy=policy if case.side == "cpu" else NONE,
        )
        for policy in policies
    ]


def compare(cases: Sequence[Case], processes: int = 2) -> Iterator[Comparison]:
    """Run everything, case by case; yields each as soon as its runs are done."""
    results = run_all([each for case in cases for each in experiments(case)], processes)
    for case in cases:
        yield _comparison(case, [next(results) for _ in experiments(case)])


@functools.cache
def phase_costs(case: Case) -> tuple[PhaseCosts, ...]:
    """The costs of a case's phases, which the oracle needs."""
    if case.side == "gpu":
        return tuple(gpu_costs(workload_of(experiments(case)[0]).truth))
    return tuple(cpu_costs(case.machine, case.workload, case.seed, case.bias, case.duration_s))


def _comparison(case: Case, results: Sequence[Result]) -> Comparison:
    best = best_clocks(phase_costs(case), BOUND)
    reference = results[0]
    firmware = next((r for r in results if r.experiment.gpu_policy == "firmware"), None)
    cells = [_cell(case, result, reference, firmware, best) for result in results]
    truth = workload_of(results[0].experiment).truth
    on_gpu = case.side == "gpu"
    return Comparison(
        case=case,
        draws={
            phase.name: [round(value, 3) for value in msgspec.structs.astuple(phase.counter_error)]
            for group in truth.groups
            if group.on_gpu == on_gpu
            for phase in group.phases
        },
        cells=cells,
        oracle_saving=best.saving,
        oracle_slowdown=best.slowdown,
        front=[(found.slowdown, found.saving) for found in (best_clocks(phase_costs(case), b) for b in FRONT)],
    )


def _cell(case: Case, result: Result, reference: Result, firmware: Result | None, best: Best) -> Cell:
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
        slowdown=result.time_s / reference.time_s - 1.0,
        against_firmware=1.0 - joules / firmware.joules(case.headline) if firmware else None,
        share=saving / best.saving if judged else None,
    )


def table(comparisons: Sequence[Comparison]) -> list[str]:
    """The comparison as aligned lines."""
    head = f"{'machine':13}{'workload':15}{'policy':18}{'saved':>7}{'vs fw':>7}{'node':>7}{'slower':>8}{'share':>7}"
    lines = [head, "-" * len(head)]
    for each in comparisons:
        for number, cell in enumerate(each.cells):
            case = (each.case.machine, each.case.workload) if number == 0 else ("", "")
            figures = _percent(cell.saving, 7) + _percent(cell.against_firmware, 7) + _percent(cell.node_saving, 7)
            is_over = cell.share is not None and cell.slowdown > BOUND + 0.0005
            shows_share = cell.share is not None and each.oracle_saving >= 0.02
            share = f"{cell.share:7.0%}" if shows_share else f"{'-':>7}"
            mark = "  over the bound" if is_over else ""
            lines.append(f"{case[0]:13}{case[1]:15}{cell.policy:18}{figures}{_percent(cell.slowdown, 8)}{share}{mark}")
        oracle = f"oracle, {BOUND:.0%} bound"
        lines.append(
            f"{'':28}{oracle:18}{_percent(each.oracle_saving, 7)}{'':14}{_percent(each.oracle_slowdown, 8)}{1:7.0%}"
        )
    return lines


def _percent(value: float | None, width: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value * 100 + 0.0:{width}.1f}"


def seeds(comparisons: Sequence[Comparison]) -> list[str]:
    """The seed and the counter error of each case, one line per case."""
    lines = []
    for each in comparisons:
        errors = "; ".join(f"{name} {values}" for name, values in each.draws.items())
        lines.append(
            f"{each.case.machine} {each.case.workload}: seed {each.case.seed}, bias {each.case.bias:.0%}: {errors}"
        )
    return lines

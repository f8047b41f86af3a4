"""The GPU oracle: best clocks per phase with phases and curves known, and the run at the fixed highest clock.

Costs are GPU boards only, the headline of a GPU job. The search (``lab.node_demo.oracle``) is a knapsack over all
clocks from half the highest up; below, nothing was measured on any card here. Power is that of the settled temperature.
"""

from __future__ import annotations

import functools

from benchmarks.experiment import Experiment, workload_of
from lab.node_demo.costs import gpu_costs
from lab.node_demo.oracle import Best, Shares, best_clocks, best_shares
from twin.machine import load_machine
from twin.physics.model import Report, Twin
from twin.programs.workload import Workload


def oracle(experiment: Experiment, bound: float) -> Best:
    """Best clock per phase under ``bound``; phases and curves known."""
    return best_clocks(gpu_costs(workload_of(experiment).truth), bound)


def oracle_of_two_clocks(experiment: Experiment, bound: float) -> Shares:
    """As ``oracle``, but a phase may share its work between two clocks, as a policy can."""
    return best_shares(gpu_costs(workload_of(experiment).truth), bound)


@functools.lru_cache(maxsize=512)
def at_highest_clock(
    machine: str, workload: str, seed: int, bias: float, duration_s: float | None
) -> tuple[float, float]:
    """Seconds and joules of all GPU boards of a run with every GPU locked to its highest clock."""
    return work_at_highest_clock(machine, workload_of(Experiment(machine, workload, seed, bias, duration_s)), seed)


def work_at_highest_clock(machine: str, workload: Workload, noise: int) -> tuple[float, float]:
    """The same of a given workload, with the noise of a seed."""
    node = load_machine(machine)
    twin = Twin(node, workload, seed=noise)
    for index in range(node.gpus):
        highest_mhz = twin.gpus.gpu[index].clocks_mhz[0]
        twin.lock_gpu(index, highest_mhz, highest_mhz)
    while not twin.finished:
        twin.advance(10.0)
    report: Report = twin.report()
    return report.time_s, sum(joules for part, joules in report.energy_j.items() if part.startswith("gpu-"))

"""The GPU oracle: best clock per phase with phases and curves known, and the run at the fixed highest clock.

Costs are GPU boards only, the headline of a GPU job. The search (``nodectl.demo.oracle``) is a knapsack over all clocks
from half the highest up; below, nothing was measured on any card here. Power is that of the settled temperature.
"""

from __future__ import annotations

import functools

import numpy as np

from benchmarks.experiment import Experiment, workload_of
from nodectl.demo.oracle import Best, PhaseCosts, best_clocks
from twin.machine import load_machine
from twin.model import Report, Twin

LOWEST_SHARE = 0.49
"""The V100 table ends at 757 of 1530 MHz."""


def oracle(experiment: Experiment, bound: float) -> Best:
    """Best clock per phase under ``bound``. All GPUs of a group run the same program, so one stands for all."""
    phases: list[PhaseCosts] = []
    for group in workload_of(experiment).truth.groups:
        if not group.on_gpu:
            continue
        for index, phase in enumerate(group.phases):
            work_s = group.repeat * sum(seconds for part, seconds in group.program if part == index)
            clocks = np.array(phase.clocks_mhz)
            is_searched = clocks >= LOWEST_SHARE * clocks[-1]
            seconds = work_s / np.array(phase.speed)[is_searched]
            joules = seconds * np.array(phase.power_w)[is_searched] * len(group.units)
            phases.append(PhaseCosts(phase.name, seconds, joules))
    return best_clocks(phases, bound)


@functools.lru_cache(maxsize=512)
def at_highest_clock(
    machine: str, workload: str, seed: int, bias: float, duration_s: float | None
) -> tuple[float, float]:
    """Seconds and joules of all GPU boards of a run with every GPU locked to its highest clock."""
    experiment = Experiment(machine, workload, seed, bias, duration_s)
    node = load_machine(machine)
    twin = Twin(node, workload_of(experiment), seed=seed)
    for index in range(node.gpus):
        card = twin.gpus.gpu[index]
        card.lock_min_mhz = card.lock_max_mhz = card.clocks_mhz[0]  # as NVML's SetGpuLockedClocks does
        card.lock_seq += 1
    while not twin.finished:
        twin.advance(10.0)
    report: Report = twin.report()
    return report.time_s, sum(joules for part, joules in report.energy_j.items() if part.startswith("gpu-"))

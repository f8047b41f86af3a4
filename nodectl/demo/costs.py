"""What each phase of a workload truly costs at each clock: the table an oracle searches.

For GPUs the model's own curves say it (board watts and speed per clock). For CPUs every clock is run once, since a
node's watts also hold temperature, uncore and DRAM.
"""

from __future__ import annotations

import functools

import numpy as np

from nodectl.demo.oracle import PhaseCosts
from twin.machine import load_machine
from twin.model import Report, Twin
from twin.workload import WorkloadTruth, load_workload


@functools.lru_cache(maxsize=256)
def at_fixed_clock(machine: str, workload: str, seed: int, bias: float, duration_s: float | None, khz: int) -> Report:
    """The truth of one run with every CPU domain held at ``khz``; 0 = the highest."""
    node = load_machine(machine)
    twin = Twin(node, load_workload(workload, node, seed=seed, bias=bias, duration_s=duration_s), seed=seed)
    for index, domain in enumerate(node.domains):
        twin.set_domain(index, max_khz=khz or domain.max_khz)
    while not twin.finished:
        twin.advance(1.0)
    return twin.report()


def cpu_costs(machine: str, workload: str, seed: int, bias: float, duration_s: float | None) -> list[PhaseCosts]:
    """Whole-node joules and seconds of each phase at each clock of the first domain, lowest clock first."""
    clocks = load_machine(machine).domains[0].steps_khz
    reports = [at_fixed_clock(machine, workload, seed, bias, duration_s, khz) for khz in clocks]
    return [
        PhaseCosts(
            first.name,
            np.array([report.phases[index].seconds for report in reports]),
            np.array([report.phases[index].node_j for report in reports]),
        )
        for index, first in enumerate(reports[0].phases)
    ]


def gpu_costs(truth: WorkloadTruth) -> list[PhaseCosts]:
    """Board joules (all GPUs) and seconds of each GPU phase at each clock, lowest clock first."""
    costs = []
    for group in truth.groups:
        if not group.on_gpu:
            continue
        for index, phase in enumerate(group.phases):
            work_s = group.repeat * sum(seconds for number, seconds in group.program if number == index)
            seconds = work_s / np.asarray(phase.speed)
            costs.append(PhaseCosts(phase.name, seconds, seconds * np.asarray(phase.power_w) * len(group.units)))
    return costs

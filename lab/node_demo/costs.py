"""The true cost of each phase of a workload at each clock: the table that an oracle searches.

For GPUs the model's own curves give it (board watts and speed per clock). For CPUs every clock is run once, since a
node's watts also depend on temperature, uncore and DRAM.
"""

from __future__ import annotations

import functools

import numpy as np

from lab.node_demo.oracle import PhaseCosts
from twin.machine import load_machine
from twin.physics.model import Report, Twin
from twin.programs.workload import WorkloadTruth, load_workload


@functools.lru_cache(maxsize=256)
def at_fixed_clock(machine: str, workload: str, seed: int, bias: float, duration_s: float | None, khz: int) -> Report:
    """The truth of one run with every frequency domain limited to ``khz``; 0: the highest."""
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


LOWEST_SHARE = 0.49
"""Clocks below this share of the highest are not searched: the V100 table ends at 757 of 1530 MHz, and no card here has
figures below it."""


def gpu_costs(truth: WorkloadTruth) -> list[PhaseCosts]:
    """Board joules (all GPUs) and seconds of each GPU phase at each clock that is searched, lowest first.

    All GPUs of a group run the same program, so one stands for all; power is that of the settled temperature.
    """
    costs = []
    for group in truth.groups:
        if not group.on_gpu:
            continue
        for index, phase in enumerate(group.phases):
            work_s = group.repeat * sum(seconds for number, seconds in group.program if number == index)
            clocks = np.asarray(phase.clocks_mhz)
            searched = clocks >= LOWEST_SHARE * clocks[-1]
            seconds = work_s / np.asarray(phase.speed)[searched]
            joules = seconds * np.asarray(phase.power_w)[searched] * len(group.units)
            costs.append(PhaseCosts(phase.name, seconds, joules))
    return costs

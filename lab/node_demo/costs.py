"""The true cost of each phase of a workload at each clock: the table that an oracle searches.

For GPUs the model's own curves give it (board watts and speed per clock). For CPUs the model is run at every clock:
speed and watts also depend on shared bandwidth, turbo bins, power limits, the uncore, temperature and on which node it
is, so any formula here would be a second physics.
"""

from __future__ import annotations

import numpy as np

from lab.node_demo.oracle import PhaseCosts
from twin.machine import load_machine
from twin.physics.model import Report, Twin
from twin.physics.variation import NONE as ALIKE
from twin.physics.variation import Variation
from twin.programs.workload import WorkloadTruth, load_workload

MOST_CLOCKS = 20
"""Ours: all of Skylake's below its highest."""


def run_at(
    machine: str,
    workload: str,
    seed: int,
    bias: float,
    duration_s: float | None,
    khz: int,
    variation: Variation = ALIKE,
) -> tuple[Report, int]:
    """The truth of one run with every clock limited to ``khz`` (0: the highest), and the highest clock in kHz that was
    seen in it, once a second."""
    node = load_machine(machine)
    work = load_workload(workload, node, seed=seed, bias=bias, duration_s=duration_s)
    twin = Twin(node, work, seed=seed, variation=variation)
    for index, domain in enumerate(node.domains):
        twin.set_domain(index, max_khz=khz or domain.max_khz)
    reached = 0
    while not twin.finished:
        twin.advance(1.0)
        reached = max(reached, *map(twin.domain_khz, range(len(node.domains))))
    return twin.report(), reached


def at_fixed_clock(
    machine: str,
    workload: str,
    seed: int,
    bias: float,
    duration_s: float | None,
    khz: int,
    variation: Variation = ALIKE,
) -> Report:
    """The truth of one run with every clock limited to ``khz``. With 0, the highest, it is the reference for savings
    and slowdowns: the same work of the same run on the same node without a policy."""
    return run_at(machine, workload, seed, bias, duration_s, khz, variation)[0]


def cpu_costs(
    machine: str, workload: str, seed: int, bias: float, duration_s: float | None, variation: Variation = ALIKE
) -> list[PhaseCosts]:
    """Whole-node joules and seconds of each phase at each clock of the first domain, lowest clock first. Clocks that
    no core reaches, by turbo bins or limits of power, are those of the highest and are left out; of more than
    ``MOST_CLOCKS`` each second one is."""
    steps = load_machine(machine).domains[0].steps_khz
    free, reached = run_at(machine, workload, seed, bias, duration_s, 0, variation)
    clocks = [khz for khz in steps[:-1] if khz < reached]
    if len(clocks) > MOST_CLOCKS:
        clocks = clocks[::-2][::-1]
    reports = [at_fixed_clock(machine, workload, seed, bias, duration_s, khz, variation) for khz in clocks]
    reports.append(free)
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

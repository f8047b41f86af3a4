"""The CPU oracle: every phase of a workload measured at every clock on the twin, then the best clock per phase.

Costs are the whole node's: what counts for a CPU job is the meter at the wall, and a longer run also draws the rest
of the node for longer. The search is ``nodectl.demo.oracle``.
"""

from __future__ import annotations

import functools

import numpy as np

from nodectl.demo.oracle import Best, PhaseCosts, best_clocks
from twin.machine import load_machine
from twin.model import Report, Twin
from twin.workload import load_workload

SETTLE_S = 0.05


@functools.lru_cache(maxsize=256)
def at_fixed_clock(machine: str, workload: str, seed: int, bias: float, duration_s: float | None, khz: int) -> Report:
    """The truth of one run with every domain held at ``khz``; 0 = the highest."""
    node = load_machine(machine)
    twin = Twin(node, load_workload(workload, node, seed=seed, bias=bias, duration_s=duration_s), seed=seed)
    for index, domain in enumerate(node.domains):
        twin.set_domain(index, max_khz=khz or domain.max_khz)
    while not twin.finished:
        twin.advance(1.0)
    return twin.report()


def oracle(machine: str, workload: str, seed: int, bias: float, duration_s: float | None, bound: float) -> Best:
    """Best clock per phase under ``bound``; phases and their costs known."""
    clocks = load_machine(machine).domains[0].steps_khz
    reports = [at_fixed_clock(machine, workload, seed, bias, duration_s, khz) for khz in clocks]
    phases = []
    for index, first in enumerate(reports[0].phases):
        seconds = np.array([report.phases[index].seconds for report in reports])
        joules = np.array([report.phases[index].node_j for report in reports])
        phases.append(PhaseCosts(first.name, seconds, joules))
    return best_clocks(phases, bound)

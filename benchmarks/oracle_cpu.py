"""The CPU oracle: every phase of a workload measured at every clock on the twin, then the best clocks per phase.

Costs are the whole node's: what counts for a CPU job is the meter at the wall, and a longer run also draws the rest
of the node for longer.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from lab.node_demo.costs import at_fixed_clock, cpu_costs
from lab.node_demo.oracle import Best, Shares, best_clocks, best_shares
from twin.physics.variation import NONE as ALIKE
from twin.physics.variation import Variation


@dataclass(frozen=True, slots=True)
class Truth:
    """What a workload costs on one node in one run at the highest clocks, and what the oracles do under a bound."""

    time_s: float
    node_j: float
    best: Best  # one clock per phase
    shared: Shares  # a phase may share its work between two clocks, as a policy can


def oracle(
    machine: str, workload: str, seed: int, bias: float, duration_s: float | None, bound: float,
    variation: Variation = ALIKE,
) -> Truth:  # fmt: skip
    """Phases and their costs known. The reference is the run at the highest clocks of the same seed on the same node.

    Single iterations are as long as their mean for the oracle: what a run at one clock has by chance is no saving.
    """
    reference = at_fixed_clock(machine, workload, seed, bias, duration_s, 0, variation)
    even = msgspec.structs.replace(variation, iteration=0.0)
    costs = cpu_costs(machine, workload, seed, bias, duration_s, even)
    return Truth(reference.time_s, reference.energy_j["node"], best_clocks(costs, bound), best_shares(costs, bound))

"""The CPU oracle: every phase of a workload measured at every clock on the twin, then the best clocks per phase.

Costs are the whole node's: what counts for a CPU job is the meter at the wall, and a longer run also draws the rest
of the node for longer.
"""

from __future__ import annotations

from lab.node_demo.costs import at_fixed_clock, cpu_costs
from lab.node_demo.oracle import Best, Shares, best_clocks, best_shares

__all__ = ["at_fixed_clock", "oracle", "oracle_of_two_clocks"]


def oracle(machine: str, workload: str, seed: int, bias: float, duration_s: float | None, bound: float) -> Best:
    """Best clock per phase under ``bound``; phases and their costs known."""
    return best_clocks(cpu_costs(machine, workload, seed, bias, duration_s), bound)


def oracle_of_two_clocks(
    machine: str, workload: str, seed: int, bias: float, duration_s: float | None, bound: float
) -> Shares:
    """As ``oracle``, but a phase may share its work between two clocks, as a policy can."""
    return best_shares(cpu_costs(machine, workload, seed, bias, duration_s), bound)

"""A configuration table like that of LLNL's Cab, generated: the measured one is not published.

The grid, the applications' names and their watts at 64 x 16 cores and 115 W per socket are RMAP's (Patki et al., HPDC
2015, §5). The rest is a model of ours with a seed: a socket draws a base and, for each busy core, watts that grow with
the clock; the clock is the highest that keeps the cap, in turbo only without one; time has a part that shrinks with
cores and clock, a part bound by memory, and communication that grows with the nodes.
"""

from __future__ import annotations

from math import floor, log2
from typing import Final

import msgspec
import numpy as np

from cluster_agent.scheduler.configurations.table import Configuration

NODES: Final = tuple(range(8, 65, 4))
CORES: Final = tuple(range(8, 17, 2))
CAPS_W: Final = (51.0, 65.0, 80.0, 95.0, 115.0)
SOCKETS: Final = 2

BASE_GHZ, LOWEST_GHZ = 2.6, 1.2
TURBO_GHZ: Final = {8: 3.3, 10: 3.2, 12: 3.2, 14: 3.1, 16: 3.0}
"""Published: at most 3.3, and 3.0 with 16 cores; between them ours."""
SOCKET_BASE_W: Final = 20.0
CLOCK_EXPONENT: Final = 2.2
"""Ours: dynamic watts per clock, between the 1 of a fixed voltage and the 3 of one in proportion."""


class Application(msgspec.Struct, frozen=True):
    """``socket_w`` on all nodes, cores and watts; shares of the time on 8 x 8 cores at the base clock."""

    name: str
    socket_w: float
    memory: float
    communication: float


APPLICATIONS: Final = (
    Application("SPhot", 84.0, 0.05, 0.002),
    Application("BT-MZ", 86.0, 0.20, 0.010),
    Application("SP-MZ", 92.6, 0.30, 0.012),
    Application("LU-MZ", 88.0, 0.25, 0.015),
    Application("SC", 80.0, 0.02, 0.002),
    Application("NSC", 66.1, 0.02, 0.080),
    Application("SM", 79.0, 0.70, 0.002),
    Application("NSM", 72.3, 0.70, 0.080),
)
"""Published: the names, 92.6 W and 66.1 W as the extremes and 81.0 W as the mean; what is between them is ours."""

SHORTEST_S, LONGEST_S = 1000.0, 8000.0
"""Ours: how long the applications take on 8 x 8 cores at the base clock."""
NOISE: Final = 0.02
"""Ours: of measured times and watts, as a standard deviation."""


def cab_table(seed: int = 1) -> dict[str, tuple[Configuration, ...]]:
    """For each application all 375 rows of the grid."""
    rng = np.random.default_rng(seed)
    lengths_s = np.exp(rng.uniform(np.log(SHORTEST_S), np.log(LONGEST_S), len(APPLICATIONS)))
    return {
        one.name: tuple(
            _row(one, float(length_s), nodes, cores, cap_w, *rng.normal(0, NOISE, 2).tolist())
            for nodes in NODES
            for cores in CORES
            for cap_w in CAPS_W
        )
        for one, length_s in zip(APPLICATIONS, lengths_s, strict=True)
    }


def _row(
    one: Application, length_s: float, nodes: int, cores: int, cap_w: float, time_noise: float, watts_noise: float
) -> Configuration:
    highest_ghz = TURBO_GHZ[cores] if cap_w >= max(CAPS_W) else BASE_GHZ
    at_full = (one.socket_w - SOCKET_BASE_W) / (max(CORES) / SOCKETS) / TURBO_GHZ[max(CORES)] ** CLOCK_EXPONENT
    per_core_w = at_full * cores / SOCKETS
    ghz = min(highest_ghz, ((cap_w - SOCKET_BASE_W) / per_core_w) ** (1 / CLOCK_EXPONENT))
    ghz = max(floor(10 * ghz + 1e-9) / 10, LOWEST_GHZ)
    socket_w = min(SOCKET_BASE_W + per_core_w * ghz**CLOCK_EXPONENT, cap_w)
    compute = (1 - one.memory) * (8 * 8) / (nodes * cores) * BASE_GHZ / ghz
    memory = one.memory * 8 / nodes  # bandwidth is the node's, whatever the cores and the clock
    communication = one.communication * log2(nodes / 4)
    return Configuration(
        nodes,
        cores,
        cap_w,
        round(length_s * (compute + memory + communication) * (1 + time_noise), 1),
        round(SOCKETS * nodes * min(socket_w * (1 + watts_noise), cap_w), 1),
    )
